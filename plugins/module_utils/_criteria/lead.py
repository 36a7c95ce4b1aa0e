# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The one figure of a group that is shown first, and where several values of it lie."""

from __future__ import annotations

import math
import statistics
import typing as t

from .._common.shapes import Range

# Of each kind of test, where no criterion picks another; the first that was measured.
LEAD_METRICS = (
    "bus_bandwidth",
    "alg_bandwidth",
    "goodput",
    "tflops_per_gpu",
    "avg_step_time_s",
    "tests_passed",
    "bandwidth",
    "latency_us",
    "host_to_device",
    "gflops_min",
    "read_bandwidth",
    "write_bandwidth",
)


def lead_metric(looked_at: t.Iterable[str], values: t.Mapping[str, t.Any]) -> str | None:
    """The main metric: the first number that criteria look at, else the first that its kind of test has; None: no number was measured."""
    return next((name for name in (*looked_at, *LEAD_METRICS) if is_number(values.get(name))), None)


def is_number(value: t.Any) -> t.TypeGuard[float]:
    """Whether a value can be compared with others."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def range_of(values: t.Sequence[float]) -> Range:
    """Where values lie; there must be one. spread: (high - low) / high, as that of the samples inside a measurement."""
    low, high = min(values), max(values)
    spread = round((high - low) / high, 6) if high > 0 else None
    return {"low": low, "median": statistics.median(values), "high": high, "spread": spread, "samples": len(values)}
