# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for fault isolation: begin, take in results and plan the next wave, conclude, draw."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import planner
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.isolation_svg import draw
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter


@plain_filter
def isolation_start(nodes: t.Any, options: t.Any = None) -> dict[str, t.Any]:
    """The state of a new search."""
    return planner.start(nodes, options)


@plain_filter
def isolation_next(state: t.Any, results: t.Any = None) -> dict[str, t.Any]:
    """The new state, and the wave to run or the conclusion; the other one of the two is null."""
    new, step = planner.next_step(state, results)
    return {"state": new, "wave": step.get("wave"), "conclusion": step.get("conclusion"), "progress": planner.progress(new)}


@plain_filter
def isolation_conclusion(state: t.Any) -> dict[str, t.Any]:
    """What can be said now, with every test."""
    return planner.conclude(state)


@plain_filter
def isolation_svg(conclusion: t.Any, title: str = "") -> str:
    """The drawing of a conclusion."""
    return draw(conclusion, title)


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {
            "isolation_start": isolation_start,
            "isolation_next": isolation_next,
            "isolation_conclusion": isolation_conclusion,
            "isolation_svg": isolation_svg,
        }
