# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What several measurements of the same nodes amount to: the median of each value, and where the values lie."""

from __future__ import annotations

import statistics
import typing as t

from .._common.shapes import Measurement, Range
from .._criteria.lead import is_number, lead_metric, range_of


class Medians(t.NamedTuple):
    """values: of all measurements together. ranges: by metric that matters. nearest: the measurement nearest to the main median."""

    values: dict[str, t.Any]
    ranges: dict[str, Range]
    nearest: Measurement | None

    def measurement(self, *, complete: bool) -> Measurement | None:
        """The medians as a measurement, beside what else is known of the one that is nearest to them; None: nothing was measured."""
        if self.nearest is None:
            return None
        made: t.Any = {**self.nearest, "values": self.values, "complete": complete}
        return t.cast(Measurement, made)


def medians_of(made: t.Sequence[Measurement], looked_at: t.Sequence[str]) -> Medians:
    """The medians of comparable measurements of the same nodes. looked_at: the metrics of criteria."""
    names = dict.fromkeys(name for item in made for name in item["values"])
    values = {name: median_of([item["values"].get(name) for item in made]) for name in names}
    lead = lead_metric(looked_at, values)
    told = [name for name in dict.fromkeys([*looked_at, *([lead] if lead else [])]) if is_number(values.get(name))]
    ranges = {name: range_of([item["values"][name] for item in made]) for name in told}
    nearest = min(made, key=lambda item: abs(item["values"][lead] - values[lead]) if lead else 0, default=None)
    return Medians(values, ranges, nearest)


def median_of(column: t.Sequence[t.Any]) -> t.Any:
    """The median of numbers, and of what is no number the value that all share. None: one is not known, or they differ."""
    if not all(is_number(value) for value in column):
        numbers = any(isinstance(value, float) for value in column)  # not all of them finite
        return column[0] if not numbers and all(value == column[0] and type(value) is type(column[0]) for value in column) else None
    middle = statistics.median(column)
    return int(middle) if all(isinstance(value, int) for value in column) and middle == int(middle) else middle
