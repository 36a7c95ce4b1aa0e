# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.certification_plan."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory, new_run_id
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ReadinessError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.shapes import Category, Owner, Plan
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.runs import (
    check_takeable,
    open_run,
    plan_of,
    refuse_elsewhere,
    request_of,
    resume_run,
)
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.anchors import NotOurs
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction, catalog_directories, collection_version


class ActionModule(ReadinessAction):
    """Checks a certification, plans it on a snapshot, and opens the archive of the run."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
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

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Without a snapshot only the request is checked: a typo is told before the cluster is asked anything."""
        now = time.time()
        if arguments["resume"]:
            return self._resume(RunDirectory(arguments["resume"]), Client.from_options(arguments), now)
        directories = catalog_directories(arguments["catalog_dirs"])
        request, entries = request_of(arguments["certification"], directories)
        if arguments["snapshot"] is None:
            return {"changed": False, "certification": request}
        plan = plan_of(request, entries, arguments["snapshot"], directories)
        run_id = new_run_id(arguments["run_id"], now)
        run = RunDirectory.create(arguments["runs_dir"], run_id)
        lock = self.lock_of(run)
        if arguments["run_id"]:  # one that was made up is nobody else's
            _refuse_live(arguments, run_id, plan, lock.owner)
        for line in _announcement(plan, "" if self.check_mode else run.path):
            self.progress(line)
        if self.check_mode:
            return {"changed": False, **_result(run_id, run, plan), "plan": plan}
        with lock:
            RunDirectory.create(arguments["runs_dir"], run_id)  # nobody has made it meanwhile
            open_run(run, run_id, request, arguments["snapshot"], plan, now=now, version=collection_version())
        return {"changed": True, **_result(run_id, run, plan)}

    def _resume(self, run: RunDirectory, client: Client, now: float) -> dict[str, t.Any]:
        """Nothing is written, nor an archive unsealed, before it is certain that the run may be taken up here."""
        lock = self.lock_of(run)
        lock.check()
        check_takeable(run, client, lock.owner)
        if self.check_mode:
            meta = resume_run(run, now=now, dry=True)
        else:
            with lock:
                meta = resume_run(run, now=now)
        self.progress(f"Resuming run {meta['run_id']}; what is finished is not run again")
        return {"changed": not self.check_mode, **_result(meta["run_id"], run, run.read_plan())}


def _refuse_live(arguments: dict[str, t.Any], run_id: str, plan: Plan, owner: Owner) -> None:
    """Raises NotOurs before a directory is made for a run whose id is taken. What cannot be asked here is asked by the preflight."""
    try:
        refuse_elsewhere(Client.from_options(arguments), run_id, plan, owner)
    except NotOurs:
        raise
    except ReadinessError:
        return


def _result(run_id: str, run: RunDirectory, plan: Plan) -> dict[str, t.Any]:
    return {"run_id": run_id, "run_dir": run.path, "cost": plan["cost"], "categories": [_summary(item) for item in plan["categories"]]}


def _summary(category: Category) -> dict[str, t.Any]:
    kept = {
        key: value
        for key, value in category.items()
        if key in ("id", "short_id", "title", "test", "test_scale", "gpu", "repeat", "k_of_n", "isolate")
    }
    return {**kept, "groups": len(category["groups"]), "nodes": sum(len(group["nodes"]) for group in category["groups"])}


def _announcement(plan: Plan, path: str) -> list[str]:
    """What will be run and what it can cost at most, before it costs anything. path: of the archive, "" where none is made."""
    cost = plan["cost"]
    place = f"archive {path}" if path else "check mode, nothing is created"
    runs = cost.get("runs", cost["groups"])
    repeated = f", {runs} runs" if runs != cost["groups"] else ""
    lines = [f"Plan: {cost['groups']} groups on {cost['nodes']} nodes{repeated}, at most {cost['gpu_hours_max']} GPU hours; {place}"]
    for category in plan["categories"]:
        criteria = [*category["criteria"], *[f"{key}: {value}" for key, value in category["thresholds"].items()]]
        limit = "; ".join(criteria) if criteria else "no criterion: set one, no floor is calibrated for these nodes"
        count = len(category["groups"])
        lines.append(f"  {category['title']}: {count} group{'' if count == 1 else 's'}{_repeats(category)}, {limit}")
    return lines


def _repeats(category: Category) -> str:
    repeat, k = category.get("repeat", 1), category.get("k_of_n")
    if repeat == 1:
        return ""
    return f" x {repeat} repeats, {f'{k} must pass' if k else 'the median judged'}"
