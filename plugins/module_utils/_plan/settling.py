# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the groups of a category must show, by what they are: transport by members and place, floor by size and path.

Planning asks here, and so does whoever leaves nodes out of a group later: what remains is judged by its own plan, never by that of
the whole.
"""

from __future__ import annotations

import typing as t

from .._catalog.floors import floor_of_group
from .._common.shapes import Category, Group, SnapshotNode, Template, Untested
from .._common.words import counted

TRANSPORTS = ("ib", "roce", "rdma", "efa", "mnnvl", "nvlink", "tcp", "tcpxo", "any")
# What a node alone can show.
_INSIDE = ("nvlink", "any")


def settle(category: Category, nodes: t.Sequence[SnapshotNode]) -> Category:
    """The category with the expected transport of each group and, where floors judge it, the criteria for their sizes.

    nodes: snapshot rows of all members.
    """
    groups = _with_transport(category, category["groups"], nodes)
    floors = category.get("floors")
    if floors is None:
        return {**category, "groups": groups}
    rows = [floor_of_group(floors, _floor_path(group), len(group["nodes"])) for group in groups]
    criteria, rule = _criteria([row for row in rows if row]) if all(rows) else _criteria([])
    return _judged_by({**category, "groups": groups}, criteria, rule)


def without(category: Category, left_out: t.Mapping[str, str], nodes: t.Sequence[SnapshotNode]) -> Category:
    """The category without some nodes, what remains of their groups planned anew.

    left_out: node -> why. nodes: snapshot rows of all members. What remains of a group and has no floor of its size, where floors
    judge the category, is untested: it could prove nothing, and must not take the criterion from the other groups.
    """
    kept: list[Group] = []
    untested: list[Untested] = []
    changed: set[str] = set()
    known = {item["node"] for item in category["untested"]}
    for group in category["groups"]:
        members = [name for name in group["nodes"] if name not in left_out]
        gone = [name for name in group["nodes"] if name in left_out]
        untested += [{"node": name, "reason": "Untested", "message": left_out[name]} for name in gone if name not in known]
        if gone:
            changed.add(group["name"])
        if members:
            kept.append({**group, "nodes": members})
    if not changed:
        return category
    floors = category.get("floors")
    rest = _with_transport(category, [group for group in kept if group["name"] in changed], nodes)
    planned = {group["name"]: group for group in rest}
    groups = [planned.get(group["name"], group) for group in kept]
    if floors is None or not category["criteria"]:
        return {**category, "groups": groups, "untested": [*category["untested"], *untested]}
    rows = {group["name"]: floor_of_group(floors, _floor_path(group), len(group["nodes"])) for group in groups}
    bare = [group for group in groups if rows[group["name"]] is None]
    for group in bare:
        message = f"what remains of its group, {counted(len(group['nodes']), 'node')}, has no calibrated floor: it would prove nothing"
        untested += [{"node": name, "reason": "Untested", "message": message} for name in group["nodes"] if name not in known]
    groups = [group for group in groups if group not in bare]
    criteria, rule = _criteria([row for row in rows.values() if row])
    left = _judged_by({**category, "groups": groups, "untested": [*category["untested"], *untested]}, criteria, rule)
    return left if groups else {**left, "criteria": category["criteria"], "explain": category["explain"]}


def net_transport(template: Template) -> str | None:
    """What traffic between NVLink domains must use; None when nothing says so."""
    if template["transport"] in TRANSPORTS and template["transport"] != "mnnvl":
        return template["transport"]
    if template["nic_resource"] is None:
        return None
    return "efa" if template["nic_resource"].endswith("/efa") else "rdma"


def _with_transport(category: Category, groups: t.Sequence[Group], nodes: t.Sequence[SnapshotNode]) -> list[Group]:
    by_name = {node["name"]: node for node in nodes}
    return [
        {**group, "expected_transport": _expected_transport(category, [by_name[name] for name in group["nodes"] if name in by_name])}
        for group in groups
    ]


def _expected_transport(category: Category, members: t.Sequence[SnapshotNode]) -> str | None:
    """What the group's traffic must use, where user, platform and nodes say so; None when nothing does."""
    wanted = category.get("expect_transport")
    if len(members) == 1:
        # A test of single nodes may push its traffic through the adapters, and the user says so; the rest of a larger group cannot.
        return wanted if category["test_scale"] == "intra-node" or wanted in _INSIDE else None
    if wanted:
        return wanted
    cliques = {node["domains"].get("clique") for node in members}
    mnnvl = any(item["name"] == "NCCL_MNNVL_ENABLE" and item["value"] == "1" for item in category["template"]["env"])
    return "mnnvl" if mnnvl and len(cliques) == 1 and None not in cliques else net_transport(category["template"])


def _floor_path(group: Group) -> str | None:
    """Which way a group's traffic goes, as floors name it; None where nothing says so."""
    if len(group["nodes"]) == 1:
        return "local"
    transport = group["expected_transport"]
    if transport == "mnnvl":
        return "mnnvl"
    return None if transport in (None, "tcp", "any") else "rdma"


def _criteria(floors: t.Sequence[t.Mapping[str, t.Any]]) -> tuple[list[str], str]:
    """The criteria of several groups and the rule that set them: racks of different size may need different floors, the lowest holds."""
    if not floors:
        return [], "no calibrated floor for this GPU, group size and network"
    lowest = min(floors, key=lambda row: _limit(row["criteria"]))
    return list(lowest["criteria"]), f"catalog floor: {lowest['source']}"


def _limit(criteria: t.Sequence[str]) -> float:
    numbers = [
        float(word) for expression in criteria for word in expression.replace(">=", " ").split() if word.replace(".", "", 1).isdigit()
    ]
    return min(numbers, default=0.0)


def _judged_by(category: Category, criteria: list[str], rule: str) -> Category:
    said = [item for item in category["explain"] if item["path"] != "criteria"]
    return {**category, "criteria": criteria, "explain": [*said, {"path": "criteria", "value": criteria, "rule": rule, "overridden": []}]}
