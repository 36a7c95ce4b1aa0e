# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that compile and evaluate criteria."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.category import criteria_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import Criterion, evaluate_all
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import KINDS
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
) -> t.Any:
    """One result per criterion for a measurement; a partial measurement is refused."""
    if not isinstance(measurement, dict) or "values" not in measurement:
        raise InputError("expected a measurement with its values", place="evaluate_criteria", hint="Use the output of measure_logs")
    if not measurement.get("complete"):
        reason = measurement.get("reason") or measurement.get("verdict") or "it is partial"
        raise InputError(f"the measurement is not complete and is not compared with limits: {reason}", place="evaluate_criteria")
    compiled = _compile(criteria, thresholds, kind or measurement.get("kind", "nccl"), metrics, place)
    return evaluate_all(compiled, measurement["values"])


def _compile(criteria: t.Any, thresholds: t.Any, kind: str, metrics: dict[str, t.Any] | None, place: str) -> list[Criterion]:
    # A kind of one's own is measured by nobody here; its metrics are those that are given.
    measured = {"kind": kind} if not metrics else {"kind": kind if kind in KINDS else "key_value"}
    return criteria_of({"criteria": criteria, "thresholds": thresholds, "measure": measured}, metrics=metrics, place=place)


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"compile_criteria": compile_criteria, "evaluate_criteria": evaluate_criteria}
