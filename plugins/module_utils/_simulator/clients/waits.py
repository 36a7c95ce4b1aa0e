# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting that ends at once when the pod does."""

from __future__ import annotations

import asyncio
import typing as t
from collections.abc import Coroutine

from .pod_state import PodState


class Waits:
    """What the tasks of one pod are waiting for."""

    def __init__(self, state: PodState) -> None:
        self._state = state
        self._tasks: set[asyncio.Task[t.Any]] = set()

    async def until_halted(self, call: Coroutine[t.Any, t.Any, t.Any]) -> bool:
        """Awaits the call; False if the pod was stopped or failed before it was done."""
        if self._state.halted:
            call.close()
            return False
        task = asyncio.create_task(call)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.discard(task)
            task.cancel()
        if task.cancelled():
            return False
        task.result()
        return True

    async def sleep(self, seconds: float) -> bool:
        """False if the pod was stopped or failed meanwhile."""
        return await self.until_halted(asyncio.sleep(seconds))

    def cancel(self) -> None:
        """Ends all waiting."""
        for task in list(self._tasks):
            task.cancel()
