# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.analyze_logs: judges log files from anywhere."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory, new_run_id
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.analysis import analyze, keep
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


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

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Criteria are compiled before the first log is measured."""
        now = time.time()
        run_id = new_run_id(arguments["run_id"], now, "analyze-")
        run = RunDirectory.create(arguments["runs_dir"], run_id)
        given = {key: arguments[key] for key in ("exit_code", "nodes") if arguments[key] not in (None, [])}
        analysis = analyze(
            arguments["logs"],
            arguments["kind"],
            arguments["criteria"],
            arguments["thresholds"],
            context={**arguments["context"], **given},
            nodes=arguments["nodes"],
            together=arguments["together"],
            allow_no_criteria=arguments["allow_no_criteria"],
        )
        verdicts = {name: item["verdict"] for name, item in analysis["judged"].items()}
        if not self.check_mode:
            with self.lock_of(run):
                keep(run, run_id, analysis, now)
        return {"changed": not self.check_mode, "run_id": run_id, "run_dir": run.path, "verdicts": verdicts}
