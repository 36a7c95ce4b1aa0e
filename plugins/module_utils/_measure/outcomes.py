# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts that follow from the exit status alone, the same for every small tool."""

from __future__ import annotations

import typing as t

_TIMED_OUT = frozenset({124})
_KILLED = frozenset({130, 137, 143})
_NOT_STARTED = frozenset({126, 127})


def failed_verdict(exit_code: int | None) -> str | None:
    """The verdict of an exit status other than 0; None for 0 and when it is not known."""
    if not exit_code:
        return None
    if exit_code in _TIMED_OUT:
        return "timed_out"
    if exit_code in _KILLED:
        return "incomplete"
    if exit_code in _NOT_STARTED:
        return "setup_error"
    return "run_failed"


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
