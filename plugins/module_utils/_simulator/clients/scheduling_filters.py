# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The filters of kube-scheduler, and its words about nodes that do not pass them.

Unschedulable nodes, taints, node selector and required node affinity (with matchFields), host ports, resources, required pod affinity and
anti-affinity, topology spread with DoNotSchedule.
"""

from __future__ import annotations

import collections

from .api import Object
from .matching import matches_expression, matches_labels, tolerates
from .scheduling_state import HOSTNAME, NodeInfo, Placements, PodInfo

_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "value": ""}

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


def static_problem(info: PodInfo, node: NodeInfo) -> str:
    """Why this node can never take the pod while both stay as they are; "" if it can."""
    if node.cordoned and not tolerates(info.tolerations, _UNSCHEDULABLE_TAINT):
        return _UNSCHEDULABLE
    if any(not tolerates(info.tolerations, taint) for taint in node.taints):
        return _TAINTED
    return "" if info.selects(node) else _NOT_SELECTED


def has_room(placements: Placements, info: PodInfo, node: NodeInfo) -> bool:
    """Whether a node without a static problem can take the pod now."""
    return not node.shortages(info.needs) and not _port_conflict(info, node) and not _relation_problem(placements, info, node)


def _port_conflict(info: PodInfo, node: NodeInfo) -> bool:
    return any(node.ports[port] > 0 for port in info.ports)


def explain(placements: Placements, info: PodInfo) -> str:
    """kube-scheduler's sentence on why no node fits."""
    total = len(placements.nodes)
    if not total:
        return "no nodes available to schedule pods"
    considered = placements.considered(info)
    reasons: collections.Counter[str] = collections.Counter()
    hopeless = total - len(considered)
    if hopeless:
        reasons[_NOT_NAMED] = hopeless
    for node in considered:
        problems, removable = _problems(placements, info, node)
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


def _problems(placements: Placements, info: PodInfo, node: NodeInfo) -> tuple[list[str], bool]:
    """The first failing filter's reasons, and whether removing pods from the node could help."""
    static = static_problem(info, node)
    if static:
        return [static], False
    if _port_conflict(info, node):
        return [_PORTS], True
    short = node.shortages(info.needs)
    if short:
        possible = all(info.needs[name] <= node.allocatable.get(name, 0) for name in short)
        return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short], possible
    problem = _relation_problem(placements, info, node)
    return [problem], problem not in _HOPELESS


# -- relations between pods


def _relation_problem(placements: Placements, info: PodInfo, node: NodeInfo) -> str:
    here = placements.on_host(node)
    if not (info.relational or placements.guarded or here):
        return ""
    nodes = placements.nodes
    if not all(_spread_fits(placements, info, rule, node) for rule in info.spread):
        return _SPREAD
    if not all(_affinity_fits(placements, info, term, node) for term in info.affinity_terms):
        return _AFFINITY
    for term in info.anti_affinity_terms:
        if term["topologyKey"] == HOSTNAME:
            if any(_term_matches(info, term, other) for other in here):
                return _ANTI_AFFINITY
        elif any(_same_domain(term, node, nodes.get(where)) for where in _homes_of_matches(placements, info, term)):
            return _ANTI_AFFINITY
    if any(_kept_apart(other, info) for other in here):
        return _EXISTING_ANTI_AFFINITY
    for other, where in placements.guarded.values():
        for term in other.anti_affinity_terms:
            if term["topologyKey"] != HOSTNAME and _term_matches(other, term, info) and _same_domain(term, node, nodes.get(where)):
                return _EXISTING_ANTI_AFFINITY
    return ""


def _kept_apart(other: PodInfo, info: PodInfo) -> bool:
    """Whether a pod on a host wants this one to be on another host."""
    return any(term["topologyKey"] == HOSTNAME and _term_matches(other, term, info) for term in other.anti_affinity_terms)


def _homes_of_matches(placements: Placements, info: PodInfo, term: Object) -> set[str]:
    """Nodes with a placed pod that the affinity term selects."""
    return {where for other, where in placements.placed.values() if _term_matches(info, term, other)}


def _affinity_fits(placements: Placements, info: PodInfo, term: Object, node: NodeInfo) -> bool:
    homes = _homes_of_matches(placements, info, term)
    if not homes:  # the first of a group that wants to be together may start anywhere in a domain
        return _term_matches(info, term, info) and term["topologyKey"] in node.labels
    return any(_same_domain(term, node, placements.nodes.get(where)) for where in homes)


def _spread_fits(placements: Placements, info: PodInfo, rule: Object, node: NodeInfo) -> bool:
    key = rule["topologyKey"]
    if key not in node.labels:
        return False
    counts = {other.labels[key]: 0 for other in placements.nodes.values() if key in other.labels and info.selects(other)}
    for other, where in placements.placed.values():
        home = placements.nodes.get(where)
        domain = home.labels.get(key) if home else None
        if domain in counts and other.namespace == info.namespace and matches_labels(rule.get("labelSelector"), other.labels):
            counts[domain] += 1
    own = counts.get(node.labels[key], 0) + matches_labels(rule.get("labelSelector"), info.labels)
    return bool(own - min(counts.values(), default=0) <= rule["maxSkew"])


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
