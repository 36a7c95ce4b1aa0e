# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From a failed domain to single nodes: chunks, then each suspect with a known-good partner of its own domain."""

from __future__ import annotations

from . import pairs
from .evidence import CLEAR, CONVICT, FAIL
from .node_sets import DIRECT, TWO_LEVELS, Nodes, chunks
from .search import Search
from .trial import Trial
from .waves import Steps

SPREAD = 4
ABROAD_SHARE = 4  # suspects may be one in so many of the good nodes to be tested all at once
FEW_GOOD = 4
Groups = list[tuple[Nodes, Trial]]


def look(search: Search, nodes: Nodes, transport: str) -> Steps:
    """Test a domain alone and, if it does not pass, find out why."""
    name = search.units[search.unit_of[nodes[0]]].name
    trial = search.ask(nodes, transport, f"domain {name} alone", f"a fault inside {name}")
    verdict = yield from search.settle(trial, look_inside=len(nodes) > 1)
    if verdict != "pass":
        yield from narrow(search, nodes, transport, trial, verdict)
    return verdict


def narrow(search: Search, nodes: Nodes, transport: str, parent: Trial, verdict: str) -> Steps:
    """Take apart a group of one domain that did not pass (verdict: fail, gray or untested)."""
    if len(nodes) == 1:
        yield from _lone(search, nodes[0], parent)
        return
    if verdict == "fail":
        search.cleared[transport].difference_update(nodes)  # whatever they passed before, it is open again
    groups: Groups = [(nodes, parent)]
    partners = _abroad_partners(search, nodes, transport) if verdict == "fail" and len(nodes) > DIRECT else []
    if partners and (yield from _abroad(search, nodes, transport, partners)):
        yield from examine(search, groups, transport)
        return
    parts = chunks(nodes, search.options["min_group_size"])
    if len(nodes) > DIRECT and len(parts) > 1:
        trials = [search.ask(part, transport, f"part of a failed group of {len(nodes)}", "the fault is in this part") for part in parts]
        verdicts = yield from search.all_of(search.settle(trial, look_inside=True) for trial in trials)
        bad = [(part, trial, found) for part, trial, found in zip(parts, trials, verdicts, strict=True) if found != "pass"]
        if not bad:
            if verdict != "untested":
                yield from pairs.contradiction(search, nodes, parts, transport, parent, weak=verdict == "gray")
            return
        if len(nodes) > TWO_LEVELS:
            yield from search.all_of(narrow(search, part, transport, trial, found) for part, trial, found in bad)
            return
        groups = [(part, trial) for part, trial, _found in bad]
        good = [part for part, found in zip(parts, verdicts, strict=True) if found == "pass"]
        yield from search.all_of([examine(search, groups, transport), _references(search, good, transport)])
        only_unclear = all(found == "gray" for _part, _trial, found in bad)
        if verdict == "fail" and only_unclear and not any(not search.good(node, transport) for node in nodes):
            # No part failed, and what was unclear came out clean: the fault is between the parts.
            yield from pairs.contradiction(search, nodes, parts, transport, parent, weak=False)
        return
    yield from examine(search, groups, transport)


def _abroad_partners(search: Search, nodes: Nodes, transport: str) -> list[int]:
    """A known-good node of a domain that passed for each of these nodes, or [] when parts of the domain are the better way.

    Small tests with everybody save a wave, in which the whole cluster waits; they are worth it while few nodes are
    suspected. Each good node meets one suspect, each good domain two: what one of them shows is not the boundary's doing
    when the other passes.
    """
    if transport != "net" or search.options["mnnvl"] or search.options["min_group_size"] > 2 or search.options["max_concurrent"]:
        return []
    bad: list[Nodes] = []
    good: list[Nodes] = []
    for unit in search.units:
        runs = [trial for trial in search.of_node[unit.nodes[0]] if trial.nodes == unit.nodes and trial.transport == transport]
        if runs and len(unit.nodes) > 1:
            (good if search.total(runs) <= CLEAR else bad).append(unit.nodes)
    if nodes not in bad or not all(unit.real for unit in search.units):
        return []
    pool = [node for at in range(0, max(map(len, good), default=0), 2) for unit in good for node in unit[at : at + 2]]
    if len(good) < FEW_GOOD or ABROAD_SHARE * sum(map(len, bad)) > len(pool):
        return []
    start = sum(len(unit) for unit in bad[: bad.index(nodes)])
    return pool[start : start + len(nodes)]


def _abroad(search: Search, nodes: Nodes, transport: str, partners: list[int]) -> Steps:
    """Each member of a failed domain with a good node of another one. False: half of them fail, so it may be the boundary."""
    trials = [
        search.ask((node, partner), transport, "suspect with a known-good partner of a good domain", f"{search.names[node]} is at fault")
        for node, partner in zip(nodes, partners, strict=True)
    ]
    _reference_alone(search, set(nodes) | set(partners))
    yield trials
    passing = [trial for trial in trials if search.evidence.weight(trial) <= CLEAR]
    failing = [node for node, trial in zip(nodes, trials, strict=True) if trial not in passing]
    if 2 * len(failing) > len(nodes):
        return False
    for trial in passing:
        search.clear(trial)
    for node in failing:
        search.try_to_convict(node, transport)
    return True


def _reference_alone(search: Search, busy: set[int]) -> None:
    """Beside the suspects one good node runs alone, where nothing else tells what a single node should reach."""
    values = [trial for trial in search.trials if trial.outcome == "measured" and trial.wave]
    if search.references or not values or any(trial.expected is not None or trial.value is None for trial in values[-3:]):
        return
    waiting = {node for trial in search.pending for node in trial.nodes}
    for unit in search.units:
        for node in unit.nodes:
            if node not in busy | waiting and search.good(node, search.domain_transport(search.unit_of[node])):
                purpose = f"{search.names[node]} alone: what a good node reaches"
                search.references.append(search.ask((node,), "net", purpose, "the yardstick for accused nodes"))
                return


def _references(search: Search, good: list[Nodes], transport: str) -> Steps:
    """Over NVLink the good parts must work together too, or a node may look bad only to the other side of a domain.

    The nodes that are not busy with suspects do this in the same wave. Over the network the closing test does it.
    """
    if transport != "nvl" or len(good) < 2:
        return
    busy = {node for trial in search.pending for node in trial.nodes}
    idle = [[node for node in part if node not in busy] for part in good]
    nodes = [node for part in (idle if all(idle) else good) for node in part]
    verdict, trial = yield from search.decide(nodes, transport, "the good parts of the domain together", "two sides of the domain")
    if verdict == "fail":
        yield from pairs.sides_or_pairs(search, good, transport, [trial])


def examine(search: Search, groups: Groups, transport: str) -> Steps:
    """Single suspects of failed groups; then the groups that no suspect explains."""
    yield from leaves(search, groups, transport)
    waiting = [group for group in groups if any(_open(search, node, transport) for node in group[0])]
    if waiting:
        search.leftover.append((waiting, transport))
    for nodes, trial in groups:
        explained = search.explained(trial) or any(_open(search, node, transport) or search.in_doubt(node) for node in nodes)
        weight = search.evidence.weight(trial)
        if not explained and weight > CLEAR:
            parts = [(node,) for node in nodes]
            yield from pairs.contradiction(search, nodes, parts, transport, trial, weak=weight < -CLEAR)


def _open(search: Search, node: int, transport: str) -> bool:
    return not search.good(node, transport) and node not in search.tainted(transport)


def _lone(search: Search, node: int, parent: Trial) -> Steps:
    """A domain of one node, or a node known to fail alone: repeat it; two failures accuse it."""
    runs = [parent]
    while search.total(runs) < CONVICT and len(runs) < search.limits["runs_per_test"]:
        run = search.ask((node,), "net", f"{search.names[node]} alone again", "the node itself")
        yield [run]
        runs.append(run)
        if search.evidence.weight(run) <= CLEAR:
            break
    failing = [run for run in runs if search.evidence.weight(run) > 0]
    if search.total(runs) >= CONVICT:
        search.accuse(node, "net", search.total(runs), failing, "node")
    elif all(run.outcome == "unmeasured" for run in runs):
        search.untested[node] = runs[-1].reason or "could not be measured"
    elif search.evidence.weight(runs[-1]) > CLEAR:
        search.unresolved([node], "net", "its runs alone contradict each other", failing)
    elif any(search.evidence.strong(run) for run in failing):
        yield from _retry_alone(search, node, failing)


def _retry_alone(search: Search, node: int, failing: list[Trial]) -> Steps:
    """A deep failure alone that a repeat did not show: look a few more times before shrugging it off."""
    for _turn in range(search.limits["runs_per_test"] - 1):
        run = search.ask((node,), "net", f"{search.names[node]} alone, looking for an intermittent fault", "an intermittent node")
        yield [run]
        if search.evidence.strong(run):
            search.accuse(node, "net", CONVICT, [*failing, run], "intermittent")
            return
    search.irreproducible((node,), "net", failing)


def leaves(search: Search, groups: Groups, transport: str) -> Steps:
    """Pair every suspect with a reference until it is cleared or convicted."""
    home = search.home(groups[0][0][0])
    group_of = {node: number for number, (nodes, _trial) in enumerate(groups) for node in nodes}
    suspects = sorted(group_of)
    own: dict[int, list[Trial]] = {node: [] for node in suspects}  # tests with a known-good partner
    met: dict[int, set[int]] = {node: set() for node in suspects}
    for nodes, trial in groups:
        if len(nodes) == 2 and search.evidence.weight(trial) >= FAIL:
            met[nodes[0]].add(nodes[1])
            met[nodes[1]].add(nodes[0])
    for turn in range(search.limits["leaf_waves"]):
        suspects = [node for node in suspects if _open(search, node, transport)]
        pairing = _match(search, suspects, home, transport, met, group_of, turn)
        if not pairing:
            return
        trials = []
        for node, partner, known_good in pairing:
            text = "suspect with a known-good partner" if known_good else "two suspects together: a pass clears both"
            trials.append(search.ask((node, partner), transport, text, f"{search.names[node]} is at fault"))
        _reference_alone(search, {node for trial in trials for node in trial.nodes})
        yield trials
        for (node, partner, known_good), trial in zip(pairing, trials, strict=True):
            met[node].add(partner)
            if known_good:
                own[node].append(trial)
            else:
                met[partner].add(node)
                if search.evidence.weight(trial) <= CLEAR:
                    search.clear(trial)
        _digest(search, suspects, own, transport)


def _digest(search: Search, suspects: list[int], own: dict[int, list[Trial]], transport: str) -> None:
    """Clear first, then convict: a conviction may rest on co-members cleared in the same wave."""
    for node in suspects:
        if not own[node]:
            continue
        last = own[node][-1]
        # With a partner of another domain a failure may be the other boundary: there one pass is enough.
        total = search.evidence.weight(last) if last.shape == "cross" else search.total(own[node])
        if total <= CLEAR and search.evidence.weight(last) < 0:
            search.clear(last)
    for node in suspects:
        if not _open(search, node, transport):
            continue
        if len(own[node]) >= 2 and all(trial.outcome == "unmeasured" for trial in own[node]):
            search.untested[node] = own[node][-1].reason or "could not be measured"
        else:
            search.try_to_convict(node, transport)


def _match(
    search: Search,
    suspects: list[int],
    home: Nodes,
    transport: str,
    met: dict[int, set[int]],
    group_of: dict[int, int],
    turn: int,
) -> list[tuple[int, int, bool]]:
    """(suspect, partner, partner is known good) for the next wave; no node twice."""
    references = [node for node in home if search.good(node, transport)]
    if not references:
        abroad = _outside(search, suspects, transport, met, set()) if turn > 1 else []
        return abroad or _together(suspects, met, group_of) or _outside(search, suspects, transport, met, set())
    used: set[int] = set()
    result: list[tuple[int, int, bool]] = []
    # Spread over the domain: the partners of one wave should not all come from one part.
    spread = [node for start in range(SPREAD) for node in references[start::SPREAD]]
    shift = turn * len(suspects) % len(spread)
    rotated = spread[shift:] + spread[:shift]
    for node in suspects:
        free = [ref for ref in rotated if ref not in used]
        fresh = [ref for ref in free if ref not in met[node]]
        if set(references) <= met[node]:
            # It has met them all: another domain may help, else meet one again.
            abroad = _outside(search, [node], transport, met, used)
            if abroad:
                used.add(abroad[0][1])
                result += abroad
                continue
            fresh = free
        # A partner from another failed group: a bad pair inside the group must not look like a bad node.
        apart = [ref for ref in fresh if group_of.get(ref) != group_of[node]] or fresh
        if transport == "nvl" and met[node]:
            # And from the side of the domain that it has not met: one side must not look bad to the other.
            known = [side for side in search.sides(references, transport) if met[node] & set(side)]
            apart = [ref for ref in apart if not any(ref in side for side in known)] or apart
        if apart:
            used.add(apart[0])
            result.append((node, apart[0], True))
    placed = {node for node, _partner, _good in result}
    return result + _together([node for node in suspects if node not in placed], met, group_of)


def _together(suspects: list[int], met: dict[int, set[int]], group_of: dict[int, int]) -> list[tuple[int, int, bool]]:
    """Suspects that have not met yet, paired with each other; from different failed groups where possible."""
    result: list[tuple[int, int, bool]] = []
    rest = list(suspects)
    while len(rest) > 1:
        node = rest.pop(0)
        strangers = [other for other in rest if other not in met[node]]
        strangers.sort(key=lambda other: (group_of[other] == group_of[node], other))
        if strangers:
            rest.remove(strangers[0])
            result.append((node, strangers[0], False))
    return result


def _outside(search: Search, suspects: list[int], transport: str, met: dict[int, set[int]], used: set[int]) -> list[tuple[int, int, bool]]:
    """Known-good nodes of other domains, when the own domain has none; at most three tries each, network only."""
    if transport != "net":
        return []
    homes = {search.unit_of[node] for node in suspects}
    by_home: dict[int, list[int]] = {}
    for node in sorted(search.cleared["net"] - search.tainted("net") - search.behind_boundary()):
        by_home.setdefault(search.unit_of[node], []).append(node)
    # Domains that work with others first, one node of each in turn: a bad boundary there must not look like bad suspects here.
    ranked = sorted(
        (not search.crosses(home), at, home, node) for home, nodes in by_home.items() if home not in homes for at, node in enumerate(nodes)
    )
    candidates = [node for *_rank, node in ranked if node not in used]
    result: list[tuple[int, int, bool]] = []
    for node in suspects:
        if sum(1 for other in met[node] if search.unit_of[other] not in homes) >= 3:
            continue
        seen = {search.unit_of[other] for other in met[node]}
        fresh = [candidate for candidate in candidates if candidate not in met[node]]
        apart = [candidate for candidate in fresh if search.unit_of[candidate] not in seen] or fresh
        if not apart:
            continue
        partner = apart[0]
        candidates.remove(partner)
        result.append((node, partner, True))
    return result
