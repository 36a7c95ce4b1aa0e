# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Verifies and blames what is between two sides: a pair, a partition of a domain, a boundary of one domain or of two."""

from __future__ import annotations

import typing as t

from .evidence import CLEAR, CONVICT, FAIL
from .node_sets import Nodes
from .posterior import LEAST
from .search import Finding, Search
from .soak import soak
from .trial import Trial
from .waves import Steps

ALONE = 4.5  # evidence of a combination tested alone: one clear failure, or two that are told as pass or fail only


def blame_or_soak(
    search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial], rivals: t.Sequence[set[int]] = ()
) -> Steps:
    """Verify a combination and blame it; what does not fail again is soaked. rivals: others found with it."""
    if any(_same(finding, left, right) for finding in search.findings):
        return
    together = set(left) | set(right)
    failures = _failures(search, left, right, transport, witnesses, rivals)
    controls, doubt = yield from _controls(search, left, right, transport, witnesses)
    if doubt or any(search.try_unsteady(side[0], transport, other) for side, other in ((left, right), (right, left)) if len(side) == 1):
        return  # a side by itself is at fault, and has been dealt with
    for _turn in range(search.limits["runs_per_test"]):
        if _enough(search, together, failures):
            break
        run = _again(search, left + right, transport)
        yield [run]
        weight = search.evidence.weight(run)
        if run.outcome == "unmeasured":
            continue
        if weight <= CLEAR:
            yield from soak(search, tuple(sorted(left + right)), transport, [*witnesses, *failures])
            return
        if weight > 0:
            failures.append(run)
    if _enough(search, together, failures):
        if len(left) == len(right) == 1:
            finding = Finding("pair", transport, left, right, witnesses=failures, controls=controls)
            yield from until_sure(search, finding, closing=transport == "net")
        yield from blame_sides(search, left, right, transport, [*failures, *(w for w in witnesses if w not in failures)], controls)
    else:
        search.unresolved(left + right, transport, "they fail together at times, too close to the limit to tell", [*witnesses, *failures])


def _failures(
    search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial], rivals: t.Sequence[set[int]]
) -> list[Trial]:
    """Failed tests that are the doing of this combination: of nobody else, or of others of whom nothing else is known."""
    together = set(left) | set(right)
    if len(together) > 2:
        return [trial for trial in witnesses if set(trial.asked or trial.nodes) == together and search.evidence.weight(trial) >= FAIL]
    failed = [
        trial
        for trial in search.of_node[left[0]]
        if right[0] in trial.nodes
        and trial.transport == transport
        and search.evidence.weight(trial) >= FAIL
        and not search.explained(trial)
        and not any(rival <= set(trial.nodes) for rival in rivals)
    ]
    smallest = min(failed, key=lambda trial: len(trial.nodes), default=None)
    # One fault shows the same loss each time; runs that are slow by chance do not.
    return [trial for trial in failed if smallest and not search.evidence.differ([smallest, trial])]


def until_sure(search: Search, finding: Finding, *, closing: bool = False) -> Steps:
    """More tests of a pair until it is likelier than what else explains its failures.

    Against an end that fails now and then speaks each end with another node, both in one wave, and the pair again; against
    chance the pair again.
    closing: a closing test follows, which has room for the ends (see `apart`).
    """
    for _turn in range(2 * search.limits["runs_per_test"]):
        odds = search.pair_odds(finding)
        if max(odds.bad, *odds.ends) >= LEAST or (closing and odds.chance <= odds.end):
            return
        ends = [] if odds.again else _ends_apart(search, finding)
        asked = ends or [_again(search, finding.left + finding.right, finding.transport)]
        yield asked
        if ends:
            finding.controls += asked
        elif search.evidence.weight(asked[0]) > 0:
            finding.witnesses.append(asked[0])


def try_shared_ends(search: Search) -> Steps:
    """An end of several pairs: a node that mostly fails looks so too. With others it fails then, and the pairs do not."""
    ends = [node for finding in search.findings if finding.kind == "pair" for node in finding.left + finding.right]
    jobs = []
    for node in sorted({node for node in ends if ends.count(node) > 1}):
        pairs = [finding for finding in search.findings if finding.kind == "pair" and node in finding.left + finding.right]
        if len({finding.transport for finding in pairs}) == 1 and search.end_odds(node, pairs) >= LEAST:
            jobs.append(_with_others(search, node, pairs))
    yield from search.all_of(jobs)


def _with_others(search: Search, node: int, pairs: list[Finding]) -> Steps:
    """A node with known-good neighbours that are in none of its pairs, until one of these tests fails or the pairs are likelier."""
    transport = pairs[0].transport
    out = {end for finding in pairs for end in finding.left + finding.right}
    mates = [mate for mate in search.home(node) if mate not in out and search.good(mate, transport)]
    for mate in mates[: search.limits["runs_per_test"]]:
        purpose, hypothesis = "the end of several pairs with another node", "this node fails now and then"
        trial = search.ask((node, mate), transport, purpose, hypothesis, avoid=out)
        yield [trial]
        if search.evidence.weight(trial) > CLEAR or search.end_odds(node, pairs) < LEAST:
            return


def apart(search: Search) -> list[tuple[Finding, int, int]]:
    """Pairs in doubt, each with a good node for its left end and one for its right end.

    The closing test has one end at a time, so the other can be tried with somebody else beside it. That somebody is
    in the next closing test only; so whoever it misses there must have passed with it before.
    """
    result: list[tuple[Finding, int, int]] = []
    if search.options["min_group_size"] > 2:
        return result
    busy = {node for finding in search.findings for node in finding.left + finding.right}
    for finding in search.findings:
        if finding.kind != "pair" or finding.transport != "net" or search.pair_odds(finding).bad >= LEAST:
            continue
        one, two = finding.left[0], finding.right[0]
        met = {node for trial in finding.controls for node in trial.nodes}
        near = [[node for node in search.home(end) if node not in busy and search.good(node, "net")] for end in (one, two)]
        couples = [(at, c, d) for at, c in enumerate(near[1]) for d in near[0] if c != d]
        couples.sort(key=lambda item: ((item[1] in met) + (item[2] in met), item))
        for _at, c, d in couples:
            if all(search.passed_together(both, "net") for both in ((one, d), (two, c), (c, d))):
                busy |= {c, d}
                result.append((finding, c, d))
                break
    return result


def with_another(search: Search, finding: Finding, end: int, partner: int) -> Steps:
    """One end of a pair with another node, beside a closing test."""
    purpose, hypothesis = "control: each end of the suspected pair with another node", "this end by itself is at fault"
    trial = search.ask((end, partner), finding.transport, purpose, hypothesis, avoid=finding.left + finding.right)
    yield [trial]
    finding.controls.append(trial)


def _again(search: Search, both: Nodes, transport: str) -> Trial:
    return search.ask(both, transport, "the suspected combination again", "a fault between these two sides", avoid=both)


def _ends_apart(search: Search, finding: Finding) -> list[Trial]:
    """Each end with a known-good node, another one each time."""
    busy = set(finding.left + finding.right)
    met = {node for trial in finding.controls for node in trial.nodes}
    asked = []
    for end, other in ((finding.left, finding.right), (finding.right, finding.left)):
        partner = _partner(search, end, other, finding.transport, busy | met) or _partner(search, end, other, finding.transport, busy)
        if partner is not None:
            busy.update(partner)
            purpose, hypothesis = "control: each end of the suspected pair with another node", "this end by itself is at fault"
            asked.append(search.ask(end + partner, finding.transport, purpose, hypothesis, avoid=finding.left + finding.right))
    return asked


def _enough(search: Search, together: set[int], failures: list[Trial]) -> bool:
    """Two failures at least, which have nothing in common but the two sides; one run of these alone must not be noise."""
    alone = [trial for trial in failures if set(trial.asked or trial.nodes) == together]
    if len(failures) < 2 or search.total(failures) < CONVICT or search.total(alone) < ALONE:
        return False
    return set.intersection(*(set(trial.nodes) for trial in failures)) == together


def blame_sides(search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial], controls: list[Trial]) -> Steps:
    """The finding for two sides that do not work together: pair, partition or boundary."""
    homes = [{search.unit_of[node] for node in side} for side in (left, right)]
    kind = "partition" if homes[0] == homes[1] else "rack-boundary"
    if len(left) == len(right) == 1:
        kind = "pair"
    elif kind == "rack-boundary" and all(len(home) == 1 for home in homes):
        left, right = yield from _grown(search, left, right, transport)
    if any(_same(finding, left, right) for finding in search.findings):
        return
    strength = search.total(trial for trial in witnesses if search.evidence.weight(trial) > 0)
    search.blame_way(Finding(kind, transport, left, right, strength=strength, witnesses=witnesses, controls=controls))


def join_ways(search: Search) -> None:
    """Bad pairs between all nodes of two domains that are left are the way between these domains."""
    out = set(search.accused) | set(search.lost) | set(search.untested)
    ways: dict[tuple[int, ...], list[Finding]] = {}
    for finding in search.findings:
        if finding.kind == "pair" and finding.transport == "net":
            homes = tuple(sorted({search.unit_of[node] for node in finding.left + finding.right}))
            ways.setdefault(homes, []).append(finding)
    for homes, found in ways.items():
        usable = [tuple(node for node in search.units[home].nodes if node not in out) for home in homes]
        ends = {node for finding in found for node in finding.left + finding.right}
        parked = {node for finding in search.findings if finding.kind == "pair" for node in finding.left + finding.right} - ends
        seen = [[node for node in side if node not in parked] for side in usable]
        if len(homes) < 2 or len(found) < 2 or len(found) < len(seen[0]) * len(seen[1]):
            continue
        witnesses = [trial for finding in found for trial in finding.witnesses]
        for finding in found:
            search.retract(finding)
        strength = sum(finding.strength for finding in found)
        search.blame_way(Finding("rack-boundary", "net", usable[0], usable[1], strength=strength, witnesses=witnesses))


def _same(finding: Finding, left: Nodes, right: Nodes) -> bool:
    """The same two sides, or sides inside those of a finding."""
    if not finding.right:
        return False
    sides = (set(finding.left), set(finding.right))
    return any(one.issuperset(left) and two.issuperset(right) for one, two in (sides, sides[::-1]))


def _grown(search: Search, left: Nodes, right: Nodes, transport: str) -> Steps:
    """Parts of two domains fail in every crossing: do the rest of both domains too? Then it is the way between the domains."""
    out = search.tainted(transport)
    rests = [tuple(node for node in search.home(side[0]) if node not in side and node not in out) for side in (left, right)]
    if not any(rests):
        return left, right
    sides = [rest or side for rest, side in zip(rests, (left, right), strict=True)]
    verdict, _trial = yield from search.decide(
        sides[0] + sides[1], transport, "the rest of both domains together", "the way between the two domains"
    )
    if verdict != "fail":
        return left, right
    grown = [tuple(sorted((*side, *rest))) for side, rest in zip((left, right), rests, strict=True)]
    return grown[0], grown[1]


# ----- controls -----


def _controls(search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """Each side without the other must pass with the neighbours of the other: (controls, doubt).

    Most searches have shown that already. doubt: a side fails with others too; it has been dealt with.
    """
    controls: list[Trial] = []
    missing: list[tuple[Nodes, Nodes]] = []
    for side, other in ((left, right), (right, left)):
        shown = _shown(search, side, other, transport)
        if shown:
            controls.append(shown)
        else:
            missing.append((side, other))
    busy: set[int] = set(left + right)
    asked = []
    for side, other in missing:
        partner = _partner(search, side, other, transport, busy)
        if partner is not None:
            busy.update(partner)
            asked.append(
                (
                    side,
                    search.ask(
                        side + partner,
                        transport,
                        "control: one side without the other",
                        "this side by itself is at fault",
                        avoid=left + right,
                    ),
                )
            )
    verdicts = yield from search.all_of(search.settle(trial) for _side, trial in asked)
    controls += [trial for _side, trial in asked]
    failing = [(side, trial) for (side, trial), verdict in zip(asked, verdicts, strict=True) if verdict == "fail"]
    if not failing:
        return controls, False
    doubt = False
    whole = [side for side, _trial in failing if len(side) > 1 and not _partition(search, left, right)]
    if (
        len(whole) == len(failing) == 1
        and len(controls) == 2
        and {search.unit_of[node] for node in left} != {search.unit_of[node] for node in right}
    ):
        # It fails with the other side and with a third domain, and the other side passes with that: its own boundary.
        inside = [trial for trial in witnesses if set(trial.asked or trial.nodes) <= set(left + right)]
        if search.blame_boundary(whole[0], [*inside, failing[0][1]]):
            return controls, True
    for side, trial in failing:
        other = right if side == left else left
        doubt = (yield from _doubt(search, side, other, trial, transport, busy)) or doubt
    return controls, doubt


def _shown(search: Search, side: Nodes, other: Nodes, transport: str) -> Trial | None:
    """A passing test of the whole side with a neighbour of the other, without the other.

    For two whole domains the neighbour is any third domain, else a node of the other's domain.
    """
    wanted, out = set(side), set(other)
    if _partition(search, side, other):
        return search.passed_together(side, transport)
    homes = {search.unit_of[node] for node in other}
    mine = {search.unit_of[node] for node in side}
    whole = len(other) > 1 and homes != mine
    # Between two nodes of one domain there is no way of its own: whoever one of them passed with will do.
    near = len(side) == len(other) == 1 and homes == mine and transport == "net"
    for members, trial in zip(reversed(search.passes[transport]), reversed(search.pass_trials[transport]), strict=True):
        if not wanted <= members or members & out:
            continue
        rest = members - wanted
        if whole and any(search.unit_of[node] not in homes and search.unit_of[node] != search.unit_of[side[0]] for node in rest):
            return trial
        if near and rest:
            return trial
        if not whole and any(search.unit_of[node] in homes and search.passed_together((node, other[0]), transport) for node in rest):
            return trial
    return None


def _partition(search: Search, side: Nodes, other: Nodes) -> bool:
    """Two groups of one domain: the control of a group is the group alone."""
    return min(len(side), len(other)) > 1 and len({search.unit_of[node] for node in side + other}) == 1


def _partner(search: Search, side: Nodes, other: Nodes, transport: str, busy: t.Collection[int]) -> Nodes | None:
    """Known-good nodes for a control: neighbours of the other side, or a third domain where the sides are whole domains."""
    homes = {search.unit_of[node] for node in other}
    mine = {search.unit_of[node] for node in side}
    if _partition(search, side, other):
        return ()
    if len(other) > 1 and homes != mine:
        return third(search, homes | mine, busy)
    near = [node for home in sorted(homes) for node in search.units[home].nodes if node not in busy and search.good(node, transport)]
    near.sort(key=lambda node: (search.passed_together((node, other[0]), transport) is None, node))
    if near:
        return (near[0],)
    if homes != mine or transport == "nvl":
        return None
    return third(search, homes | mine, busy, 1)


def third(search: Search, homes: t.Collection[int], busy: t.Collection[int], most: int = 0) -> Nodes | None:
    """Another domain, one that crosses well if there is one; `most` nodes of it."""
    if any(home in {search.unit_of[node] for node in search.behind_boundary()} for home in homes) and most:
        return None
    out = search.tainted("net") | search.behind_boundary() | set(busy)
    units = [tuple(node for node in unit.nodes if node not in out) for number, unit in enumerate(search.units) if number not in homes]
    fit = [unit for unit in units if unit and all(node in search.cleared["net"] for node in unit)]
    fit.sort(key=lambda unit: (not search.crosses(search.unit_of[unit[0]]), -len(unit), unit))
    return (fit[0][:most] if most else fit[0]) if fit else None


def _doubt(search: Search, side: Nodes, other: Nodes, failed: Trial, transport: str, busy: set[int]) -> Steps:
    """A side failed without the other too. Is it the side, or its way to the whole domain of the other? True if settled."""
    homes = {search.unit_of[node] for node in other}
    mine = {search.unit_of[node] for node in side}
    across = homes != mine
    purpose, hypothesis = "control again, with another partner", "this side is at fault"
    partner = _partner(search, side, other, transport, busy | set(failed.nodes))
    if len(side) == 1 and across and partner is None:
        partner = third(search, homes | mine, busy | set(failed.nodes), 1)
    if partner is None and len(side) == 1 and search.try_unsteady(side[0], transport):
        return True
    if partner is None:
        search.unresolved(side + other, transport, "each of them fails with others too, and there is nobody left to try", [failed])
        return True
    verdict, trial = yield from search.decide(side + partner, transport, purpose, hypothesis)
    if verdict == "pass" and not across:
        return False  # the first control has a fault of its own
    if across and len(side) == 1:
        return (yield from _way_or_node(search, side, other, [failed, trial], verdict, transport))
    if verdict == "pass":
        return False
    if len(side) > 1 and across:
        search.blame_boundary(side, [failed, trial])
        return True
    if not search.try_to_convict(side[0], transport):
        search.try_unsteady(side[0], transport)
    if side[0] not in search.accused:
        search.unresolved(side, transport, "it fails with several good nodes and passes with others", [failed, trial])
    return True


def _way_or_node(search: Search, side: Nodes, other: Nodes, trials: list[Trial], verdict: str, transport: str) -> Steps:
    """A node fails with several nodes of another domain: the way between both domains, or the node by itself."""
    witnesses = [trial for trial in trials if search.evidence.weight(trial) > 0]
    out = search.tainted(transport)
    homes = [tuple(node for node in search.home(end[0]) if node not in out or node in end) for end in (side, other)]
    rests = [tuple(node for node in home if node not in set(side + other)) or home for home in homes]
    same_way = verdict != "fail" or any(search.unit_of[node] == search.unit_of[other[0]] for node in trials[-1].nodes)
    if same_way and rests != homes:
        verdict, trial = yield from search.decide(
            rests[0] + rests[1], transport, "the rest of both domains together", "the way between the two domains"
        )
        if verdict == "fail":
            strength = search.total(witnesses) + search.evidence.weight(trial)
            search.blame_way(Finding("rack-boundary", transport, homes[0], homes[1], strength=strength, witnesses=[*witnesses, trial]))
            return True
    if verdict == "pass":
        # The way works for the others: does the node fail elsewhere too?
        abroad = third(search, {search.unit_of[node] for node in side + other}, (), 2)
        for node in abroad or ():
            yield from search.decide(
                (*side, node), transport, "a node that fails with another domain, with a third one", "this node is at fault"
            )
    if search.try_to_convict(side[0], transport) or search.try_unsteady(side[0], transport):
        return True
    search.unresolved(side + other, transport, "fails with several partners of that domain", witnesses)
    return True
