# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A bad couple is found in as few waves as the rule of disjoint tests allows, whatever is known before."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import posterior
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate.splits import Open, bits, information, members


def find(open_: Open, bad: tuple[int, int], room: int) -> tuple[list[int], int]:
    """What is left when only one couple of things is in doubt, and the waves it took."""
    both = bits(bad)
    waves = 0
    while True:
        blocks = open_.wave(room)
        assert blocks and all(open_.count(block) for block in blocks), "a wave asks something"
        assert sum(block.bit_count() for block in blocks) == bits(at for block in blocks for at in members(block)).bit_count(), "disjoint"
        assert len(blocks) <= max(2, room) or len(blocks) == open_.count(open_.live), "no more small tests than fit, but for the last wave"
        waves += 1
        failed = [block for block in blocks if block & both == both]
        if failed and failed[0].bit_count() == 2:
            return list(members(failed[0])), waves
        for block in blocks:
            if block not in failed:
                open_.close(block)
        if failed:
            open_ = open_.inside(failed[0])


@given(st.data())
def test_every_bad_couple_among_things_is_found(data: st.DataObject) -> None:
    """A wave for each bit of the number of things; and one or two for the couples, which are worth trying while few differ."""
    count = data.draw(st.integers(2, 40))
    bad = sorted(data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=2, unique=True)))
    known = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=2), max_size=6))
    room = data.draw(st.sampled_from((0, 1, 2, 4, count)))
    open_ = Open.among(count)
    for passed in known:
        if not set(bad) <= passed:
            open_.close(bits(passed))
    found, waves = find(open_, (bad[0], bad[1]), room)
    assert found == bad and waves <= 2 * math.ceil(math.log2(count)) + 2
    if not known:
        assert waves <= math.ceil(math.log2(count)) + 2


@given(st.integers(1, 24), st.integers(1, 24), st.data())
def test_every_bad_couple_between_two_sides_is_found(left: int, right: int, data: st.DataObject) -> None:
    bad = (data.draw(st.integers(0, left - 1)), left + data.draw(st.integers(0, right - 1)))
    found, waves = find(Open.across(left, right), bad, data.draw(st.sampled_from((0, 2, 50))))
    assert found == list(bad) and waves <= math.ceil(math.log2(max(left, right))) + 3


@given(st.integers(2, 30), st.lists(st.sets(st.integers(0, 29), min_size=2), max_size=5))
def test_what_passed_together_is_not_asked_again(count: int, known: list[set[int]]) -> None:
    open_ = Open.among(count)
    for passed in known:
        open_.close(bits(at for at in passed if at < count))
    left = {(a, b) for a in range(count) for b in range(a) if not any({a, b} <= passed for passed in known)}
    assert {(b, a) for a, b in open_.couples()} == left and open_.count(open_.live) == len(left)


def test_only_a_crossing_of_which_nothing_passed_is_complete() -> None:
    open_ = Open.across(3, 4)
    assert open_.complete(3)
    open_.close(bits((0, 5)))
    assert not open_.complete(3) and not Open.among(4).complete(0)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 200))
def test_a_wave_of_halves_tells_at_most_log2_of_three(one: int, two: int, rest: int) -> None:
    assert 0 <= information([one, two], one + two + rest) <= math.log2(3) + 1e-9


TALLY = st.tuples(st.integers(0, 12), st.integers(0, 12))


@given(TALLY, TALLY, TALLY, st.floats(1e-4, 0.1), st.integers(1, 600))
def test_what_a_pair_may_be_instead_adds_up_to_one(
    together: tuple[int, int], one: tuple[int, int], two: tuple[int, int], rate: float, partners: int
) -> None:
    odds = posterior.pair(together, [one, two], rate, partners)
    assert 0 <= odds.bad <= posterior.MOST and abs(min(odds.bad + odds.chance + odds.end, 1.0) - 1.0) <= 1 - posterior.MOST + 1e-9


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8), st.integers(2, 500))
def test_a_pair_is_surer_with_each_test_that_fits_and_less_sure_the_more_partners_it_was_picked_from(
    failed: int, one: int, two: int, partners: int
) -> None:
    """Whatever an unsteady node does, among many partners there is one with whom it always failed so far."""
    rate = 1 / 400
    few = posterior.pair((failed + 1, 0), [(0, one), (0, two)], rate, partners).bad
    assert posterior.pair((failed + 1, 0), [(0, one), (0, two)], rate, partners + 100).bad <= few
    assert posterior.pair((failed + 2, 0), [(0, one), (0, two)], rate, partners).bad >= few
    assert posterior.pair((failed + 1, 0), [(0, one + 1), (0, two + 1)], rate, partners).bad >= few
    assert posterior.pair((failed + 1, 1), [(0, one), (0, two)], rate, partners).bad <= few, "it passed together"


@given(st.integers(2, 5), st.integers(2, 10), st.integers(4, 12))
def test_a_node_that_also_fails_outside_its_pairs_is_the_likelier_cause(pairs: int, failed: int, passed: int) -> None:
    inside = (pairs * 2 + failed, 0)
    without = posterior.end_of_several(pairs, inside, (0, passed), 1 / 400, 15)
    outside = posterior.end_of_several(pairs, inside, (2, passed), 1 / 400, 15)
    assert 0 <= without <= outside <= 1
