# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a line of a training log can say: a step or an event, and how numbers and times are read."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
import typing as t

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf|NAN|INF|NaN|Inf)"
TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?"

# Fields that count.
_INTEGERS = {
    "consumed_samples",
    "skipped_samples",
    "global_batch_size",
    "skipped_iterations",
    "nan_iterations",
    "num_zeros",
    "global_step",
}


@dataclasses.dataclass
class Step:
    """One step line. iteration counts from 1; printed is what the line says (NeMo counts from 0)."""

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


@dataclasses.dataclass
class Event:
    """Something other than a step.

    what: start, training, ended, save, scheduled, saved, finalized, blocked, load, loaded, scratch, deleted, tflops,
    validation, timer, straggler, lost (a torn step line).
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
    return value if math.isfinite(value) else None


def parse_time(text: str | None) -> datetime.datetime | None:
    """A naive time as printed; an offset is applied, so that stamps of the transport are UTC."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", text.strip())
    if match is None:
        return None
    day, clock, fraction, offset = match.groups()
    try:
        value = datetime.datetime.fromisoformat(f"{day}T{clock}")
    except ValueError:
        return None
    value += datetime.timedelta(microseconds=int((fraction or "0").ljust(6, "0")[:6]))
    if offset and offset != "Z":
        sign = -1 if offset[0] == "-" else 1
        value -= sign * datetime.timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6]))
    return value


def field(name: str, value: str) -> int | float | None:
    found = number(value)
    return int(found) if found is not None and name in _INTEGERS else found
