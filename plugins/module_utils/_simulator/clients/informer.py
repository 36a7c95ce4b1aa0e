# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Following a resource, and queues of work: what every controller is built from."""

from __future__ import annotations

import asyncio
import collections
import logging
import random
import typing as t
from collections.abc import Awaitable, Callable

from ..._common.errors import ClusterError
from .api import Api, ApiError, Object
from .tasks import cancel

log = logging.getLogger(__name__)

Handler: t.TypeAlias = Callable[[str, Object, Object | None], None]
"""Called with (ADDED, MODIFIED or DELETED; the object; the object before it or None)."""


def key_of(item: Object) -> tuple[str, str]:
    """(namespace or "", name)."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Informer:
    """Keeps a copy of a resource by list and watch, and tells handlers about each change.

    A watch that ends is resumed; one whose version is too old (410) is followed by a new list, whose differences are told as changes. So a
    handler sees every object, but not every state in between.
    """

    def __init__(self, api: Api, path: str, **params: str) -> None:
        self._api = api
        self._path = path
        self._params = params
        self._handlers: list[Handler] = []
        self._task: asyncio.Task[None] | None = None
        self._gone: collections.deque[str] = collections.deque(maxlen=20_000)
        self._gone_set: set[str] = set()
        self.items: dict[tuple[str, str], Object] = {}

    def on_change(self, handler: Handler) -> None:
        """Has the handler told of each change, from the first list on."""
        self._handlers.append(handler)

    async def start(self) -> None:
        """Returns once the first list has been handed to the handlers."""
        version = await self._relist()
        self._task = asyncio.create_task(self._follow(version))

    async def stop(self) -> None:
        """Follows no longer; `items` stays as it is."""
        if self._task is not None:
            await cancel(self._task)

    def learn(self, item: Object) -> None:
        """Takes over an object from the answer to our own write, before the watch brings it.

        A controller that waits for the watch would see the world before its write and do it again.
        """
        if item["metadata"]["uid"] not in self._gone_set:
            self._take("MODIFIED", item)

    async def _relist(self) -> str:
        found, version = await self._api.list(self._path, resourceVersion="0", **self._params)
        seen = {key_of(item) for item in found}
        for key in [key for key in self.items if key not in seen]:
            self._take("DELETED", self.items[key])
        for item in found:
            self._take("MODIFIED", item)
        return version

    async def _follow(self, version: str) -> None:
        import aiohttp

        while True:
            try:
                async for kind, item in self._api.watch(self._path, version, **self._params):
                    version = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self._take(kind, item)
            except ApiError as exc:
                log.debug("watch %s: %s", self._path, exc)
                if exc.status != 410:
                    await asyncio.sleep(random.uniform(0.2, 1.0))
                version = await self._relist_patiently()
            except (TimeoutError, aiohttp.ClientError, OSError) as exc:
                log.debug("watch %s: %s", self._path, exc)
                await asyncio.sleep(random.uniform(0.2, 1.0))

    async def _relist_patiently(self) -> str:
        while True:
            try:
                return await self._relist()
            except (ApiError, ClusterError) as exc:
                log.debug("list %s: %s", self._path, exc)
                await asyncio.sleep(random.uniform(0.5, 1.5))

    def _take(self, kind: str, item: Object) -> None:
        key = key_of(item)
        old = self.items.get(key)
        if kind == "DELETED":
            self._remember_gone(item["metadata"]["uid"])
            if old is not None:
                del self.items[key]
                self._tell("DELETED", item, old)
            return
        if old is not None:
            if _version(old) >= _version(item):
                return  # our own write, already learnt
            if old["metadata"]["uid"] != item["metadata"]["uid"]:
                self._tell("DELETED", old, old)
                old = None
        self.items[key] = item
        self._tell("ADDED" if old is None else "MODIFIED", item, old)

    def _remember_gone(self, uid: str) -> None:
        if len(self._gone) == self._gone.maxlen:
            self._gone_set.discard(self._gone[0])
        self._gone.append(uid)
        self._gone_set.add(uid)

    def _tell(self, kind: str, item: Object, old: Object | None) -> None:
        for handler in self._handlers:
            try:
                handler(kind, item, old)
            except Exception:
                log.exception("handler of %s failed", self._path)


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


class WorkQueue:
    """Runs `work(key)` for queued keys: each key at most once at a time, several keys at once, again later when it fails.

    A key that is added while it is being worked on is worked on once more afterwards.
    """

    def __init__(self, work: Callable[[t.Any], Awaitable[None]], workers: int = 4) -> None:
        self._work = work
        self._queue: asyncio.Queue[t.Any] = asyncio.Queue()
        self._waiting: set[t.Any] = set()
        self._busy: set[t.Any] = set()
        self._again: set[t.Any] = set()
        self._timers: dict[t.Any, tuple[float, asyncio.Handle]] = {}  # when, and what calls; uvloop's does not always know when
        self._failures: dict[t.Any, int] = {}
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to work."""
        self._tasks = [asyncio.create_task(self._run()) for _index in range(self._workers)]

    async def stop(self) -> None:
        """Gives up what is queued and what is being worked on."""
        for _when, timer in self._timers.values():
            timer.cancel()
        await cancel(*self._tasks)

    def add(self, key: t.Any) -> None:
        """Queues a key, unless it is waiting already."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._queue.put_nowait(key)

    def add_after(self, key: t.Any, delay_s: float) -> None:
        """Adds the key later; an earlier time that was asked for before stays."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(delay_s, 0.0)
        known = self._timers.get(key)
        if known is not None:
            if known[0] <= when:
                return
            known[1].cancel()
        self._timers[key] = (when, loop.call_at(when, self._due, key))

    def _due(self, key: t.Any) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _run(self) -> None:
        while True:
            key = await self._queue.get()
            self._waiting.discard(key)
            self._busy.add(key)
            try:
                await self._work(key)
                self._failures.pop(key, None)
            except Exception as exc:
                failures = self._failures[key] = self._failures.get(key, 0) + 1
                if not isinstance(exc, (ApiError, ClusterError)):
                    log.exception("work on %s failed", key)
                self.add_after(key, min(0.05 * 2**failures, 10.0))
            finally:
                self._busy.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)
