# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Categories as they are really run, and their judgement, from the archive alone."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.verdict import judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS, OPEN

Category = dict[str, t.Any]


def effective_category(run: RunDirectory, category_id: str) -> Category:
    """The planned category without the nodes that earlier categories of the run have convicted.

    A node that is known to be broken would only spoil the groups it is in: the others could not be proven.
    """
    category = run.category(category_id)
    failed: dict[str, str] = {}
    for earlier in run.read(run.plan)["categories"]:
        if earlier["id"] == category_id:
            break
        if os.path.exists(run.judged(earlier["id"])):
            for name, member in run.read(run.judged(earlier["id"]))["members"].items():
                if member["verdict"] == "failed":
                    failed.setdefault(name, earlier["id"])
    groups, left_out = [], []
    for group in category["groups"]:
        left_out += [name for name in group["nodes"] if name in failed]
        nodes = [name for name in group["nodes"] if name not in failed]
        if nodes:
            groups.append({**group, "nodes": nodes})
    known = {item["node"] for item in category["untested"]}
    untested = [
        {"node": name, "reason": "Untested", "message": f"left out, since {failed[name]} has already found it at fault"}
        for name in left_out
        if name not in known
    ]
    return {**category, "groups": groups, "untested": [*category["untested"], *untested]}


def judge(run: RunDirectory, category: Category, observation: dict[str, t.Any]) -> dict[str, t.Any]:
    """The judged category (docs/data_shapes.md)."""
    kind = category["measure"]["kind"]
    place = f"{run.plan}: {category['id']}"
    table = METRICS.get(kind, {})
    compiled = compile_criteria(category["criteria"], category["thresholds"], table, place=place, open_metrics=kind in OPEN)
    groups = {group["name"]: group for group in category["groups"]}
    measurements = {item["name"]: _measure(run, category, groups[item["name"]], item["attempts"]) for item in observation["groups"]}
    allow = bool(run.read(run.spec)["allow_no_criteria"])
    return judge_category(category, observation, measurements, compiled, allow_no_criteria=allow)


def _measure(
    run: RunDirectory, category: Category, group: dict[str, t.Any], attempts: t.Sequence[dict[str, t.Any]]
) -> dict[str, t.Any] | None:
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
