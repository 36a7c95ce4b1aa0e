# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A measurement is evidence for a machine only if it ran there, and only while it is the same machine, whole and without a restart."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record, pod_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria, evaluate_all
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.groups import judge_group
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measurement

NODES = ("n1", "n2", "n3")
GROUP = {"name": "g001", "nodes": NODES, "domain": None, "expected_transport": None}
CRITERIA = compile_criteria(["measured.bus_bandwidth >= 400"], {}, {"bus_bandwidth": "number"})
STARTED = "2026-03-02T08:00:00Z"


def state(uid="machine", boot="first", gpus=8, trouble=None):
    return {"uid": uid, "boot_id": boot, "gpus": gpus, "trouble": trouble}


def seen(node, before=None, after=None, fewest=None):
    return {"node": node, "before": before or state(), "after": after or before or state(), "fewest_gpus": fewest}


def ran(number=1, outcome="succeeded", reason=None, machines=(), on=NODES, ends=None, **keys):
    code = 0 if outcome == "succeeded" else 255
    told = {item["node"]: item for item in machines}
    ends = ends or {}
    pods = [
        pod_record(f"p-{index}", node=node, index=index, role="worker" if index else "launcher",
                   phase="Running" if ends.get(node, code) is None else "Failed", exit_code=ends.get(node, code))
        for index, node in enumerate(on)
    ]  # fmt: skip
    said = Said(reason, "as it was said") if reason else Said()
    every = [told.get(node, seen(node)) for node in NODES]
    return attempt_record(number, outcome, said, exit_code=code, started=STARTED, pods=pods, machines=every, **keys)


def judge(*attempts, look=None, bandwidth=450.0, **options):
    last = attempts[-1]
    measured = (
        measurement("nccl", None, "as it was", complete=True, values={"bus_bandwidth": bandwidth}) if last["exit_code"] == 0 else None
    )
    results = evaluate_all(CRITERIA, measured["values"]) if measured else []
    look = {node: state() for node in NODES} | look if look else look
    return judge_group(GROUP, {"name": "g001", "nodes": NODES, "attempts": list(attempts)}, measured, results, last_look=look, **options)


def verdicts(judged):
    return {node: member["verdict"] for node, member in judged["members"].items()}


def first(judged, node):
    return judged["members"][node]["findings"][0]


def test_the_same_machines_before_and_after_pass():
    judged = judge(ran(), look={"n1": state()})
    assert (judged["verdict"], judged["findings"], set(verdicts(judged).values())) == ("passed", [], {"passed"})


def test_a_member_without_a_pod_that_ran_on_it_is_untested():
    """Two pods fitted on one node; the slow one of the group ran none, and passed."""
    judged = judge(ran(on=["n1", "n2", "n2"]))
    assert (judged["verdict"], verdicts(judged)) == ("incomplete", {"n1": "passed", "n2": "passed", "n3": "untested"})
    assert "they ran on n1, n2" in first(judged, "n3")["message"] or "n[1-2]" in first(judged, "n3")["message"]


def test_a_member_that_was_left_out_has_its_reason_and_the_others_pass():
    out = [{"node": "n3", "reason": "NodeUnavailable", "message": "not tested: it was cordoned before its test began"}]
    judged = judge(ran(on=["n1", "n2"], excluded=out))
    assert (judged["verdict"], verdicts(judged)["n1"], verdicts(judged)["n3"]) == ("incomplete", "passed", "untested")
    assert "cordoned" in first(judged, "n3")["message"]


@pytest.mark.parametrize(
    ("after", "look", "reason", "verdict"),
    [
        (state(boot="second"), None, "NodeLost", "failed"),
        (state(gpus=7), {"n2": state(gpus=7)}, "HardwareFailureDetected", "failed"),
        (state(), {"n2": state(gpus=7)}, "HardwareFailureDetected", "failed"),
        (state(), {"n2": state(gpus=0)}, "HardwareFailureDetected", "failed"),
        (state(), {"n2": state(boot="second")}, "NodeUnavailable", "untested"),
        (state(), {"n2": state(uid="another")}, "NodeUnavailable", "untested"),
        (state(uid="another", boot="second"), None, "NodeUnavailable", "untested"),
        (state(), {"n2": None}, "NodeUnavailable", "untested"),
        (state(), {"n2": state(trouble="Ready=Unknown: silent")}, "NodeUnavailable", "untested"),
    ],
)
def test_a_machine_that_is_not_what_it_was_when_its_test_began_does_not_pass(after, look, reason, verdict):
    judged = judge(ran(machines=[seen("n2", state(), after)]), look=look)
    assert (verdicts(judged)["n2"], first(judged, "n2")["reason"]) == (verdict, reason)
    assert verdicts(judged)["n1"] == verdicts(judged)["n3"] == "passed", "what was measured with it was measured"


def test_gpus_that_were_gone_for_a_while_make_a_suspect():
    judged = judge(ran(machines=[seen("n2", state(), state(), fewest=7)]), look={"n2": state()})
    assert (verdicts(judged)["n2"], first(judged, "n2")["reason"]) == ("suspect", "DeviceRejected")


def test_a_device_plugin_that_restarts_takes_no_gpu_away():
    judged = judge(ran(machines=[seen("n2", state(), state(), fewest=0)]), look={"n2": state()})
    assert verdicts(judged)["n2"] == "passed"


def test_what_is_not_known_is_not_compared():
    unknown = state(uid=None, boot=None, gpus=None)
    assert judge(ran(machines=[seen("n2", unknown, unknown)]), look={"n2": state()})["verdict"] == "passed"


def test_a_machine_that_restarted_under_test_does_not_pass_by_its_repetition():
    crashed = ran(1, "failed", machines=[seen("n2", state(), state())])
    again = ran(2, machines=[seen("n2", state(boot="second"))])
    judged = judge(crashed, again)
    assert (verdicts(judged), first(judged, "n2")["reason"]) == ({"n1": "passed", "n2": "failed", "n3": "passed"}, "NodeLost")


def test_a_restart_explains_the_crash_of_its_group():
    judged = judge(ran(1, "failed", machines=[seen("n2", state(), state(boot="second"))]))
    assert verdicts(judged) == {"n1": "untested", "n2": "failed", "n3": "untested"}


def test_a_machine_that_was_drained_and_restarted_passes_by_its_repetition():
    drained = ran(1, "failed", "Evicted", machines=[seen("n2", state(), state(boot="second"))])
    judged = judge(drained, ran(2, machines=[seen("n2", state(boot="second"))]), look={"n2": state(boot="second")})
    assert judged["verdict"] == "passed"


@pytest.mark.parametrize("phase", ["Running", "Pending", "Failed"])
def test_a_machine_that_died_before_its_kubelet_was_missed_is_convicted_by_its_silence(phase):
    """The launcher ends within a second of the crash; the cluster notices the silence a minute later. What the API tells of the pod by
    then depends on who was quicker: nobody, a kubelet that never told that it ran, or whoever collects pods of lost nodes."""
    crashed = ran(1, "failed", ends={"n2": None})
    crashed["pods"][1]["phase"] = phase
    out = [{"node": "n2", "reason": "NodeUnavailable", "message": "not tested: it was not Ready before its test began"}]
    judged = judge(crashed, ran(2, on=["n1", "n3"], excluded=out), look={"n2": state(trouble="Ready=Unknown: silent")})
    assert (verdicts(judged), first(judged, "n2")["reason"]) == ({"n1": "passed", "n2": "failed", "n3": "passed"}, "NodeLost")


def test_a_slow_group_stays_suspect_whatever_became_of_one_machine_later():
    judged = judge(ran(), look={"n2": state(boot="second")}, bandwidth=100.0)
    assert set(verdicts(judged).values()) == {"suspect"} and judged["verdict"] == "failed"


def test_without_a_last_look_nothing_passes():
    judged = judge(ran(), unseen=True)
    assert (judged["verdict"], set(verdicts(judged).values())) == ("incomplete", {"untested"})


def test_gpus_that_are_gone_on_most_nodes_at_once_condemn_none_of_them():
    """A device plugin that is being updated, or that does not come back."""
    judged = judge(ran(), look={node: state(gpus=0) for node in NODES})
    assert set(verdicts(judged).values()) == {"untested"} and "device plugin" in first(judged, "n1")["message"]


def lost(number=1, node="n2", **keys):
    attempt = ran(number, "failed", **keys)
    cause = {"reason": "NodeLost", "message": f"{node} was lost", "nodes": [node], "evidence": [f"{node}: silent"], "retryable": False}
    return {**attempt, "cause": cause}


OUT = [{"node": "n2", "reason": "NodeLost", "message": "not tested again: attempt 1 ended with NodeLost"}]


def test_a_member_that_died_stays_condemned_and_the_others_pass_by_the_repetition_without_it():
    """Also when it is back, and well, when all is over: a machine that dies under load is not ready."""
    for look in ({"n2": state(trouble="Ready=Unknown: silent")}, {"n2": state()}):
        judged = judge(lost(), ran(2, on=["n1", "n3"], excluded=OUT), look=look)
        assert (judged["verdict"], verdicts(judged)) == ("failed", {"n1": "passed", "n2": "failed", "n3": "passed"})
        assert first(judged, "n2")["reason"] == "NodeLost" and "n2: silent" in first(judged, "n2")["message"]


def test_a_dead_member_does_not_explain_how_the_repetition_without_it_ended():
    judged = judge(lost(), ran(2, on=["n1", "n3"], excluded=OUT), look={"n2": state()}, bandwidth=100.0)
    assert verdicts(judged) == {"n1": "suspect", "n2": "failed", "n3": "suspect"}
    assert [item["reason"] for item in judged["members"]["n2"]["findings"]] == ["NodeLost"], "it was not slow: it was not there"


def test_a_machine_that_was_taken_away_as_announced_is_not_convicted_by_its_silence():
    crashed = ran(1, "failed", ends={"n2": None})
    gone = {**state(trouble="Ready=Unknown: silent"), "leaving": "taint karpenter.sh/disrupted:NoSchedule"}
    judged = judge(crashed, ran(2, on=["n1", "n3"], excluded=[]), look={"n2": gone})
    assert (verdicts(judged)["n2"], first(judged, "n2")["reason"]) == ("untested", "NodeUnavailable")
    assert "karpenter" in first(judged, "n2")["message"]


def test_a_restart_that_a_mark_announced_is_not_convicted():
    marked = {**state(boot="second"), "leaving": "annotation kured.dev/kured-reboot-in-progress"}
    judged = judge(ran(machines=[seen("n2", state(), marked)]))
    assert (verdicts(judged)["n2"], first(judged, "n2")["reason"]) == ("untested", "NodeUnavailable")
    assert "kured" in first(judged, "n2")["message"]


@pytest.mark.parametrize(
    ("since", "reason"), [("2026-03-02T08:10:50Z", "NodeLost"), ("2026-03-02T09:30:00Z", "NodeUnavailable"), (None, "NodeLost")]
)
def test_a_machine_that_fell_silent_long_after_its_group_failed_is_not_convicted_of_that(since, reason):
    crashed = {**ran(1, "failed", ends={"n2": None}), "finished": "2026-03-02T08:10:00Z"}
    silent = {**state(trouble="Ready=Unknown: silent"), "since": since}
    judged = judge(crashed, look={"n2": silent})
    assert first(judged, "n2")["reason"] == reason


def ill(kind="condition GpuXidError=True (Xid79)"):
    return {**state(), "illness": {"message": f"became unhealthy: {kind}", "evidence": [kind], "kinds": [kind]}}


def test_a_machine_that_its_own_evidence_condemns_when_all_is_over_does_not_pass():
    judged = judge(ran(), look={"n2": ill()})
    assert (verdicts(judged), first(judged, "n2")["reason"]) == (
        {"n1": "passed", "n2": "failed", "n3": "passed"},
        "HardwareFailureDetected",
    )


def test_what_most_machines_show_when_all_is_over_condemns_none_of_them():
    judged = judge(ran(), look={"n1": ill(), "n2": ill()})
    assert verdicts(judged) == {"n1": "untested", "n2": "untested", "n3": "passed"}
    assert first(judged, "n1")["reason"] == "NodeUnavailable" and "2 of 3 nodes" in first(judged, "n1")["message"]
