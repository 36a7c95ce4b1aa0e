# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion to plain Python at every edge.

ansible-core 2.19 and later hand plugins tagged strings and numbers and lazy containers: they print like plain
ones but break serializers, pickling and the CEL engine. Every filter, action and module converts first.
"""

from __future__ import annotations

import math
import re
import typing as t
from collections.abc import Mapping, Set

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def to_plain(value: t.Any) -> t.Any:
    """A deep copy made of dict, list, str, int, float, bool and None only.

    Tuples, sets and other sequences become lists (sets sorted). Mapping keys become str.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, Mapping):
        return {to_plain(key) if isinstance(key, str) else str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((to_plain(item) for item in value), key=str)
    if hasattr(value, "__iter__"):
        return [to_plain(item) for item in value]
    return str(value)


def finite(value: t.Any) -> t.Any:
    """The same structure with NaN and infinities replaced by None, so that it is valid JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def safe(text: str) -> str:
    """Without anything a log or an API message could use to move the cursor or reorder text."""
    return _UNSAFE.sub(lambda match: f"\\x{ord(match.group()):02x}", str(text).replace("\t", "    "))
