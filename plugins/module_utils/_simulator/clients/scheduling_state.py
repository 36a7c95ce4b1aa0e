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
HOSTNAME = "kubernetes.io/hostname"


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
        self.wide = any(term["topologyKey"] != HOSTNAME for term in self.anti_affinity_terms)
        self.relational = bool(self.affinity_terms or self.anti_affinity_terms or self.spread)
        # Only pods on a node itself may keep it from the node: while none leaves, a node that refused it goes on refusing its like.
        self.local = self.relational and not (self.affinity_terms or self.spread) and not self.wide
        # Pods that ask the same of a node share one list of candidates.
        asked = [self.selector, self.node_terms, self.tolerations, self.needs, sorted(self.ports), self.anti_affinity_terms]
        self.signature = json.dumps(asked, sort_keys=True)

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
    guarded:       the placed pods with anti-affinity beyond their own host; that of a host is looked for on the host alone.
    apart:         how many placed pods have anti-affinity of either kind.
    beside:        by name of a node, the pods placed there. hosts: by value of the host name's label, the nodes that carry it.
    nodes_version: counts changes of nodes; freed_version counts pods that have left.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self.placed: dict[str, tuple[PodInfo, str]] = {}
        self.guarded: dict[str, tuple[PodInfo, str]] = {}
        self.apart = 0
        self.beside: dict[str, dict[str, PodInfo]] = {}
        self.hosts: dict[str, set[str]] = {}
        self.nodes_version = 0
        self.freed_version = 0

    def take_node(self, kind: str, node: Object, old: Object | None) -> bool:
        """Takes over a change of a node. False if nothing in it matters here: heartbeats do not."""
        name = node["metadata"]["name"]
        if kind == "DELETED":
            self._rename_host(self.nodes.pop(name, None), None)
        elif name not in self.nodes:
            info = self.nodes[name] = NodeInfo(node)
            self._rename_host(None, info)
            for placed in self.beside.get(name, {}).values():
                _occupy(placed, info, 1)
        elif old is not None and _scheduling_part(old) == _scheduling_part(node):
            self.nodes[name].node = node
            return False
        else:
            self._rename_host(self.nodes[name], None)
            self.nodes[name].update(node)
            self._rename_host(None, self.nodes[name])
        self.nodes_version += 1
        return True

    def assume(self, info: PodInfo, node: str) -> None:
        """The pod has its place on the node."""
        self.placed[info.uid] = (info, node)
        if info.wide:
            self.guarded[info.uid] = (info, node)
        self.apart += bool(info.anti_affinity_terms)
        self.beside.setdefault(node, {})[info.uid] = info
        if node in self.nodes:
            _occupy(info, self.nodes[node], 1)

    def release(self, uid: str) -> bool:
        """The pod has left. False if it had no place."""
        placed = self.placed.pop(uid, None)
        if placed is None:
            return False
        self.guarded.pop(uid, None)
        info, node = placed
        self.apart -= bool(info.anti_affinity_terms)
        self.beside[node].pop(uid)
        if node in self.nodes:
            _occupy(info, self.nodes[node], -1)
        self.freed_version += 1
        return True

    def _rename_host(self, old: NodeInfo | None, new: NodeInfo | None) -> None:
        if old is not None and HOSTNAME in old.labels:
            self.hosts[old.labels[HOSTNAME]].discard(old.name)
        if new is not None and HOSTNAME in new.labels:
            self.hosts.setdefault(new.labels[HOSTNAME], set()).add(new.name)

    def on_host(self, node: NodeInfo) -> list[PodInfo]:
        """The pods on the host of a node; none where its label does not say which host that is."""
        names = self.hosts.get(node.labels[HOSTNAME], set()) if HOSTNAME in node.labels else set()
        return [pod for name in names for pod in self.beside.get(name, {}).values()]

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
