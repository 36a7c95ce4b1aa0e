# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How an attempt ends decides whether a node is accused: every cause must end it once, with its own name."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.attempt import Attempt, State, all_running, decide
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.contact import News
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import pod_facts
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.shell_parts import SETUP_ERROR

BOUNDS = {"attempt_timeout_s": 100, "queue_timeout_s": 50, "start_grace_s": 10}


def pod(index, phase="Running", *, state=None, **status):
    container = {"name": "node", "image": "registry.example/nccl:1", "state": state or {"running": {"startedAt": "2026-03-02T08:00:00Z"}}}
    return pod_facts(
        {
            "metadata": {
                "name": f"job-{index}-abcde",
                "uid": f"u{index}",
                "labels": {"batch.kubernetes.io/job-name": "job"},
                "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            },
            "spec": {"nodeName": f"n{index}"},
            "status": {"phase": phase, "containerStatuses": [container], **status},
        }
    )


def ended(code, reason="Error", message=None, finished="2026-03-02T08:01:00Z"):
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": finished}}


def attempt(*pods, started=True, **fields):
    made = Attempt("g001", [f"n{index}" for index in range(max(1, len(pods)))], 1, "job", state=State.RUNNING if started else State.WAITING)
    made.created_at, made.started_at = 0.0, 0.0 if started else None
    made.pods = {item["name"]: item for item in pods}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


SILENT = "Ready=Unknown: NodeStatusUnknown: Kubelet stopped posting node status."


def lost(*names):
    return News(lost=dict.fromkeys(names, SILENT), silent=dict.fromkeys(names, SILENT))


def test_a_running_group_goes_on():
    assert decide(attempt(pod(0), pod(1)), 50, BOUNDS) is None


def test_the_launcher_decides_although_workers_still_serve():
    decision = decide(attempt(pod(0, state=ended(0, "Completed")), pod(1)), 5, BOUNDS)
    assert (decision.outcome, decision.exit_code, decision.reason) == ("succeeded", 0, None)


def test_a_failing_launcher_names_no_node():
    decision = decide(attempt(pod(0, state=ended(3, message="NCCL failure")), pod(1)), 5, BOUNDS)
    assert (decision.outcome, decision.exit_code, decision.nodes, decision.message) == (
        "failed",
        3,
        [],
        "the launcher ended with exit code 3",
    )


def test_where_each_answers_for_its_own_node_all_must_succeed_and_the_one_that_fails_is_named():
    done = [pod(index, "Succeeded", state=ended(0, "Completed")) for index in (0, 1)]
    assert decide(attempt(done[0], pod(1), ends="each"), 5, BOUNDS) is None
    assert decide(attempt(*done, ends="each"), 5, BOUNDS).outcome == "succeeded"
    decision = decide(attempt(done[0], pod(1, "Failed", state=ended(226)), ends="each"), 5, BOUNDS)
    assert (decision.outcome, decision.exit_code, decision.nodes) == ("failed", 226, ["n1"])


def test_where_all_work_together_whoever_fails_first_is_not_thereby_at_fault():
    pods = [pod(0, "Failed", state=ended(1)), pod(1)]
    decision = decide(attempt(*pods, ends="all"), 5, BOUNDS)
    assert (decision.outcome, decision.exit_code, decision.nodes) == ("failed", 1, [])
    memory = decide(attempt(pod(0), pod(1, "Failed", state=ended(137, "OOMKilled")), ends="all"), 5, BOUNDS)
    assert (memory.reason, memory.nodes) == ("OOMKilled", ["n1"])


@pytest.mark.parametrize(("ends", "kept"), [("first", ["job-0-abcde"]), ("each", None), ("all", ["job-0-abcde", "job-2-abcde"])])
def test_the_logs_that_are_kept_are_those_that_will_be_read(ends, kept):
    pods = [pod(index, "Succeeded", state=ended(0, "Completed")) for index in (2, 0, 1)]
    names = [item["name"] for item in attempt(*pods, ends=ends).pods_to_log()]
    assert names == (kept or ["job-0-abcde", "job-1-abcde", "job-2-abcde"])


def test_a_launcher_killed_because_a_worker_died_blames_the_worker():
    worker = pod(1, "Failed", state=ended(139, finished="2026-03-02T08:00:59Z"))
    decision = decide(attempt(pod(0, "Failed", state=ended(143)), worker), 5, BOUNDS)
    assert (decision.exit_code, decision.nodes) == (139, ["n1"])


def test_out_of_memory_names_the_node_of_the_pod_it_hit():
    job = {"name": "job", "uid": "u", "suspended": False, "complete": None, "failed": {"reason": "BackoffLimitExceeded", "message": ""}}
    decision = decide(attempt(pod(0), pod(1, "Failed", state=ended(137, "OOMKilled")), job=job), 5, BOUNDS)
    assert (decision.reason, decision.nodes) == ("OOMKilled", ["n1"])


def test_what_the_image_lacks_is_a_setup_error():
    decision = decide(attempt(pod(0, "Failed", state=ended(78, message=f"{SETUP_ERROR} no sshd"))), 5, BOUNDS)
    assert (decision.reason, decision.message) == ("SetupError", "no sshd")


def test_a_lost_node_is_named_and_not_waited_for():
    decision = decide(attempt(pod(0), pod(1)), 5, BOUNDS, lost("n1"))
    assert (decision.outcome, decision.reason, decision.nodes) == ("failed", "NodeLost", ["n1"])
    assert "Kubelet stopped posting" in decision.message


@pytest.mark.parametrize(
    "word, reason",
    [
        ("UnexpectedAdmissionError", "DeviceRejected"),
        ("OutOfnvidia.com/gpu", "DeviceRejected"),
        ("Evicted", "Evicted"),
        ("NodeLost", "NodeLost"),
    ],
)
def test_a_pod_the_kubelet_refused_or_ended(word, reason):
    decision = decide(
        attempt(pod(0, "Failed", reason=word, message="Allocate failed", state={"waiting": {}}), started=False), 5, BOUNDS, {}
    )
    assert (decision.reason, decision.nodes) == (reason, ["n0"])


@pytest.mark.parametrize("word", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"])
def test_trouble_that_may_mend_itself_gets_its_grace_time(word):
    waiting = attempt(pod(0, "Pending", state={"waiting": {"reason": word, "message": "no such image"}}), started=False)
    assert decide(waiting, 1, BOUNDS) is None
    assert decide(waiting, 10, BOUNDS) is None
    decision = decide(waiting, 11, BOUNDS)
    assert decision.outcome == "not_started"
    assert "no such image" in decision.message and "registry.example/nccl:1" in decision.message


def test_trouble_that_went_away_is_forgotten():
    waiting = attempt(pod(0, "Pending", state={"waiting": {"reason": "ErrImagePull"}}), started=False)
    assert decide(waiting, 1, BOUNDS) is None
    waiting.pods = {"job-0-abcde": pod(0, "Pending", state={"waiting": {"reason": "ContainerCreating"}})}
    assert decide(waiting, 12, BOUNDS) is None
    waiting.pods = {"job-0-abcde": pod(0, "Pending", state={"waiting": {"reason": "ErrImagePull"}})}
    assert decide(waiting, 13, BOUNDS) is None


def test_a_name_that_is_no_image_is_told_at_once():
    waiting = attempt(pod(0, "Pending", state={"waiting": {"reason": "InvalidImageName"}}), started=False)
    assert decide(waiting, 0, BOUNDS).reason == "ImagePull"


def test_the_clock_of_an_attempt_starts_when_all_pods_run():
    scheduled = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}]
    waiting = attempt(pod(0), pod(1, "Pending", state={"waiting": {}}, conditions=scheduled), started=False)
    assert not all_running(waiting)
    assert decide(waiting, 49, BOUNDS) is None
    decision = decide(waiting, 50, BOUNDS)
    assert (decision.outcome, decision.reason) == ("not_started", "Unschedulable")
    assert "0/2 nodes are available" in decision.message


def test_a_workload_held_by_a_queue_is_queued_not_unschedulable():
    assert decide(attempt(started=False, queued=True), 60, BOUNDS).reason == "Queued"


def test_a_hanging_workload_ends_at_its_timeout():
    decision = decide(attempt(pod(0), pod(1)), 100, BOUNDS)
    assert (decision.outcome, decision.reason) == ("timed_out", "TimedOut")


def test_an_eviction_is_not_a_crash():
    taken = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}]
    decision = decide(attempt(pod(0), pod(1, "Failed", state=ended(143), conditions=taken)), 5, BOUNDS)
    assert (decision.reason, decision.nodes) == ("Evicted", ["n1"])


def test_a_sick_node_ends_the_attempt_and_is_named():
    sick = attempt(pod(0), pod(1), health=[{"node": "n1", "message": "n1 became unhealthy: GpuHealthy=False", "evidence": []}])
    decision = decide(sick, 5, BOUNDS)
    assert (decision.reason, decision.nodes) == ("HardwareFailureDetected", ["n1"])


def leaving(facts):
    return {**facts, "deleting": True}


def test_a_pod_that_somebody_else_deletes_is_no_failure_of_its_nodes():
    group = attempt(pod(0), pod(1))
    group.see_pod(leaving(pod(1)), gone=False)
    group.see_pod(leaving(pod(1, "Failed", state=ended(143))), gone=False)
    group.see_pod(pod(0, "Failed", state=ended(1, message="lost connection")), gone=False)
    decision = decide(group, 5, BOUNDS)
    assert (decision.outcome, decision.reason, decision.nodes) == ("failed", "Evicted", [])
    assert "job-1-abcde" in decision.message


def test_a_pod_that_vanishes_without_a_word_is_not_waited_for():
    group = attempt(pod(0), pod(1))
    group.see_pod(pod(0), gone=True)
    assert decide(group, 5, BOUNDS).reason == "Evicted"
    assert decide(group, 5, BOUNDS, lost("n0")).reason == "NodeLost"


def test_pods_that_the_job_controller_removes_after_a_crash_do_not_hide_it():
    group = attempt(pod(0), pod(1))
    group.see_pod(pod(1, "Failed", state=ended(139)), gone=False)
    group.see_pod(leaving(pod(0)), gone=False)
    group.see_pod(leaving(pod(0, "Failed", state=ended(143, finished="2026-03-02T08:01:02Z"))), gone=False)
    decision = decide(group, 5, BOUNDS)
    assert (decision.reason, decision.exit_code, decision.nodes) == (None, 139, ["n1"])


def test_a_taint_evicts_from_a_healthy_node_without_condemning_it():
    taken = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "maintenance"}]
    group = attempt(pod(0), pod(1, "Failed", state=ended(143), conditions=taken))
    assert decide(group, 5, BOUNDS).reason == "Evicted"
    assert decide(group, 5, BOUNDS, lost("n1")).reason == "NodeLost"


def test_pods_that_the_cluster_never_allows_are_not_waited_for():
    words = 'FailedCreate job: Error creating: pods "job-0-x" is forbidden: violates PodSecurity "restricted:latest"'
    refused = attempt(started=False, refusal=words)
    decision = decide(refused, 20, BOUNDS)
    assert (decision.outcome, decision.message, decision.nodes) == ("not_started", words, [])
    refused.queued = True
    assert decide(refused, 20, BOUNDS) is None, "a queue holds the Job back: it has not tried to create pods"


def test_a_refusal_that_mended_itself_is_forgotten():
    assert decide(attempt(pod(0, "Pending", state={"waiting": {}}), started=False, refusal="FailedCreate job: x"), 20, BOUNDS) is None


def test_a_rack_that_goes_at_once_is_one_short_sentence():
    members = [pod(index) for index in range(16)]
    decision = decide(attempt(*members), 5, BOUNDS, lost(*(f"n{index}" for index in range(16))))
    assert len(decision.nodes) == 16 and "n[0-9], n[10-15] were lost during the test" in decision.message
    assert decision.message.count("Kubelet stopped posting") == 1


def test_of_hundreds_of_workers_only_the_first_to_fail_are_read():
    workers = [pod(index, "Failed", state=ended(143)) for index in range(1, 200)] + [pod(200, "Failed", state=ended(139))]
    told = attempt(pod(0, "Failed", state=ended(1)), *workers).pods_to_log()
    assert [item["index"] for item in told[:2]] == [0, 200], "the launcher, then the worker that failed by itself"
    assert len(told) <= 10
