# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Ways to cut a set of nodes. Nodes are indexes here; every function is deterministic."""

from __future__ import annotations

import math
import statistics
import typing as t

Nodes = tuple[int, ...]
Combination = tuple[Nodes, Nodes]

DIRECT = 5  # groups up to this size go straight to tests of single suspects
TWO_LEVELS = 81  # up to this size two levels (chunks, then suspects) are enough


class Unit(t.NamedTuple):
    """Nodes that share one domain. real: False for a name-ordered chunk that stands in for a missing label."""

    name: str
    nodes: Nodes
    real: bool


def make_units(domains: t.Sequence[str | None], mnnvl: bool) -> list[Unit]:
    """Domains of the nodes, which must be in name order.

    Nodes without a label are cut into name-ordered chunks of about the square root of all nodes: they are never
    taken for one domain. Where most labelled domains hold a single node (and NVLink joins none), those single nodes
    count as unlabelled too: a label that names every node tells nothing about its neighbours.
    """
    labelled: dict[str, list[int]] = {}
    bare: list[int] = []
    for node, domain in enumerate(domains):
        if domain is None:
            bare.append(node)
        else:
            labelled.setdefault(domain, []).append(node)
    if labelled and not mnnvl and statistics.median(len(nodes) for nodes in labelled.values()) < 2:
        bare = sorted([*bare, *(nodes[0] for nodes in labelled.values() if len(nodes) == 1)])
        labelled = {name: nodes for name, nodes in labelled.items() if len(nodes) > 1}
    units = [Unit(name, tuple(nodes), True) for name, nodes in sorted(labelled.items())]
    if bare:
        size = math.ceil(math.sqrt(len(domains)))
        parts = split(bare, max(1, round(len(bare) / size)))
        units += [Unit(f"unlabelled-{number + 1}", tuple(part), False) for number, part in enumerate(parts)]
    return units


def upper_levels(
    units: t.Sequence[Unit], index: t.Mapping[str, int], levels: t.Mapping[str, t.Mapping[str, str]]
) -> dict[str, dict[str, Nodes]]:
    """Switches above the domains: {level: {value: nodes}}, the level with the largest groups first.

    Only levels that group whole domains: every domain under one value, two values at least, and two domains under one.
    """
    result: dict[str, dict[str, Nodes]] = {}
    for level, values in levels.items():
        of_node = {index[name]: value for name, value in values.items()}
        groups: dict[str, list[int]] = {}
        nested = all(len({of_node.get(node) for node in unit.nodes}) == 1 and unit.nodes[0] in of_node for unit in units)
        for unit in units if nested else ():
            groups.setdefault(of_node[unit.nodes[0]], []).extend(unit.nodes)
        if 1 < len(groups) < len(units):
            result[level] = {value: tuple(sorted(nodes)) for value, nodes in sorted(groups.items())}
    return dict(sorted(result.items(), key=lambda item: (len(item[1]), item[0])))


def split(items: t.Sequence[t.Any], parts: int) -> list[t.Any]:
    """Consecutive pieces of nearly equal size; never more pieces than items."""
    parts = max(1, min(parts, len(items)))
    size, extra = divmod(len(items), parts)
    pieces, at = [], 0
    for number in range(parts):
        end = at + size + (number < extra)
        pieces.append(items[at:end])
        at = end
    return pieces


def chunks(nodes: Nodes, smallest: int) -> list[Nodes]:
    """Pieces to test next for a failed group: about sqrt(n), none smaller than `smallest` (at least 2)."""
    wanted = 4 if len(nodes) > TWO_LEVELS else math.ceil(math.sqrt(len(nodes)))
    return split(nodes, max(1, min(wanted, len(nodes) // max(2, smallest))))


def circle(count: int) -> list[list[tuple[int, int]]]:
    """All pairs of `count` things in rounds of disjoint pairs (the circle method)."""
    ring = list(range(count + count % 2))
    rounds = []
    for _turn in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = [(min(a, b), max(a, b)) for a, b in zip(ring[:half], reversed(ring[half:]), strict=True) if max(a, b) < count]
        rounds.append(sorted(pairs))
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def two_sides(edges: t.Collection[tuple[int, int]], count: int) -> tuple[list[int], list[int]] | None:
    """The two sides when `edges` join every member of one side with every member of the other, else None."""
    first = {0} | {other for other in range(1, count) if (0, other) not in edges}
    second = [item for item in range(count) if item not in first]
    complete = {(min(a, b), max(a, b)) for a in first for b in second}
    return (sorted(first), second) if second and complete == set(edges) else None
