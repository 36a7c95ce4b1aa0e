# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Groups that are run several times: each repeat as often as was asked for, one after the other, also by a run that was killed."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.categories import Round, judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measurement
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import category_given
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.attempt import Decision, State
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.groups import Groups
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Batch

from .engine_bench import engine, only_attempt

GROUPS = [{"name": "g001", "nodes": ["n0", "n1"]}, {"name": "g002", "nodes": ["n2", "n3"]}]
STARTED = "2026-03-02T08:00:00Z"
ENDINGS = {
    "good": lambda n, r: attempt_record(n, "succeeded", repeat=r, exit_code=0),
    "slow": lambda n, r: attempt_record(n, "succeeded", repeat=r, exit_code=0),
    "evicted": lambda n, r: attempt_record(n, "failed", Said("Evicted", "drained"), repeat=r),
    "no image": lambda n, r: attempt_record(n, "not_started", Said("ImagePull", "no such image"), repeat=r),
    "crashed": lambda n, r: attempt_record(n, "failed", Said("WorkloadFailed", "exit 1"), repeat=r, exit_code=1, started=STARTED),
    "node lost": lambda n, r: attempt_record(n, "failed", Said("NodeLost", "n0 was lost", ("n0",)), repeat=r, started=STARTED),
}  # fmt: skip


def batch(repeat, k_of_n=None, finished=None, retries=1):
    return Batch(
        "run", "/none", "c01", "c01", {}, list(GROUPS), {"retries": retries}, 2e9, finished=finished or {}, repeat=repeat, k_of_n=k_of_n
    )


def run(made, ending, killed_after=None):
    """Takes each group when it is due; ending: (group, repeat, try) -> a word of ENDINGS. Returns what was run, in order."""
    order, tries, now = [], {}, 0.0
    for name, records in made.records.items():
        for record in records:
            tries[name, record["repeat"]] = tries.get((name, record["repeat"]), 0) + 1
    while made.waiting and (killed_after is None or len(order) < killed_after):
        now += 100.0
        group = made.due(now)[0]
        made.waiting.remove(group)
        name, records = group["name"], made.records[group["name"]]
        repeat = made.next_repeat(group, records)
        tries[name, repeat] = tries.get((name, repeat), 0) + 1
        word = ending(name, repeat, tries[name, repeat])
        order.append((name, repeat, word))
        made.keep(name, ENDINGS[word](len(records) + 1, repeat), now, going=True)
    return order


def test_repeats_of_a_group_come_one_after_the_other_and_other_groups_in_between():
    made = Groups(batch(3))
    assert run(made, lambda *_any: "good") == [(name, repeat, "good") for repeat in (1, 2, 3) for name in ("g001", "g002")]
    assert [(record["attempt"], record["repeat"]) for record in made.records["g001"]] == [(1, 1), (2, 2), (3, 3)]


def test_a_cause_that_may_go_away_is_tried_again_in_each_repeat_and_does_not_count():
    ends = {("g001", 1, 1): "evicted", ("g001", 3, 1): "evicted"}
    made = Groups(batch(3))
    run(made, lambda *key: ends.get(key, "good"))
    assert [(record["attempt"], record["repeat"], record["outcome"]) for record in made.records["g001"]] == [
        (1, 1, "failed"), (2, 1, "succeeded"), (3, 2, "succeeded"), (4, 3, "failed"), (5, 3, "succeeded"),
    ]  # fmt: skip


def test_what_cannot_be_proven_any_more_is_not_run():
    """An image that is not there is waited for once, not a hundred times."""
    made = Groups(batch(3))
    run(made, lambda *_any: "no image")
    assert len(made.records["g001"]) == 1
    made = Groups(batch(3, k_of_n=2))
    run(made, lambda *_any: "no image")
    assert len(made.records["g001"]) == 2
    made = Groups(batch(3, retries=0))
    run(made, lambda *_any: "crashed")
    assert len(made.records["g001"]) == 3, "a crash now and then is another fault than one each time"


def test_a_condemned_member_is_left_out_of_later_repeats_and_a_group_of_none_is_not_run():
    made = Groups(batch(2))
    run(made, lambda group, repeat, nth: "node lost" if (group, repeat, nth) == ("g001", 1, 1) else "good")
    assert [record["repeat"] for record in made.records["g001"]] == [1, 1, 2], "the others are tested without it, in each repeat"
    assert [item["node"] for item in made.left_out(GROUPS[0])] == ["n0"]
    alone = {"name": "g003", "nodes": ["n0"]}
    assert made.is_final(alone, made.records["g001"][:1]), "nobody is left to test"


def test_only_a_second_try_of_the_same_repeat_is_told_as_one():
    made = Groups(batch(2))
    made.waiting.clear()
    assert made.keep("g001", ENDINGS["evicted"](1, 1), 0.0, going=True)
    made.waiting.clear()
    assert not made.keep("g001", ENDINGS["good"](2, 1), 0.0, going=True)
    assert [group["name"] for group in made.due(0.0)] == ["g001"], "and a further repeat waits for nothing"


def test_the_engine_makes_each_repeat_an_attempt_with_a_name_of_its_own(tmp_path):
    made = engine(tmp_path)
    made._batch.repeat = 2
    names = []
    for repeat in (1, 2):
        made._admit()
        attempt = only_attempt(made)
        assert (attempt.number, attempt.repeat) == (repeat, repeat)
        names.append(attempt.name)
        attempt.state, attempt.decision, attempt.finished_at = State.RELEASING, Decision("succeeded", exit_code=0), time.monotonic()
        made._advance(attempt, time.monotonic())
    assert len(set(names)) == 2 and not made._groups.waiting and not made._live
    assert [record["repeat"] for record in made._groups.records["g001"]] == [1, 2]


WORDS = st.sampled_from(sorted(ENDINGS))
CRITERIA = compile_criteria(["measured.bus_bandwidth >= 400"], {}, {"bus_bandwidth": "number"})


def judged(records, repeat, k_of_n, words):
    """The category by what each attempt is said to have measured."""
    rounds = []
    for number in range(1, repeat + 1):
        found = {}
        for name, own in records.items():
            last = [record for record in own if record["repeat"] == number][-1:]
            if last and last[0]["outcome"] == "succeeded":
                value = 300.0 if words[name, last[0]["attempt"]] == "slow" else 450.0
                found[name] = measurement("nccl", None, "", complete=True, values={"bus_bandwidth": value, "data_correct": True})
        rounds.append(Round(found, {}))
    groups = [
        {"name": name, "nodes": next(group["nodes"] for group in GROUPS if group["name"] == name), "attempts": own}
        for name, own in records.items()
    ]
    category = category_given({"id": "c01", "groups": GROUPS, "repeat": repeat, "k_of_n": k_of_n})
    observation = {"groups": groups, "cleanup": None, "cancelled": ""}
    return judge_category(category, observation, rounds[0].measurements, CRITERIA, further=rounds[1:])


@given(repeat=st.integers(1, 4), k=st.integers(1, 4), script=st.lists(WORDS, min_size=12, max_size=12), killed=st.integers(0, 12))
def test_a_run_that_was_killed_goes_on_with_the_repeats_that_are_missing_and_gives_the_same_verdict(repeat, k, script, killed):
    k_of_n = min(k, repeat) if repeat > 1 and k < 4 else None

    def ending(group, number, nth):
        return script[(number * 3 + nth + (5 if group == "g002" else 0)) % len(script)]

    def words_of(records):
        found = {}
        for name, own in records.items():
            nth = {}
            for record in own:
                nth[record["repeat"]] = nth.get(record["repeat"], 0) + 1
                found[name, record["attempt"]] = ending(name, record["repeat"], nth[record["repeat"]])
        return found

    undisturbed = Groups(batch(repeat, k_of_n))
    run(undisturbed, ending)
    first = Groups(batch(repeat, k_of_n))
    run(first, ending, killed_after=killed)
    second = Groups(batch(repeat, k_of_n, finished=first.records))
    run(second, ending)
    assert second.records == undisturbed.records
    whole, resumed = (judged(made.records, repeat, k_of_n, words_of(made.records)) for made in (undisturbed, second))
    assert whole == resumed
