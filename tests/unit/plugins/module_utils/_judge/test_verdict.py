# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts: nothing passes without evidence, and nobody is convicted by membership."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.reasons import REASONS, finding
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria, evaluate_all
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge import categories, certification
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.groups import judge_group
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import (
    category_given,
    measurement_given,
    observation_given,
    snapshot_given,
)

METRICS = {"bus_bandwidth": {"type": "number", "unit": "GB/s"}, "spread": "number", "samples": "int"}
CRITERIA = compile_criteria(["measured.bus_bandwidth >= 400"], {}, METRICS)
GROUP = {"name": "g001", "nodes": ["n1", "n2"], "domain": "r0"}


def measured(value=450.0, state=None, *, complete=True, kind="nccl", reason="as it was", findings=(), **values):
    return {
        "kind": kind, "verdict": state, "complete": complete, "reason": reason, "values": {"bus_bandwidth": value, **values},
        "units": {"bus_bandwidth": "GB/s"}, "parsed": {}, "transport": None, "judged": None, "findings": list(findings),
    }  # fmt: skip


def attempt(outcome="succeeded", number=1, **keys):
    return {
        "attempt": number,
        "outcome": outcome,
        "exit_code": 0 if outcome == "succeeded" else None,
        "pods": [],
        "events": [],
        "health": [],
        **keys,
    }


def judge(measurement, *attempts, group=None, criteria=None, **options):
    group, criteria = category_given({"groups": [group or GROUP]})["groups"][0], CRITERIA if criteria is None else criteria
    results = evaluate_all(criteria, measurement["values"]) if measurement else []
    observation = observation_given({"groups": [{"name": group["name"], "attempts": list(attempts or [attempt()])}]})
    return judge_group(group, observation["groups"][0], measurement and measurement_given(measurement), results, **options)


def reasons(judged):
    return [item["reason"] for item in judged["findings"]]


def members(judged):
    return {name: member["verdict"] for name, member in judged["members"].items()}


def test_a_complete_measurement_that_meets_its_criteria_passes():
    judged = judge(measured())
    assert (judged["verdict"], judged["findings"], members(judged)) == ("passed", [], {"n1": "passed", "n2": "passed"})
    assert judged["criteria"][0]["limit"] == 400


@pytest.mark.parametrize(
    ("measurement", "attempts", "state", "reason", "member"),
    [
        (measured(300.0), [], "failed", "ThresholdViolation", "suspect"),
        (measured(300.0, spread=0.4, samples=3), [], "failed", "Unstable", "suspect"),
        (measured(300.0, spread=0.4, samples=2), [], "failed", "ThresholdViolation", "suspect"),
        (measured(450.0, spread=0.4, samples=3), [], "passed", None, "passed"),
        (measured(state="DataCorruption"), [], "failed", "DataCorruption", "suspect"),
        (measured(state="TransportFallback"), [], "failed", "TransportFallback", "suspect"),
        (measured(state="LogIncomplete", complete=False), [], "incomplete", "LogIncomplete", "untested"),
        (measured(complete=False), [], "incomplete", "LogIncomplete", "untested"),
        (measured(None, state="NoMeasurement", complete=False), [], "error", "NoMeasurement", "untested"),
        (measured(None), [], "error", "NoMeasurement", "untested"),
        (measured(state="SetupError", complete=False), [], "error", "SetupError", "untested"),
        (measured(state="WorkloadFailed", complete=False), [], "failed", "WorkloadFailed", "suspect"),
        (
            measured(state="LauncherFailed", complete=False, reason="ssh: Could not resolve hostname w"),
            [],
            "error",
            "LauncherFailed",
            "untested",
        ),
        (measured(state="TimedOut", complete=False), [], "failed", "TimedOut", "suspect"),
        (measured(state="ThresholdViolation"), [], "failed", "ThresholdViolation", "suspect"),
        (measured(state="SetupError", kind="dcgm"), [], "error", "SetupError", "untested"),
        (measured(state="NoMeasurement", kind="dcgm", complete=False), [], "error", "NoMeasurement", "untested"),
        (None, [], "error", "NoMeasurement", "untested"),
        (None, [attempt("failed", exit_code=3)], "failed", "WorkloadFailed", "suspect"),
        (measured(state="LogIncomplete", complete=False), [attempt("failed", exit_code=139)], "failed", "WorkloadFailed", "suspect"),
        (measured(), [attempt("failed", exit_code=1)], "failed", "WorkloadFailed", "suspect"),
        (None, [attempt("timed_out")], "failed", "TimedOut", "suspect"),
        (None, [attempt("not_started", message="0/4 nodes are available")], "incomplete", "Unschedulable", "untested"),
        (None, [attempt("not_started", reason="ImagePull", message="no such image")], "error", "ImagePull", "untested"),
        (None, [attempt("cancelled")], "incomplete", "Cancelled", "untested"),
        (measured(), [attempt("cancelled")], "incomplete", "Cancelled", "untested"),
        (
            measured(state="NoMeasurement", complete=False),
            [attempt(pods=[{"name": "p", "node": "n1", "reason": "Evicted"}])],
            "incomplete",
            "Evicted",
            "untested",
        ),
        (measured(), [attempt(pods=[{"name": "p", "node": "n1", "reason": "Evicted"}])], "passed", None, "passed"),
    ],
)
def test_group_verdict(measurement, attempts, state, reason, member):
    judged = judge(measurement, *attempts)
    assert judged["verdict"] == state
    assert reasons(judged)[:1] == ([reason] if reason else [])
    assert set(members(judged).values()) == {member}
    for name in GROUP["nodes"]:
        assert judged["members"][name]["findings"] or state == "passed"


def test_wrong_data_fails_at_any_speed_and_hides_the_bandwidth():
    judged = judge(measured(100.0, state="DataCorruption"))
    assert reasons(judged) == ["DataCorruption"]
    assert judged["criteria"] == []


def test_the_order_is_correctness_transport_completeness_thresholds():
    both = [finding("TransportFallback", "tcp"), finding("DataCorruption", "wrong")]
    found = [{"reason": item["reason"], "message": item["message"], "host": None, "entity": None, "evidence": []} for item in both]
    assert reasons(judge(measured(state="TransportFallback", findings=found))) == ["DataCorruption", "TransportFallback"]


def test_a_partial_sweep_is_never_compared_with_a_limit():
    judged = judge(measured(1.0, state="LogIncomplete", complete=False))
    assert "ThresholdViolation" not in reasons(judged)
    assert judged["criteria"] == []


def test_no_criterion_is_not_a_pass_unless_accepted():
    judged = judge(measured(), criteria=[])
    assert (judged["verdict"], reasons(judged)) == ("incomplete", ["NoCriterion"])
    assert "450 GB/s" in judged["findings"][0]["message"]
    assert judge(measured(), criteria=[], allow_no_criteria=True)["verdict"] == "passed"
    assert judge(measured(state=None, kind="dcgm"), criteria=[])["verdict"] == "passed"


def test_a_group_that_never_ran_is_untested():
    judged = judge_group(GROUP, None, None)
    assert (judged["verdict"], reasons(judged)) == ("incomplete", ["Untested"])


def test_a_named_hardware_culprit_absolves_its_group():
    sick = [{"node": "n2", "message": "n2: condition GPUHealthy=False: XID 79", "evidence": ["XID 79"]}]
    judged = judge(measured(state="LogIncomplete", complete=False), attempt("failed", exit_code=1, health=sick))
    assert judged["verdict"] == "failed"
    assert members(judged) == {"n1": "untested", "n2": "failed"}
    assert "n2" in judged["members"]["n1"]["findings"][0]["message"]
    assert judged["members"]["n2"]["findings"][0]["evidence"] == ["XID 79"]


def test_a_lost_node_is_named_and_the_other_is_not_accused():
    judged = judge(None, attempt("failed", reason="NodeLost", message="node n1 stopped answering", nodes=["n1"]))
    assert members(judged) == {"n1": "failed", "n2": "untested"}


def test_rejected_devices_touch_the_named_node_only():
    judged = judge(None, attempt("failed", pods=[{"name": "p", "node": "n1", "reason": "UnexpectedAdmissionError"}]))
    assert members(judged) == {"n1": "suspect", "n2": "untested"}


def test_a_single_node_diagnosis_names_its_node_but_a_slow_single_node_is_only_suspect():
    alone = {"name": "g001", "nodes": ["n1"]}
    assert members(judge(measured(state="HardwareFailureDetected", kind="dcgm"), group=alone)) == {"n1": "failed"}
    assert members(judge(measured(300.0), group=alone)) == {"n1": "suspect"}


def test_hardware_failure_of_no_named_member_convicts_nobody():
    assert set(members(judge(measured(state="HardwareFailureDetected", kind="dcgm"))).values()) == {"suspect"}


@pytest.mark.parametrize("host", ["n2", "n2.cluster.local", "g001-1", "g001-1.svc"])
def test_the_host_of_a_log_is_found_by_node_and_pod_name(host):
    found = [{"reason": "HardwareFailureDetected", "host": host, "entity": "GPU5", "message": "memory", "evidence": ["line"]}]
    pods = [{"name": "g001-0-xxxxx", "node": "n1"}, {"name": "g001-1-yyyyy", "node": "n2"}]
    judged = judge(measured(state="HardwareFailureDetected", kind="dcgm", findings=found), attempt(pods=pods))
    assert members(judged) == {"n1": "untested", "n2": "failed"}


def test_a_pass_after_a_failure_is_said():
    judged = judge(measured(), attempt("failed", exit_code=139), attempt(number=2))
    assert judged["verdict"] == "passed"
    assert [(item["reason"], item["note"]) for item in judged["findings"]] == [("Unstable", True)]
    assert set(members(judged).values()) == {"passed"}


def test_a_pass_after_our_own_fault_is_not_worth_a_note():
    judged = judge(measured(), attempt("failed", pods=[{"name": "p", "node": "n1", "reason": "Evicted"}]), attempt(number=2))
    assert judged["findings"] == []


def test_a_failure_after_a_pass_fails():
    assert judge(measured(300.0), attempt(), attempt(number=2))["verdict"] == "failed"


def test_unchecked_data_are_said_to_be_unchecked():
    judged = judge(measured(data_correct=None))
    assert (judged["verdict"], reasons(judged)) == ("passed", ["Warning"])
    assert judge(measured(data_correct=True))["findings"] == []


# ------------------------------------------------------------------------------------------ categories


def category(groups=(GROUP,), **keys):
    return {
        "id": "c01",
        "test": "communication/nccl-all-reduce",
        "test_scale": "intra-rack",
        "groups": list(groups),
        "untested": [],
        **keys,
    }


def judged_category(values, **keys):
    """One group per value; None: never ran."""
    groups = [{"name": f"g{number:03d}", "nodes": [f"n{number}a", f"n{number}b"]} for number in range(len(values))]
    ran = [group for group, value in zip(groups, values, strict=True) if value is not None]
    observation = {"groups": [{"name": group["name"], "attempts": [attempt()]} for group in ran]}
    measurements = {group["name"]: measured(value) for group, value in zip(groups, values, strict=True) if value is not None}
    return categories.judge_category(category_given(category(groups, **keys)), observation_given(observation), measurements, CRITERIA)


@pytest.mark.parametrize(
    ("own", "completed", "verdicts"),
    [
        (450.0, 300.0, {"n1": "passed", "n2": "passed", "n3": "suspect"}),  # n2 is known good: it did not fail n3's group
        (300.0, 300.0, {"n1": "suspect", "n2": "suspect", "n3": "suspect"}),
        (450.0, 450.0, {"n1": "passed", "n2": "passed", "n3": "passed"}),
    ],
)
def test_a_node_that_only_completes_a_group_is_not_accused_by_it_when_its_own_has_passed(own, completed, verdicts):
    groups = [{"name": "g001", "nodes": ["n1", "n2"]}, {"name": "g002", "nodes": ["n3", "n2"], "witnesses": ["n2"]}]
    observation = {"groups": [{"name": group["name"], "attempts": [attempt()]} for group in groups]}
    measurements = {"g001": measured(own), "g002": measured(completed)}
    judged = categories.judge_category(category_given(category(groups)), observation_given(observation), measurements, CRITERIA)
    assert members(judged) == verdicts


@pytest.mark.parametrize(
    ("values", "untested", "state"),
    [
        ([450.0, 450.0], [], "passed"),
        ([450.0, 300.0], [], "failed"),
        ([450.0, None], [], "incomplete"),
        ([300.0, None], [], "failed"),
        ([None, None], [], "error"),
        ([], [], "error"),
        ([450.0], [{"node": "n9", "reason": "Untested", "message": "left over"}], "incomplete"),
        ([450.0], [{"node": "n9", "reason": "HardwareFailureDetected", "message": "6 of 8 GPUs"}], "failed"),
    ],
)
def test_category_verdict(values, untested, state):
    judged = judged_category(values, untested=untested)
    assert judged["verdict"] == state
    assert judged["why"]


def test_isolation_convicts_and_clears():
    judged = judged_category([450.0, 300.0])
    conclusions = [
        {"node": "n1a", "verdict": "failed", "reason": "ThresholdViolation", "message": "slow in every group", "evidence": ["w3"]},
        {"node": "n1b", "verdict": "passed", "reason": "ThresholdViolation", "message": "fast without n1a", "evidence": []},
        {"node": None, "verdict": "suspect", "reason": "Unstable", "message": "the boundary r0|r1", "evidence": []},
    ]
    after = categories.apply_isolation(judged, conclusions)
    assert {name: member["verdict"] for name, member in after["members"].items()} == {
        "n0a": "passed",
        "n0b": "passed",
        "n1a": "failed",
        "n1b": "passed",
    }
    assert after["verdict"] == "failed"
    assert [item["message"] for item in after["isolation"]["findings"]][2] == "the boundary r0|r1"
    assert all(item["note"] for item in after["members"]["n1b"]["findings"])
    assert judged["members"]["n1a"]["verdict"] == "suspect", "the input must not change"


def test_a_fault_between_nodes_is_told_of_the_nodes_it_touches():
    path = {
        "node": None,
        "nodes": ["n0a", "elsewhere"],
        "verdict": "failed",
        "reason": "ThresholdViolation",
        "message": "the NIC path of n0a",
    }
    after = categories.apply_isolation(judged_category([300.0]), [path])
    assert after["members"]["n0a"]["verdict"] == "suspect"
    assert after["members"]["n0a"]["findings"][0]["message"] == "the NIC path of n0a"
    assert "elsewhere" not in after["members"]


def test_nodes_that_isolation_tested_count_as_tested():
    members = {"n1": {"verdict": "passed", "findings": [], "isolated": True}, "n2": {"verdict": "untested", "findings": []}}
    search = {"id": "c1", "test": "t", "test_scale": "diagnose", "verdict": "incomplete", "groups": [], "members": members}
    assert certification.roll_up(snapshot("n1", "n2"), [search])["coverage"]["tested"] == 1


def test_a_member_no_finding_names_hears_whom_they_name():
    found = [{"reason": "TransportFallback", "host": "n2", "entity": None, "message": "no RDMA device is visible", "evidence": []}]
    judged = judge(measured(state="TransportFallback", findings=found))
    assert members(judged) == {"n1": "suspect", "n2": "suspect"}
    assert judged["members"]["n1"]["findings"][0]["message"] == "n2: no RDMA device is visible"


def test_isolation_never_clears_a_category_that_failed():
    judged = judged_category([300.0])
    after = categories.apply_isolation(judged, [{"node": node, "verdict": "passed", "message": "fast alone"} for node in ("n0a", "n0b")])
    assert after["verdict"] == "failed"


def test_isolation_cannot_clear_a_node_whose_hardware_failed():
    untested = [{"node": "n9", "reason": "HardwareFailureDetected", "message": "6 of 8 GPUs"}]
    after = categories.apply_isolation(judged_category([450.0], untested=untested), [{"node": "n9", "verdict": "passed", "message": "x"}])
    assert after["members"]["n9"]["verdict"] == "failed"


# ------------------------------------------------------------------------------------------ certification


def snapshot(*names, **others):
    rows = [{"name": name, "target": True, "exclusion": None, "findings": []} for name in names]
    rows += [
        {"name": name, "target": False, "exclusion": {"reason": reason, "message": f"{name} is out"}} for name, reason in others.items()
    ]
    return snapshot_given({"nodes": rows})


def test_everything_proven_passes():
    result = certification.roll_up(snapshot("n0a", "n0b"), [judged_category([450.0])])
    assert result["verdict"] == "passed"
    assert result["coverage"] == {"targets": 2, "tested": 2, "excluded": 0, "ratio": 1.0}
    assert [(node["name"], node["verdict"]) for node in result["nodes"]] == [("n0a", "passed"), ("n0b", "passed")]


def test_an_excluded_node_makes_it_incomplete_but_a_node_nobody_asked_for_does_not():
    result = certification.roll_up(snapshot("n0a", "n0b", cordoned="Cordoned"), [judged_category([450.0])])
    assert (result["verdict"], result["coverage"]["ratio"]) == ("incomplete", 0.6667)
    assert result["excluded"] == [{"node": "cordoned", "reason": "Cordoned", "message": "cordoned is out"}]
    result = certification.roll_up(snapshot("n0a", "n0b", other="NotSelected"), [judged_category([450.0])])
    assert (result["verdict"], result["excluded"], result["not_selected"]) == ("passed", [], ["other"])


def test_a_target_no_group_was_built_with_is_untested():
    result = certification.roll_up(snapshot("n0a", "n0b", "n5"), [judged_category([450.0])])
    assert result["verdict"] == "incomplete"
    assert result["nodes"][2]["verdict"] == "untested"
    assert result["nodes"][2]["findings"][0]["reason"] == "Untested"


def test_a_mixed_cluster_has_one_category_per_model_and_a_node_is_in_one_of_them():
    first = judged_category([450.0])
    second = {**judged_category([450.0]), "id": "c02"}
    second["members"] = {"m0": second["members"]["n0a"]}
    assert certification.roll_up(snapshot("n0a", "n0b", "m0"), [first, second])["verdict"] == "passed"
    second["test_scale"] = "full-scale"
    assert certification.roll_up(snapshot("n0a", "n0b", "m0"), [first, second])["verdict"] == "incomplete"


def test_a_node_with_missing_gpus_fails_without_a_test():
    seen = snapshot("n0a", "n0b", "n9")
    seen["nodes"][2]["findings"] = [{"reason": "HardwareFailureDetected", "message": "6 of 8 GPUs", "evidence": ["allocatable 6"]}]
    judged = judged_category([450.0], untested=[{"node": "n9", "reason": "Untested", "message": "not tested: 6 of 8 GPUs"}])
    result = certification.roll_up(seen, [judged])
    node = result["nodes"][2]
    assert (result["verdict"], node["verdict"], node["findings"][0]["reason"]) == ("failed", "failed", "HardwareFailureDetected")
    assert node["findings"][0]["evidence"] == ["allocatable 6"]


def test_failed_before_error_before_incomplete_before_passed():
    good, bad, none, part = judged_category([450.0]), judged_category([300.0]), judged_category([None]), judged_category([450.0, None])
    names = ["n0a", "n0b", "n1a", "n1b"]
    assert certification.roll_up(snapshot(*names), [good, bad, none, part])["verdict"] == "failed"
    assert certification.roll_up(snapshot(*names), [good, none, part])["verdict"] == "error"
    assert certification.roll_up(snapshot(*names), [good, part])["verdict"] == "incomplete"


@pytest.mark.parametrize(("nodes", "judged"), [([], []), (["n0a"], []), ([], [judged_category([])])])
def test_nothing_at_all_is_an_error(nodes, judged):
    assert certification.roll_up(snapshot(*nodes), judged)["verdict"] == "error"


VALUE = st.sampled_from([450.0, 300.0, None, float("nan")])


@given(st.lists(st.lists(VALUE, max_size=4), max_size=3), st.booleans(), st.lists(st.sampled_from(sorted(REASONS)), max_size=2))
def test_it_passes_only_when_every_node_has_passed_evidence(values, extra, untested):
    left = [{"node": f"x{number}", "reason": reason, "message": "m"} for number, reason in enumerate(untested)]
    found = [{**judged_category(row, untested=left), "id": f"c{number}"} for number, row in enumerate(values)]
    names = sorted({name for item in found for name in item["members"]} | ({"lonely"} if extra else set()))
    result = certification.roll_up(snapshot(*names), found)
    assert [node["name"] for node in result["nodes"]] == names
    for node in result["nodes"]:
        assert node["verdict"] == "passed" or node["findings"], "every node that did not pass has a reason"
    wanted = bool(values) and all(row and all(value == 450.0 for value in row) for row in values) and not extra and not left
    assert (result["verdict"] == "passed") is wanted
    if result["verdict"] == "passed":
        assert result["coverage"]["ratio"] == 1.0
        assert {node["verdict"] for node in result["nodes"]} == {"passed"}


@given(
    st.sampled_from(
        [None, "DataCorruption", "TransportFallback", "LogIncomplete", "NoMeasurement", "WorkloadFailed", "HardwareFailureDetected"]
    ),
    st.booleans(),
    st.sampled_from(["succeeded", "failed", "timed_out", "not_started", "cancelled"]),
    st.one_of(st.none(), st.floats(), st.integers(0, 900)),
)
def test_a_group_passes_only_on_a_complete_measurement_of_a_succeeded_attempt(state, complete, outcome, value):
    judged = judge(measured(value, state=state, complete=complete), attempt(outcome))
    if judged["verdict"] == "passed":
        assert complete
        assert outcome == "succeeded"
        assert state is None
        assert value >= 400
    else:
        assert judged["findings"]
        assert "passed" not in members(judged).values()


def test_a_verdict_that_is_no_reason_of_the_table_is_refused_with_its_place():
    with pytest.raises(InputError, match="something_new"):
        measurement_given(measured(state="something_new"), "measurements.g001")
