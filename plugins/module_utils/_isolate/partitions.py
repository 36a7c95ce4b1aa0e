# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A domain split in two sides: nodes of one side look bad to references of the other.

Nodes that passed together are on one side. What does not work with the largest such set is tried with each other: if
they work among themselves they are the other side of a partition, and no bad nodes.
"""

from __future__ import annotations

from .evidence import CLEAR, CONVICT, FAIL
from .node_sets import Nodes
from .search import Finding, Search
from .waves import Steps, Trial


def reconsider_sides(search: Search) -> Steps:
    """Look at every domain whose findings could be the two sides of a partition."""
    jobs = []
    for unit in range(len(search.units)):
        for transport in ("nvl", "net"):
            findings = _doubtful(search, unit, transport)
            if findings and findings != search.reconsidered.get((unit, transport)):
                jobs.append(_sides(search, unit, transport, findings))
    yield from search.all_of(jobs)
    for unit in range(len(search.units)):
        for transport in ("nvl", "net"):
            search.reconsidered[unit, transport] = _doubtful(search, unit, transport)


def _doubtful(search: Search, unit: int, transport: str) -> list[Finding]:
    """Findings of the domain that a partition would explain too; [] when a partition is not likely."""
    home = set(search.units[unit].nodes)
    found = [
        finding
        for finding in search.findings
        if finding.transport == transport
        and home.issuperset(finding.left + finding.right)
        and (finding.kind in ("pair", "partition", "irreproducible") or finding.kind_of_node in ("nic", "nvl", "intermittent"))
    ]
    nodes = [finding for finding in found if finding.kind == "node"]
    if any(_mixed(search, finding) for finding in nodes):
        return found
    if len(nodes) >= (2 if transport == "nvl" else 3):
        return found
    if any(finding.kind == "partition" for finding in found) and len(found) > 1:
        return found
    return []


def _mixed(search: Search, finding: Finding) -> bool:
    """The accused also passed with others: a node that is bad by itself does not."""
    return any(
        len(trial.nodes) >= 2 and trial.transport == finding.transport and search.evidence.weight(trial) <= CLEAR
        for trial in search.of_node[finding.left[0]]
    )


def _sides(search: Search, unit: int, transport: str, findings: list[Finding]) -> Steps:
    accused = [finding.left[0] for finding in findings if finding.kind == "node"]
    if len(accused) == len(findings) and not any(_mixed(search, finding) for finding in findings):
        # Nothing but accused nodes: only if two of them work together it is worth a closer look.
        couples = _strangers(search, accused, transport)
        trials = [search.ask(couple, transport, "two accused nodes together", "two sides of a domain, not bad nodes") for couple in couples]
        verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
        if "pass" not in verdicts:
            return
    broken = {node for node, finding in search.accused.items() if finding not in findings} | set(search.lost)
    nodes = tuple(node for node in search.units[unit].nodes if node not in broken)
    groups = _worked_together(search, nodes, transport)
    if not groups:
        return  # every node was lost in the meantime
    main, others = groups[0], groups[1:]
    unknown = [group for group in others if not _failed_together(search, main, group, transport)]
    passing = yield from _meet(search, main, unknown, transport)
    main = tuple(sorted(node for group in [main, *passing] for node in group))
    others = [group for group in others if group not in passing]
    if sum(map(len, others)) < 2:
        return
    second = yield from _second_side(search, others, transport)
    if len(second) < 2:
        return
    trials = [search.ask(side, transport, "one side of the domain", "the two sides are good in themselves") for side in (main, second)]
    verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
    if verdicts != ["pass", "pass"]:
        return
    witnesses: list[Trial] = []
    inside = set(main) | set(second)
    for finding in findings:
        if inside.issuperset(finding.left + finding.right):
            witnesses += finding.witnesses
            search.retract(finding)
    crossing = [trial for trial in witnesses if set(trial.nodes) & set(main) and set(trial.nodes) & set(second)]
    strength = max(CONVICT, search.total(crossing[:4]))
    search.blame(Finding("partition", transport, main, second, strength=strength, witnesses=crossing or witnesses, controls=trials))


def _second_side(search: Search, others: list[Nodes], transport: str) -> Steps:
    """The largest set among `others` that works together, beginning with its largest known group."""
    start = others[0]
    rest = others[1:]
    if len(start) == 1:
        couples = _strangers(search, [group[0] for group in others], transport)
        trials = [search.ask(couple, transport, "two accused nodes together", "two sides of a domain, not bad nodes") for couple in couples]
        verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
        good = [couple for couple, verdict in zip(couples, verdicts, strict=True) if verdict == "pass"]
        if not good:
            return ()
        start = good[0]
        rest = [group for group in others if not set(group) & set(start)]
    joined = yield from _meet(search, start, rest, transport)
    return tuple(sorted({node for group in [start, *joined] for node in group}))


def _strangers(search: Search, nodes: list[int], transport: str) -> list[tuple[int, int]]:
    """Disjoint couples that are not known to fail together."""
    couples = []
    rest = list(nodes)
    while len(rest) > 1:
        node = rest.pop(0)
        mate = next((other for other in rest if not _failed_together(search, (node,), (other,), transport)), None)
        if mate is not None:
            rest.remove(mate)
            couples.append((node, mate))
    return couples


def _meet(search: Search, side: Nodes, groups: list[Nodes], transport: str) -> Steps:
    """Which of `groups` work with `side`? One node of each, in parallel as far as the side has members."""
    trials = [
        search.ask((side[at % len(side)], group[0]), transport, "which side of the domain", "these two are on one side")
        for at, group in enumerate(groups)
    ]
    verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
    return [group for group, verdict in zip(groups, verdicts, strict=True) if verdict == "pass"]


def _worked_together(search: Search, nodes: Nodes, transport: str) -> list[Nodes]:
    """Nodes joined by passing tests, largest group first."""
    group_of = {node: node for node in nodes}
    for node in nodes:
        for trial in search.of_node[node]:
            same = trial.transport == transport and len(trial.nodes) > 1 and search.evidence.weight(trial) <= CLEAR
            if same and trial.shape != "cross":
                mates = {group_of[mate] for mate in trial.nodes if mate in group_of}
                for mate in group_of:
                    if group_of[mate] in mates:
                        group_of[mate] = group_of[node]
    groups: dict[int, list[int]] = {}
    for node in nodes:
        groups.setdefault(group_of[node], []).append(node)
    return sorted((tuple(group) for group in groups.values()), key=lambda group: (-len(group), group))


def _failed_together(search: Search, side: Nodes, group: Nodes, transport: str) -> bool:
    """A failed test of two nodes, one of each."""
    return any(
        len(trial.nodes) == 2 and trial.transport == transport and set(trial.nodes) & set(side) and search.evidence.weight(trial) >= FAIL
        for node in group
        for trial in search.of_node[node]
    )
