# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What kube-controller-manager does about nodes: unreachable nodes, taints by condition, eviction by taint, pods without a node."""

from __future__ import annotations

import asyncio
import logging
import time
import typing as t

from ..._common.errors import ClusterError
from .api import Api, ApiError, Object, now_rfc3339, resource_path
from .events import EventRecorder
from .informer import Informer, WorkQueue, key_of
from .job_rules import is_terminal
from .matching import tolerates
from .tasks import cancel, gather_bounded

log = logging.getLogger(__name__)

_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_BY_CONDITION = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
_OURS = {_NOT_READY, _UNREACHABLE, _UNSCHEDULABLE, *_BY_CONDITION.values()}
_DEFAULT_TOLERATION_S, _LEAST_TOLERATION_S = 300.0, 5.0
_MISSING_NODE_S = 40.0
_TICK_S = 0.5
_LONGEST_TICK_S = 2 * _TICK_S
_MISSED_ROUNDS = 3


class SilenceWatch:
    """Tells which nodes have stopped renewing their leases, also on a machine that is short of CPU time.

    All kubelets are one process here, so a starved machine delays every renewal at once, which is no node's doing. Two rules keep that
    apart from a silent node: only time in which this process was awake counts (`tick`), and a node is silent when it has missed several
    rounds of renewals at the pace at which the other nodes' renewals really come.
    """

    def __init__(self) -> None:
        self._awake_s = 0.0
        self._leases: dict[str, _LeaseSeen] = {}

    def tick(self, passed_s: float) -> None:
        """`passed_s` of the wall clock have passed. A tick that comes late was spent waiting for the CPU."""
        self._awake_s += min(passed_s, _LONGEST_TICK_S)

    def renewed(self, node: str, renew_time: str, duration_s: float) -> None:
        """A lease as it is now. It counts as a renewal when `renew_time` is another one."""
        known = self._leases.get(node)
        if known is None:
            self._leases[node] = _LeaseSeen(renew_time, self._awake_s, duration_s, 0.0)
        elif known.renew_time != renew_time:
            self._leases[node] = _LeaseSeen(renew_time, self._awake_s, duration_s, self._awake_s - known.seen_s)

    def forget(self, node: str) -> None:
        """The lease is gone."""
        self._leases.pop(node, None)

    def silent(self) -> set[str]:
        """The nodes whose leases have run out."""
        pace = max((lease.gap_s for lease in self._leases.values()), default=0.0)
        return {node for node, lease in self._leases.items() if self._awake_s - lease.seen_s > max(lease.duration_s, _MISSED_ROUNDS * pace)}


class _LeaseSeen(t.NamedTuple):
    """When a lease was seen to be renewed, and how long that was after the time before."""

    renew_time: str
    seen_s: float
    duration_s: float
    gap_s: float


class NodeLifecycle:
    """Run with `await start()`. Times are divided by `time_scale`, within bounds that leave a watcher time to see them."""

    def __init__(self, api: Api, nodes: Informer, pods: Informer, leases: Informer, time_scale: float = 1.0) -> None:
        self._api = api
        self._nodes = nodes
        self._pods = pods
        self._time_scale = time_scale
        self._events = EventRecorder(api, "node-controller", workers=2)
        self._queue = WorkQueue(self._reconcile, workers=8)
        self._silence = SilenceWatch()
        self._tainted: dict[str, float] = {}  # node -> since when it has a NoExecute taint of ours
        self._missing: dict[tuple[str, str], float] = {}
        self._evicted: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        nodes.on_change(self._node_changed)
        leases.on_change(self._lease_changed)

    async def start(self) -> None:
        """Watches over all nodes that are there and that come."""
        self._events.start()
        self._queue.start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends; taints and conditions stay."""
        if self._task is not None:
            await cancel(self._task)
        await self._queue.stop()
        await self._events.stop()

    def _node_changed(self, kind: str, node: Object, _old: Object | None) -> None:
        name = node["metadata"]["name"]
        if kind == "DELETED":
            self._tainted.pop(name, None)
        else:
            self._queue.add(name)

    def _lease_changed(self, kind: str, lease: Object, _old: Object | None) -> None:
        name, spec = lease["metadata"]["name"], lease.get("spec") or {}
        if kind == "DELETED":
            self._silence.forget(name)
        else:
            self._silence.renewed(name, spec.get("renewTime", ""), float(spec.get("leaseDurationSeconds") or 40))

    async def _run(self) -> None:
        now = time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            last, now = now, time.monotonic()
            self._silence.tick(now - last)
            for name in self._silence.silent():
                if _ready(self._nodes.items.get(("", name))) == "True":
                    self._queue.add(name)
            try:
                await self._collect_pods(now)
            except (ApiError, ClusterError) as exc:
                log.debug("pods: %s", exc)

    # -- nodes

    async def _reconcile(self, name: str) -> None:
        node = self._nodes.items.get(("", name))
        if node is None:
            return
        if name in self._silence.silent() and _ready(node) not in ("Unknown", ""):
            node = await self._mark_unknown(node)
        await self._set_taints(node)
        if _ready(node) in ("False", "Unknown"):
            await self._mark_pods(node)

    async def _mark_unknown(self, node: Object) -> Object:
        now, rows = now_rfc3339(), []
        for row in node["status"].get("conditions") or []:
            if row["type"] in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure"):
                words = "Kubelet stopped posting node status."
                rows.append({**row, "status": "Unknown", "reason": "NodeStatusUnknown", "message": words, "lastTransitionTime": now})
        name = node["metadata"]["name"]
        node = await self._api.patch(resource_path("nodes", name=name, subresource="status"), {"status": {"conditions": rows}})
        self._nodes.learn(node)
        self._events.record(node, "Normal", "NodeNotReady", f"Node {name} status is now: NodeNotReady")
        return node

    async def _set_taints(self, node: Object) -> None:
        name, spec = node["metadata"]["name"], node.get("spec") or {}
        have: list[Object] = spec.get("taints") or []
        kept = [taint for taint in have if taint["key"] not in _OURS]
        old = {(taint["key"], taint["effect"]): taint for taint in have}
        now = now_rfc3339()
        ours = [old.get(wanted, {"key": wanted[0], "effect": wanted[1], "timeAdded": now}) for wanted in wanted_taints(node)]
        if any(taint["effect"] == "NoExecute" for taint in ours):
            self._tainted.setdefault(name, time.monotonic())
        else:
            self._tainted.pop(name, None)
        if {(taint["key"], taint["effect"]) for taint in ours} == {pair for pair in old if pair[0] in _OURS}:
            return
        patch = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": {"taints": [*kept, *ours] or None}}
        self._nodes.learn(await self._api.patch(resource_path("nodes", name=name), patch, "merge"))

    async def _mark_pods(self, node: Object) -> None:
        """Pods on a node that is not ready are not ready either."""
        name = node["metadata"]["name"]
        for pod in [pod for pod in self._pods.items.values() if pod["spec"].get("nodeName") == name and _pod_ready(pod)]:
            row = {"type": "Ready", "status": "False", "lastTransitionTime": now_rfc3339()}
            await self._patch_status(pod, {"conditions": [row]})
            self._events.record(pod, "Warning", "NodeNotReady", "Node is not ready")

    # -- pods

    async def _collect_pods(self, now: float) -> None:
        calls = []
        for key, pod in list(self._pods.items.items()):
            node = pod["spec"].get("nodeName", "")
            deleting = bool(pod["metadata"].get("deletionTimestamp"))
            if not node:
                if deleting and not is_terminal(pod):
                    calls.append(self._remove(pod, ""))
            elif ("", node) not in self._nodes.items:
                since = self._missing.setdefault(key, now)
                if now - since > max(_MISSING_NODE_S / self._time_scale, _LEAST_TOLERATION_S):
                    calls.append(self._remove(pod, "PodGC: node no longer exists"))
            elif node in self._tainted and not deleting and not is_terminal(pod) and self._must_go(pod, node, now):
                calls.append(self._evict(pod))
        for key in [key for key in self._missing if key not in self._pods.items]:
            del self._missing[key]
        await gather_bounded(calls, 8)

    def _must_go(self, pod: Object, node: str, now: float) -> bool:
        if pod["metadata"]["uid"] in self._evicted:
            return False
        taints = [taint for taint in self._nodes.items["", node]["spec"].get("taints") or [] if taint["effect"] == "NoExecute"]
        age = now - self._tainted[node]
        return any(age > self._tolerated_s(pod, taint) for taint in taints)

    def _tolerated_s(self, pod: Object, taint: Object) -> float:
        """Seconds for which the pod bears the taint. Without a word of its own every pod bears the two of an absent node for a while."""
        rows = [row for row in pod["spec"].get("tolerations") or [] if tolerates([row], taint)]
        limits = [row["tolerationSeconds"] for row in rows if row.get("tolerationSeconds") is not None]
        if rows and not limits:
            return float("inf")
        if not rows and taint["key"] not in (_NOT_READY, _UNREACHABLE):
            return 0.0
        return max(min(limits, default=_DEFAULT_TOLERATION_S) / self._time_scale, _LEAST_TOLERATION_S)

    async def _evict(self, pod: Object) -> None:
        self._evicted.add(pod["metadata"]["uid"])
        namespace, name = key_of(pod)
        words = "Taint manager: deleting due to NoExecute taint"
        await self._patch_status(pod, {"conditions": [_disruption("DeletionByTaintManager", words)]})
        self._events.record(pod, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {namespace}/{name}")
        await self._api.delete(resource_path("pods", namespace, name), uid=pod["metadata"]["uid"])

    async def _remove(self, pod: Object, why: str) -> None:
        """Deletes a pod for which no kubelet will do it."""
        if not is_terminal(pod):
            status: Object = {"phase": "Failed"}
            if why:
                status["conditions"] = [_disruption("DeletionByPodGC", why)]
            await self._patch_status(pod, status)
        await self._api.delete(resource_path("pods", *key_of(pod)), grace_s=0, uid=pod["metadata"]["uid"])

    async def _patch_status(self, pod: Object, status: Object) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._api.patch(resource_path("pods", *key_of(pod), "status"), body)


def wanted_taints(node: Object) -> list[tuple[str, str]]:
    """(key, effect) of every taint that follows from a node's conditions and cordon."""
    found: list[tuple[str, str]] = []
    if (node.get("spec") or {}).get("unschedulable"):
        found.append((_UNSCHEDULABLE, "NoSchedule"))
    for row in (node.get("status") or {}).get("conditions") or []:
        if row["type"] in _BY_CONDITION and row["status"] == "True":
            found.append((_BY_CONDITION[row["type"]], "NoSchedule"))
    key = {"False": _NOT_READY, "Unknown": _UNREACHABLE}.get(_ready(node))
    if key:
        found += [(key, "NoSchedule"), (key, "NoExecute")]
    return found


def _ready(node: Object | None) -> str:
    """Status of the Ready condition; "" without one: no kubelet has ever spoken for the node."""
    for row in ((node or {}).get("status") or {}).get("conditions") or []:
        if row["type"] == "Ready":
            return str(row["status"])
    return ""


def _pod_ready(pod: Object) -> bool:
    rows = (pod.get("status") or {}).get("conditions") or []
    return any(row["type"] == "Ready" and row["status"] == "True" for row in rows)


def _disruption(reason: str, message: str) -> Object:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message, "lastTransitionTime": now_rfc3339()}
