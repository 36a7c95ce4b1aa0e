# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of single runs and ways to cut groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import node_sets as grouping
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate.evidence import BINARY, CLIP, Evidence
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate.trial import Trial


def trial(value: float | None = None, expected: float | None = 100.0, outcome: str = "measured", **more: object) -> Trial:
    made = Trial("domain-net", "net", (0, 1, 2, 3), "", "")
    made.take({"outcome": outcome, "value": value, "expected": expected, **more})
    return made


@pytest.mark.parametrize(
    ("run", "weight"),
    [
        (trial(100.0), -CLIP),
        (trial(85.0), 4.54),
        (trial(40.0), CLIP),
        (trial(89.44), 0.0),
        (trial(None, passed=True), -BINARY),
        (trial(None, passed=False), BINARY),
        (trial(None, None), 0.0),
        (trial(50.0, None), 0.0),
        (trial(None, outcome="failed"), CLIP),
        (trial(None, outcome="unmeasured"), 0.0),
        (trial(0.0), CLIP),
        (trial(-3.0), CLIP),
    ],
)
def test_weight_of_one_run(run: Trial, weight: float) -> None:
    """At 5 % noise: what is as expected clears, 85 % of it speaks of a fault, 89 % says nothing."""
    assert Evidence(0.05).weight(run) == pytest.approx(weight, abs=0.02)


def test_noise_is_learnt_from_runs_above_expectation_only() -> None:
    evidence = Evidence()
    start = evidence.sigma
    for value in [101.0, 99.0, 102.0, 98.0] * 10:
        evidence.learn(trial(value))
    quiet = evidence.sigma
    for _fault in range(20):
        evidence.learn(trial(40.0))
    assert quiet < start and evidence.sigma == pytest.approx(quiet, abs=0.01)
    noisy = Evidence()
    for value in [115.0, 88.0, 108.0, 93.0] * 10:
        noisy.learn(trial(value))
    assert noisy.sigma > 2 * quiet


def test_few_runs_accuse_with_caution() -> None:
    """The same result weighs less against a node while the noise is badly known."""
    young, old = Evidence(), Evidence()
    for _run in range(60):
        old.learn(trial(102.0))
    assert 0 < young.weight(trial(86.0)) < old.weight(trial(86.0))


def test_criterion_decides_the_side_when_the_fleet_is_the_yardstick() -> None:
    evidence = Evidence()
    for number in range(6):
        run = trial(100.0 + number, None, passed=True)
        run.nodes = (number, number + 10, number + 20, number + 30)
        evidence.learn(run)
    assert evidence.expected(trial(90.0, None)) == pytest.approx(103.0)
    assert evidence.weight(trial(85.0, None, passed=True)) == -BINARY
    assert evidence.weight(trial(100.0, None, passed=False)) == BINARY
    assert evidence.weight(trial(70.0, None, passed=False)) > 4


def test_repeats_of_one_group_are_no_yardstick() -> None:
    evidence = Evidence()
    for _run in range(9):
        evidence.learn(trial(100.0, None))
    assert evidence.expected(trial(100.0, None)) is None


@given(st.lists(st.integers(), min_size=1, max_size=60), st.integers(1, 70))
def test_split_keeps_everything_in_order(items: list[int], parts: int) -> None:
    pieces = grouping.split(items, parts)
    assert [item for piece in pieces for item in piece] == items
    sizes = [len(piece) for piece in pieces]
    assert len(pieces) == min(parts, len(items)) and max(sizes) - min(sizes) <= 1


@given(st.integers(2, 200), st.integers(1, 12))
def test_chunks_are_never_too_small(count: int, smallest: int) -> None:
    parts = grouping.chunks(tuple(range(count)), smallest)
    assert min(map(len, parts)) >= min(max(2, smallest), count)


@given(st.integers(0, 25))
def test_circle_meets_everybody_once(count: int) -> None:
    rounds = grouping.circle(count)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in rounds)


def test_two_sides_only_for_a_complete_pattern() -> None:
    assert grouping.two_sides({(0, 2), (0, 3), (1, 2), (1, 3)}, 4) == ([0, 1], [2, 3])
    assert grouping.two_sides({(0, 1), (0, 2), (0, 3)}, 4) == ([0], [1, 2, 3])
    assert grouping.two_sides({(0, 2), (1, 3)}, 4) is None
    assert grouping.two_sides({(0, 1), (1, 2), (0, 2)}, 3) is None


def test_labels_that_name_single_nodes_are_ignored_and_labels_of_small_racks_are_not() -> None:
    single = [f"r{at}" for at in range(16)]
    assert [len(unit.nodes) for unit in grouping.make_units(single, False)] == [4, 4, 4, 4]
    labels = [f"r{at // 2}" for at in range(16)]
    assert [(unit.real, len(unit.nodes)) for unit in grouping.make_units(labels, False)] == [(True, 2)] * 8
    assert len(grouping.make_units(labels, True)) == 8
    mixed = grouping.make_units(["a"] * 8 + [None], False)
    assert [(unit.real, len(unit.nodes)) for unit in mixed] == [(True, 8), (False, 1)]


def test_where_no_criterion_binds_two_groups_are_compared() -> None:
    """Adapters under NVLink: the limit is not theirs, but a domain at 40 % of the other one is not healthy."""
    evidence = Evidence()
    slow, good = trial(87.0, None, passed=True, binding=False), trial(218.0, None, passed=True, binding=False)
    good.nodes = (4, 5, 6, 7)
    evidence.learn(slow)
    assert evidence.weight(slow) == -BINARY, "with nothing to compare, complete and correct has to do"
    evidence.learn(good)
    assert evidence.weight(slow) > 4 and evidence.weight(good) < -2.9


@given(st.lists(st.floats(40.0, 84.0), min_size=1, max_size=8), st.integers(1, 4))
def test_runs_of_one_fault_are_alike_and_runs_slow_by_chance_are_told_from_them(others: list[float], repeats: int) -> None:
    """Of failures of any loss those count that agree: never fewer than the repeats of one, and never two that differ."""
    evidence = Evidence(0.01)
    runs = [trial(value) for value in others] + [trial(60.0)] * repeats
    alike = evidence.alike(runs)
    assert len(alike) >= repeats and not evidence.differ(alike)
    assert evidence.alike([]) == [] and evidence.alike([trial(None, outcome="failed")] * 3)
