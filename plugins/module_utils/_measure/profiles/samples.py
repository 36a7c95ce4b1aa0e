# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Matches of the patterns of a log profile, reduced to metrics while the log is read: eight bytes per number are kept, no line."""

from __future__ import annotations

import array
import math
import typing as t

from ..outcomes import number
from .files import MetricRule

Row: t.TypeAlias = t.Mapping[str, t.Any]

# Groups that carry the number of a step: for warm-up and interval.
_STEP_GROUPS = ("step", "iteration", "global_step", "globalStep")


class Matches:
    """The matches of one pattern or JSON rule, in the order of the log."""

    def __init__(self, rules: t.Iterable[MetricRule], skip: int, context: t.Mapping[str, t.Any]) -> None:
        self.count = 0
        self.kept = 0  # after the warm-up
        self.last: Row | None = None
        self._skip = skip
        self._warmup: float = context.get("warmup_steps") or 0
        self._interval: int = context.get("log_interval") or 1
        self._group: str | None = None
        self._metrics = {rule.name: _Metric(rule) for rule in rules}

    def add(self, row: Row) -> None:
        """One match: its groups that took part."""
        self.count += 1
        self.last = row
        if self.count == self._skip + 1:
            self._group = next((name for name in _STEP_GROUPS if name in row), None)
        if self.count <= self._skip or not self._counts(row):
            return
        self.kept += 1
        for metric in self._metrics.values():
            metric.add(row)

    def _counts(self, row: Row) -> bool:
        """Warm-up and interval go by the number of the step, where the pattern captures one."""
        if self._group is None:
            return True
        step = number(row.get(self._group))
        return step is not None and step > self._warmup and (self._interval <= 1 or step % self._interval == 0)

    def value(self, name: str) -> int | float | str | bool | None:
        """The value of a metric; None when no match had one."""
        return self._metrics[name].value(self.kept)


class _Metric:
    """One field of the matches that count."""

    def __init__(self, rule: MetricRule) -> None:
        self._rule = rule
        self._numbers = array.array("d")
        self._first: t.Any = None
        self._last: t.Any = None

    def add(self, row: Row) -> None:
        if self._rule.field not in row:
            return
        found = row[self._rule.field]
        if self._rule.type in ("string", "bool"):
            self._first = found if self._first is None else self._first
            self._last = found
            return
        value = number(found)
        if value is not None and math.isfinite(value * self._rule.factor):
            self._numbers.append(value * self._rule.factor)

    def value(self, count: int) -> int | float | str | bool | None:
        rule = self._rule
        if rule.statistic == "count":
            return count
        if rule.type in ("string", "bool"):
            found = self._first if rule.statistic == "first" else self._last
            return None if found is None else str(found) if rule.type == "string" else _truth(found)
        if not self._numbers:
            return None
        value = _statistic(rule.statistic, self._numbers)
        if not math.isfinite(value):
            return None  # a sum beyond every number
        return round(value) if rule.type == "int" else round(value, 9)


def _truth(value: t.Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    return True if word in ("true", "yes", "ok", "pass", "1") else False if word in ("false", "no", "fail", "failed", "0") else None


def _statistic(name: str, numbers: t.Sequence[float]) -> float:
    if name == "mean":
        return sum(numbers) / len(numbers)
    if name == "sum":
        return sum(numbers)
    if name in ("min", "max"):
        return min(numbers) if name == "min" else max(numbers)
    if name in ("first", "last"):
        return numbers[0 if name == "first" else -1]
    # Nearest rank: a percentile is always a value that was printed.
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(int(name[1:]) / 100 * len(ordered)) - 1)]
