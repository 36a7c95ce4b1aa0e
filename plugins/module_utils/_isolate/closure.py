# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The whole search: a first look at every domain, then closing tests until the rest of the cluster is proven.

The run ends well only through a closing test: everything that is not accused, together, at full load.
"""

from __future__ import annotations

import math
import statistics
import typing as t

from . import boundaries, links, pairs, partitions, posterior, suspects
from .evidence import CLEAR, CONVICT, DECIDED, FAIL, FAULT_SHIFT
from .node_sets import Nodes, split
from .search import Finding, Search
from .soak import soak
from .trial import Trial
from .waves import Steps

FEW_NODES = 6  # more unresolved nodes than this are not looked through one by one
HARD = ("node", "pair", "partition", "rack-boundary")
MOST_ROUNDS = 4  # times as many closing rounds as the limit allows in a row without anything new
CLOSING_RUNS = 8  # of one group, while its mean is too close to the limit to tell


def program(search: Search) -> Steps:
    """The procedure behind everything else."""
    known_bad = yield from _known_single_failures(search)
    if search.options["likely_healthy"] and (yield from _all_at_once(search, known_bad)):
        return
    yield from _first_look(search, known_bad)
    yield from _second_chance(search)
    if len(search.names) == 1:
        return
    loops = rounds = 0  # loops: in a row that named nothing new
    while loops < search.limits["closure_loops"] and rounds < MOST_ROUNDS * search.limits["closure_loops"]:
        rounds += 1
        named = {(finding.kind, finding.left, finding.right) for finding in search.findings}
        if (yield from _close(search)):
            before = search.changes
            yield from _recheck_priors(search)
            if search.changes == before:
                return
        new = [finding for finding in search.findings if finding.kind in HARD and (finding.kind, finding.left, finding.right) not in named]
        loops = 0 if new else loops + 1
    _unsteady_ends(search)
    members = _closing_set(search, swap=False)
    if not search.proofs and len(members) > 1:
        search.unresolved(members, "net", "the closing test still fails after the permitted number of rounds")


# ----- first look -----


def _known_single_failures(search: Search) -> Steps:
    """Nodes that evidence from before shows failing alone: repeat those first; returns the accused."""
    accused = sorted({nodes[0] for nodes, _transport, prior in search.untouched_priors(True) if prior.get("passed") is not True})
    bad: list[int] = []
    jobs = []
    for node in accused:
        trial = search.ask((node,), "net", f"{search.names[node]} alone", "the node itself")
        if search.evidence.weight(trial) > 0:
            bad.append(node)
            jobs.append(suspects.narrow(search, (node,), "net", trial, "fail"))
    yield from search.all_of(jobs)
    return set(bad) & (set(search.accused) | set(search.untested))


def _all_at_once(search: Search, left_out: set[int]) -> Steps:
    """The closing test first: when the cluster is likely healthy, one test may be all. True when it proves everything."""
    everybody = tuple(range(len(search.names)))
    if left_out or len(everybody) < 2 or any(search.domain_transport(unit) == "nvl" for unit in range(len(search.units))):
        return False
    verdict, proofs = yield from _prove(search, everybody)
    if verdict != "pass" or search.findings:
        return False
    search.proofs = proofs
    before = search.changes
    yield from _recheck_priors(search)
    return search.changes == before


def _first_look(search: Search, left_out: set[int]) -> Steps:
    """Every domain alone; with little concurrency, groups of domains first."""
    units = [nodes for unit in search.units if (nodes := tuple(node for node in unit.nodes if node not in left_out))]
    room = search.options["max_concurrent"]
    if room and room < len(units) and not search.options["mnnvl"]:
        yield from search.all_of(_look_at_many(search, part) for part in split(units, room))
        return
    yield from search.all_of(
        suspects.look(search, unit, search.domain_transport(search.unit_of[unit[0]])) for unit in units if _testable(search, unit)
    )


def _testable(search: Search, unit: Nodes) -> bool:
    """A domain too small for min_group_size is left to the closing test."""
    return len(unit) == 1 or len(unit) >= search.options["min_group_size"]


def _look_at_many(search: Search, units: list[Nodes]) -> Steps:
    if len(units) == 1:
        yield from suspects.look(search, units[0], "net")
        return
    nodes = tuple(sorted(node for unit in units for node in unit))
    trial = search.ask(nodes, "net", f"{len(units)} domains together", "a fault among these domains")
    verdict = yield from search.settle(trial, look_inside=True)
    if verdict != "pass":
        yield from boundaries.search_domains(search, units, trial, verdict)


def _second_chance(search: Search) -> Steps:
    """Suspects that found no known-good partner: now that everything else is settled, try again, then give up."""
    waiting, search.leftover = search.leftover, []
    yield from search.all_of(suspects.examine(search, groups, transport) for groups, transport in waiting)
    waiting, search.leftover = search.leftover, []
    for groups, transport in waiting:
        nodes = [node for members, _trial in groups for node in members]
        rest = [node for node in nodes if not search.good(node, transport) and node not in search.tainted(transport)]
        yield from _alone(search, rest)
        groups = [group for group in groups if not search.explained(group[1])]
        rest = [node for members, _trial in groups for node in members if node in rest and node not in search.tainted(transport)]
        search.unresolved(rest, transport, "no known-good partner could separate these nodes", [trial for _members, trial in groups])


def _alone(search: Search, nodes: t.Sequence[int]) -> Steps:
    """Without a usable partner a node can still be shown to fail alone."""
    jobs = []
    trials = [search.ask((node,), "net", f"{search.names[node]} alone", "the node itself") for node in nodes]
    yield trials
    for node, trial in zip(nodes, trials, strict=True):
        if search.evidence.weight(trial) >= FAIL:
            jobs.append(suspects.narrow(search, (node,), "net", trial, "fail"))
    yield from search.all_of(jobs)


# ----- closing -----


def _parked(search: Search, swap: bool) -> set[int]:
    """One side of everything between two sides; `swap` gives the other one."""
    result: set[int] = set()
    for finding in search.findings:
        if finding.right and finding.transport == "net":
            side = finding.left if swap else finding.right
            result.update(side)
            if finding.kind == "rack-boundary":
                result.update(mate for node in side for mate in search.home(node))
    return result


def _closing_set(search: Search, swap: bool) -> Nodes:
    """Everything the closing test can contain."""
    out = _parked(search, swap) | set(search.accused) | set(search.lost) | set(search.untested)
    for finding in search.findings:
        if finding.kind == "unresolved":
            out.update(finding.left)
        elif finding.own_boundary:
            out.update(search.span(finding.left))  # the whole domain, whoever was in the tests
    return tuple(node for node in range(len(search.names)) if node not in out)


def _close(search: Search) -> Steps:
    """One closing round. True when it ended: proven, or nothing left to prove."""
    yield from search.all_of(_second_opinion(search, finding) for finding in search.findings if finding.kind == "node")
    links.join_ways(search)
    yield from links.try_shared_ends(search)
    _unsteady_ends(search)
    yield from search.all_of(_firm_up(search, finding) for finding in search.findings if finding.kind == "node")
    before = search.changes
    search.proofs = []
    beside = links.apart(search)
    mates = {mate for _finding, _one, mate in beside}
    members = tuple(node for node in _closing_set(search, swap=False) if node not in mates)
    side_jobs = [links.with_another(search, finding, finding.right[0], mate) for finding, _one, mate in beside]
    side_jobs += [_classify(search, finding) for finding in search.findings if finding.kind == "node" and not finding.kind_of_node]
    side_jobs += [
        boundaries.boundary_control(search, finding) for finding in search.findings if finding.own_boundary and not finding.controls
    ]
    results = yield from search.all_of([_prove(search, members), *side_jobs])
    yield from partitions.reconsider_sides(search)
    verdict, proofs = results[0]
    if verdict == "pass" and _parked(search, False) and search.changes == before:
        mates = {mate for _finding, mate, _two in beside}
        members = tuple(node for node in _closing_set(search, swap=True) if node not in mates)
        jobs = [links.with_another(search, finding, finding.left[0], mate) for finding, mate, _two in beside]
        results = yield from search.all_of([_prove(search, members), *jobs])
        verdict, more = results[0]
        proofs += more
    if search.changes != before or (verdict == "pass" and _reconsider(search)):
        return False
    if verdict == "pass":
        # What was sure enough may be less now that the noise is known better, or other pairs explain some of its failures.
        yield from search.all_of(_firm_up(search, finding) for finding in search.findings if finding.kind == "node")
        yield from search.all_of(links.until_sure(search, finding) for finding in search.findings if finding.kind == "pair")
        links.join_ways(search)
        _unsteady_ends(search)
        if search.changes != before:
            return False
        search.proofs = proofs
        return True
    if verdict == "untested":
        return True
    between_switches = yield from boundaries.search_levels(search, members, proofs[-1])
    if not between_switches:
        yield from boundaries.search_domains(search, boundaries.restricted(search, members), proofs[-1])
    yield from _second_chance(search)
    if search.changes == before:
        yield from _unexplained(search, members, proofs[-1])
        return False
    return False


def _prove(search: Search, members: Nodes) -> Steps:
    """The closing test, several times with the soak option: (pass | fail | untested, trials)."""
    if len(members) < 2:
        return "untested", []
    times = 5 if search.options["soak"] else 1
    known = search.passed_together(members, "net")
    if known and times == 1 and known.nodes == members and search.evidence.met([known]):
        return "pass", [known]
    if known and times == 1 and known.nodes != members and known.passed is not False:
        return "pass", [known]
    trials: list[Trial] = []
    for _turn in range(times):
        verdict, runs = yield from _closing_runs(search, members)
        trials.append(next((run for run in reversed(runs) if run.passed is not False), runs[-1]))
        if verdict != "pass":
            return verdict, trials
    return "pass", trials


def _closing_runs(search: Search, members: Nodes) -> Steps:
    """One closing test, repeated while it is too close to the limit to tell: (verdict, runs)."""
    verdict, first = yield from search.decide(
        members, "net", f"closing test: all {len(members)} nodes that nothing speaks against", "these nodes work together"
    )
    runs = [trial for trial in search.trials if trial.nodes == first.nodes and trial.transport == "net" and trial.wave >= first.wave]
    if verdict != "pass":
        return verdict, runs or [first]
    while search.evidence.met(runs) is None and len(runs) < CLOSING_RUNS:
        run = search.ask(first.nodes, "net", "closing test again: too close to the limit to tell", "noise")
        yield [run]
        if run.outcome == "unmeasured" or run.nodes != first.nodes:
            break
        runs.append(run)
    if search.evidence.met(runs, last=True):
        return "pass", runs
    if search.total(runs) > 0:
        return "fail", runs
    search.unresolved(
        members,
        "net",
        "together they miss the criterion, yet nothing is slower than expected: a shared cause, or a limit that does not fit",
        runs,
    )
    return "fail", runs


def _reconsider(search: Search) -> bool:
    """Failures that could not be shown again, taken together: does one node explain all of them? True if one does."""
    accused = len(search.accused)
    failures = [trial for trial in search.trials if len(trial.nodes) > 1 and search.evidence.strong(trial)]
    for transport in ("net", "nvl"):
        open_ = [trial for trial in failures if trial.transport == transport and not search.explained(trial)]
        groups = {trial.nodes for trial in open_}
        if not any(finding.kind == "irreproducible" and finding.transport == transport for finding in search.findings):
            continue
        common = set.intersection(*(set(nodes) for nodes in groups)) if groups else set()
        pairs_ = [finding for finding in search.findings if finding.kind == "pair" and common & set(finding.left + finding.right)]
        if len(pairs_) == 1 and len(common & set(pairs_[0].left + pairs_[0].right)) == 1:
            # One end of a blamed pair was in every other failure: it is that node, and not only with its partner.
            node = min(common & set(pairs_[0].left + pairs_[0].right))
            search.retract(pairs_[0])
            search.accuse(node, transport, CONVICT, [*pairs_[0].witnesses, *open_], "intermittent")
        elif len(common) == 1 and len(groups) > 2:
            search.try_common(min(common), transport, open_)
    for finding in list(search.findings):
        if finding.kind == "irreproducible" and all(search.explained(trial) for trial in finding.witnesses):
            search.retract(finding)
    return len(search.accused) > accused


def _firm_up(search: Search, finding: Finding) -> Steps:
    """What was enough to accuse a node may be less once the noise is known better: one more test with a new reference."""
    node, transport = finding.left[0], finding.transport
    for _turn in range(search.limits["runs_per_test"]):
        if finding.kind_of_node == "intermittent" or search.sure(finding, "node") >= posterior.LEAST:
            return
        met = {mate for trial in search.of_node[node] for mate in trial.nodes if len(trial.nodes) == 2}
        reference = next((mate for mate in search.home(node) if mate not in met and search.good(mate, transport)), None)
        if reference is None:
            return
        trial = search.ask((node, reference), transport, "accused with another reference", f"{search.names[node]} is at fault")
        yield [trial]
        finding.strength += search.evidence.weight(trial)
        if search.evidence.weight(trial) > 0:
            finding.witnesses.append(trial)


def _unsteady_ends(search: Search) -> None:
    """A node that fails now and then can look like a bad pair, or leave a few nodes unresolved: do its other tests say so?"""
    for finding in list(search.findings):
        if finding not in search.findings or finding.kind not in ("pair", "unresolved") or len(finding.left + finding.right) > FEW_NODES:
            continue
        for node in finding.left + finding.right:
            mine = [other for other in search.findings if other.kind == "pair" and node in other.left + other.right]
            mine = [other for other in mine if other.transport == finding.transport]
            rest = set(finding.left + finding.right) - {node} if finding.kind == "pair" else ()
            if search.try_unsteady(node, finding.transport, rest) or (mine and search.try_end(node, mine)):
                break
    for finding in list(search.findings):
        if (
            finding.kind == "unresolved"
            and finding.witnesses
            and all(search.explained(trial, without=[finding]) for trial in finding.witnesses)
        ):
            search.retract(finding)


def _second_opinion(search: Search, finding: Finding) -> Steps:
    """What is left of the case against a node when another finding explains a witness, or when the witnesses differ.

    One persistent fault shows the same loss each time. One more test with a new reference, none of whom was in a failed
    test with the node, tells whether it is the node.
    """
    node, transport = finding.left[0], finding.transport
    shared = [trial for trial in finding.witnesses if len(trial.nodes) > 1]
    own = [trial for trial in shared if not search.explained(trial, without=[finding])]
    common = set.intersection(*(set(trial.nodes) for trial in own)) if own else set()
    weak = len(own) < len(shared) and (len(own) < 2 or common != {node})
    if not own or finding.kind_of_node == "intermittent" or not (weak or (len(own) == 2 and search.evidence.differ(own))):
        return
    met = {mate for trial in own for mate in trial.nodes}
    reference = _new_reference(search, node, transport, met)
    if reference is None:
        return
    trial = search.ask((node, reference), transport, "accused with another reference", "a bad pair instead", avoid=met)
    verdict = yield from search.settle(trial)
    if verdict != "untested":
        finding.witnesses.append(trial)
    if verdict == "pass":
        search.retract(finding)
        search.clear(trial)
        for failed in own:
            couples = [tuple(mate for mate in failed.nodes if mate != node)]
            yield from pairs.narrow_and_blame(search, (node,), couples[0], transport, [failed])


def _new_reference(search: Search, node: int, transport: str, met: t.Collection[int]) -> int | None:
    """A known-good node that was in none of these tests: of the own domain, or of one that works with others."""
    known = {mate for trial in search.of_node[node] for mate in trial.nodes if len(trial.nodes) == 2}
    for mate in search.home(node):
        if mate not in known and mate not in met and search.good(mate, transport):
            return mate
    behind = search.behind_boundary()
    if transport != "net" or node in behind:
        return None
    others = [mate for unit in search.units for mate in unit.nodes if mate not in behind and mate not in met and search.good(mate, "net")]
    return next((mate for mate in others if search.unit_of[mate] != search.unit_of[node] and search.crosses(search.unit_of[mate])), None)


def _classify(search: Search, finding: Finding) -> Steps:
    """Alone, the accused node shows whether it is the node or its way to the others.

    A limit for groups says nothing of one node; where nothing better is known, a good node alone is the yardstick.
    """
    node = finding.left[0]
    verdict, trial = yield from search.decide((node,), "net", f"{search.names[node]} alone: which part of it", "the node itself")
    finding.controls.append(trial)
    if trial.outcome == "measured" and search.evidence.foreign(trial):
        compared = yield from _against_reference(search, finding, trial)
        verdict = compared if compared != "unclear" or verdict != "fail" else "fail"
    if verdict == "unclear":
        finding.kind_of_node = "node or nic"
        finding.note = "no good node was measured alone to compare it with"
    elif verdict == "fail":
        finding.kind_of_node = "node"
        finding.witnesses.append(trial)
    elif verdict == "pass":
        finding.kind_of_node = "nic" if finding.transport == "net" else "nvl"
    else:
        finding.kind_of_node = "node or nic" if finding.transport == "net" else "nvl"
        finding.note = "the test of the node alone could not be measured, so the node itself may be at fault"


def _against_reference(search: Search, finding: Finding, first: Trial) -> Steps:
    """pass, fail or unclear: the node alone against good nodes alone, half of what it loses in groups being the limit."""
    good = [math.log(trial.value) for trial in search.references if trial.outcome == "measured" and trial.value]
    if not good or not first.value:
        return "unclear"
    losses = [loss for trial in finding.witnesses if len(trial.nodes) > 1 and (loss := search.evidence.deviation(trial)) is not None]
    limit = max(statistics.median(losses), FAULT_SHIFT) / 2 if losses else FAULT_SHIFT / 2
    runs = [first]
    while True:
        logs = [math.log(run.value) for run in runs if run.value]
        margin = statistics.fmean(logs) - statistics.fmean(good) - limit
        clear = DECIDED * search.evidence.sigma * math.sqrt(1 / len(logs) + 1 / len(good))
        if abs(margin) >= clear or len(runs) >= search.limits["runs_per_test"]:
            return "fail" if margin < 0 else "pass"
        run = search.ask(first.nodes, "net", f"{search.names[first.nodes[0]]} alone again", "the node itself")
        yield [run]
        if run.outcome != "measured" or not run.value:
            return "fail" if run.outcome == "failed" else "unclear"
        runs.append(run)
        finding.controls.append(run)


def _unexplained(search: Search, members: Nodes, parent: Trial) -> Steps:
    """The closing test failed and nothing explains it: an intermittent fault shows when the domains are repeated."""
    verdict, trial = yield from search.decide(members, "net", "closing test again: nothing explained its failure", "noise")
    if verdict == "pass" and not search.evidence.strong(parent):
        return
    before = search.changes
    for _turn in range(3):
        jobs = [_again(search, unit) for unit in boundaries.restricted(search, members) if len(unit) > 1]
        yield from search.all_of(jobs)
        yield from _second_chance(search)
        if search.changes != before:
            return
    if verdict == "pass":
        if not any(finding.kind == "irreproducible" for finding in search.findings):
            search.irreproducible(members, "net", [parent])
    else:
        search.unresolved(members, "net", "together they fail, and no smaller group of them does", [parent, trial])


def _again(search: Search, unit: Nodes) -> Steps:
    trial = search.ask(unit, "net", "repeat a domain after an unexplained failure", "an intermittent fault inside")
    verdict = yield from search.settle(trial)
    if verdict == "fail":
        yield from suspects.narrow(search, unit, "net", trial, verdict)


# ----- evidence from before that fits no test -----


def _recheck_priors(search: Search) -> Steps:
    """A failing group from before that no test has covered must not be forgotten: repeat it, and search inside if it fails."""
    for nodes, transport, prior in search.untouched_priors(False):
        if prior["outcome"] == "measured" and prior.get("passed") is True:
            continue
        if search.passed_together(nodes, transport) is None and set(nodes) & search.tainted(transport):
            continue  # an accused member explains it
        parent = search.ask(nodes, transport, "group from before", "a fault inside this group")
        yield [parent]
        if search.evidence.weight(parent) <= CLEAR:
            continue
        units = boundaries.restricted(search, nodes)
        verdict, trial = yield from search.decide(nodes, transport, "repeat a group that failed before", "a fault inside this group")
        if verdict == "fail":
            search.proofs = []
            if len(units) == 1:
                yield from suspects.narrow(search, nodes, transport, trial, verdict)
            else:
                yield from boundaries.search_domains(search, units, trial)
            yield from _second_chance(search)
        elif verdict == "pass" and search.evidence.strong(parent):
            before = search.changes
            yield from soak(search, nodes, transport, [parent])
            if len(search.findings) and search.changes != before and search.findings[-1].kind != "irreproducible":
                search.proofs = []
