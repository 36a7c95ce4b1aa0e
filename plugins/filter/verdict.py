# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that judge a category and roll categories up to a certification."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge import verdict
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS, OPEN
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter


@plain_filter
def judge_category(
    category: dict[str, t.Any],
    observation: dict[str, t.Any] | None,
    measurements: dict[str, t.Any],
    kind: str | None = None,
    allow_no_criteria: bool = False,
) -> dict[str, t.Any]:
    """The judged category: groups, members, findings, verdict."""
    kind = kind or (category.get("measure") or {}).get("kind") or "nccl"
    place = str(category.get("id") or "")
    compiled = compile_criteria(
        category.get("criteria"), category.get("thresholds"), METRICS.get(kind, {}), place=place, open_metrics=kind in OPEN
    )
    return verdict.judge_category(category, observation, measurements, compiled, allow_no_criteria=allow_no_criteria)


@plain_filter
def apply_isolation(judged: dict[str, t.Any], conclusions: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    """The judged category with the conclusions of isolation."""
    return verdict.apply_isolation(judged, conclusions)


@plain_filter
def roll_up(categories: list[dict[str, t.Any]], snapshot: dict[str, t.Any]) -> dict[str, t.Any]:
    """The verdict of the certification, and of every node."""
    return verdict.roll_up(snapshot, categories)


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"judge_category": judge_category, "apply_isolation": apply_isolation, "roll_up": roll_up}
