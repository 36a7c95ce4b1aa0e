# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that compile and evaluate criteria."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError, unknown_value
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria import criteria as room
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS, OPEN
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter


@plain_filter
def compile_criteria(
    criteria: t.Any, thresholds: t.Any = None, kind: str = "nccl", metrics: dict[str, t.Any] | None = None, place: str = ""
) -> list[dict[str, t.Any]]:
    """The criteria as data; fails at the first one that cannot work."""
    return [criterion.as_dict() for criterion in _compile(criteria, thresholds, kind, metrics, place)]


@plain_filter
def evaluate_criteria(
    measurement: dict[str, t.Any],
    criteria: t.Any,
    thresholds: t.Any = None,
    kind: str | None = None,
    metrics: dict[str, t.Any] | None = None,
    place: str = "",
) -> list[dict[str, t.Any]]:
    """One result per criterion for a measurement; a partial measurement is refused."""
    if not isinstance(measurement, dict) or "values" not in measurement:
        raise InputError("expected a measurement with its values", place="evaluate_criteria", hint="Use the output of measure_logs")
    if not measurement.get("complete"):
        reason = measurement.get("reason") or measurement.get("verdict") or "it is partial"
        raise InputError(f"the measurement is not complete and is not compared with limits: {reason}", place="evaluate_criteria")
    compiled = _compile(criteria, thresholds, kind or measurement.get("kind", "nccl"), metrics, place)
    return room.evaluate_all(compiled, measurement["values"])


def _compile(criteria: t.Any, thresholds: t.Any, kind: str, metrics: dict[str, t.Any] | None, place: str) -> list[room.Criterion]:
    if kind not in METRICS and kind not in OPEN and not metrics:
        raise unknown_value("kind of measurement", kind, {*METRICS, *OPEN}, place)
    known = {**METRICS.get(kind, {}), **(metrics or {})}
    return room.compile_criteria(criteria, thresholds, known, place=place, open_metrics=kind in OPEN)


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"compile_criteria": compile_criteria, "evaluate_criteria": evaluate_criteria}
