# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers and words as documents of tools hold them."""

from __future__ import annotations

import typing as t


def number(value: t.Any) -> float | None:
    """A finite float from text or a number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if found - found == 0 else None


def text_of(value: t.Any) -> str | None:
    """A word as it is, a number as text, else None."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
