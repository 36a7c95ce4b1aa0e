# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.certification_plan."""

from __future__ import annotations

import os
import re
import secrets
import time
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import write_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.journal import utc
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import load_floors, load_registries
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.health import DEFAULT_EXPRESSION, compile_health
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.planning import check_request, make_plan
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.spec import parse_spec
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction, catalog_directories, collection_version

RUN_ID = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"


class ActionModule(ReadinessAction):
    """Checks a certification, plans it on a snapshot, and opens the archive of the run."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "certification": {"type": "dict"},
        "resume": {"type": "path"},
        "snapshot": {"type": "dict"},
        "runs_dir": {"type": "path", "default": "runs"},
        "run_id": {"type": "str"},
        "catalog_dirs": {"type": "list", "elements": "path", "default": []},
    }
    SPEC_RULES: t.ClassVar[dict[str, t.Any]] = {
        "required_one_of": [["certification", "resume"]],
        "mutually_exclusive": [["resume", "certification"], ["resume", "snapshot"], ["resume", "run_id"]],
    }

    def act(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Without a snapshot only the request is checked: a typo is told before the cluster is asked anything."""
        if arguments["resume"]:
            return self._resume(RunDirectory(arguments["resume"]))
        spec = parse_spec(arguments["certification"])
        compile_health(spec["node_health"] or DEFAULT_EXPRESSION, "certification.node_health")
        directories = catalog_directories(arguments["catalog_dirs"])
        for directory in directories:
            if not os.path.isdir(directory):
                raise InputError("is not a directory", place=directory, hint="Each of catalog_dirs must exist")
        check_request(spec, directories)
        if arguments["snapshot"] is None:
            return {"changed": False, "certification": spec}
        catalog = {**load_catalog(directories), "registries": load_registries(directories), "floors": load_floors(directories)}
        plan = make_plan(spec, arguments["snapshot"], catalog, directories)
        plan["health_conditions"] = catalog["health_conditions"]  # while nodes are under test they are held to the same as before
        return self._open_run(spec, arguments, plan)

    def _resume(self, run: RunDirectory) -> dict[str, t.Any]:
        """An interrupted run from its archive: the same plan, and the time it was given once more."""
        plan, meta, spec = run.read(run.plan), run.read(run.run), run.read(run.spec)
        now = time.time()
        deadline = now + spec["bounds"]["deadline_s"]
        meta.update(deadline_at=utc(deadline), deadline_epoch=deadline, resumed=[*meta.get("resumed", []), utc(now)])
        if not self.check_mode:
            write_json(run.run, meta)
        self.say(f"Resuming run {meta['run_id']}; what is finished is not run again")
        summary = {"run_id": meta["run_id"], "run_dir": run.path, "cost": plan["cost"]}
        return {"changed": not self.check_mode, **summary, "categories": [_summary(category) for category in plan["categories"]]}

    def _open_run(self, spec: dict[str, t.Any], arguments: dict[str, t.Any], plan: dict[str, t.Any]) -> dict[str, t.Any]:
        now = time.time()
        run_id = arguments["run_id"] or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"
        if not re.fullmatch(RUN_ID, run_id):
            raise InputError(f"{run_id!r} cannot be a run id", place="run_id", hint="Lower-case letters, digits and hyphens, at most 32")
        run = RunDirectory(os.path.join(os.path.expanduser(arguments["runs_dir"]), run_id))
        if os.path.exists(run.plan):
            raise InputError("a run with this id exists", place=run.path, hint="Take another run_id")
        summary = {
            "run_id": run_id,
            "run_dir": run.path,
            "cost": plan["cost"],
            "categories": [_summary(category) for category in plan["categories"]],
        }
        for line in _announcement(plan, "" if self.check_mode else run.path):
            self.say(line)
        if self.check_mode:
            return {"changed": False, **summary, "plan": plan}
        try:
            os.makedirs(run.path, exist_ok=True)
            started = {
                "run_id": run_id,
                "version": collection_version(),
                "started": utc(now),
                "deadline_at": utc(now + spec["bounds"]["deadline_s"]),
            }
            write_json(run.spec, spec)
            write_json(run.snapshot, arguments["snapshot"])
            write_json(run.plan, plan)
            write_json(run.run, {**started, "started_epoch": now, "deadline_epoch": now + spec["bounds"]["deadline_s"]})
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", place=run.path, hint="Set runs_dir to another directory") from error
        return {"changed": True, **summary}


def _summary(category: dict[str, t.Any]) -> dict[str, t.Any]:
    kept = {key: category[key] for key in ("id", "short_id", "title", "test", "test_scale", "gpu", "isolate")}
    return {**kept, "groups": len(category["groups"]), "nodes": sum(len(group["nodes"]) for group in category["groups"])}


def _announcement(plan: dict[str, t.Any], path: str) -> list[str]:
    """What will be run and what it can cost at most, before it costs anything. path: of the archive, "" where none is made."""
    cost = plan["cost"]
    place = f"archive {path}" if path else "check mode, nothing is created"
    lines = [f"Plan: {cost['groups']} groups on {cost['nodes']} nodes, at most {cost['gpu_hours_max']} GPU hours; {place}"]
    for category in plan["categories"]:
        criteria = [*category["criteria"], *[f"{key}: {value}" for key, value in category["thresholds"].items()]]
        limit = "; ".join(criteria) if criteria else "no criterion: set one, no floor is calibrated for these nodes"
        count = len(category["groups"])
        lines.append(f"  {category['title']}: {count} group{'' if count == 1 else 's'}, {limit}")
    return lines
