# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Times as everything that is written down carries them."""

from __future__ import annotations

import datetime


def utc(seconds: float) -> str:
    """RFC 3339 with whole seconds, of seconds since the epoch."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_between(first: str, last: str) -> float:
    """Seconds from one such time to another."""
    begin, end = (datetime.datetime.fromisoformat(text) for text in (first, last))
    return (end - begin).total_seconds()
