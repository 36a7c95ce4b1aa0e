# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The event loop of the simulator's programs."""

from __future__ import annotations

import asyncio
import typing as t


def run_loop(main_coroutine: t.Coroutine[t.Any, t.Any, int]) -> int:
    """Run a coroutine on the fastest event loop installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main_coroutine)
    return uvloop.run(main_coroutine)
