# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Several domains failed together: a domain, its boundary, or a pair across domains."""

from __future__ import annotations

import typing as t

from . import links, pairs
from . import suspects as single_suspects
from .evidence import CONVICT, FAIL
from .node_sets import Combination, Nodes, circle, split
from .search import Finding, Search
from .soak import soak
from .trial import Trial
from .waves import Steps

CROWDED = (
    "tests across domains fail while others run beside them and pass alone: the switches between the domains are congested, "
    "and no domain is to blame"
)

LOAD_LEAST = 8  # nodes of two domains, below which nothing is called the load of many
MOST_EXPLAINED = 8  # failed tests that two pairs are tried on, smallest first
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


def search_levels(search: Search, members: Nodes, parent: Trial) -> Steps:
    """Boundaries of switches above the domains, the highest first. False: nothing between them, so look at the domains.

    The domains of each switch are tested alone, all switches in one wave. If each passes and all together fail, the
    fault is between the switches, and they are compared with each other like domains.
    """
    for groups in search.levels.values():
        inside = set(members)
        parts = [part for nodes in groups.values() if (part := tuple(node for node in nodes if node in inside))]
        if len(parts) < 2:
            continue
        jobs = [_screen(search, part, "the domains below one switch") for part in parts]
        results = yield from search.all_of(jobs)
        if any(verdict != "pass" for verdict, _trial in results):
            return False
        before = search.changes
        yield from _compare(search, parts, parent)
        return search.changes != before
    return False


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
    if len(bad) == len(parts) > 2 and (yield from crowded(search, [trial for _part, trial, _found in bad])):
        return
    known = list(search.findings)
    yield from search.all_of(search_domains(search, part, trial, found) for part, trial, found in bad)
    nodes = tuple(sorted(node for union in unions for node in union))
    if all(found == "gray" for _part, _trial, found in bad) and not search.touched(nodes, known) and verdict != "gray":
        # No part failed, and what was unclear came out clean: the fault is between the parts.
        if not search.evidence.strong(parent):
            again, parent = yield from search.decide(nodes, "net", "repeat domains that failed together", "the failure was noise")
            if again != "fail":
                return
        yield from pairs.between(search, units, "net", [parent])


def crowded(search: Search, trials: list[Trial]) -> Steps:
    """Every test across domains of one wave failed. Does one of them pass when it runs alone? Then they disturb each other."""
    smallest = min(trials, key=lambda trial: (len(trial.nodes), trial.nodes))
    run = search.ask(
        smallest.nodes,
        "net",
        "one of several failed tests, with nothing beside it",
        "tests that run at once disturb each other",
        exclusive=True,
    )
    verdict = yield from search.settle(run)
    if verdict != "pass":
        return False
    members = sorted({node for trial in trials for node in trial.nodes})
    if not any(finding.note == CROWDED for finding in search.findings):
        search.unresolved(members, "net", CROWDED, trials)
    return True


def _load(search: Search, units: list[Nodes], edges: list[tuple[int, int]]) -> Steps:
    """Do two domains that fail together, with nothing beside them, work with half of each, whichever halves? Then it is the load.

    Each crossing of halves runs with nothing beside it, so the four show every two nodes of both domains together.
    """
    left, right = min(((units[a], units[b]) for a, b in edges), key=lambda ends: (len(ends[0]) + len(ends[1]), ends))
    halves = [split(side, 2) for side in (left, right)]
    if min(len(side) for side in (left, right)) < 2 or len(left) + len(right) < LOAD_LEAST:
        return False
    for one, two in ((0, 0), (1, 1), (0, 1), (1, 0)):
        purpose = "half of each of two domains that fail together, with nothing beside them"
        nodes = tuple(sorted(halves[0][one] + halves[1][two]))
        trial = search.ask(nodes, "net", purpose, "the load of the whole is too much", exclusive=True)
        if (yield from search.settle(trial)) != "pass":
            return False
    return True


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
    if len(partners) < 2:
        # Few domains alone cannot say whose boundary it is: bring in others as witnesses.
        units = units + _others(search, units)[: max(0, FEW - len(units))]
        if len(units) == 2:
            yield from pairs.narrow_and_blame(search, units[0], units[1], "net", [parent])
            return
        rounds = yield from _rounds(search, units, parent)
        if rounds is None:
            return
        failing, passing = rounds
        if not failing:
            yield from pairs.between(search, units, "net", [parent])
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
        batch = _with_partners(units, suspects, partners)
        if not batch:
            break
        yield from _halves(search, batch)
        done = {unit for unit, *_combos in batch}
        suspects = [number for number in suspects if units[number] not in done]
    if search.changes != before:
        return
    # Every domain works with a good one: what fails is between two of these.
    for a, b in failing:
        yield from pairs.narrow_and_blame(search, units[a], units[b], "net", [parent])
    if not failing:
        yield from pairs.between(search, units, "net", [parent])


def _no_two_work(search: Search, units: list[Nodes], failing: list[tuple[int, int]], parent: Trial) -> Steps:
    """Every pair of these domains fails. Look inside each: a bad pair of nodes shows, and a boundary common to the rest."""
    whole: list[tuple[int, int]] = []
    for a, b in failing:
        found = yield from pairs.across(search, units[a], units[b], "net")
        for (left, right), trial in found.combinations:
            if (left, right) == (units[a], units[b]):
                whole.append((a, b))
            else:
                yield from links.blame_or_soak(search, left, right, "net", [parent, trial])
        for nodes in found.many:
            yield from pairs.many_at_once(search, nodes, "net", [parent])
    common = [number for number in range(len(units)) if whole and all(number in edge for edge in whole)]
    if len(whole) > 1 and len(common) == 1:
        left = units[common[0]]
        others = [units[number] for edge in whole for number in edge if number != common[0]]
        trials = [search.ask(left + other, "net", "a domain with each of the others", "the boundary of this domain") for other in others]
        yield trials
        if search.total(trials) >= CONVICT:
            search.blame_boundary(left, [trial for trial in trials if search.evidence.weight(trial) > 0])
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
    """Pairs of domains in rounds until something fails and something passes: (failing, passing) pairs.

    None when they fail only because they run at once, or because of the number of nodes: that is on record.
    """
    failing: list[tuple[int, int]] = []
    passing: list[tuple[int, int]] = []
    load = False
    for pairs_ in circle(len(units)):
        trials = [search.ask(units[a] + units[b], "net", "two domains together", "a fault between them") for a, b in pairs_]
        verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
        bad = [trial for trial, verdict in zip(trials, verdicts, strict=True) if verdict == "fail"]
        if len(bad) == len(trials) > 1 and not passing and not failing:
            if (yield from crowded(search, bad)):
                return None
            load = yield from _load(search, units, pairs_)
            found = [] if load else (yield from search.all_of(pairs.across(search, units[a], units[b], "net") for a, b in pairs_))
            if found and all(item.many for item in found):
                members = tuple(sorted(node for unit in units for node in unit))
                yield from pairs.many_at_once(search, members, "net", [parent, *bad])
                return None
        for pair, verdict in zip(pairs_, verdicts, strict=True):
            if verdict != "untested":
                (failing if verdict == "fail" else passing).append(pair)
        if failing and passing:
            break
    if load and not passing:
        everybody = {node for unit in units for node in unit}
        search.unresolved(everybody, "net", pairs.many_needed(len(everybody)), [parent])
        return None
    return failing, passing


def _with_partners(units: list[Nodes], suspects: list[int], partners: list[Nodes]) -> list[tuple[Nodes, Combination, Combination]]:
    """For each suspected domain two disjoint tests, each half with another good domain. As many as share no node.

    One good domain serves two suspects, with one half each. With a single good domain both halves meet it.
    """
    slots = {partner: list(split(partner, 2)) for partner in partners}
    batch: list[tuple[Nodes, Combination, Combination]] = []
    for number in suspects:
        unit = units[number]
        near = [tuple(part) for part in split(unit, 2)]
        if len(near) == 1:
            near = near * 2
        fit = sorted((item for item in slots if item != unit and slots[item]), key=lambda item: (-len(slots[item]), partners.index(item)))
        if any(unit in (used, *(side for combo in combos for side in combo)) for used, *combos in batch):
            continue
        if len(near) == 2 and near[0] == near[1] and len(fit) > 1:
            # One node cannot be in two tests of a wave; they run one after the other.
            batch.append((unit, (near[0], tuple(slots[fit[0]].pop())), (near[1], tuple(slots[fit[1]].pop()))))
        elif len(fit) > 1:
            batch.append((unit, (near[0], tuple(slots[fit[0]].pop())), (near[1], tuple(slots[fit[1]].pop()))))
        elif fit and len(slots[fit[0]]) > 1:
            batch.append((unit, (near[0], tuple(slots[fit[0]].pop())), (near[1], tuple(slots[fit[0]].pop()))))
        elif fit and len(fit[0]) == 1:
            batch.append((unit, (near[0], tuple(slots[fit[0]].pop())), (near[1], fit[0])))
    return batch


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


def _halves(search: Search, batch: list[tuple[Nodes, Combination, Combination]]) -> Steps:
    """Domains against good ones, as two disjoint tests each: both fail for a boundary, one fails for a way between two."""
    purpose = "half of a domain with half of a domain that crosses well"
    jobs = [_screen(search, tuple(sorted(a + b)), purpose, look_inside=False) for _unit, *combos in batch for a, b in combos]
    results = yield from search.all_of(jobs)
    both: list[tuple[Nodes, list[Combination], list[Trial]]] = []
    for at, (unit, *combos) in enumerate(batch):
        verdicts = [verdict for verdict, _trial in results[2 * at : 2 * at + 2]]
        trials = [trial for _verdict, trial in results[2 * at : 2 * at + 2]]
        if verdicts == ["fail", "fail"]:
            both.append((unit, list(combos), trials))
        elif "fail" in verdicts:
            (left, right), trial = combos[verdicts.index("fail")], trials[verdicts.index("fail")]
            yield from pairs.narrow_and_blame(search, left, right, "net", [trial])
    if len(both) > 2 and (yield from crowded(search, [trial for _unit, _ways, shown in both for trial in shown])):
        return
    for unit, ways, shown in both:
        yield from _blame_boundary(search, unit, ways, shown)


def _blame_boundary(search: Search, unit: Nodes, combos: list[Combination], trials: list[Trial]) -> Steps:
    """Enough evidence for the boundary of a domain? Repeat the halves if not, or look for a way between two domains."""
    homes = {search.unit_of[node] for _left, right in combos for node in right}
    if len(homes) == 1 and not search.crossed(unit):
        more = links.third(search, homes | {search.unit_of[unit[0]]}, [])
        if more:
            verdict, trial = yield from search.decide(
                combos[0][0] + more, "net", "half of a domain with a third", "the boundary of this domain"
            )
            if verdict == "fail":
                combos, trials, homes = [combos[1], (combos[0][0], more)], [trials[1], trial], {*homes, search.unit_of[more[0]]}
    if len(homes) == 1 or search.crossed(unit):
        for (left, right), trial in zip(combos, trials, strict=True):
            yield from pairs.narrow_and_blame(search, left, right, "net", [trial])
        return
    witnesses = [trial for trial in trials if search.evidence.weight(trial) > 0]
    total = search.total(trials)
    crossed_over = [(combos[0][0], combos[1][1]), (combos[1][0], combos[0][1])]
    for turn in range(search.limits["runs_per_test"]):
        few = len(unit) > 1 and two_pairs_explain(search, unit)
        if total >= CONVICT and len(witnesses) > 1 and not few:
            break
        # Each half with the partner of the other: a bad pair in each of the first two tests would not fail in these.
        ways = crossed_over if turn % 2 == 0 else combos
        again = [search.ask(a + b, "net", "half of the domain again, the other way round", "the boundary of this domain") for a, b in ways]
        yield from search.all_of(search.settle(trial) for trial in again)
        total += search.total(again)
        witnesses += [trial for trial in again if search.evidence.weight(trial) > 0]
        if search.crossed(unit):
            for (left, right), trial in zip(combos, trials, strict=True):
                yield from pairs.narrow_and_blame(search, left, right, "net", [trial])
            return
    if total >= CONVICT:
        search.blame_boundary(unit, witnesses)


def two_pairs_explain(search: Search, unit: Nodes) -> bool:
    """Whether two bad pairs, each of one node inside and one outside, would explain every failed test across the boundary."""
    mine = set(unit)
    seen = {trial for node in unit for trial in search.of_node[node] if trial.shape == "cross" and not mine.issuperset(trial.nodes)}
    failed = [trial for trial in seen if search.evidence.weight(trial) >= FAIL and not search.explained(trial)]
    sets = sorted({trial.nodes for trial in failed}, key=lambda nodes: (len(nodes), nodes))[:MOST_EXPLAINED]
    ways = [{number for number in range(len(sets)) if chosen >> number & 1} for chosen in range(1 << max(0, len(sets) - 1))]
    return any(
        all(_one_pair(search, mine, [set(sets[number]) for number in part]) for part in (way, set(range(len(sets))) - way)) for way in ways
    )


def _one_pair(search: Search, mine: set[int], tests: list[set[int]]) -> bool:
    """Whether one pair across the boundary is in all of these tests, and was never seen to work."""
    if not tests:
        return True
    common = set.intersection(*tests)
    return any(search.passed_together((one, two), "net") is None for one in common & mine for two in common - mine)


def boundary_control(search: Search, finding: Finding) -> Steps:
    """A blamed boundary must be good inside; else the blame is taken back."""
    failed = 0
    for _turn in range(3):
        trial = search.ask(finding.left, "net", "control: the domain alone", "the fault is inside the domain")
        verdict = yield from search.settle(trial)
        finding.controls.append(trial)
        failed += verdict == "fail"
        if not failed:
            return
        if failed > 1:
            search.retract(finding)
            yield from soak(search, finding.left, "net", finding.witnesses)
            return


def restricted(search: Search, members: t.Collection[int]) -> list[Nodes]:
    """The domains of these nodes, each with the members that are in it."""
    inside = set(members)
    return [nodes for unit in search.units if (nodes := tuple(node for node in unit.nodes if node in inside))]
