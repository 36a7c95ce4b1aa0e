# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a line of a training log can say: a step or an event, and how numbers and times are read.

A number is taken only in the range that it can have: a time of a step below zero, or of twelve days, is no number.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
import typing as t

TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?"
# More digits than this count nothing that exists; Python refuses to read thousands of them.
COUNT = r"\d{1,15}"

# The longest step, save and the fastest GPU that are believed.
MAX_STEP_MS = 1e9
MAX_SAVE_S = 1e6
MAX_TFLOPS = 1e5

# Fields that count.
_INTEGERS = frozenset(
    {
        "consumed_samples",
        "skipped_samples",
        "global_batch_size",
        "skipped_iterations",
        "nan_iterations",
        "num_zeros",
        "global_step",
    }
)


@dataclasses.dataclass(slots=True)
class Step:
    """One step line, or several in a row that were folded into one.

    iteration counts from 1; printed is what the line says (NeMo counts from 0). lines: how many step lines it stands
    for; low_ms, high_ms: the shortest and longest time among them, when there are several.
    """

    iteration: int
    printed: int
    total: int | None = None
    step_ms: float | None = None
    tflops: float | None = None
    loss: float | None = None
    has_loss: bool = False
    fields: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    time: datetime.datetime | None = None
    fraction: bool = False  # whether the time was printed with a fraction
    torn: bool = False
    framework: str = "megatron"
    last_key: str = ""
    wrapped: str | None = None
    ends: str = ""  # the limit named by a "stopped" message glued to a bar
    lines: int = 1
    low_ms: float | None = None
    high_ms: float | None = None


@dataclasses.dataclass(slots=True)
class Event:
    """Something other than a step.

    what: start, clock (a stamp of the start-up), training, ended, save, scheduled, saved, finalized, blocked, load, loaded,
    scratch, deleted, tflops, validation, timer, straggler, ranks, sequence, batch, lost (a torn step line).
    """

    what: str
    iteration: int | None = None
    time: datetime.datetime | None = None
    path: str = ""
    number: float | None = None
    word: str = ""
    numbers: tuple[float, ...] = ()


def number(text: str) -> float | None:
    """A finite number, or None: nan, inf and words are not values."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def within(text: str, limit: float) -> float | None:
    """A number above zero and up to a limit, or None."""
    value = number(text)
    return value if value is not None and 0 < value <= limit else None


def count(text: str | None) -> int | None:
    """A whole number of at most 15 digits, or None."""
    return int(text) if text and len(text) <= 15 and text.isascii() and text.isdigit() else None


def field(name: str, value: str) -> int | float | None:
    """The value of a field of a step line: whole where the field counts something."""
    found = number(value)
    return int(found) if found is not None and name in _INTEGERS else found


_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)?")


def parse_time(text: str | None) -> datetime.datetime | None:
    """A naive time as printed; an offset is applied, so that stamps of the transport are UTC."""
    if not text:
        return None
    text = text.strip()
    if _STAMP.fullmatch(text) is None:
        return None
    try:
        value = datetime.datetime.fromisoformat(text)
        return value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def earlier(time: datetime.datetime, seconds: float) -> datetime.datetime | None:
    """So many seconds before a time; None when no calendar reaches there."""
    try:
        return time - datetime.timedelta(seconds=seconds)
    except OverflowError:
        return None
