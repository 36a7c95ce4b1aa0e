# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A group failed although each of its parts is good: something between the parts. Which two do not work together?

Each wave tests the blocks that tell most of what is still open (see `splits`): halves, in which a bad pair fails if it
has both ends there, and couples once few are open. What passed together in any test before is not open. Every
combination of two was then in a test that passed, or is blamed, or the failure needs more members at once than two.
"""

from __future__ import annotations

import typing as t

from . import links
from .evidence import CLEAR, CONVICT
from .node_sets import Combination, Nodes, circle, two_sides
from .search import Search
from .soak import soak
from .splits import Open, bits
from .splits import members as things_of
from .trial import Trial
from .waves import Steps

FEW_DOMAINS, MANY_DOMAINS = 3, 16
FEW_AT_ONCE = 8  # nodes, whose failure is not called one of many at once
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
        if len(left) == len(right) == 1:
            yield from links.blame_or_soak(search, left, right, transport, [*witnesses, trial], _rivals(found, left, right))
        else:
            yield from narrow_and_blame(search, left, right, transport, [*witnesses, trial])
    yield from search.all_of(many_at_once(search, nodes, transport, witnesses) for nodes in found.many)
    for nodes in found.stuck:
        search.unresolved(nodes, transport, "they fail together, and smaller groups of them cannot be measured", witnesses)


def narrow_and_blame(search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """Two good sides that fail together: narrow to pairs of nodes, or keep the whole where every crossing fails."""
    found = yield from across(search, left, right, transport)
    for (one, two), trial in found.combinations:
        yield from links.blame_or_soak(search, one, two, transport, [*witnesses, trial], _rivals(found, one, two))
    for nodes in found.many:
        yield from many_at_once(search, nodes, transport, witnesses)
    for nodes in found.stuck:
        search.unresolved(nodes, transport, "they fail together, and smaller groups of them cannot be measured", witnesses)


def _rivals(found: Found, left: Nodes, right: Nodes) -> list[set[int]]:
    """The other combinations that were found: what holds one of those may fail because of it."""
    return [{*one, *two} for (one, two), _trial in found.combinations if (one, two) != (left, right)]


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
    flaky = len(nodes) <= FEW_AT_ONCE or any(search.evidence.weight(run) <= CLEAR for run in seen)
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


# ----- each wave halves what is open -----


def _among(search: Search, members: list[Nodes], transport: str) -> Steps:
    """Among members of one set: Found."""
    return (yield from _narrow(search, members, Open.among(len(members)), transport))


def across(search: Search, left: Nodes, right: Nodes, transport: str) -> Steps:
    """Between nodes of two sides: Found. A whole combination comes back when every crossing fails."""
    members: list[Nodes] = [(node,) for node in left + right]
    return (yield from _narrow(search, members, Open.across(len(left), len(right)), transport, len(left)))


def _narrow(search: Search, members: list[Nodes], open_: Open, transport: str, cut: int = 0) -> Steps:
    """Test the blocks that tell most, until couples are left: Found. cut: the first member of the second of two sides."""
    while True:
        _close_known(search, members, open_, transport)
        live = _union(members, things_of(open_.live))
        if not live:
            return Found([], [_union(members, range(len(members)))], [])
        whole = open_.complete(cut)
        blocks = open_.wave(0 if whole else _room(search))
        last = len(blocks) == open_.count(open_.live)
        trials, verdicts = yield from _test(search, members, blocks, transport, _asked(open_, blocks))
        failing = [(block, trial) for block, trial, verdict in zip(blocks, trials, verdicts, strict=True) if verdict == "fail"]
        if not failing and "untested" in verdicts:
            return Found([], [], [live])
        if not failing and last:
            return Found([], [live], [])
        if len(failing) == 2 and whole:
            return (yield from _both(search, members, open_, failing, transport, cut))
        if len(failing) > 1 or any(block.bit_count() == 2 for block, _trial in failing):
            return (yield from _inside(search, members, open_, failing, transport, cut))
        for block, verdict in zip(blocks, verdicts, strict=True):
            if verdict == "pass":
                open_.close(block)
        if failing:
            open_ = open_.inside(failing[0][0])


def _inside(search: Search, members: list[Nodes], open_: Open, failing: list[tuple[int, Trial]], transport: str, cut: int) -> Steps:
    """Blocks that failed: a block of two is found, into the others we look further."""
    sides = [(tuple(members[at] for at in things_of(block)), trial) for block, trial in failing if block.bit_count() == 2]
    deeper = [_narrow(search, members, open_.inside(block), transport, cut) for block, _trial in failing if block.bit_count() > 2]
    results = yield from search.all_of(deeper)
    return _joined([Found([((a, b), trial) for (a, b), trial in sides], [], []), *results])


def _both(search: Search, members: list[Nodes], open_: Open, failing: list[tuple[int, Trial]], transport: str, cut: int) -> Steps:
    """Two disjoint crossings of these sides failed: if the two others fail too it is the whole, else look into each."""
    first = (1 << cut) - 1
    (one, trial), (two, _other) = failing
    others = [one & first | two & ~first, two & first | one & ~first]
    trials, verdicts = yield from _test(search, members, others, transport, "the other halves of two sides that fail together")
    more = [(block, run) for block, run, verdict in zip(others, trials, verdicts, strict=True) if verdict == "fail"]
    if len(more) == 2:
        sides = [_union(members, things_of(open_.live & side)) for side in (first, ~first)]
        return Found([((sides[0], sides[1]), trial)], [], [])
    return (yield from _inside(search, members, open_, [*failing, *more], transport, cut))


def _asked(open_: Open, blocks: list[int]) -> str:
    """What a wave asks, for the operator."""
    left = open_.count(open_.live)
    what = "each by itself" if all(block.bit_count() == 2 for block in blocks) else "which half fails"
    return f"which two do not work together, of {left} possible pairs: {what}" if left > 1 else "the only pair that is left"


def _test(search: Search, members: list[Nodes], blocks: t.Sequence[int], transport: str, purpose: str) -> Steps:
    """Trials and verdicts of blocks."""
    everybody = tuple(node for member in members for node in member)
    trials = [
        search.ask(_union(members, things_of(block)), transport, purpose, "a fault between two of them", avoid=everybody)
        for block in blocks
    ]
    verdicts = yield from search.all_of(search.settle(trial) for trial in trials)
    return trials, verdicts


def _close_known(search: Search, members: list[Nodes], open_: Open, transport: str) -> None:
    """What passed together before need not be tested again."""
    for passed in search.passes[transport]:
        open_.close(bits(at for at, member in enumerate(members) if passed.issuperset(member)))


def _room(search: Search) -> int:
    """How many small tests fit in one wave."""
    fit = len(search.names) // max(2, int(search.options["min_group_size"]))
    return min(fit, int(search.options["max_concurrent"]) or fit)


def _union(members: t.Sequence[Nodes], which: t.Iterable[int]) -> Nodes:
    return tuple(sorted(node for at in which for node in members[at]))


def _joined(results: t.Iterable[Found]) -> Found:
    joined = Found([], [], [])
    for result in results:
        joined.combinations.extend(result.combinations)
        joined.many.extend(result.many)
        joined.stuck.extend(result.stuck)
    return joined
