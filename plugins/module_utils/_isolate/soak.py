# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What failed and does not fail again: many short pair tests in changing pairings show a node that fails now and then."""

from __future__ import annotations

from .evidence import CLEAR
from .node_sets import Nodes
from .search import Search
from .trial import Trial
from .waves import Steps

SOAK_LEAST = 6  # fewer nodes than this are soaked together with known-good ones


def soak(search: Search, nodes: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """Random pairs of these nodes, until the failures of one node are too many for chance."""
    if transport == "net" and not any(search.evidence.strong(trial) for trial in witnesses):
        return  # it may have been noise; the closing test has the last word on the network
    # An end of a blamed pair may be the node that fails now and then; without the other end its failures are its own.
    ends = {finding.right[0]: finding.left[0] for finding in search.findings if finding.kind == "pair" and finding.transport == transport}
    ends |= {left: right for right, left in ends.items()}
    out = {node for node in search.tainted(transport) if node in search.accused or node not in ends or search.in_doubt(node)}
    nodes = tuple(node for node in nodes if node not in out)
    nodes = tuple(node for node in nodes if ends.get(node) not in nodes or node < ends[node])
    for node in nodes:
        if node in ends and search.try_unsteady(node, transport, {ends[node]}):
            return
    if len(nodes) < SOAK_LEAST:
        homes = dict.fromkeys(search.unit_of[node] for node in nodes)
        helpers = [node for home in homes for node in search.units[home].nodes if node not in nodes and search.good(node, transport)]
        nodes = tuple(sorted([*nodes, *helpers[: SOAK_LEAST - len(nodes)]]))
    if len(nodes) < 3:
        search.irreproducible(nodes or witnesses[0].nodes, transport, witnesses)
        return
    waves = search.limits["soak_waves"] + (4 if search.options["soak"] else 0)
    failed: dict[int, set[int]] = {node: set() for node in nodes}
    passed: dict[int, int] = dict.fromkeys(nodes, 0)
    for _turn in range(waves):
        order = list(nodes)
        search.random.shuffle(order)
        trials = [
            search.ask(pair, transport, "soak: random pairs", "a node that fails now and then", avoid=nodes)
            for pair in zip(order[::2], order[1::2], strict=False)
        ]
        yield trials
        for trial in trials:
            for node in set(nodes) & set(trial.asked):
                if search.evidence.strong(trial):
                    failed[node].update(set(trial.asked) - {node})
                elif search.evidence.weight(trial) <= CLEAR:
                    passed[node] += 1
        if [node for node in nodes if _stands_out(node, failed, passed) and search.try_unsteady(node, transport)]:
            return
    search.irreproducible(nodes, transport, witnesses)


def _stands_out(node: int, failed: dict[int, set[int]], passed: dict[int, int]) -> bool:
    """Failed with at least two partners, who passed elsewhere and failed less often."""
    if len(failed[node]) < 2:
        return False
    return all(passed[other] and len(failed[other]) < len(failed[node]) for other in failed[node])
