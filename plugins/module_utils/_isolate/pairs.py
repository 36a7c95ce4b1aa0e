# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A group failed although each of its parts is good: something between the parts. Pairs, partitions, soak."""

from __future__ import annotations

import typing as t

from .evidence import CLEAR, CONVICT, FAIL
from .node_sets import Combination, Nodes, circle, quarters, two_sides
from .search import Finding, Search
from .waves import Steps, Trial

SOAK_LEAST = 6  # fewer nodes than this are soaked together with known-good ones


def contradiction(search: Search, nodes: Nodes, parts: t.Sequence[Nodes], transport: str, parent: Trial, *, weak: bool) -> Steps:
    """The union failed, every part passed. weak: the union was only unclear."""
    if weak and transport == "net":
        return  # the closing test has the last word on the network
    verdict, trial = yield from search.decide(
        nodes, transport, f"repeat the failed group of {len(nodes)}: all parts pass", "the failure was noise"
    )
    if verdict == "pass":
        if search.evidence.strong(parent):
            yield from soak(search, nodes, transport, [parent])
    elif verdict == "untested":
        search.unresolved(nodes, transport, "the failed group could not be measured again", [parent])
    else:
        yield from search_pairs(search, parts, transport, [parent, trial])


def search_pairs(search: Search, parts: t.Sequence[Nodes], transport: str, witnesses: list[Trial]) -> Steps:
    """Which two parts do not work together? All pairs of parts in rounds, until one round has exactly one failure."""
    rounds = circle(len(parts))
    failing: list[tuple[int, int]] = []
    trials: list[Trial] = []
    for number, pairs_ in enumerate(rounds):
        if number == len(rounds) - 1 and not failing:
            # Nothing else is left: look inside the remaining pairs at once.
            yield from settle_combinations(search, [(parts[a], parts[b]) for a, b in pairs_], transport, witnesses)
            return
        asked = [search.ask(parts[a] + parts[b], transport, "two good groups together", "a fault between them") for a, b in pairs_]
        verdicts = yield from search.all_of(search.settle(trial) for trial in asked)
        trials += asked
        bad = [pair for pair, verdict in zip(pairs_, verdicts, strict=True) if verdict == "fail"]
        failing += bad
        if len(failing) == 1:
            break
    sides = two_sides(failing, len(parts)) if len(failing) > 1 else None
    if sides:
        left, right = (tuple(sorted(node for part in side for node in parts[part])) for side in sides)
        if min(len(left), len(right)) > 1:
            shown = [trial for trial in trials if search.evidence.weight(trial) > 0]
            inside = [trial for trial in trials if search.evidence.weight(trial) <= CLEAR]
            if len(shown) > 2 and search.total(shown) >= CONVICT:
                # Every crossing failed, each side passed: that is verification enough.
                search.blame(_between(search, left, right, transport, search.total(shown), witnesses + shown, inside))
            else:
                yield from blame_or_soak(search, left, right, transport, witnesses)
            return
    for a, b in failing:
        yield from settle_combinations(search, [(parts[a], parts[b])], transport, witnesses)


def settle_combinations(search: Search, candidates: list[Combination], transport: str, witnesses: list[Trial]) -> Steps:
    """Narrow the candidates, then verify and blame what is found; what cannot be shown again is soaked."""
    found = yield from find_pairs(search, candidates, transport)
    union = sorted({node for left, right in candidates for node in left + right})
    if not found:
        yield from soak(search, tuple(union), transport, witnesses)
    for left, right in found:
        yield from blame_or_soak(search, left, right, transport, witnesses)


def blame_or_soak(search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """Verify a combination and blame it; what does not fail again is soaked."""
    if not (yield from _blame_between(search, left, right, transport, witnesses)):
        yield from soak(search, tuple(sorted(left + right)), transport, witnesses)


def test_combinations(search: Search, combinations: t.Sequence[Combination], transport: str) -> Steps:
    trials = [
        search.ask(left + right, transport, "two good groups together", "a fault between the two groups") for left, right in combinations
    ]
    return (yield from search.all_of(search.settle(trial) for trial in trials))


def find_pairs(search: Search, candidates: list[Combination], transport: str) -> Steps:
    """Halve combinations of two good sides down to the pair at fault. One of the candidates is known to fail.

    Each wave tests half of what is left; when nothing fails, the other half is not tested as such but halved in turn.
    Returns combinations: single pairs, a whole combination where every crossing fails, or nothing (not reproducible).
    """
    smallest = search.options["min_group_size"]
    while True:
        now: list[Combination] = []
        later: list[Combination] = []
        for left, right in candidates:
            if 2 < len(left) + len(right) < 2 * smallest and smallest > 2:
                now.append((left, right))  # cannot be made smaller
                continue
            first, second = quarters(left, right)
            now += first
            later += second
        verdicts = yield from test_combinations(search, now, transport)
        failing = [item for item, verdict in zip(now, verdicts, strict=True) if verdict == "fail"]
        if not failing:
            if not later:
                return []
            candidates = later
            continue
        if len(failing) > 1 and later:
            verdicts = yield from test_combinations(search, later, transport)
            rest = [item for item, verdict in zip(later, verdicts, strict=True) if verdict == "fail"]
            if len(failing) + len(rest) == len(now) + len(later):
                return candidates
            failing += rest
        if len(failing) == 1 and failing[0] not in candidates and len(failing[0][0]) + len(failing[0][1]) > 2:
            candidates = failing
            continue
        found: list[Combination] = []
        for item in failing:
            if item in candidates or len(item[0]) + len(item[1]) == 2:
                found.append(item)
            else:
                found += yield from find_pairs(search, [item], transport)
        return found


def _blame_between(search: Search, left: Nodes, right: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """Verify a combination (two more failures, every side good by itself) and blame it. False: not reproduced."""
    failures: list[Trial] = []
    controls: list[Trial] = []
    total = 0.0
    for _turn in range(search.limits["runs_per_test"]):
        run = search.ask(left + right, transport, "the suspected combination again", "a fault between these two sides")
        yield [run]
        weight = search.evidence.weight(run)
        total += weight
        if weight <= CLEAR:
            return False
        if weight > 0:
            failures.append(run)
        if len(failures) == 1 and not controls:
            fine, controls = yield from _controls(search, left, right, transport)
            if not fine:
                return True  # a side by itself is at fault, and has been dealt with
        if len(failures) >= 2 and total >= FAIL:
            break
    if len(failures) < 2 or total < FAIL:
        return False
    search.blame(_between(search, left, right, transport, max(CONVICT, total), witnesses + failures, controls))
    return True


def _between(
    search: Search, left: Nodes, right: Nodes, transport: str, strength: float, witnesses: list[Trial], controls: list[Trial]
) -> Finding:
    """The finding for two sides that do not work together: pair, partition or boundary."""
    homes = [{search.unit_of[node] for node in side} for side in (left, right)]
    kind = "partition" if homes[0] == homes[1] else "rack-boundary"
    if len(left) == len(right) == 1:
        kind = "pair"
    elif min(map(len, homes)) == 1 < max(map(len, homes)):
        # One domain against several: its own boundary.
        left, right = (left if len(homes[0]) == 1 else right), ()
    return Finding(kind, transport, left, right, strength=strength, witnesses=witnesses, controls=controls)


def _controls(search: Search, left: Nodes, right: Nodes, transport: str) -> Steps:
    """Each side without the other: a single node with a neighbour, a group alone. (all pass, trials).

    The closing tests, one with each side, are the second control of every side. Across domains the neighbour is one
    of the other end: if that fails too, it is a boundary and not this pair.
    """
    trials = []
    across = search.unit_of[left[0]] != search.unit_of[right[0]]
    for side, other in ((left, right), (right, left)):
        members: Nodes = side
        if len(side) == 1:
            home = search.home(other[0] if across else side[0])
            neighbour = next((node for node in home if node not in side + other and search.good(node, transport)), None)
            if neighbour is None and transport == "net":
                neighbour = _neighbour_abroad(search, left + right)
            if neighbour is None:
                continue
            members = (side[0], neighbour)
        trials.append((side, search.ask(members, transport, "control: one side without the other", "this side by itself is at fault")))
    verdicts = yield from search.all_of(search.settle(trial) for _side, trial in trials)
    failing = [(side, trial) for (side, trial), verdict in zip(trials, verdicts, strict=True) if verdict == "fail"]
    # Both ends fail across: a boundary, neither of them nor this pair.
    boundary = len(failing) > 1 and all(trial.shape == "cross" for _side, trial in failing)
    for side, trial in failing:
        if len(side) == 1 and search.evidence.strong(trial) and not boundary:
            search.accuse(side[0], transport, CONVICT, [trial], "intermittent")
        elif len(side) > 1:
            yield from soak(search, side, transport, [trial])
    return not failing, [trial for _side, trial in trials]


def _neighbour_abroad(search: Search, nodes: Nodes) -> int | None:
    """A known-good node of another domain, when nothing is known against the boundaries."""
    behind = search.behind_boundary()
    if behind & set(nodes):
        return None
    usable = search.cleared["net"] - behind - search.tainted("net") - set(nodes)
    return min(usable, key=lambda node: (not search.crosses(search.unit_of[node]), node), default=None)


def soak(search: Search, nodes: Nodes, transport: str, witnesses: list[Trial]) -> Steps:
    """Not reproducible: many short pair tests in changing pairings show a node that fails now and then."""
    if transport == "net" and not any(search.evidence.strong(trial) for trial in witnesses):
        return  # it may have been noise; the closing test has the last word on the network
    nodes = tuple(node for node in nodes if node not in search.tainted(transport))
    if len(nodes) < SOAK_LEAST:
        homes = dict.fromkeys(search.unit_of[node] for node in nodes)
        helpers = [node for home in homes for node in search.units[home].nodes if node not in nodes and search.good(node, transport)]
        nodes = tuple(sorted([*nodes, *helpers[: SOAK_LEAST - len(nodes)]]))
    if len(nodes) < 3:
        search.irreproducible(nodes or witnesses[0].nodes, transport, witnesses)
        return
    failed: dict[int, list[Trial]] = {node: [] for node in nodes}
    partners: dict[int, set[int]] = {node: set() for node in nodes}
    passed: dict[int, int] = dict.fromkeys(nodes, 0)
    waves = search.limits["soak_waves"] + (4 if search.options["soak"] else 0)
    for _turn in range(waves):
        order = list(nodes)
        search.random.shuffle(order)
        trials = [
            search.ask(pair, transport, "soak: random pairs", "a node that fails now and then")
            for pair in zip(order[::2], order[1::2], strict=False)
        ]
        yield trials
        for trial in trials:
            weight = search.evidence.weight(trial)
            for node in set(nodes) & set(trial.nodes):  # a test may be padded with known-good nodes
                if search.evidence.strong(trial):
                    failed[node].append(trial)
                    partners[node].update(set(nodes) & set(trial.nodes) - {node})
                elif weight <= CLEAR:
                    passed[node] += 1
        culprits = [node for node in nodes if _unsteady(node, failed, partners, passed)]
        if culprits:
            for node in culprits:
                search.accuse(node, transport, CONVICT, failed[node], "intermittent")
            return
    search.irreproducible(nodes, transport, witnesses)


def _unsteady(node: int, failed: dict[int, list[Trial]], partners: dict[int, set[int]], passed: dict[int, int]) -> bool:
    """Failed at least twice with different partners, who passed elsewhere and failed less often."""
    if len(failed[node]) < 2 or len(partners[node]) < 2:
        return False
    return all(passed[other] and len(failed[other]) < len(failed[node]) for other in partners[node])
