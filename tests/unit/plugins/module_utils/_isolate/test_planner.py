# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the planner promises: bad input, interruption, lost nodes, spent budgets and missing numbers never end as a pass."""

from __future__ import annotations

import copy
import json
import random
import time
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import planner
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_campaign import result_of
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_worlds import Fault, World, plant

Answer = t.Callable[[dict[str, t.Any]], dict[str, t.Any]]


def members(test: dict[str, t.Any]) -> list[int]:
    return [int(name[1:]) for name in test["nodes"]]


def answer_of(world: World) -> Answer:
    return lambda test: result_of(world, test["id"], members(test), test["transport"])


def drive(nodes: list[dict[str, t.Any]], answer: Answer, **options: t.Any) -> tuple[dict[str, t.Any], list[list[dict[str, t.Any]]]]:
    """Run to the end through plain JSON, as a play does; returns the conclusion and the waves."""
    state, step = planner.next_step(planner.start(nodes, options))
    waves = []
    while "wave" in step:
        waves.append(step["wave"])
        state = json.loads(json.dumps(state))
        state, step = planner.next_step(state, [answer(test) for test in step["wave"]])
    return step["conclusion"], waves


def world_of(*faults: Fault, count: int = 32, rack: int = 8, **options: t.Any) -> World:
    return World(count, rack, faults, options.pop("sigma", 0.01), options.pop("seed", 1), **options)


NIC_5 = Fault("nic", frozenset((5,)), 0.6)


def named(conclusion: dict[str, t.Any]) -> list[tuple[str, list[str]]]:
    return [(item["class"], item["nodes"]) for item in conclusion["suspects"]]


def codes(conclusion: dict[str, t.Any]) -> dict[str, str]:
    return {item["node"]: item["code"] for item in conclusion["coverage"]["not_proven"]}


# ----- the good case -----


def test_a_healthy_cluster_passes_with_proof() -> None:
    world = world_of()
    conclusion, waves = drive(world.nodes(), answer_of(world))
    assert conclusion["verdict"] == "passed" and conclusion["suspects"] == []
    assert conclusion["proof"]["nodes"] == 32 and conclusion["cleared"] == world.names
    assert len(waves) == 2 and conclusion["cost"] == {
        "tests": 5, "waves": 2, "node_minutes": conclusion["cost"]["node_minutes"],
        "wall_minutes": conclusion["cost"]["wall_minutes"], "bound": 0,
    }  # fmt: skip


def test_a_bad_nic_is_named_with_its_evidence() -> None:
    world = world_of(NIC_5)
    conclusion, _waves = drive(world.nodes(), lambda test: {**answer_of(world)(test), "log": f"logs/{test['id']}"})
    assert named(conclusion) == [("nic", ["n0005"])]
    suspect = conclusion["suspects"][0]
    assert suspect["confidence"] > 0.99 and 0.5 < suspect["worst"] <= suspect["median"] < 0.7
    assert "NIC path" in suspect["reason"] and "n0005" in suspect["reason"] and "transceiver" in suspect["action"]
    weights = [entry["weight"] for entry in suspect["evidence"]]
    assert sum(weight > 0 for weight in weights) >= 2 and weights[-1] < 0
    assert all(entry["log"] == f"logs/{entry['id']}" for entry in suspect["evidence"])
    assert set(conclusion["cleared"]) == set(world.names) - {"n0005"}
    assert codes(conclusion) == {"n0005": "accused"}


def test_conclusion_is_json_and_lists_every_test() -> None:
    world = world_of(NIC_5)
    state, step = planner.next_step(planner.start(world.nodes()))
    while "wave" in step:
        state, step = planner.next_step(state, [answer_of(world)(test) for test in step["wave"]])
    full = planner.conclude(state)
    assert json.loads(json.dumps(full)) == full
    assert {key: full[key] for key in step["conclusion"]} == step["conclusion"]
    assert len(full["tests"]) == full["cost"]["tests"] and [domain["name"] for domain in full["domains"]] == [
        "r000",
        "r001",
        "r002",
        "r003",
    ]


# ----- pure, resumable -----


def test_asking_again_gives_the_same_wave_and_changes_nothing() -> None:
    world = world_of(NIC_5)
    state, step = planner.next_step(planner.start(world.nodes()))
    results = [answer_of(world)(test) for test in step["wave"]]
    before = copy.deepcopy(state)
    first = planner.next_step(state, results)
    second = planner.next_step(state, results)
    assert state == before and first == second
    assert planner.next_step(first[0])[1] == first[1]


def test_order_of_nodes_and_results_does_not_matter() -> None:
    world = world_of(NIC_5)
    shuffled = list(reversed(world.nodes()))
    assert planner.start(shuffled) == planner.start(world.nodes())
    state, step = planner.next_step(planner.start(world.nodes()))
    results = [answer_of(world)(test) for test in step["wave"]]
    assert planner.next_step(state, results)[1] == planner.next_step(state, results[::-1])[1]


def test_progress_tells_what_is_asked() -> None:
    world = world_of(NIC_5)
    state, step = planner.next_step(planner.start(world.nodes()))
    state, step = planner.next_step(state, [answer_of(world)(test) for test in step["wave"]])
    told = planner.progress(state)
    assert (told["wave"], told["cleared"], told["accused"]) == (2, 24, []) and "part of a failed group of 8" in told["purposes"]


def test_plan_of_4096_nodes_is_quick_and_small() -> None:
    kinds = ["node", "nic", "pair", "uplink", "nic", "node"]
    world = World(4096, 16, plant(kinds, 4096, 16, random.Random(3)), 0.02, 3)
    state, results, slowest = planner.start(world.nodes()), None, 0.0
    while True:
        begun = time.process_time()
        state, step = planner.next_step(state, results)
        slowest = max(slowest, time.process_time() - begun)
        if "conclusion" in step:
            break
        results = [{**answer_of(world)(test), "log": f"runs/2026-03-02/isolation/{test['id']}/launcher.log"} for test in step["wave"]]
    assert len(step["conclusion"]["suspects"]) == len(kinds)
    assert len(json.dumps(state)) < 1_000_000
    assert slowest < 0.5  # 0.1 s on an idle core; other work shares this one


# ----- nodes and groups that cannot be tested -----


@pytest.mark.parametrize("count", [1, 3])
def test_min_group_size_above_the_number_of_nodes(count: int) -> None:
    world = world_of(count=count)
    conclusion, waves = drive(world.nodes(), answer_of(world), min_group_size=8)
    assert conclusion["verdict"] == "inconclusive" and conclusion["cleared"] == []
    assert set(codes(conclusion)) == set(world.names)
    assert all(len(test["nodes"]) == 1 for wave in waves for test in wave)


def test_min_group_size_is_kept_by_padding_with_good_nodes() -> None:
    world = world_of(NIC_5, count=64, rack=16)
    conclusion, waves = drive(world.nodes(), answer_of(world), min_group_size=4)
    assert named(conclusion) == [("nic", ["n0005"])]
    assert all(len(test["nodes"]) == 1 or len(test["nodes"]) >= 4 for wave in waves for test in wave)


def test_domain_smaller_than_min_group_size_is_left_to_the_closing_test() -> None:
    world = world_of(count=35, rack=16)
    conclusion, _waves = drive(world.nodes(), answer_of(world), min_group_size=8)
    assert conclusion["verdict"] == "passed" and conclusion["proof"]["nodes"] == 35


def test_one_node_is_never_a_pass() -> None:
    for fault in ([], [Fault("node", frozenset((0,)), 0.5)]):
        world = world_of(*fault, count=1)
        conclusion, _waves = drive(world.nodes(), answer_of(world))
        assert conclusion["verdict"] == ("failed" if fault else "inconclusive")
        assert codes(conclusion) == {"n0000": "accused" if fault else "untested"}


def test_unlabelled_nodes_are_not_one_domain() -> None:
    nodes = [{"name": f"n{at:04d}", "domain": f"r{at // 8}" if at < 24 else None} for at in range(40)]
    _conclusion, waves = drive(nodes, answer_of(world_of(count=40)))
    first = {tuple(test["nodes"]) for test in waves[0]}
    assert tuple(f"n{at:04d}" for at in range(8)) in first
    bare = [names for names in first if names[0] >= "n0024"]
    assert len(bare) > 1 and all(len(names) <= 8 for names in bare)


def test_nodes_lost_midway_are_not_proven() -> None:
    world = world_of(NIC_5)
    calls = iter(range(1000))

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        if next(calls) == 2:
            return {"id": test["id"], "outcome": "unmeasured", "reason": "node n0020 went away", "lost": ["n0020"]}
        return answer_of(world)(test)

    conclusion, waves = drive(world.nodes(), answer)
    assert ("nic", ["n0005"]) in named(conclusion)
    assert codes(conclusion)["n0020"] == "lost" and "n0020" not in conclusion["cleared"]
    assert not any("n0020" in test["nodes"] for wave in waves[1:] for test in wave)


def test_a_healthy_cluster_that_lost_a_node_is_no_pass() -> None:
    world = world_of()

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        if "n0031" in test["nodes"]:
            return {"id": test["id"], "outcome": "unmeasured", "lost": ["n0031"]}
        return answer_of(world)(test)

    conclusion, _waves = drive(world.nodes(), answer)
    assert conclusion["verdict"] == "inconclusive" and codes(conclusion) == {"n0031": "lost"}
    assert len(conclusion["cleared"]) == 31


def test_a_node_whose_tests_never_measure_is_untested_and_not_accused() -> None:
    world = world_of()

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        if "n0009" in test["nodes"]:
            return {"id": test["id"], "outcome": "unmeasured", "reason": "image pull failed"}
        return answer_of(world)(test)

    conclusion, _waves = drive(world.nodes(), answer)
    assert conclusion["verdict"] == "inconclusive" and conclusion["suspects"] == []
    assert codes(conclusion) == {"n0009": "untested"} and len(conclusion["cleared"]) == 31


def test_nothing_measurable_ends_at_once() -> None:
    conclusion, waves = drive(world_of().nodes(), lambda test: {"id": test["id"], "outcome": "unmeasured", "reason": "image pull"})
    assert conclusion["verdict"] == "inconclusive" and conclusion["cleared"] == [] and len(waves) == 3
    assert "could be measured" in conclusion["reason"]


def test_a_measurement_that_fails_once_is_repeated_and_leaves_no_trace() -> None:
    world, seen = world_of(), set()

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        if tuple(test["nodes"]) not in seen:
            seen.add(tuple(test["nodes"]))
            return {"id": test["id"], "outcome": "unmeasured", "reason": "evicted"}
        return answer_of(world)(test)

    conclusion, _waves = drive(world.nodes(), answer)
    assert conclusion["verdict"] == "passed"
    assert any("could not be measured" in note for note in conclusion["coverage"]["notes"])


# ----- budgets -----


@pytest.mark.parametrize("budget", [{"waves": 1}, {"waves": 2}, {"waves": 3}, {"tests": 5}, {"tests": 2}, {"node_minutes": 150}])
def test_a_budget_that_ends_early_leaves_suspects_and_no_pass(budget: dict[str, float]) -> None:
    world = world_of(NIC_5)
    conclusion, waves = drive(world.nodes(), answer_of(world), budget=budget)
    assert conclusion["verdict"] != "passed" and "budget" in conclusion["reason"] + json.dumps(conclusion["coverage"])
    assert "n0005" in codes(conclusion) and "n0005" not in conclusion["cleared"] + conclusion["acquitted"]
    assert len(waves) <= budget.get("waves", 99) and sum(map(len, waves)) <= budget.get("tests", 99)


def test_a_healthy_cluster_without_budget_for_the_proof_is_no_pass() -> None:
    world = world_of()
    conclusion, _waves = drive(world.nodes(), answer_of(world), budget={"waves": 1})
    assert conclusion["verdict"] == "inconclusive" and conclusion["cleared"] == [] and conclusion["proof"] is None
    assert conclusion["acquitted"] == world.names and set(codes(conclusion).values()) == {"budget"}


def test_budget_too_small_for_any_test() -> None:
    conclusion, waves = drive(world_of().nodes(), answer_of(world_of()), budget={"node_minutes": 1})
    assert waves == [] and conclusion["verdict"] == "inconclusive" and conclusion["cost"]["tests"] == 0


# ----- results without numbers, with floors, with failures -----


def test_pass_or_fail_is_enough() -> None:
    world = world_of(NIC_5)

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        return {"id": test["id"], "outcome": "measured", "passed": world.measure(members(test), test["transport"]) >= 0.9}

    conclusion, _waves = drive(world.nodes(), answer)
    assert named(conclusion) == [("nic", ["n0005"])] and conclusion["suspects"][0]["worst"] is None


def test_crashes_are_full_strength_failures() -> None:
    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        if "n0005" in test["nodes"]:
            return {"id": test["id"], "outcome": "failed", "reason": "NCCL WARN"}
        return {"id": test["id"], "outcome": "measured", "value": 400.0, "expected": 400.0, "passed": True}

    conclusion, _waves = drive(world_of().nodes(), answer)
    assert named(conclusion) == [("node", ["n0005"])] and "the run failed" in conclusion["suspects"][0]["reason"]


def test_nan_is_a_failure() -> None:
    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        value = float("nan") if "n0005" in test["nodes"] and len(test["nodes"]) > 1 else 400.0
        return {"id": test["id"], "outcome": "measured", "value": value, "expected": 400.0}

    conclusion, _waves = drive(world_of().nodes(), answer)
    assert named(conclusion) == [("nic", ["n0005"])]


@pytest.mark.parametrize("expected", [None, 0.85 * 400.0])
def test_without_an_expected_value_or_with_a_floor_the_fleet_is_the_yardstick(expected: float | None) -> None:
    world = world_of(NIC_5, count=64, rack=16)

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        value = 400.0 * world.measure(members(test), test["transport"])
        return {"id": test["id"], "outcome": "measured", "value": value, "expected": expected, "passed": value >= 340.0}

    conclusion, _waves = drive(world.nodes(), answer)
    assert named(conclusion) == [("nic", ["n0005"])]
    assert conclusion["suspects"][0]["worst"] == pytest.approx(0.6, abs=0.05)


def test_a_slow_node_that_meets_the_criterion_is_not_accused() -> None:
    world = world_of(Fault("nic", frozenset((5,)), 0.87), count=64, rack=16)

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        value = 400.0 * world.measure(members(test), test["transport"])
        return {"id": test["id"], "outcome": "measured", "value": value, "passed": value >= 320.0}

    assert drive(world.nodes(), answer)[0]["verdict"] == "passed"


def test_a_limit_that_nobody_reaches_accuses_nobody_and_is_no_pass() -> None:
    world = world_of()

    def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
        return {**answer_of(world)(test), "passed": False}

    conclusion, _waves = drive(world.nodes(), answer)
    assert conclusion["verdict"] == "inconclusive" and {kind for kind, _nodes in named(conclusion)} == {"unresolved"}


def test_values_without_any_standard_prove_nothing() -> None:
    conclusion, _waves = drive(
        world_of(count=16).nodes(), lambda test: {"id": test["id"], "outcome": "measured", "value": 100.0}, budget={"waves": 40}
    )
    assert conclusion["verdict"] != "passed"


# ----- evidence from before -----


def prior(nodes: t.Iterable[int], ratio: float, transport: str = "net") -> dict[str, t.Any]:
    return {
        "id": "g001", "outcome": "measured", "value": 400.0 * ratio, "expected": 400.0, "passed": ratio >= 0.9,
        "nodes": [f"n{at:04d}" for at in nodes], "transport": transport,
    }  # fmt: skip


def test_racks_that_were_tested_are_not_tested_again() -> None:
    world = world_of(NIC_5)
    evidence = [prior(range(0, 8), 0.6), *(prior(range(at, at + 8), 1.0) for at in (8, 16, 24))]
    conclusion, waves = drive(world.nodes(), answer_of(world), prior_evidence=evidence)
    assert named(conclusion) == [("nic", ["n0005"])] and len(waves) == 3
    assert not any(len(test["nodes"]) == 8 for test in waves[0])


def test_a_node_that_failed_alone_is_repeated_alone_and_the_rest_proven() -> None:
    world = world_of(Fault("node", frozenset((5,)), 0.6))
    evidence = [prior([at], 0.6 if at == 5 else 1.0) for at in range(32)]
    conclusion, waves = drive(world.nodes(), answer_of(world), prior_evidence=evidence)
    assert named(conclusion) == [("node", ["n0005"])]
    assert ["n0005"] in [test["nodes"] for test in waves[0]] and len(conclusion["cleared"]) == 31


def test_a_failed_full_scale_group_that_passes_when_repeated_is_not_forgotten() -> None:
    world = world_of()
    conclusion, waves = drive(world.nodes(), answer_of(world), prior_evidence=[prior(range(32), 0.5)])
    assert len(waves) > 2 and conclusion["verdict"] == "inconclusive"
    assert [kind for kind, _nodes in named(conclusion)] == ["irreproducible"]


def test_a_failed_group_that_is_no_domain_is_looked_into() -> None:
    world = world_of(Fault("pair", frozenset((3, 12)), 0.5))
    evidence = [prior([2, 3, 12, 13], 0.5)]
    conclusion, _waves = drive(world.nodes(), answer_of(world), prior_evidence=evidence)
    assert [kind for kind, _nodes in named(conclusion)] == ["pair"]


def test_evidence_about_other_nodes_is_ignored() -> None:
    world = world_of()
    foreign = {**prior([0], 0.5), "nodes": ["elsewhere"]}
    conclusion, _waves = drive(world.nodes(), answer_of(world), prior_evidence=[foreign])
    assert conclusion["verdict"] == "passed"


# ----- wrong input -----


@pytest.mark.parametrize(
    ("nodes", "options", "place"),
    [
        ([], {}, "nodes"),
        ("n1", {}, "nodes"),
        ([{"domain": "a"}], {}, "nodes[0]"),
        ([{"name": "a"}, {"name": "a"}], {}, "nodes[1]"),
        ([{"name": "a", "domain": 3}], {}, "nodes[0].domain"),
        ([{"name": "a", "rack": "r"}], {}, "nodes[0]"),
        ([{"name": "a"}], {"max_concurent": 3}, "options"),
        ([{"name": "a"}], {"max_concurrent": -1}, "options.max_concurrent"),
        ([{"name": "a"}], {"min_group_size": 0}, "options.min_group_size"),
        ([{"name": "a"}], {"min_group_size": True}, "options.min_group_size"),
        ([{"name": "a"}], {"mnnvl": "yes"}, "options.mnnvl"),
        ([{"name": "a"}], {"sigma": 2}, "options.sigma"),
        ([{"name": "a"}], {"budget": {"hours": 3}}, "options.budget"),
        ([{"name": "a"}], {"budget": {"waves": 0}}, "options.budget.waves"),
        ([{"name": "a"}], {"limits": {"leaf_waves": 0}}, "options.limits.leaf_waves"),
        ([{"name": "a"}], {"prior_evidence": [{"outcome": "ok", "nodes": ["a"]}]}, "options.prior_evidence[0].outcome"),
        ([{"name": "a"}], {"prior_evidence": [{"outcome": "failed"}]}, "options.prior_evidence[0].nodes"),
    ],
)
def test_wrong_input_is_named(nodes: t.Any, options: t.Any, place: str) -> None:
    with pytest.raises(InputError) as caught:
        planner.start(nodes, options)
    assert caught.value.place == place


def test_wrong_results_are_named() -> None:
    state, step = planner.next_step(planner.start(world_of().nodes()))
    name = step["wave"][0]["id"]
    for results, place in (
        ([{"id": "w09-01", "outcome": "failed"}], "results[0].id"),
        ([{"id": name, "outcome": "failed"}, {"id": name, "outcome": "failed"}], "results[1]"),
        ([{"id": name, "outcome": "fine"}], "results[0].outcome"),
        ([{"id": name, "outcome": "measured", "value": "fast"}], "results[0].value"),
        ([{"id": name, "outcome": "unmeasured", "lost": ["x"]}], "results[0].lost"),
        ([{"id": name, "outcome": "failed", "verdict": 1}], "results[0]"),
    ):
        with pytest.raises(InputError) as caught:
            planner.next_step(state, results)
        assert caught.value.place == place
    with pytest.raises(InputError):
        planner.next_step({"nodes": []})
