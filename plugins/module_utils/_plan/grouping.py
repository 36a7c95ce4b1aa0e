# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes are tested together, at each test scale.

Nodes are snapshot rows (docs/data_shapes.md). The same nodes always give the same groups. Every node handed in ends in
exactly one group or in the list of untested nodes with a reason: nothing is dropped in silence.
"""

from __future__ import annotations

import typing as t
from collections import Counter

from .._common.errors import InputError
from .._common.shapes import Group, SnapshotNode, Untested
from .._common.words import counted

Node = SnapshotNode
Grouping = tuple[list[Group], list[Untested]]

# Preference for the rack when no topology key was given: NVLink partition first, since it is the fastest shared part.
CLIQUE_LABEL = "nvidia.com/gpu.clique"
DOMAIN_ORDER = ("clique", "rack", "block")


def domain_of(node: Node, topology_key: str | None, kind: str | None) -> str | None:
    """The topology domain of a node: the label the user named, else the domain kind chosen for the whole set."""
    if topology_key == CLIQUE_LABEL:
        return node["domains"].get("clique")  # without the ids by which a driver says that there is no clique
    if topology_key is not None:
        return node.get("labels", {}).get(topology_key) or (node["name"] if topology_key == "kubernetes.io/hostname" else None)
    return _domain(node, kind) if kind else None


def _domain(node: Node, kind: str) -> str | None:
    domains: t.Mapping[str, t.Any] = node["domains"]
    return domains.get(kind)


def choose_domain_kind(nodes: t.Sequence[Node]) -> str | None:
    """The first kind of domain that every node carries, else the one most nodes carry, else None."""
    counts = Counter(kind for kind in DOMAIN_ORDER for node in nodes if _domain(node, kind))
    for kind in DOMAIN_ORDER:
        if nodes and counts[kind] == len(nodes):
            return kind
    best = max(DOMAIN_ORDER, key=lambda kind: counts[kind])
    return best if counts[best] else None


def group_nodes(
    nodes: t.Sequence[Node], test_scale: str, topology_key: str | None = None, group_size: int | None = None, left_over: str = "own_group"
) -> Grouping:
    """Groups of one category and the nodes that no group could take.

    group_size: nodes of each group, taken rack by rack; None: all that belong together. left_over: what becomes of nodes that are too few
    for a group: own_group (a smaller one), untested, or pair_with_known_good (completed by nodes of the group before, its witnesses).

    intra-node: one group per node. intra-rack: one group per domain (a domain of one node is tested alone, since its
    fabric inside the node is what it has). full-scale: one group of all. diagnose: as full-scale; the planner takes it from there.
    """
    ordered = sorted(nodes, key=lambda node: node["name"])
    if not ordered:
        return [], []
    kind = None if topology_key is not None else choose_domain_kind(ordered)
    if test_scale == "intra-node":
        return [_group(index, [node], domain_of(node, topology_key, kind)) for index, node in enumerate(ordered, 1)], []
    if test_scale in ("full-scale", "diagnose"):
        by_rack = sorted(ordered, key=lambda node: (domain_of(node, topology_key, kind) or "", node["name"])) if group_size else ordered
        return _parts([by_rack], lambda node: domain_of(node, topology_key, kind), group_size, left_over)
    if test_scale != "intra-rack":
        raise InputError(f"unknown test scale {test_scale!r}", place="test_scale")
    members: dict[str, list[Node]] = {}
    untested: list[Untested] = []
    for node in ordered:
        domain = domain_of(node, topology_key, kind)
        if domain is None:
            what = f"label {topology_key!r}" if topology_key else "rack or clique label"
            message = f"the node has no {what}, so its rack is unknown; set topology_key to a label it carries"
            untested.append({"node": node["name"], "reason": "Untested", "message": message})
            continue
        members.setdefault(domain, []).append(node)
    groups, rest = _parts(
        [members[key] for key in sorted(members)], lambda node: domain_of(node, topology_key, kind), group_size, left_over
    )
    return groups, untested + rest


def _parts(
    sets: t.Sequence[list[Node]], domain: t.Callable[[Node], str | None], size: int | None, left_over: str
) -> tuple[list[Group], list[Untested]]:
    """Each set of nodes as one group, or as groups of one size and what is left over."""
    groups: list[Group] = []
    untested: list[Untested] = []
    for whole in sets:
        step = size or len(whole)
        for start in range(0, len(whole), step):
            part, witnesses = whole[start : start + step], []
            if len(part) < step and left_over == "untested":
                message = f"{counted(len(part), 'node')} of {len(whole)} fill no group of {step} (left_over: untested)"
                untested += [{"node": node["name"], "reason": "Untested", "message": message} for node in part]
                continue
            if len(part) < step and left_over == "pair_with_known_good" and start:
                witnesses = whole[start - (step - len(part)) : start]
            domains = {domain(node) for node in [*part, *witnesses]}
            group = _group(len(groups) + 1, [*part, *witnesses], domains.pop() if len(domains) == 1 else None)
            groups.append({**group, "witnesses": [node["name"] for node in witnesses]} if witnesses else group)
    return groups, untested


def _group(index: int, nodes: t.Sequence[Node], domain: str | None) -> Group:
    return {"name": f"g{index:03d}", "nodes": [node["name"] for node in nodes], "domain": domain, "expected_transport": None}
