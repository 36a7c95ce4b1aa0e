# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers and words as documents of tools hold them, and the range in which a number of each unit can lie."""

from __future__ import annotations

import typing as t

# Longer runs of digits are no count of anything; int() refuses some of them.
_MOST_DIGITS = 18


class Range(t.NamedTuple):
    """What a number of one unit can be: from least (itself left out when `zero` is False) to most, both included."""

    least: float
    most: float
    zero: bool = True


# Generous by orders of magnitude: beyond lie overflowed counters, glued digits and results that are none. A rate or a time of nothing
# was not measured.
RANGES: dict[str, Range] = {
    "GB/s": Range(0, 1e6, zero=False),
    "Gb/s": Range(0, 1e7, zero=False),
    "GFLOP/s": Range(0, 1e9, zero=False),
    "us": Range(0, 1e10, zero=False),
    "ns": Range(0, 1e13, zero=False),
    "Mpps": Range(0, 1e5),
    "1/s": Range(0, 1e11),
    "s": Range(0, 1e9),
    "B": Range(0, 2.0**60),
    "%": Range(0, 100),
    "C": Range(-60, 200),
    "": Range(0, 2.0**63),
}


def number(value: t.Any) -> float | None:
    """A finite float from text or a number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if found - found == 0 else None


def whole(value: t.Any) -> int | None:
    """An integer from text or a number, else None; also None for more digits than a counter has."""
    if isinstance(value, str):
        digits = value.strip().lstrip("+-")
        return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None
    found = number(value)
    return int(found) if found is not None and found == int(found) and abs(found) < 10.0**_MOST_DIGITS else None


def text_of(value: t.Any) -> str | None:
    """A word as it is, a number as text, else None."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_possible(value: float, unit: str) -> bool:
    """Whether a run can have this result, by its sign and size. Units without a range are not looked at."""
    limits = RANGES.get(unit)
    if limits is None:
        return True
    return limits.least <= value <= limits.most and (limits.zero or value != limits.least)
