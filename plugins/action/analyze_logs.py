# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.analyze_logs: judges log files from anywhere."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import write_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.offline import as_run, compile_for_kinds
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.verdict import judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.find import find_logs, measure_logs
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS, OPEN
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction

RUN_ID = r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?"


class ActionModule(ReadinessAction):
    """Leaves a run directory like that of a certification, so that the same report is written from it."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "logs": {"type": "raw", "required": True},
        "kind": {"type": "str", "default": "auto"},
        "criteria": {"type": "raw", "default": []},
        "thresholds": {"type": "raw", "default": {}},
        "allow_no_criteria": {"type": "bool", "default": False},
        "exit_code": {"type": "int"},
        "nodes": {"type": "list", "elements": "str", "default": []},
        "context": {"type": "dict", "default": {}},
        "together": {"type": "bool", "default": False},
        "runs_dir": {"type": "path", "default": "runs"},
        "run_id": {"type": "str"},
    }

    def act(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Criteria are compiled before the first log is measured."""
        now = time.time()
        run_id = arguments["run_id"] or f"analyze-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"
        if not re.fullmatch(RUN_ID, run_id):
            raise InputError(f"{run_id!r} cannot be a run id", place="run_id", hint="Lower-case letters, digits and hyphens")
        found = find_logs(arguments["logs"], arguments["kind"], together=arguments["together"])
        criteria = [arguments["criteria"]] if isinstance(arguments["criteria"], str) else arguments["criteria"]
        compiled = compile_for_kinds([log["kind"] for log in found["logs"]], criteria, arguments["thresholds"], METRICS, OPEN)
        context = {**arguments["context"], **{key: arguments[key] for key in ("exit_code", "nodes") if arguments[key] not in (None, [])}}
        logs = [{**log, "nodes": arguments["nodes"]} for log in measure_logs(found["logs"], context)]
        run = as_run(logs, compiled)
        judged = {
            category["id"]: judge_category(
                category,
                run["observations"][category["id"]],
                run["measurements"][category["id"]],
                compiled[category["test"].partition("/")[2]],
                allow_no_criteria=arguments["allow_no_criteria"],
            )
            for category in run["plan"]["categories"]
        }
        run_dir = os.path.abspath(os.path.join(os.path.expanduser(arguments["runs_dir"]), run_id))
        result = {"run_id": run_id, "run_dir": run_dir, "verdicts": {name: item["verdict"] for name, item in judged.items()}}
        if self.check_mode:
            return {"changed": False, **result}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        meta = {"run_id": run_id, "started": stamp, "finished": stamp, "name": "analyze", "notes": found["notes"]}
        _write(run_dir, meta, run, judged, logs)
        return {"changed": True, **result}


def _write(run_dir: str, meta: dict[str, t.Any], run: dict[str, t.Any], judged: dict[str, t.Any], logs: list[dict[str, t.Any]]) -> None:
    """The run directory: what a certification leaves, and a copy of every log."""
    if os.path.exists(os.path.join(run_dir, "run.json")):
        raise InputError("a run with this id exists", place=run_dir, hint="Take another run_id")
    try:
        for name in ("snapshot", "plan"):
            write_json(os.path.join(run_dir, f"{name}.json"), run[name])
        for category_id, item in judged.items():
            write_json(os.path.join(run_dir, "judged", f"{category_id}.json"), item)
            write_json(os.path.join(run_dir, "observations", f"{category_id}.json"), run["observations"][category_id])
        for number, log in enumerate(logs, start=1):
            for path in log["paths"]:
                target = os.path.join(run_dir, "logs", f"{number:03d}-{os.path.basename(path)}")
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(path, target)
        write_json(os.path.join(run_dir, "run.json"), meta)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=run_dir, hint="Set runs_dir to another directory") from error
