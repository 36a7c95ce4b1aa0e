# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The clock of the server, in the forms the API uses."""

from __future__ import annotations

import datetime


def now() -> datetime.datetime:
    """The current time, UTC."""
    return datetime.datetime.now(datetime.UTC)


def stamp(when: datetime.datetime) -> str:
    """RFC 3339 with whole seconds, such as 2026-01-31T12:00:00Z."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text: str) -> datetime.datetime:
    """The time a stamp means."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
