# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that judge a category and roll categories up to a certification."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.category import criteria_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge import categories as judging
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge import certification
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline import given
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter


@plain_filter
def judge_category(
    category: t.Any, observation: t.Any, measurements: t.Any, kind: str | None = None, allow_no_criteria: bool = False
) -> t.Any:
    """The judged category: groups, members, findings, verdict."""
    wanted = given.category_given(category, kind)
    compiled = criteria_of(wanted, place=str(wanted["id"] or ""))
    first, *further = given.rounds_given(measurements)
    return judging.judge_category(
        wanted,
        given.observation_given(observation),
        first,
        compiled,
        further=[judging.Round(made, {}) for made in further],
        allow_no_criteria=allow_no_criteria,
    )


@plain_filter
def apply_isolation(judged: t.Any, conclusions: t.Any) -> t.Any:
    """The judged category with the conclusions of isolation."""
    return judging.apply_isolation(judged, given.conclusions_given(conclusions))


@plain_filter
def roll_up(categories: t.Any, snapshot: t.Any) -> t.Any:
    """The verdict of the certification, and of every node."""
    return certification.roll_up(given.snapshot_given(snapshot), categories)


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"judge_category": judge_category, "apply_isolation": apply_isolation, "roll_up": roll_up}
