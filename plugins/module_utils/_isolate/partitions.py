# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A domain split in two sides: nodes of one side look bad to references of the other.

Nodes that passed together are on one side. What does not work with the largest such set is tried with each other: if
they work among themselves they are the other side of a partition, and no bad nodes.
"""

from __future__ import annotations

import itertools

from .evidence import CLEAR, CONVICT, FAIL
from .node_sets import Nodes, circle
from .search import Finding, Search
from .trial import Trial
from .waves import Steps

MOST_ROUNDS = 3  # of couples of accused nodes over NVLink; over the network two sides of a domain are rare


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
        and (
            finding.kind in ("pair", "partition", "irreproducible", "unresolved") or finding.kind_of_node in ("nic", "nvl", "intermittent")
        )
    ]
    nodes = [finding for finding in found if finding.kind == "node"]
    if any(_mixed(search, finding) for finding in nodes):
        return found
    if len(nodes) >= (2 if transport == "nvl" else 3):
        return found
    if any(finding.kind == "partition" for finding in found) and len(found) > 1:
        return found
    if transport == "nvl" and any(finding.kind == "unresolved" for finding in found):
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
        work = yield from _accused_together(search, accused, transport)
        if work is None:
            _cannot_tell(search, findings, transport)
        if not work:
            return
    broken = {node for node, finding in search.accused.items() if finding not in findings} | set(search.lost)
    nodes = tuple(node for node in search.units[unit].nodes if node not in broken)
    groups = search.sides(nodes, transport)
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
    quiet = [tuple(node for node in side if node not in search.accused) for side in (main, second)]
    if all(quiet):
        # Without the accused: if the rest of both sides work together it was the accused.
        crossing_verdict, _trial = yield from search.decide(
            quiet[0] + quiet[1], transport, "both sides without the accused nodes", "two sides of a domain, not bad nodes"
        )
        if crossing_verdict == "pass":
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
        work = yield from _accused_together(search, [group[0] for group in others], transport)
        if not work:
            return ()
        start = work
        rest = [group for group in others if not set(group) & set(start)]
    joined = yield from _meet(search, start, rest, transport)
    return tuple(sorted({node for group in [start, *joined] for node in group}))


def _accused_together(search: Search, nodes: list[int], transport: str) -> Steps:
    """Accused nodes of one domain that pass together: () if none do, None if that cannot be measured.

    They meet in rounds of couples. Where groups must be larger they are filled with other accused nodes only: anybody
    else may be on the other side.
    """
    groups: list[list[Nodes]]
    home = {mate for node in nodes for mate in search.home(node)}
    smallest = search.options["min_group_size"]
    if smallest > 2 and transport == "nvl":
        if len(nodes) < smallest:
            return None
        groups = [[some] for some in itertools.islice(itertools.combinations(nodes, smallest), MOST_ROUNDS)]
    else:
        groups = [[(nodes[a], nodes[b]) for a, b in pairs] for pairs in circle(len(nodes))[: MOST_ROUNDS if transport == "nvl" else 1]]
    for group in groups:
        couples = [couple for couple in group if len(couple) > 2 or not _failed_together(search, couple[:1], couple[1:], transport)]
        known = next((couple for couple in couples if search.passed_together(couple, transport)), None)
        if known:
            return known
        purpose = "two accused nodes together" if len(group[0]) == 2 else "the accused nodes of a domain together"
        trials = [search.ask(couple, transport, purpose, "two sides of a domain, not bad nodes", avoid=home) for couple in couples]
        verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
        if "pass" in verdicts:
            return couples[verdicts.index("pass")]
    return ()


def _cannot_tell(search: Search, findings: list[Finding], transport: str) -> None:
    """Bad nodes or one side of a domain: nothing that can be run tells."""
    nodes = [finding.left[0] for finding in findings]
    witnesses = [trial for finding in findings for trial in finding.witnesses]
    for finding in findings:
        search.retract(finding)
    note = "they fail with the rest of their domain and are too few to be tested without it: bad nodes, or one side of the domain"
    search.unresolved(nodes, transport, note, witnesses)


def _meet(search: Search, side: Nodes, groups: list[Nodes], transport: str) -> Steps:
    """Which of `groups` work with `side`? One node of each, in parallel as far as the side has members."""
    trials = [
        search.ask((side[at % len(side)], group[0]), transport, "which side of the domain", "these two are on one side")
        for at, group in enumerate(groups)
    ]
    verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
    return [group for group, verdict in zip(groups, verdicts, strict=True) if verdict == "pass"]


def _failed_together(search: Search, side: Nodes, group: Nodes, transport: str) -> bool:
    """A failed test of two nodes, one of each."""
    return any(
        len(trial.nodes) == 2 and trial.transport == transport and set(trial.nodes) & set(side) and search.evidence.weight(trial) >= FAIL
        for node in group
        for trial in search.of_node[node]
    )
