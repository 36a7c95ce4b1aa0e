# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler: binds pods to nodes by the filters of kube-scheduler, first fit by node name, without scoring or preemption.

Filters: unschedulable nodes, taints, node selector and required node affinity (with matchFields), host ports, resources, required
pod affinity and anti-affinity, topology spread with DoNotSchedule. A pod that fits nowhere gets the condition and the event that
kube-scheduler 1.36 would write.
"""

from __future__ import annotations

import asyncio
import collections
import json
import logging
import typing as t
from collections.abc import Iterable

from ..._common.errors import ClusterError
from .api import Api, ApiError, Object, now_rfc3339, resource_path
from .events import EventRecorder
from .informer import Informer, cancel
from .matching import add_resources, matches_expression, matches_labels, matches_node_term, milli, pod_requests, tolerates

log = logging.getLogger(__name__)

SCHEDULER_NAME = "default-scheduler"
_RETRY_PAUSE_S = 0.05
_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "value": ""}
_DEFAULT_MAX_PODS = 110_000

# kube-scheduler's words. Those in _HOPELESS cannot change by removing pods from the node.
_UNSCHEDULABLE = "node(s) were unschedulable"
_TAINTED = "node(s) had untolerated taint(s)"
_NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"
_NOT_NAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
_PORTS = "node(s) didn't have free ports for the requested pod ports"
_SPREAD = "node(s) didn't match pod topology spread constraints"
_AFFINITY = "node(s) didn't match pod affinity rules"
_ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
_EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
_HOPELESS = {_UNSCHEDULABLE, _TAINTED, _NOT_SELECTED, _NOT_NAMED, _AFFINITY}


class NodeInfo:
    """A node with what is free on it. Resources are in thousandths."""

    def __init__(self, node: Object) -> None:
        self.used: dict[str, int] = {}
        self.ports: collections.Counter[tuple[int, str]] = collections.Counter()
        self.update(node)

    def update(self, node: Object) -> None:
        self.node = node
        self.name: str = node["metadata"]["name"]
        self.labels: dict[str, str] = node["metadata"].get("labels") or {}
        spec = node.get("spec") or {}
        self.cordoned = bool(spec.get("unschedulable"))
        self.taints = [taint for taint in spec.get("taints") or [] if taint["effect"] in ("NoSchedule", "NoExecute")]
        allocatable = (node.get("status") or {}).get("allocatable") or (node.get("status") or {}).get("capacity") or {}
        self.allocatable = {name: milli(value) for name, value in allocatable.items()}
        self.allocatable.setdefault("pods", _DEFAULT_MAX_PODS)

    def shortages(self, needs: dict[str, int]) -> list[str]:
        """Names of resources of which less than needed is free."""
        return [name for name, need in needs.items() if need and self.used.get(name, 0) + need > self.allocatable.get(name, 0)]


class PodInfo:
    """What scheduling needs to know of a pod, read once."""

    def __init__(self, pod: Object) -> None:
        self.pod = pod
        spec = pod["spec"]
        affinity = spec.get("affinity") or {}
        self.uid: str = pod["metadata"]["uid"]
        self.namespace: str = pod["metadata"]["namespace"]
        self.name: str = pod["metadata"]["name"]
        self.labels: dict[str, str] = pod["metadata"].get("labels") or {}
        self.needs = pod_requests(pod)
        self.ports = host_ports(pod)
        self.selector: dict[str, str] = spec.get("nodeSelector") or {}
        node_affinity = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        self.node_terms: list[Object] | None = (node_affinity or {}).get("nodeSelectorTerms")
        self.tolerations: list[Object] = spec.get("tolerations") or []
        self.affinity_terms = _required(affinity, "podAffinity")
        self.anti_affinity_terms = _required(affinity, "podAntiAffinity")
        self.spread = [rule for rule in spec.get("topologySpreadConstraints") or [] if rule.get("whenUnsatisfiable") == "DoNotSchedule"]
        self.relational = bool(self.affinity_terms or self.anti_affinity_terms or self.spread)
        # Pods that ask the same of a node share one list of candidates.
        self.signature = json.dumps([self.selector, self.node_terms, self.tolerations, self.needs, sorted(self.ports)], sort_keys=True)

    def named_nodes(self) -> set[str] | None:
        """The only nodes its affinity names by matchFields, or None if some term names none."""
        names: set[str] = set()
        for term in self.node_terms or [{}]:
            fields = [rule for rule in term.get("matchFields") or [] if rule["key"] == "metadata.name" and rule["operator"] == "In"]
            if not fields:
                return None
            names |= set.intersection(*(set(rule["values"]) for rule in fields))
        return names

    def static_problem(self, info: NodeInfo) -> str:
        """Why this node can never take the pod while both stay as they are; "" if it can."""
        if info.cordoned and not tolerates(self.tolerations, _UNSCHEDULABLE_TAINT):
            return _UNSCHEDULABLE
        if any(not tolerates(self.tolerations, taint) for taint in info.taints):
            return _TAINTED
        return "" if self.selects(info) else _NOT_SELECTED

    def selects(self, info: NodeInfo) -> bool:
        if any(info.labels.get(key) != value for key, value in self.selector.items()):
            return False
        return self.node_terms is None or any(matches_node_term(term, info.node) for term in self.node_terms)


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
        self._nodes: dict[str, NodeInfo] = {}
        self._placed: dict[str, tuple[PodInfo, str]] = {}
        self._guarded: dict[str, tuple[PodInfo, str]] = {}  # placed pods with anti-affinity
        self._pending: dict[str, PodInfo] = {}
        self._unschedulable: dict[str, PodInfo] = {}
        self._messages: dict[str, str] = {}
        self._candidates: dict[str, _Candidates] = {}
        self._nodes_version = 0
        self._freed_version = 0
        self._wake = asyncio.Event()
        self._gate = asyncio.Semaphore(32)
        self._writes: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        nodes.on_change(self._node_changed)
        pods.on_change(self._pod_changed)

    async def start(self) -> None:
        self._events.start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            await cancel(self._task, *self._writes)
        await self._events.stop()

    # -- what happens in the cluster

    def _node_changed(self, kind: str, node: Object, old: Object | None) -> None:
        name = node["metadata"]["name"]
        if kind == "DELETED":
            self._nodes.pop(name, None)
        elif name not in self._nodes:
            info = self._nodes[name] = NodeInfo(node)
            for placed, where in self._placed.values():
                if where == name:
                    self._occupy(placed, info, 1)
        elif old is not None and _scheduling_part(old) == _scheduling_part(node):
            self._nodes[name].node = node
            return
        else:
            self._nodes[name].update(node)
        self._nodes_version += 1
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
        elif uid not in self._placed and self._is_ours(pod):
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
        before = self._placed.get(uid)
        if before is not None:
            if before[1] == node:
                return
            self._release(uid)
        self._assume(PodInfo(pod), node)

    def _assume(self, info: PodInfo, node: str) -> None:
        self._placed[info.uid] = (info, node)
        if info.anti_affinity_terms:
            self._guarded[info.uid] = (info, node)
        if node in self._nodes:
            self._occupy(info, self._nodes[node], 1)

    def _release(self, uid: str) -> None:
        placed = self._placed.pop(uid, None)
        if placed is None:
            return
        self._guarded.pop(uid, None)
        info, node = placed
        if node in self._nodes:
            self._occupy(info, self._nodes[node], -1)
        self._freed_version += 1
        self._retry_unschedulable()

    @staticmethod
    def _occupy(info: PodInfo, node: NodeInfo, sign: int) -> None:
        add_resources(node.used, info.needs, sign)
        for port in info.ports:
            node.ports[port] += sign

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
        if known is not None and known[0] == self._freed_version and not info.relational:
            self._refuse(info, known[1])
            return False
        node = self._find_node(info)
        if node is None:
            message = self._explain(info)
            refused[info.signature] = (self._freed_version, message)
            self._refuse(info, message)
            return False
        self._assume(info, node.name)
        self._spawn(self._bind(info, node.name))
        return True

    def _find_node(self, info: PodInfo) -> NodeInfo | None:
        candidates = self._candidates_of(info)
        start = candidates.position
        if info.relational or candidates.freed_version != self._freed_version:
            start = 0
        for index in range(start, len(candidates.nodes)):
            node = candidates.nodes[index]
            if not node.shortages(info.needs) and not self._port_conflict(info, node) and not self._relation_problem(info, node):
                if not info.relational and not self._guarded:
                    candidates.position, candidates.freed_version = index, self._freed_version
                return node
        return None

    def _candidates_of(self, info: PodInfo) -> _Candidates:
        found = self._candidates.get(info.signature)
        if found is None or found.nodes_version != self._nodes_version:
            nodes = [node for node in self._considered(info) if not info.static_problem(node)]
            found = self._candidates[info.signature] = _Candidates(nodes, self._nodes_version)
            if len(self._candidates) > 1024:
                self._candidates.pop(next(iter(self._candidates)))
        return found

    def _considered(self, info: PodInfo) -> list[NodeInfo]:
        names: Iterable[str] | None = info.named_nodes()
        return [self._nodes[name] for name in sorted(self._nodes if names is None else names) if name in self._nodes]

    @staticmethod
    def _port_conflict(info: PodInfo, node: NodeInfo) -> bool:
        return any(node.ports[port] > 0 for port in info.ports)

    def _explain(self, info: PodInfo) -> str:
        """kube-scheduler's sentence on why no node fits."""
        total = len(self._nodes)
        if not total:
            return "no nodes available to schedule pods"
        considered = self._considered(info)
        reasons: collections.Counter[str] = collections.Counter()
        hopeless = total - len(considered)
        if hopeless:
            reasons[_NOT_NAMED] = hopeless
        for node in considered:
            problems, removable = self._problems(info, node)
            reasons.update(problems)
            hopeless += not removable
        helped = total - hopeless
        preemption = []
        if helped:
            preemption.append(f"{helped} No preemption victims found for incoming pod")
        if hopeless:
            preemption.append(f"{hopeless} Preemption is not helpful for scheduling")
        head = f"0/{total} nodes are available:"
        counted = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        if info.pod["spec"].get("preemptionPolicy") == "Never":
            return f"{head} {counted}. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        return f"{head} {counted}. no new claims to deallocate, preemption: {head} {', '.join(sorted(preemption))}."

    def _problems(self, info: PodInfo, node: NodeInfo) -> tuple[list[str], bool]:
        """The first failing filter's reasons, and whether removing pods from the node could help."""
        static = info.static_problem(node)
        if static:
            return [static], False
        if self._port_conflict(info, node):
            return [_PORTS], True
        short = node.shortages(info.needs)
        if short:
            possible = all(info.needs[name] <= node.allocatable.get(name, 0) for name in short)
            return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short], possible
        problem = self._relation_problem(info, node)
        return [problem], problem not in _HOPELESS

    # -- relations between pods

    def _relation_problem(self, info: PodInfo, node: NodeInfo) -> str:
        if not info.relational and not self._guarded:
            return ""
        if not all(self._spread_fits(info, rule, node) for rule in info.spread):
            return _SPREAD
        if not all(self._affinity_fits(info, term, node) for term in info.affinity_terms):
            return _AFFINITY
        for term in info.anti_affinity_terms:
            if any(_same_domain(term, node, self._nodes.get(where)) for where in self._homes_of_matches(info, term)):
                return _ANTI_AFFINITY
        for other, where in self._guarded.values():
            for term in other.anti_affinity_terms:
                if _term_matches(other, term, info) and _same_domain(term, node, self._nodes.get(where)):
                    return _EXISTING_ANTI_AFFINITY
        return ""

    def _homes_of_matches(self, info: PodInfo, term: Object) -> set[str]:
        """Nodes with a placed pod that the affinity term selects."""
        return {where for other, where in self._placed.values() if _term_matches(info, term, other)}

    def _affinity_fits(self, info: PodInfo, term: Object, node: NodeInfo) -> bool:
        homes = self._homes_of_matches(info, term)
        if not homes:  # the first of a group that wants to be together may start anywhere in a domain
            return _term_matches(info, term, info) and term["topologyKey"] in node.labels
        return any(_same_domain(term, node, self._nodes.get(where)) for where in homes)

    def _spread_fits(self, info: PodInfo, rule: Object, node: NodeInfo) -> bool:
        key = rule["topologyKey"]
        if key not in node.labels:
            return False
        counts = {other.labels[key]: 0 for other in self._nodes.values() if key in other.labels and info.selects(other)}
        for other, where in self._placed.values():
            home = self._nodes.get(where)
            domain = home.labels.get(key) if home else None
            if domain in counts and other.namespace == info.namespace and matches_labels(rule.get("labelSelector"), other.labels):
                counts[t.cast(str, domain)] += 1
        own = counts.get(node.labels[key], 0) + matches_labels(rule.get("labelSelector"), info.labels)
        return own - min(counts.values(), default=0) <= rule["maxSkew"]

    # -- writes

    def _spawn(self, call: t.Coroutine[t.Any, t.Any, None]) -> None:
        task = asyncio.create_task(call)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

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
            self._spawn(self._write_condition(info, message))

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


def host_ports(pod: Object) -> set[tuple[int, str]]:
    """(port, protocol) which the pod takes on its node."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or [])
    return {(port["hostPort"], port.get("protocol", "TCP")) for port in ports if port.get("hostPort")}


def _required(affinity: Object, kind: str) -> list[Object]:
    return (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []


def _scheduling_part(node: Object) -> tuple[t.Any, ...]:
    """What of a node matters here: heartbeats do not."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    return node["metadata"].get("labels"), spec.get("unschedulable"), spec.get("taints"), status.get("allocatable"), status.get("capacity")


def _term_matches(owner: PodInfo, term: Object, other: PodInfo) -> bool:
    """Whether the affinity term of `owner` selects the pod `other`."""
    namespaces = term.get("namespaces") or []
    anywhere = term.get("namespaceSelector") == {}
    if not anywhere and other.namespace not in (namespaces or [owner.namespace]):
        return False
    keys = [
        *({"key": key, "operator": "In", "values": [owner.labels[key]]} for key in term.get("matchLabelKeys") or [] if key in owner.labels),
        *(
            {"key": key, "operator": "NotIn", "values": [owner.labels[key]]}
            for key in term.get("mismatchLabelKeys") or []
            if key in owner.labels
        ),
    ]
    return matches_labels(term.get("labelSelector"), other.labels) and all(matches_expression(rule, other.labels) for rule in keys)


def _same_domain(term: Object, node: NodeInfo, other: NodeInfo | None) -> bool:
    key = term["topologyKey"]
    return other is not None and key in node.labels and node.labels[key] == other.labels.get(key)
