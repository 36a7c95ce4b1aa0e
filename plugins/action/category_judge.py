# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.category_judge: reads the logs of a category, measures, judges."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import write_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.verdict import apply_isolation
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.isolation import conclude_diagnose, conclusions, must_isolate
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._categories import effective_category, judge


class ActionModule(ReadinessAction):
    """Works from the archive alone, so a category can be judged again at any time, also offline."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "run_dir": {"type": "path", "required": True},
        "category": {"type": "str", "required": True},
        "failure": {"type": "str"},
    }

    def act(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """failure: why the batch of the category broke off, when it left no observation."""
        run = RunDirectory(arguments["run_dir"])
        category = effective_category(run, arguments["category"])
        judged = self._judged(run, category, arguments["failure"])
        if not self.check_mode:
            write_json(run.judged(category["id"]), judged)
        self.say(f"{category['title']}: {judged['verdict']}: {judged['why']}")
        counts: dict[str, int] = {}
        for member in judged["members"].values():
            counts[member["verdict"]] = counts.get(member["verdict"], 0) + 1
        verdict = {key: judged[key] for key in ("verdict", "why")}
        return {
            "changed": not self.check_mode,
            **verdict,
            "nodes": counts,
            "isolate": judged["isolation"] is None and must_isolate(category, judged),
            "judged": run.judged(category["id"]),
        }

    def _judged(self, run: RunDirectory, category: dict[str, t.Any], failure: str | None) -> dict[str, t.Any]:
        record = run.read(run.isolation(category["id"])) if os.path.exists(run.isolation(category["id"])) else None
        if category["test_scale"] == "diagnose":
            if record and record["conclusion"]:
                return conclude_diagnose(category, record)
            failure = failure or "the search for the component at fault did not end"
        if not os.path.exists(run.observation(category["id"])):
            if not failure:
                return judge(run, category, {"groups": [], "cleanup": None, "cancelled": ""})
            write_json(run.observation(category["id"]), broken_off(category, failure))
        judged = judge(run, category, run.read(run.observation(category["id"])))
        if record and record["conclusion"]:
            judged = apply_isolation(judged, conclusions(record))
            judged["isolation"].update(conclusion=record["conclusion"])
        return judged


def broken_off(category: dict[str, t.Any], why: str) -> dict[str, t.Any]:
    """The observation of a batch that could not be run: nobody's fault but ours, and no node was tested."""
    attempt = {
        "attempt": 1, "name": "", "outcome": "not_started", "reason": "SetupError", "message": why, "nodes": [], "exit_code": None,
        "created": None, "started": None, "finished": None, "duration_s": None, "pods": [], "events": [], "health": [], "retryable": False,
    }  # fmt: skip
    groups = [{**group, "attempts": [dict(attempt)]} for group in category["groups"]]
    return {"groups": groups, "cleanup": {"proven": False, "left": [], "message": why}, "cancelled": why}
