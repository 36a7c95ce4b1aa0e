# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Groups that are run several times: the median or k of n decide, no evidence is no pass, hardware and wrong data are never outvoted."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.categories import Round, judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.medians import median_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measurement
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import category_given
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.isolation import must_isolate, result_of

CRITERIA = tuple(compile_criteria(["measured.bus_bandwidth >= 400"], {}, {"bus_bandwidth": {"type": "number", "unit": "GB/s"}}))
NODES = ("n1", "n2")
STARTED = "2026-03-02T08:00:00Z"
NEVER = "never run"
CAUSES = {
    "evicted": ("failed", Said("Evicted", "drained")),
    "crashed": ("failed", Said("WorkloadFailed", "exit 1")),
    "lost": ("failed", Said("NodeLost", "n1 was lost", ("n1",))),
}


def judged(*repeats, k_of_n=None, criteria=CRITERIA, nodes=NODES, out=None, **options):
    """repeats: of one group, each a value, a verdict of the log, or a word. out: by repeat, a member that it began without."""
    attempts, rounds = [], []
    for number, what in enumerate(repeats, 1):
        excluded = [{"node": out[number], "reason": "NodeUnavailable", "message": "it was cordoned"}] if out and number in out else []
        keys = {"repeat": number, "started": STARTED, "excluded": excluded}
        made = None
        if what == "at the second try":
            attempts.append(attempt_record(len(attempts) + 1, *CAUSES["crashed"], **keys))
            what = 450.0
        if isinstance(what, float):
            made = measurement(
                "nccl", None, "", complete=True, values={"bus_bandwidth": what, "data_correct": True}, units={"bus_bandwidth": "GB/s"}
            )
        elif what not in CAUSES and what != NEVER:
            made = measurement("nccl", what, "as the log says", complete=what != "LogIncomplete", values={"bus_bandwidth": 450.0})
        if what != NEVER:
            outcome, said = CAUSES.get(what, ("succeeded", Said()))
            attempts.append(attempt_record(len(attempts) + 1, outcome, said, exit_code=0 if made else None, **keys))
        rounds.append(Round({"g001": made} if made else {}, {}))
    category = category_given(
        {
            "id": "c01",
            "groups": [{"name": "g001", "nodes": list(nodes), "domain": "r0"}],
            "repeat": len(repeats),
            "k_of_n": k_of_n,
            "isolate": "auto",
        }
    )
    groups = [{"name": "g001", "nodes": nodes, "attempts": attempts}] if attempts else []
    made = judge_category(
        category, {"groups": groups, "cleanup": None, "cancelled": ""}, rounds[0].measurements, criteria, further=rounds[1:], **options
    )
    return category, made


def group_of(*repeats, **options):
    return judged(*repeats, **options)[1]["groups"][0]


def states(group):
    return {name: member["verdict"] for name, member in group["members"].items()}


def decides(group):
    return [item["reason"] for item in group["findings"] if not item["note"]]


@pytest.mark.parametrize(
    ("repeats", "verdict", "reasons"),
    [
        ((450.0, 300.0, 410.0), "passed", []),
        ((450.0, 300.0, 310.0), "failed", ["Unstable"]),
        ((390.0, 385.0, 401.0), "failed", ["ThresholdViolation"]),
        ((395.0, 405.0), "passed", []),
        ((300.0, 450.0), "failed", ["ThresholdViolation"]),  # two are too few to be called unstable
        ((450.0, NEVER, 450.0), "incomplete", ["Untested"]),
        ((450.0, "evicted", 450.0), "incomplete", ["Evicted"]),
        ((450.0, "evicted", NEVER), "incomplete", ["Evicted"]),
        ((300.0, 300.0, "evicted"), "incomplete", ["Evicted"]),
        ((450.0, "LogIncomplete", 450.0), "incomplete", ["LogIncomplete"]),
        ((450.0, "crashed", 450.0), "failed", ["WorkloadFailed"]),
        ((450.0, "crashed", "evicted"), "failed", ["WorkloadFailed"]),
        ((450.0, 450.0, "DataCorruption"), "failed", ["DataCorruption"]),
        (("TransportFallback", 450.0, 450.0), "failed", ["TransportFallback"]),
        ((NEVER, NEVER), "incomplete", ["Untested"]),
    ],
)
def test_the_median_decides(repeats, verdict, reasons):
    group = group_of(*repeats)
    assert (group["verdict"], decides(group)) == (verdict, reasons)
    assert set(states(group).values()) == {{"passed": "passed", "failed": "suspect", "incomplete": "untested"}[verdict]}


@pytest.mark.parametrize(
    ("k", "repeats", "verdict", "reasons"),
    [
        (2, (450.0, 300.0, 410.0), "passed", []),
        (3, (450.0, 300.0, 410.0), "failed", ["ThresholdViolation"]),
        (2, (450.0, 300.0, 310.0), "failed", ["ThresholdViolation"]),
        (1, (300.0, 310.0, 450.0), "passed", []),
        (2, (450.0, "evicted", 450.0), "passed", []),
        (2, (450.0, NEVER, 450.0), "passed", []),
        (2, (450.0, 300.0, "evicted"), "incomplete", ["Evicted"]),
        (2, (450.0, 300.0, NEVER), "incomplete", ["Untested"]),
        (2, (300.0, 310.0, "evicted"), "failed", ["ThresholdViolation"]),
        (2, (450.0, "crashed", 450.0), "passed", []),
        (2, (450.0, 450.0, "DataCorruption"), "failed", ["DataCorruption"]),
        (1, (450.0, 450.0, "lost"), "failed", ["NodeLost"]),
    ],
)
def test_k_of_n_counts_the_repeats_that_pass_by_themselves(k, repeats, verdict, reasons):
    group = group_of(*repeats, k_of_n=k)
    assert (group["verdict"], decides(group)) == (verdict, reasons)
    assert group["repeats"]["passed"] == sum(isinstance(what, float) and what >= 400 for what in repeats)


def test_a_lost_node_is_convicted_whatever_the_others_say_and_the_rest_is_isolated():
    category, made = judged(450.0, "lost", 450.0)
    assert {name: member["verdict"] for name, member in made["members"].items()} == {"n1": "failed", "n2": "untested"}
    assert made["verdict"] == "failed"
    category, made = judged(450.0, 300.0, 310.0)
    assert must_isolate(category, made)
    result = result_of(made["groups"][0])
    assert (result["outcome"], result["passed"], result["value"]) == ("measured", False, 310.0)


def test_values_samples_range_and_spread_are_told():
    group = group_of(450.0, 300.0, 410.0)
    assert group["measurement"]["values"]["bus_bandwidth"] == group["criteria"][0]["measured"] == 410.0
    assert group["repeats"]["ranges"] == {
        "bus_bandwidth": {"low": 300.0, "median": 410.0, "high": 450.0, "spread": pytest.approx(1 / 3, abs=1e-6), "samples": 3}
    }
    assert [(item["verdict"], item["attempts"], item["values"]) for item in group["repeats"]["each"]][1] == (
        "failed",
        [2],
        {"bus_bandwidth": 300.0},
    )
    (note,) = group["findings"]
    assert note["note"] and note["message"].startswith("repeat 2 of 3: criterion")
    assert group["members"]["n1"]["findings"] == [note]


def test_what_all_repeats_say_is_said_once_and_what_one_says_names_it():
    assert [item["message"] for item in group_of(390.0, 390.0, 390.0)["findings"]] == [
        "criterion measured.bus_bandwidth >= 400 missed: measured bus_bandwidth = 390 GB/s (-2.5%)"
    ]
    many = group_of(300.0, 450.0, 310.0, k_of_n=2)["findings"]
    assert [item["message"].split(":")[0] for item in many] == ["repeats 1, 3 of 3 missed it, the first so"]
    assert len(many[0]["evidence"]) == 2
    assert decides(group_of(450.0, 450.0, criteria=[])) == ["NoCriterion"]
    assert group_of(450.0, 450.0, criteria=[], allow_no_criteria=True)["verdict"] == "passed"
    assert [item["message"] for item in group_of(450.0, "evicted")["findings"]][0].startswith("repeat 2 of 2: ")


def test_that_repeats_needed_a_second_try_is_said_of_each():
    group = group_of("at the second try", 450.0, "at the second try")
    assert group["verdict"] == "passed" and len(group["attempts"]) == 5
    assert [item["message"].split(": ")[1][:9] for item in group["findings"]] == ["attempt 1", "attempt 4"]


def test_repeats_of_other_nodes_have_no_median():
    """n2 was away once: the two repeats measured different things, and n1 has not been measured often enough either."""
    group = group_of(450.0, 450.0, out={2: "n2"})
    assert group["verdict"] == "incomplete" and states(group) == {"n1": "untested", "n2": "untested"}
    assert any("repeat 2 without n2" in item["message"] for item in group["members"]["n1"]["findings"])
    always = group_of(450.0, 450.0, out={1: "n2", 2: "n2"})
    assert states(always) == {"n1": "passed", "n2": "untested"}
    assert group_of(450.0, 450.0, 450.0, out={2: "n2"}, k_of_n=2)["verdict"] == "passed"


def test_a_category_is_no_error_as_long_as_one_repeat_was_measured():
    assert judged(450.0, "evicted")[1]["verdict"] == "incomplete"
    assert judged("evicted", "evicted")[1]["verdict"] == "error"


@pytest.mark.parametrize(
    ("column", "middle"),
    [
        ([1, 2, 4], 2), ([1, 2], 1.5), ([2, 4], 3), ([1.0, 4.0, 2.0], 2.0), ([1.0, None], None), (["ib", "ib"], "ib"),
        (["ib", "tcp"], None), ([True, True], True), ([True, False], None), ([1.0, float("nan")], None), ([float("inf")] * 2, None),
        ([[1], [1]], [1]), ([True, 1], None),
    ],
)  # fmt: skip
def test_medians(column, middle):
    assert median_of(column) == middle and type(median_of(column)) is type(middle)


VALUES = st.floats(300.0, 500.0)
WHAT = st.one_of(VALUES, st.sampled_from([NEVER, "evicted", "crashed", "lost", "DataCorruption", "TransportFallback", "LogIncomplete"]))


@given(values=st.lists(VALUES, min_size=2, max_size=7), k=st.integers(1, 7))
def test_a_group_whose_repeats_were_all_measured_is_judged_as_the_rule_says(values, k):
    assert (group_of(*values)["verdict"] == "passed") == (statistics.median(values) >= 400)
    k = min(k, len(values))
    assert (group_of(*values, k_of_n=k)["verdict"] == "passed") == (sum(value >= 400 for value in values) >= k)


@given(repeats=st.lists(WHAT, min_size=2, max_size=5), k=st.one_of(st.none(), st.integers(1, 5)), data=st.data())
def test_the_order_of_the_repeats_makes_no_difference(repeats, k, data):
    k = k and min(k, len(repeats))
    shuffled = data.draw(st.permutations(repeats))
    one, other = group_of(*repeats, k_of_n=k), group_of(*shuffled, k_of_n=k)
    assert (one["verdict"], states(one), sorted(decides(one))) == (other["verdict"], states(other), sorted(decides(other)))
    assert one["repeats"]["ranges"] == other["repeats"]["ranges"]


@given(repeats=st.lists(WHAT, min_size=2, max_size=5), k=st.one_of(st.none(), st.integers(1, 5)))
def test_nothing_passes_without_its_evidence(repeats, k):
    k = k and min(k, len(repeats))
    group = group_of(*repeats, k_of_n=k)
    if group["verdict"] == "passed":
        assert sum(isinstance(what, float) for what in repeats) >= (k or len(repeats))
        assert not {"lost", "DataCorruption"}.intersection(what for what in repeats if isinstance(what, str))
        assert not decides(group) and set(states(group).values()) == {"passed"}
    else:
        assert decides(group) and set(states(group).values()) != {"passed"}
