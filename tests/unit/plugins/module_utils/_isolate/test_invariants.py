# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The invariants of the search, on random clusters and on random results."""

from __future__ import annotations

import json
import random
import typing as t

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import explain, planner
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate.evidence import CLEAR
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate.search import Search
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate.trial import Trial
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_campaign import matches, result_of
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_worlds import Fault, World, plant

KINDS = ("node", "nic", "pair", "crosspair", "uplink", "nvlport", "trunk", "intermittent")


def build(seed: int, kinds: t.Sequence[str] = KINDS, least: int = 2, rack: tuple[int, int] = (1, 45)) -> tuple[World, int]:
    """A small random world and a limit of concurrent tests."""
    chance = random.Random(seed)
    count, size = chance.randint(least, 45), chance.randint(*rack)
    mnnvl = chance.random() < 0.3
    wanted = [kind for kind in (chance.choice(kinds) for _at in range(chance.randint(0, 4))) if mnnvl or kind not in ("nvlport", "trunk")]
    faults = [fault for fault in plant(wanted, count, size, chance, p=0.6) if visible(fault, count, size)]
    # Without labels nobody can tell whose uplink it is.
    bare = chance.random() < 0.1 and not mnnvl and not any(fault.kind == "uplink" for fault in faults)
    return World(count, size, faults, 0.02, seed, mnnvl=mnnvl, bare=bare), chance.choice((0, 1, 2, 16))


def visible(fault: Fault, count: int, size: int) -> bool:
    """Can any test show it? A boundary without another side and a link port without a neighbour cannot show."""
    if fault.kind == "uplink":
        return len(fault.nodes) < count
    if fault.kind == "nvlport":
        first = min(fault.nodes) // size * size
        return min(first + size, count) - first > 1
    if fault.kind == "trunk":
        return bool(fault.nodes and fault.other)
    return not (fault.kind == "pair" and len(fault.nodes) < 2)


def run(world: World, limit: int, **options: t.Any) -> tuple[Search, list[list[Trial]], dict[str, t.Any], t.Any]:
    """The search, its waves, the conclusion, and the state that replays it."""
    state = planner.start(world.nodes(), {"mnnvl": world.mnnvl, "max_concurrent": limit, **options})
    session = planner.Session(state)
    waves, log = [], []
    while session.wave:
        waves.append(list(session.wave))
        results = [result_of(world, trial.id, trial.nodes, trial.transport) for trial in session.wave]
        log.append(results)
        session.deliver(results)
    return session.search, waves, explain.conclude(session.search), {**state, "results": log}


SEEDS = st.integers(0, 2**32)


@settings(max_examples=120, deadline=None)
@given(SEEDS)
def test_a_pass_needs_a_closing_proof_of_everything(seed: int) -> None:
    """Invariants 1 and 2."""
    world, limit = build(seed)
    search, _waves, conclusion, _state = run(world, limit)
    proven = {search.names[node] for trial in search.proofs for node in trial.nodes}
    outside = {item["node"] for item in conclusion["coverage"]["not_proven"]}
    assert proven | outside == set(world.names)
    assert set(conclusion["cleared"]) <= proven
    if conclusion["verdict"] == "passed":
        assert proven == set(world.names) and not conclusion["suspects"] and not outside
        assert all(search.evidence.weight(trial) <= CLEAR for trial in search.proofs)
        assert all(fault.kind == "intermittent" for fault in world.faults), [(f.kind, sorted(f.nodes)) for f in world.faults]


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_no_conviction_without_witnesses(seed: int) -> None:
    """Invariants 3, 4 and 6: two failing tests in which nobody else is in doubt; membership alone accuses nobody."""
    world, limit = build(seed, kinds=("node", "nic", "pair", "crosspair", "nvlport"))
    search, _waves, _conclusion, _state = run(world, limit)
    for node, finding in search.accused.items():
        if explain.class_of(search, finding) == "intermittent":
            continue
        failing = [trial for trial in finding.witnesses if search.evidence.weight(trial) > 0]
        assert len(failing) >= 2, (node, finding)
        common = set.intersection(*(set(trial.nodes) for trial in failing))
        assert common == {node}
        first = min(trial.wave for trial in failing)
        later = [trial for trial in search.of_node[node] if trial.wave > first and trial.transport == finding.transport]
        assert not any(len(trial.nodes) > 1 and search.evidence.weight(trial) <= CLEAR for trial in later)


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_waves_are_disjoint_and_bounded(seed: int) -> None:
    """Invariants 5 and 4: node-disjoint, at most max_concurrent, references of the own domain unless it has none."""
    world, limit = build(seed)
    search, waves, _conclusion, _state = run(world, limit)
    for wave in waves:
        nodes = [node for trial in wave for node in trial.nodes]
        assert len(nodes) == len(set(nodes)) and len(wave) <= (limit or len(wave))
        for trial in wave:
            assert trial.shape == search.shape_of(trial.nodes, trial.transport)
            assert trial.transport == "net" or len({search.unit_of[node] for node in trial.nodes}) == 1


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_replay_gives_the_same_report(seed: int) -> None:
    """Invariant 8: a run resumed from its saved state, at any wave, is the same run."""
    world, limit = build(seed)
    _search, waves, conclusion, state = run(world, limit)
    stored = json.loads(json.dumps(state))
    assert explain.conclude(planner.resume(stored).search) == conclusion
    cut = random.Random(seed).randint(0, len(waves) - 1) if waves else 0
    resumed = planner.resume({**stored, "results": stored["results"][:cut]})
    if waves:
        assert [(trial.id, trial.nodes, trial.purpose) for trial in resumed.wave] == [
            (trial.id, trial.nodes, trial.purpose) for trial in waves[cut]
        ]


@settings(max_examples=60, deadline=None)
@given(SEEDS)
@example(78140105)  # no two of three domains work together
def test_clearing_is_per_transport(seed: int) -> None:
    """Invariant 7: a node is cleared on a transport only by a passing test on that transport."""
    world, limit = build(seed)
    search, _waves, _conclusion, _state = run(world, limit)
    for transport, nodes in search.cleared.items():
        passed = {node for trial in search.pass_trials[transport] for node in trial.nodes}
        assert nodes <= passed
        assert all(trial.transport == transport for trial in search.pass_trials[transport])


@settings(max_examples=120, deadline=None)
@given(SEEDS, st.sampled_from((0, 1, 2, 16)))
def test_any_results_end(seed: int, limit: int) -> None:
    """Invariant 9: whatever comes back, the search ends, and says something about every node."""
    chance = random.Random(seed)
    count, size = chance.randint(1, 45), chance.randint(1, 45)
    nodes = [{"name": f"n{at:02d}", "domain": f"r{at // size}" if chance.random() < 0.95 else None} for at in range(count)]
    options = {
        "max_concurrent": limit,
        "mnnvl": chance.random() < 0.3,
        "soak": chance.random() < 0.2,
        "min_group_size": chance.choice((1, 2, 3, 6)),
    }
    session = planner.Session(planner.start(nodes, options))
    while session.wave:
        results = []
        for trial in session.wave:
            result: dict[str, t.Any] = {
                "id": trial.id,
                "outcome": chance.choice(("measured", "measured", "measured", "failed", "unmeasured")),
            }
            result.update(
                value=chance.choice((400.0, 300.0, 370.0)), expected=chance.choice((400.0, None)), passed=chance.choice((True, False, None))
            )
            if chance.random() < 0.02:
                result.update(outcome="unmeasured", lost=[session.search.names[chance.choice(trial.nodes)]])
            results.append(result)
        session.deliver(results)
    conclusion = explain.conclude(session.search)
    assert session.search.wave <= 1000
    told = {name for item in conclusion["suspects"] for name in item["nodes"]} | set(conclusion["cleared"])
    told |= {item["node"] for item in conclusion["coverage"]["not_proven"]}
    assert told == {node["name"] for node in nodes}
    assert json.loads(json.dumps(conclusion)) == conclusion


def test_small_clusters_of_any_shape() -> None:
    """1,000 worlds of 1 to 45 nodes: no persistent fault passes, nothing healthy fails, hardly anybody is blamed wrongly."""
    wrong = []
    for seed in range(1000):
        world, limit = build(seed, kinds=("node", "nic", "pair", "crosspair", "uplink", "nvlport"), least=1, rack=(4, 45))
        _search, _waves, conclusion, _state = run(world, limit)
        if world.faults:
            assert conclusion["verdict"] != "passed", (seed, world.faults)
        elif world.count > 1:
            assert conclusion["verdict"] == "passed", (seed, conclusion["suspects"])
        hard = [item for item in conclusion["suspects"] if item["class"] not in ("unresolved", "irreproducible")]
        if any(not any(matches(world, fault, item) for fault in world.faults) for item in hard):
            wrong.append(seed)
    assert len(wrong) <= 3, wrong
