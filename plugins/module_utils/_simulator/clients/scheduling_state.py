# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows: nodes with what is free on them, pods with what they want, and which pods are where."""

from __future__ import annotations

import collections
import json
import typing as t

from .api import Object
from .matching import add_resources, matches_node_term, milli, pod_requests

_DEFAULT_MAX_PODS = 110_000


class NodeInfo:
    """A node with what is free on it. Resources are in thousandths."""

    def __init__(self, node: Object) -> None:
        self.used: dict[str, int] = {}
        self.ports: collections.Counter[tuple[int, str]] = collections.Counter()
        self.update(node)

    def update(self, node: Object) -> None:
        """Takes over what the Node says now."""
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

    def selects(self, info: NodeInfo) -> bool:
        """Whether the node selector and the required node affinity take this node."""
        if any(info.labels.get(key) != value for key, value in self.selector.items()):
            return False
        return self.node_terms is None or any(matches_node_term(term, info.node) for term in self.node_terms)


def host_ports(pod: Object) -> set[tuple[int, str]]:
    """(port, protocol) which the pod takes on its node."""
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or [])
    return {(port["hostPort"], port.get("protocol", "TCP")) for port in ports if port.get("hostPort")}


def _required(affinity: Object, kind: str) -> list[Object]:
    return (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or []


class Placements:
    """Nodes, and the pods that have their places on them.

    placed:        uid -> (pod, name of its node), also while the node is not known.
    guarded:       the placed pods with anti-affinity.
    nodes_version: counts changes of nodes; freed_version counts pods that have left.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self.placed: dict[str, tuple[PodInfo, str]] = {}
        self.guarded: dict[str, tuple[PodInfo, str]] = {}
        self.nodes_version = 0
        self.freed_version = 0

    def take_node(self, kind: str, node: Object, old: Object | None) -> bool:
        """Takes over a change of a node. False if nothing in it matters here: heartbeats do not."""
        name = node["metadata"]["name"]
        if kind == "DELETED":
            self.nodes.pop(name, None)
        elif name not in self.nodes:
            info = self.nodes[name] = NodeInfo(node)
            for placed, where in self.placed.values():
                if where == name:
                    _occupy(placed, info, 1)
        elif old is not None and _scheduling_part(old) == _scheduling_part(node):
            self.nodes[name].node = node
            return False
        else:
            self.nodes[name].update(node)
        self.nodes_version += 1
        return True

    def assume(self, info: PodInfo, node: str) -> None:
        """The pod has its place on the node."""
        self.placed[info.uid] = (info, node)
        if info.anti_affinity_terms:
            self.guarded[info.uid] = (info, node)
        if node in self.nodes:
            _occupy(info, self.nodes[node], 1)

    def release(self, uid: str) -> bool:
        """The pod has left. False if it had no place."""
        placed = self.placed.pop(uid, None)
        if placed is None:
            return False
        self.guarded.pop(uid, None)
        info, node = placed
        if node in self.nodes:
            _occupy(info, self.nodes[node], -1)
        self.freed_version += 1
        return True

    def considered(self, info: PodInfo) -> list[NodeInfo]:
        """The nodes to look at for a pod, by name: those its affinity names, else all."""
        names = info.named_nodes()
        return [self.nodes[name] for name in sorted(self.nodes if names is None else names) if name in self.nodes]


def _occupy(info: PodInfo, node: NodeInfo, sign: int) -> None:
    add_resources(node.used, info.needs, sign)
    for port in info.ports:
        node.ports[port] += sign


def _scheduling_part(node: Object) -> tuple[t.Any, ...]:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    return node["metadata"].get("labels"), spec.get("unschedulable"), spec.get("taints"), status.get("allocatable"), status.get("capacity")
