# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler: binds pods to nodes by the filters of kube-scheduler, first fit by node name, without scoring or preemption.

A pod that fits nowhere gets the condition and the event that kube-scheduler 1.36 would write (`scheduling_filters`).
"""

from __future__ import annotations

import asyncio
import logging

from ..._common.errors import ClusterError
from .api import Api, ApiError, Object, now_rfc3339, resource_path
from .events import EventRecorder
from .informer import Informer
from .scheduling_filters import explain, has_room, static_problem
from .scheduling_state import NodeInfo, Placements, PodInfo
from .tasks import Tasks, cancel

log = logging.getLogger(__name__)

SCHEDULER_NAME = "default-scheduler"
_RETRY_PAUSE_S = 0.05
_REMEMBERED_CANDIDATES = 1024


class _Candidates:
    """Nodes that pass a pod's static filters, in name order. No node before `position` had room when last looked at."""

    def __init__(self, nodes: list[NodeInfo], nodes_version: int) -> None:
        self.nodes = nodes
        self.nodes_version = nodes_version
        self.position = 0
        self.freed_version = -1


class Scheduler:
    """Run with `await start()`; everything after happens on changes of pods and nodes."""

    def __init__(self, api: Api, pods: Informer, nodes: Informer) -> None:
        self._api = api
        self._events = EventRecorder(api, SCHEDULER_NAME)
        self._placements = Placements()
        self._pending: dict[str, PodInfo] = {}
        self._unschedulable: dict[str, PodInfo] = {}
        self._messages: dict[str, str] = {}
        self._candidates: dict[str, _Candidates] = {}
        self._wake = asyncio.Event()
        self._gate = asyncio.Semaphore(32)
        self._writes = Tasks()
        self._task: asyncio.Task[None] | None = None
        nodes.on_change(self._node_changed)
        pods.on_change(self._pod_changed)

    async def start(self) -> None:
        """Schedules what is pending and what comes."""
        self._events.start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends; bindings that are under way are given up."""
        if self._task is not None:
            await cancel(self._task)
            await self._writes.cancel()
        await self._events.stop()

    # -- what happens in the cluster

    def _node_changed(self, kind: str, node: Object, old: Object | None) -> None:
        if self._placements.take_node(kind, node, old):
            self._retry_unschedulable()

    def _pod_changed(self, kind: str, pod: Object, old: Object | None) -> None:
        uid = pod["metadata"]["uid"]
        node = pod["spec"].get("nodeName", "")
        over = kind == "DELETED" or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if over or node:
            self._forget_waiting(uid)
        if over:
            self._release(uid)
        elif node:
            self._place(uid, pod, node)
        elif uid not in self._placements.placed and self._is_ours(pod):
            if pod["metadata"].get("deletionTimestamp"):
                self._forget_waiting(uid)
            elif uid not in self._unschedulable or old is None or old["spec"] != pod["spec"]:
                self._unschedulable.pop(uid, None)
                self._pending[uid] = PodInfo(pod)
                self._wake.set()

    def _is_ours(self, pod: Object) -> bool:
        return pod["spec"].get("schedulerName", SCHEDULER_NAME) == SCHEDULER_NAME and not pod["spec"].get("schedulingGates")

    def _forget_waiting(self, uid: str) -> None:
        self._pending.pop(uid, None)
        self._unschedulable.pop(uid, None)
        self._messages.pop(uid, None)

    def _place(self, uid: str, pod: Object, node: str) -> None:
        before = self._placements.placed.get(uid)
        if before is not None:
            if before[1] == node:
                return
            self._release(uid)
        self._placements.assume(PodInfo(pod), node)

    def _release(self, uid: str) -> None:
        if self._placements.release(uid):
            self._retry_unschedulable()

    def _retry_unschedulable(self) -> None:
        if self._unschedulable:
            self._pending.update(self._unschedulable)
            self._unschedulable.clear()
        if self._pending:
            self._wake.set()

    # -- the scheduling cycle

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = sorted(self._pending.values(), key=lambda info: -(info.pod["spec"].get("priority") or 0))
            self._pending.clear()
            failed = False
            refused: dict[str, tuple[int, str]] = {}
            for number, info in enumerate(batch):
                failed |= not self._schedule(info, refused)
                if number % 64 == 63:
                    await asyncio.sleep(0)  # the binds of the first pods need not wait for the last
            # Room that appears pod by pod would have a failed batch looked at again for each of them.
            await asyncio.sleep(_RETRY_PAUSE_S if failed else 0)

    def _schedule(self, info: PodInfo, refused: dict[str, tuple[int, str]]) -> bool:
        """Binds the pod or records why not. `refused` remembers answers for pods of the same needs within one batch."""
        known = refused.get(info.signature)
        if known is not None and known[0] == self._placements.freed_version and not info.relational:
            self._refuse(info, known[1])
            return False
        node = self._find_node(info)
        if node is None:
            message = explain(self._placements, info)
            refused[info.signature] = (self._placements.freed_version, message)
            self._refuse(info, message)
            return False
        self._placements.assume(info, node.name)
        self._writes.spawn(self._bind(info, node.name))
        return True

    def _find_node(self, info: PodInfo) -> NodeInfo | None:
        placements, candidates = self._placements, self._candidates_of(info)
        start = candidates.position
        remembered = (info.local and not placements.guarded) or not (info.relational or placements.apart)
        if not remembered or candidates.freed_version != placements.freed_version:
            start = 0
        for index in range(start, len(candidates.nodes)):
            node = candidates.nodes[index]
            if has_room(placements, info, node):
                if remembered:
                    candidates.position, candidates.freed_version = index, placements.freed_version
                return node
        return None

    def _candidates_of(self, info: PodInfo) -> _Candidates:
        found = self._candidates.get(info.signature)
        if found is None or found.nodes_version != self._placements.nodes_version:
            nodes = [node for node in self._placements.considered(info) if not static_problem(info, node)]
            found = self._candidates[info.signature] = _Candidates(nodes, self._placements.nodes_version)
            if len(self._candidates) > _REMEMBERED_CANDIDATES:
                self._candidates.pop(next(iter(self._candidates)))
        return found

    # -- writes

    async def _bind(self, info: PodInfo, node: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": info.name, "namespace": info.namespace, "uid": info.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            async with self._gate:
                await self._api.create(resource_path("pods", info.namespace, info.name, "binding"), binding)
        except (ApiError, ClusterError) as exc:
            log.debug("bind %s/%s: %s", info.namespace, info.name, exc)
            self._release(info.uid)
            if not isinstance(exc, ApiError) or exc.status not in (404, 409):
                self._pending[info.uid] = info
                asyncio.get_running_loop().call_later(1.0, self._wake.set)
            return
        self._events.record(info.pod, "Normal", "Scheduled", f"Successfully assigned {info.namespace}/{info.name} to {node}")

    def _refuse(self, info: PodInfo, message: str) -> None:
        self._unschedulable[info.uid] = info
        if self._messages.get(info.uid) != message:
            self._messages[info.uid] = message
            self._events.record(info.pod, "Warning", "FailedScheduling", message)
            self._writes.spawn(self._write_condition(info, message))

    async def _write_condition(self, info: PodInfo, message: str) -> None:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": now_rfc3339(),
        }
        try:
            async with self._gate:
                path = resource_path("pods", info.namespace, info.name, "status")
                await self._api.patch(path, {"metadata": {"uid": info.uid}, "status": {"conditions": [condition]}})
        except (ApiError, ClusterError) as exc:
            log.debug("condition of %s/%s: %s", info.namespace, info.name, exc)
