# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Several domains failed together: a domain, its boundary, or a pair across domains."""

from __future__ import annotations

import typing as t

from . import pairs
from . import suspects as single_suspects
from .evidence import CONVICT
from .node_sets import Nodes, circle, split
from .search import Finding, Search
from .waves import Steps, Trial

FEW = 4  # so many domains are compared with each other instead of being split further


def search_domains(search: Search, units: list[Nodes], parent: Trial, verdict: str = "fail") -> Steps:
    """The union of these domains did not pass on the network. Find what is at fault."""
    units = [unit for unit in units if unit]
    if len(units) == 1:
        if not search.proven_inside(units[0]):
            yield from single_suspects.look(search, units[0], "net")
        return
    unproven = [unit for unit in units if not search.proven_inside(unit)]
    room = search.options["max_concurrent"] or len(units)
    # With NVLink domains the network inside a domain was never tested: do that for all of them in one wave.
    alone_at_once = search.options["mnnvl"] and len(unproven) <= room
    if len(units) > FEW and not (unproven and alone_at_once):
        yield from _split_and_descend(search, units, parent, verdict)
        return
    if unproven:
        known, waiting = list(search.findings), len(search.leftover)
        yield from search.all_of(single_suspects.look(search, unit, "net") for unit in unproven)
        if len(search.leftover) > waiting or search.touched((node for unit in unproven for node in unit), known):
            return  # the next closing test says whether that was all
    if len(units) > FEW:
        yield from _split_and_descend(search, units, parent, verdict)
    elif verdict != "gray":
        yield from _compare(search, units, parent)


def _split_and_descend(search: Search, units: list[Nodes], parent: Trial, verdict: str) -> Steps:
    # Parts of at least two domains: the boundary of a domain must show inside one part.
    parts = split(units, min(4, len(units) // 2))
    unions = [tuple(sorted(node for unit in part for node in unit)) for part in parts]
    jobs = [
        _screen(search, union, f"{len(part)} of the {len(units)} domains that failed together")
        for part, union in zip(parts, unions, strict=True)
    ]
    results = yield from search.all_of(jobs)
    bad = [(part, trial, found) for part, (found, trial) in zip(parts, results, strict=True) if found != "pass"]
    known = list(search.findings)
    yield from search.all_of(search_domains(search, part, trial, found) for part, trial, found in bad)
    nodes = tuple(sorted(node for union in unions for node in union))
    if all(found == "gray" for _part, _trial, found in bad) and not search.touched(nodes, known):
        # No part failed, and what was unclear came out clean: the fault is between the parts.
        yield from pairs.contradiction(search, nodes, unions, "net", parent, weak=verdict == "gray")


def _screen(search: Search, nodes: Nodes, purpose: str, look_inside: bool = True) -> Steps:
    """(verdict, trial) of a group, without a new test when its members have passed together before."""
    known = search.passed_together(nodes, "net")
    if known:
        return "pass", known
    trial = search.ask(nodes, "net", purpose, "the fault is among these domains")
    found = yield from search.settle(trial, look_inside=look_inside)
    return found, trial


def _compare(search: Search, units: list[Nodes], parent: Trial, again: bool = True) -> Steps:
    """At most four domains, each good alone: boundaries and pairs. again: other domains may be brought in."""
    if not search.evidence.strong(parent):
        # What follows is long; a failure that may be noise is repeated first.
        nodes = sorted(node for unit in units for node in unit)
        verdict, _trial = yield from search.decide(nodes, "net", "repeat domains that failed together", "the failure was noise")
        if verdict != "fail":
            return
    partners = _good_crossers(search, units)
    failing: list[tuple[int, int]] = []
    suspects = list(range(len(units)))
    if not partners:
        # Two domains alone cannot say whose boundary it is: bring in others as witnesses.
        units = units + _others(search, units)[: max(0, FEW - len(units))]
        if len(units) == 2:
            yield from pairs.search_pairs(search, units, "net", [parent])
            return
        failing, passing = yield from _rounds(search, units, parent)
        if not failing:
            return
        more = _others(search, units) if again and not passing else []
        if more:
            yield from _compare(search, units[:2] + more[:2], parent, again=False)
            return
        if not passing:
            yield from _no_two_work(search, units, failing, parent)
            return
        partners = [units[number] for number in sorted({number for pair in passing for number in pair})]
        suspects = sorted({number for pair in failing for number in pair})
    before = search.changes
    while suspects:
        # Each suspect needs a partner of its own in the same wave.
        batch = []
        free = list(partners)
        for number in suspects:
            partner = next((item for item in free if item != units[number]), None)
            if partner is not None:
                free.remove(partner)
                batch.append((number, partner))
        if not batch:
            break
        yield from search.all_of(_halves(search, units[number], partner) for number, partner in batch)
        suspects = [number for number in suspects if number not in {done for done, _partner in batch}]
    if search.changes != before:
        return
    # Every domain works with a good one: what fails is between two of these.
    if failing:
        for a, b in failing:
            yield from pairs.search_pairs(search, [units[a], units[b]], "net", [parent])
    else:
        yield from pairs.search_pairs(search, units, "net", [parent])


def _no_two_work(search: Search, units: list[Nodes], failing: list[tuple[int, int]], parent: Trial) -> Steps:
    """Every pair of these domains fails. Look inside each: a bad pair of nodes shows, and a boundary common to the rest."""
    whole: list[tuple[int, int]] = []
    for a, b in failing:
        found = yield from pairs.find_pairs(search, [(units[a], units[b])], "net")
        for left, right in found:
            if (left, right) == (units[a], units[b]):
                whole.append((a, b))
            else:
                yield from pairs.blame_or_soak(search, left, right, "net", [parent])
    common = [number for number in range(len(units)) if whole and all(number in edge for edge in whole)]
    if len(whole) > 1 and len(common) == 1:
        left = units[common[0]]
        others = [units[number] for edge in whole for number in edge if number != common[0]]
        trials = [search.ask(left + other, "net", "a domain with each of the others", "the boundary of this domain") for other in others]
        yield trials
        yield from _blame_boundary(search, left, trials, [(left, other) for other in others])
    elif whole and len(whole) == len(failing):
        # Where a pair was found, the next closing test tells more without it.
        members = sorted({node for edge in whole for number in edge for node in units[number]})
        search.unresolved(members, "net", "no two of these domains work together: their boundaries", [parent])


def _others(search: Search, units: list[Nodes]) -> list[Nodes]:
    """Other domains that passed alone and have no blamed boundary; largest first."""
    mine = {search.unit_of[unit[0]] for unit in units}
    out = search.tainted("net") | search.behind_boundary()
    rest = [tuple(node for node in unit.nodes if node not in out) for number, unit in enumerate(search.units) if number not in mine]
    return sorted((unit for unit in rest if unit and search.proven_inside(unit)), key=lambda unit: (-len(unit), unit))


def _rounds(search: Search, units: list[Nodes], parent: Trial) -> Steps:
    """Pairs of domains in rounds until something fails and something passes: (failing, passing) pairs."""
    failing: list[tuple[int, int]] = []
    passing: list[tuple[int, int]] = []
    for number, pairs_ in enumerate(circle(len(units))):
        last = number == len(circle(len(units))) - 1
        if last and not failing and len(pairs_) > 0:
            yield from pairs.settle_combinations(search, [(units[a], units[b]) for a, b in pairs_], "net", [parent])
            return [], passing
        verdicts = yield from pairs.test_combinations(search, [(units[a], units[b]) for a, b in pairs_], "net")
        for pair, verdict in zip(pairs_, verdicts, strict=True):
            (failing if verdict == "fail" else passing).append(pair)
        if failing and passing:
            break
    return failing, passing


def _good_crossers(search: Search, units: list[Nodes]) -> list[Nodes]:
    """Other domains that passed as a whole together with a third one."""
    mine = {search.unit_of[unit[0]] for unit in units}
    tainted = search.tainted("net") | search.behind_boundary()
    result: list[Nodes] = []
    for number, unit in enumerate(search.units):
        nodes = tuple(node for node in unit.nodes if node not in tainted)
        if number in mine or not nodes or len(result) == len(units):
            continue
        trial = search.passed_together(nodes, "net")
        if trial is None or trial.shape != "cross":
            continue
        result.append(nodes)
    return result


def _halves(search: Search, unit: Nodes, partner: Nodes) -> Steps:
    """A domain against a good one, as two disjoint tests: both fail for a boundary, one fails for a pair."""
    near, far = split(unit, 2), split(partner, 2)
    if len(near) == len(far) == 1:
        # One node against one node: the second witness must be somebody else.
        more = next((other for other in _good_crossers(search, [unit, partner]) if other != partner), None)
        if more is None:
            yield from pairs.settle_combinations(search, [(unit, partner)], "net", [])
            return
        far = [partner, more]
    combos = [(tuple(near[at % len(near)]), tuple(far[at % len(far)])) for at in range(2)]
    purpose = "half of a domain with half of a domain that crosses well"
    results = yield from search.all_of(_screen(search, tuple(sorted(a + b)), purpose, look_inside=False) for a, b in combos)
    verdicts, trials = [verdict for verdict, _trial in results], [trial for _verdict, trial in results]
    if verdicts == ["fail", "fail"]:
        yield from _blame_boundary(search, unit, trials, combos)
    elif "fail" in verdicts:
        yield from pairs.settle_combinations(search, [combos[verdicts.index("fail")]], "net", [trials[verdicts.index("fail")]])


def _blame_boundary(search: Search, unit: Nodes, trials: list[Trial], combos: list[tuple[Nodes, Nodes]]) -> Steps:
    """Enough evidence for the boundary of a domain? Repeat the halves if not."""
    witnesses = [trial for trial in trials if search.evidence.weight(trial) > 0]
    total = search.total(trials)
    for _turn in range(search.limits["runs_per_test"]):
        if total >= CONVICT and len(witnesses) > 1:
            break
        more = [search.ask(a + b, "net", "half of the domain again", "the boundary of this domain") for a, b in combos]
        yield more
        total += search.total(more)
        witnesses += [trial for trial in more if search.evidence.weight(trial) > 0]
    if total < CONVICT:
        return
    if len(search.home(unit[0])) == 1:
        # The boundary of a one-node domain is the network path of that node.
        search.accuse(unit[0], "net", total, witnesses)
        return
    home = search.unit_of[unit[0]]
    for finding in list(search.findings):
        if finding.kind == "rack-boundary" and home in {search.unit_of[node] for node in finding.left + finding.right}:
            search.retract(finding)  # the boundary between this domain and another is now explained
    search.blame(Finding("rack-boundary", "net", tuple(unit), strength=total, witnesses=witnesses, halves=list(combos)))


def boundary_control(search: Search, finding: Finding) -> Steps:
    """A blamed boundary must be good inside, and every other way across it must fail too; else the blame is taken back."""
    failed = 0
    for turn in range(3):
        if turn == 1 and not failed and finding.halves:
            yield from _other_halves(search, finding)
            return
        trial = search.ask(finding.left, "net", "control: the domain alone", "the fault is inside the domain")
        verdict = yield from search.settle(trial)
        finding.controls.append(trial)
        failed += verdict == "fail"
        if turn == 1 and not failed:
            return
        if failed > 1:
            search.retract(finding)
            yield from pairs.soak(search, finding.left, "net", finding.witnesses)
            return


def _other_halves(search: Search, finding: Finding) -> Steps:
    """The halves the other way round: if they pass, two pairs looked like a boundary."""
    # A boundary blamed for whole domains has as many tests as there were others; their left sides are the same.
    (near, far), (rest, other) = finding.halves[:2]
    swapped = [(near, other), (rest, far)]
    if near == rest or far == other or any(node in search.tainted("net") for node in far + other):
        return
    trials = [search.ask(a + b, "net", "control: the halves of the domain the other way round", "the boundary") for a, b in swapped]
    verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
    if "pass" in verdicts:
        search.retract(finding)
        yield from pairs.settle_combinations(search, finding.halves, "net", finding.witnesses)
    else:
        finding.witnesses += [trial for trial in trials if search.evidence.weight(trial) > 0]


def restricted(search: Search, members: t.Collection[int]) -> list[Nodes]:
    """The domains of these nodes, each with the members that are in it."""
    inside = set(members)
    return [nodes for unit in search.units if (nodes := tuple(node for node in unit.nodes if node in inside))]
