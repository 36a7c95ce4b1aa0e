# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A group failed although each of its parts is good: something between the parts. Which two do not work together?

The members are numbered, and each wave tests the halves that share one bit of their number. A bad pair fails in the
half that holds both ends, or in neither when the bit sets them apart; so a wave per bit leaves pairs that share no
node, and these are tested in one wave more. Every combination of two was then in a test that passed, or is blamed, or
the failure needs more members at once than two.
"""

from __future__ import annotations

import typing as t

from . import links
from .evidence import CLEAR, CONVICT
from .node_sets import Combination, Nodes, circle, two_sides
from .search import Search
from .soak import SOAK_LEAST, soak
from .trial import Trial
from .waves import Steps

FEW_DOMAINS, MANY_DOMAINS = 3, 16
MANY_RUNS = 4  # failures in a row, after which it is not chance that no two members explain them


class Found(t.NamedTuple):
    """What a search between members ended with.

    combinations: two sides that fail together, with the test that showed it. many: sets that fail although any two
    of their members work together. stuck: sets that could not be split further (their tests cannot be measured).
    """

    combinations: list[tuple[Combination, Trial]]
    many: list[Nodes]
    stuck: list[Nodes]


def contradiction(search: Search, nodes: Nodes, parts: t.Sequence[Nodes], transport: str, parent: Trial, *, weak: bool) -> Steps:
    """The union failed, every part passed. weak: the union was only unclear."""
    if weak and transport == "net":
        return  # the closing test has the last word on the network
    witnesses = [parent]
    if not search.evidence.strong(parent):
        verdict, trial = yield from search.decide(
            nodes, transport, f"repeat the failed group of {len(nodes)}: all parts pass", "the failure was noise"
        )
        if verdict == "pass":
            return
        if verdict == "untested":
            search.unresolved(nodes, transport, "the failed group could not be measured again", [parent])
            return
        witnesses.append(trial)
    if transport == "nvl":
        yield from sides_or_pairs(search, parts, transport, witnesses)
    else:
        yield from between(search, [(node,) for node in nodes], transport, witnesses)


def sides_or_pairs(search: Search, parts: t.Sequence[Nodes], transport: str, witnesses: list[Trial]) -> Steps:
    """Two sides of a domain (an NVLink switch) fail in every combination of parts; else look for pairs."""
    failing: list[tuple[int, int]] = []
    trials: list[Trial] = []
    for pairs_ in circle(len(parts)):
        asked = [
            search.ask(parts[a] + parts[b], transport, "two good groups together", "a fault between them", avoid=sum(parts, ()))
            for a, b in pairs_
        ]
        verdicts = yield from search.all_of(search.settle(trial) for trial in asked)
        trials += asked
        failing += [pair for pair, verdict in zip(pairs_, verdicts, strict=True) if verdict == "fail"]
        if len(failing) == 1:
            break
    sides = two_sides(failing, len(parts)) if len(failing) > 1 else None
    if sides:
        left, right = (tuple(sorted(node for part in side for node in parts[part])) for side in sides)
        shown = [trial for trial in trials if search.evidence.weight(trial) > 0]
        inside = [trial for trial in trials if search.evidence.weight(trial) <= CLEAR]
        if min(len(left), len(right)) > 1 and len(shown) > 2 and search.total(shown) >= CONVICT:
            # Every crossing failed, each side passed: that is verification enough.
            yield from links.blame_sides(search, left, right, transport, witnesses + shown, inside)
            return
    if not failing:
        yield from between(search, [(node,) for part in parts for node in part], transport, witnesses)
    for a, b in failing:
        yield from narrow_and_blame(search, parts[a], parts[b], transport, witnesses)


def between(search: Search, members: t.Sequence[Nodes], transport: str, witnesses: list[Trial]) -> Steps:
    """The members failed together, each is good by itself: find and blame what is between two of them."""
    found = yield from _among(search, list(members), transport)
    for (left, right), trial in found.combinations:
        yield from narrow_and_blame(search, left, right, transport, [*witnesses, trial])
    yield from search.all_of(many_at_once(search, nodes, transport, witnesses) for nodes in found.many)
    for nodes in found.stuck:
        search.unresolved(nodes, transport, "they fail together, and smaller groups of them cannot be measured", witnesses)


def narrow_and_blame(search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """Two good sides that fail together: narrow to pairs of nodes, or keep the whole where every crossing fails."""
    found = yield from across(search, left, right, transport)
    for (one, two), trial in found.combinations:
        yield from links.blame_or_soak(search, one, two, transport, [*witnesses, trial])
    for nodes in found.many:
        yield from many_at_once(search, nodes, transport, witnesses)
    for nodes in found.stuck:
        search.unresolved(nodes, transport, "they fail together, and smaller groups of them cannot be measured", witnesses)


def many_at_once(search: Search, nodes: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """No two members explain the failure. Does it fail again?"""
    seen = [trial for trial in search.of_node[nodes[0]] if trial.nodes == tuple(sorted(nodes)) and trial.transport == transport]
    verdict, trial = "fail", seen[-1] if seen else witnesses[-1]
    # A node that fails every second time fails twice in a row often enough.
    # It passed in every test on the way here, and there are more of those the more domains there are.
    domains = len({search.unit_of[node] for node in nodes})
    while len(seen) < MANY_RUNS - (domains >= FEW_DOMAINS) - (domains >= MANY_DOMAINS) and verdict == "fail":
        verdict, trial = yield from search.decide(nodes, transport, "all of them again: any two work together", "the failure was noise")
        seen.append(trial)
    if any(finding.kind == "unresolved" and set(finding.left) >= set(nodes) for finding in search.findings):
        return
    flaky = len(nodes) <= SOAK_LEAST or any(search.evidence.weight(run) <= CLEAR for run in seen)
    if verdict == "fail" and flaky:
        yield from soak(search, nodes, transport, [*witnesses, trial])
    elif verdict == "fail":
        search.unresolved(nodes, transport, many_needed(len(nodes)), [*witnesses, trial])
    elif verdict == "pass" and any(search.evidence.strong(run) for run in witnesses):
        yield from soak(search, nodes, transport, witnesses)


def many_needed(count: int) -> str:
    """What is said of a failure of so many nodes that no two parts of them show."""
    return (
        f"they fail together, yet every two parts of them work together: the fault needs many of {count} nodes at once "
        "(load of a shared switch, or the size of the job), and none of them is to blame by itself"
    )


# ----- by the bits of their numbers -----


def _among(search: Search, members: list[Nodes], transport: str) -> Steps:
    """Among members of one set: Found."""
    everybody = tuple(sorted(node for member in members for node in member))
    live = list(range(len(members)))
    apart = 0
    for bit in reversed(range((len(members) - 1).bit_length())):
        halves = [half for side in (0, 1) if (half := [at for at in live if at >> bit & 1 == side])]
        if len(halves) < 2:
            continue
        verdicts, _trials = yield from _test(
            search, [_union(members, half) for half in halves], [len(half) for half in halves], transport, everybody
        )
        if "untested" in verdicts:
            return Found([], [], [_union(members, live)])
        failing = [half for half, verdict in zip(halves, verdicts, strict=True) if verdict == "fail"]
        if len(failing) == 2:
            results = yield from search.all_of(_among(search, [members[at] for at in half], transport) for half in failing)
            return _joined(results)
        if failing:
            live = failing[0]
        else:
            apart |= 1 << bit
    couples = [(at, at ^ apart) for at in live if at < at ^ apart and at ^ apart in live]
    sides = [(members[a], members[b]) for a, b in couples]
    return (yield from _candidates(search, sides, transport, _union(members, live), everybody))


def across(search: Search, left: Nodes, right: Nodes, transport: str) -> Steps:
    """Between nodes of two sides: Found. A whole combination comes back when every crossing fails."""
    everybody = tuple(sorted(left + right))
    if len(everybody) == 2:
        trial = search.ask(everybody, transport, "two good nodes together", "a fault between them", avoid=everybody)
        verdict = yield from search.settle(trial)
        return Found([((left, right), trial)], [], []) if verdict == "fail" else Found([], [everybody], [])
    one, two = list(range(len(left))), list(range(len(right)))
    apart = 0
    for bit in reversed(range((max(len(left), len(right)) - 1).bit_length())):
        combos = [([at for at in one if at >> bit & 1 == side], [at for at in two if at >> bit & 1 == side]) for side in (0, 1)]
        combos = [(a, b) for a, b in combos if a and b]
        if combos == [(one, two)] or not combos:
            apart |= 0 if combos else 1 << bit
            continue
        sides = [(_pick(left, a), _pick(right, b)) for a, b in combos]
        verdicts, trials = yield from _test(search, [a + b for a, b in sides], [2] * len(sides), transport, everybody)
        if "untested" in verdicts:
            return Found([], [], [_pick(left, one) + _pick(right, two)])
        failing = [combo for combo, verdict in zip(combos, verdicts, strict=True) if verdict == "fail"]
        if len(failing) == 2:
            return (yield from _both(search, _pick(left, one), _pick(right, two), sides, trials, transport, everybody))
        if failing:
            one, two = failing[0]
        else:
            apart |= 1 << bit
    couples: list[Combination] = [((left[at],), (right[at ^ apart],)) for at in one if at ^ apart in two]
    return (yield from _candidates(search, couples, transport, _pick(left, one) + _pick(right, two), everybody))


def _both(
    search: Search, left: Nodes, right: Nodes, sides: list[Combination], trials: list[Trial], transport: str, everybody: Nodes
) -> Steps:
    """Two disjoint crossings of these sides failed: if the two others fail too it is the whole, else look into each."""
    (a, b), (c, d) = sides
    others = [(a, d), (c, b)]
    verdicts, more = yield from _test(search, [x + y for x, y in others], [2, 2], transport, everybody)
    failing = [side for side, verdict in zip(others, verdicts, strict=True) if verdict == "fail"]
    if len(failing) == 2:
        return Found([((left, right), trial) for trial in trials[:1]], [], [])
    results = yield from search.all_of(across(search, x, y, transport) for x, y in [*sides, *failing])
    return _joined(results)


def _candidates(search: Search, sides: list[Combination], transport: str, live: Nodes, everybody: Nodes) -> Steps:
    """Test what the bits left: combinations that share no node."""
    verdicts, trials = yield from _test(search, [a + b for a, b in sides], [2] * len(sides), transport, everybody)
    found = [(side, trial) for side, trial, verdict in zip(sides, trials, verdicts, strict=True) if verdict == "fail"]
    if found:
        return Found(found, [], [])
    if "untested" in verdicts:
        return Found([], [], [live])
    return Found([], [live], [])


def _test(search: Search, groups: list[Nodes], counts: list[int], transport: str, everybody: Nodes) -> Steps:
    """Verdicts and trials of groups; one with a single member, or known to pass, is not run."""
    known = [search.passed_together(group, transport) for group in groups]
    trials: list[Trial | None] = []
    jobs = []
    for group, count, pass_ in zip(groups, counts, known, strict=True):
        if count < 2 or pass_:
            trials.append(pass_)
            continue
        trial = search.ask(group, transport, "good groups together", "a fault between them", avoid=everybody)
        trials.append(trial)
        jobs.append(search.settle(trial))
    verdicts = iter((yield from search.all_of(jobs)))
    return ["pass" if count < 2 or pass_ else next(verdicts) for count, pass_ in zip(counts, known, strict=True)], trials


def _union(members: t.Sequence[Nodes], which: t.Iterable[int]) -> Nodes:
    return tuple(sorted(node for at in which for node in members[at]))


def _pick(nodes: Nodes, which: t.Iterable[int]) -> Nodes:
    return tuple(nodes[at] for at in which)


def _joined(results: t.Iterable[Found]) -> Found:
    joined = Found([], [], [])
    for result in results:
        joined.combinations.extend(result.combinations)
        joined.many.extend(result.many)
        joined.stuck.extend(result.stuck)
    return joined
