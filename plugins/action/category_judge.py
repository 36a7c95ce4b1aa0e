# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Action plugin behind gpu_cluster.readiness.category_judge: reads the logs of a category, measures, judges."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.verdict import judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS, OPEN
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.archive import write_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.archive import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


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
        category = run.category(arguments["category"])
        if arguments["failure"] and not os.path.exists(run.observation(category["id"])):
            write_json(run.observation(category["id"]), broken_off(category, arguments["failure"]))
        observation = run.read(run.observation(category["id"]))
        judged = judge(run, category, observation)
        changed = not self.check_mode
        if changed:
            write_json(run.judged(category["id"]), judged)
        self.say(f"{category['title']}: {judged['verdict']}: {judged['why']}")
        counts: dict[str, int] = {}
        for member in judged["members"].values():
            counts[member["verdict"]] = counts.get(member["verdict"], 0) + 1
        verdict = {key: judged[key] for key in ("verdict", "why")}
        return {"changed": changed, **verdict, "nodes": counts, "judged": run.judged(category["id"])}


def judge(run: RunDirectory, category: dict[str, t.Any], observation: dict[str, t.Any]) -> dict[str, t.Any]:
    """The judged category (docs/data_shapes.md)."""
    kind = category["measure"]["kind"]
    place = f"{run.plan}: {category['id']}"
    compiled = compile_criteria(
        category["criteria"], category["thresholds"], METRICS.get(kind, {}), place=place, open_metrics=kind in OPEN
    )  # fmt: skip
    groups = {group["name"]: group for group in category["groups"]}
    measurements = {item["name"]: measure_attempt(run, category, groups[item["name"]], item["attempts"]) for item in observation["groups"]}
    allow = bool(run.read(run.spec)["allow_no_criteria"])
    return judge_category(category, observation, measurements, compiled, allow_no_criteria=allow)


def measure_attempt(
    run: RunDirectory, category: dict[str, t.Any], group: dict[str, t.Any], attempts: t.Sequence[dict[str, t.Any]]
) -> t.Optional[dict[str, t.Any]]:
    """What the log of a group's last attempt proves; None when there is no log."""
    last = attempts[-1] if attempts else {}
    launcher = next((pod for pod in last.get("pods", []) if pod["role"] == "launcher"), None)
    if launcher is None or not launcher["log"]:
        return None
    expected = group.get("expected_transport")
    context = {
        **{key: value for key, value in category["measure"].items() if key not in ("kind", "collective")},
        "exit_code": last["exit_code"],
        "nodes": group["nodes"],
        "expect_transport": None if expected == "any" else expected,
    }
    path = os.path.join(run.path, launcher["log"])
    return measure(category["measure"]["kind"], [path], {key: value for key, value in context.items() if value is not None})


def broken_off(category: dict[str, t.Any], why: str) -> dict[str, t.Any]:
    """The observation of a batch that could not be run: nobody's fault but ours, and no node was tested."""
    attempt = {
        "attempt": 1, "name": "", "outcome": "not_started", "reason": "SetupError", "message": why, "nodes": [], "exit_code": None,
        "created": None, "started": None, "finished": None, "duration_s": None, "pods": [], "events": [], "health": [], "retryable": False,
    }  # fmt: skip
    groups = [{**group, "attempts": [dict(attempt)]} for group in category["groups"]]
    return {"groups": groups, "cleanup": {"proven": False, "left": [], "message": why}, "cancelled": why}
