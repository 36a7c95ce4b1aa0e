# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Tasks in numbers: kept, cancelled, gathered."""

from __future__ import annotations

import asyncio
import typing as t
from collections.abc import Coroutine, Iterable


class Tasks:
    """Tasks in the background. The event loop itself holds them only weakly."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, call: Coroutine[t.Any, t.Any, None]) -> None:
        """Runs the call; nobody waits for it."""
        task = asyncio.create_task(call)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def cancel(self) -> None:
        """Cancels all that are running and waits until they have ended."""
        await cancel(*self._running)


async def cancel(*tasks: asyncio.Task[t.Any]) -> None:
    """Cancels tasks and waits until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_bounded(calls: Iterable[Coroutine[t.Any, t.Any, t.Any]], limit: int = 32) -> list[t.Any]:
    """Results (or exceptions) of many calls, at most `limit` at once, in their order."""
    gate = asyncio.Semaphore(limit)

    async def one(call: Coroutine[t.Any, t.Any, t.Any]) -> t.Any:
        async with gate:
            return await call

    return await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
