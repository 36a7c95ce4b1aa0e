# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Writing Events, as the clients of a cluster do: in the background, repeated ones counted instead of written again."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import uuid

from ..._common.errors import ClusterError
from .api import Api, ApiError, Object, now_rfc3339, resource_path
from .tasks import cancel

log = logging.getLogger(__name__)

_REMEMBERED = 4096
_MAX_PENDING = 20_000
_PATIENCE_S = 1.0


class EventRecorder:
    """Posts Events for one component. An event that fails or finds the queue full is dropped, as with real clients.

    Half of all writes of a busy cluster are events: normal ones wait for a calm moment, so that they do not slow the pods they tell of.
    """

    def __init__(self, api: Api, component: str, workers: int = 2) -> None:
        self._api = api
        self._component = component
        self._queue: asyncio.Queue[tuple[str, str, Object, tuple[str, ...]]] = asyncio.Queue(_MAX_PENDING)
        self._written: collections.OrderedDict[tuple[str, ...], Object] = collections.OrderedDict()
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to write."""
        self._tasks = [asyncio.create_task(self._run()) for _index in range(self._workers)]

    async def stop(self) -> None:
        """Writes what is pending, for a second at most."""
        try:
            await asyncio.wait_for(self._queue.join(), timeout=1.0)
        except TimeoutError:
            log.debug("%d events were not written", self._queue.qsize())
        await cancel(*self._tasks)

    def record(self, item: Object, kind: str, reason: str, message: str, *, host: str = "", field_path: str = "") -> None:
        """Queues an event of type `kind` (Normal or Warning) about an object; `host` is the node of a node agent."""
        metadata = item["metadata"]
        namespace = metadata.get("namespace", "default")
        now = now_rfc3339()
        involved = {
            "kind": item["kind"],
            "apiVersion": item["apiVersion"],
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        }
        if metadata.get("namespace"):
            involved["namespace"] = namespace
        if metadata.get("resourceVersion"):
            involved["resourceVersion"] = metadata["resourceVersion"]
        if field_path:
            involved["fieldPath"] = field_path
        event: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name'][:230]}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": message[:1024],
            "type": kind,
            "source": {"component": self._component, **({"host": host} if host else {})},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "reportingComponent": self._component,
            "reportingInstance": host,
        }
        same = (namespace, metadata["name"], involved["uid"], field_path, kind, reason, message)
        try:
            self._queue.put_nowait((namespace, event["metadata"]["name"], event, same))
        except asyncio.QueueFull:
            log.debug("event dropped: %s %s", reason, metadata["name"])

    async def _run(self) -> None:
        while True:
            namespace, name, event, same = await self._queue.get()
            try:
                if event["type"] == "Normal":
                    await self._await_calm()
                await self._write(namespace, event, same)
            except (ApiError, ClusterError) as exc:  # the namespace is going, for example
                log.debug("event %s was refused: %s", name, exc)
            finally:
                self._queue.task_done()

    async def _await_calm(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._api.calm(), _PATIENCE_S)

    async def _write(self, namespace: str, event: Object, same: tuple[str, ...]) -> None:
        before = self._written.get(same)
        if before is not None:
            before["count"] += 1
            patch = {"count": before["count"], "lastTimestamp": event["lastTimestamp"]}
            try:
                await self._api.patch(resource_path("events", namespace, before["name"]), patch, "merge")
                return
            except ApiError as exc:
                if exc.status != 404:
                    raise
        self._written[same] = {"name": event["metadata"]["name"], "count": 1}
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)
        await self._api.create(resource_path("events", namespace), event)
