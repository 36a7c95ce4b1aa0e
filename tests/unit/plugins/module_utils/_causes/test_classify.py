# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Causes: our faults are not the nodes' faults, and each cause keeps the API's own words."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.api_words import (
    API_WORDS,
    PREFIXES,
    Waiting,
    refusal_of,
    waiting_of,
)
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.exit_codes import EXITS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.reasons import REASONS, reason_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.wordings import WORDINGS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import observation_given


def attempt(outcome="failed", **keys):
    return {
        "attempt": 1,
        "outcome": outcome,
        "reason": None,
        "message": "",
        "nodes": [],
        "exit_code": None,
        "pods": [],
        "events": [],
        "health": [],
        **keys,
    }


def cause_of(given):
    """The cause that the record of an attempt carries."""
    return observation_given({"groups": [{"name": "g001", "attempts": [given]}]})["groups"][0]["attempts"][0]["cause"]


def pod(reason, node="n1", **keys):
    return {"name": "g001-0-abcde", "node": node, "reason": reason, **keys}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (attempt(pods=[pod("OOMKilled")], exit_code=137), "OOMKilled"),
        (attempt(pods=[pod("Evicted")]), "Evicted"),
        (attempt(pods=[pod("UnexpectedAdmissionError")]), "DeviceRejected"),
        (attempt(pods=[pod("OutOfnvidia.com/gpu")]), "DeviceRejected"),
        (attempt(pods=[pod("OutOfcpu")]), "Unschedulable"),
        (attempt(pods=[pod("OutOfpods")]), "Unschedulable"),
        (attempt(pods=[pod("ContainerStatusUnknown")], exit_code=137), "WorkloadFailed"),
        (attempt(pods=[pod("Evicted"), pod("ContainerStatusUnknown")]), "Evicted"),
        (attempt("timed_out", events=["NodeNotReady gpu-n1: Node is not ready"]), "TimedOut"),
        (
            attempt(
                "cancelled", reason="Cancelled", message='watching pods failed: pods is forbidden: User "u" cannot watch resource "pods"'
            ),
            "Forbidden",
        ),
        (attempt("cancelled", reason="Cancelled", message="a webhook is forbidden: contact lost"), "Cancelled"),
        (attempt(message="Test CUDA failure common.cu:1 'operation not supported' error", exit_code=3), "WorkloadFailed"),
        (attempt(message="Connection aborted: ConnectionResetError, reported as lost", exit_code=3), "WorkloadFailed"),
        (attempt(message="prted: error: the daemon on w-1 is gone", exit_code=1), "LauncherFailed"),
        (attempt(message="[w-0:7] ORTE_ERROR_LOG: Not found in file plm_rsh", exit_code=1), "LauncherFailed"),
        (attempt(pods=[pod("NodeLost")]), "NodeLost"),
        (attempt(pods=[pod("ImagePullBackOff", node=None)]), "ImagePull"),
        (attempt(pods=[pod("InvalidImageName")]), "ImagePull"),
        (attempt(pods=[pod("CreateContainerConfigError")]), "SetupError"),
        (attempt(pods=[pod("DeletionByTaintManager")]), "Evicted"),
        (attempt(reason="ErrImagePull", message="manifest unknown"), "ImagePull"),
        (
            attempt("not_started", reason="Unschedulable", message="0/64 nodes are available: 64 Insufficient nvidia.com/gpu."),
            "Unschedulable",
        ),
        (attempt("not_started", message="0/64 nodes are available: 64 Insufficient nvidia.com/gpu."), "Unschedulable"),
        (attempt("not_started", reason="Queued", message="not admitted by the queue"), "Queued"),
        (attempt("not_started", events=["Warning FailedCreate job/x: pods is forbidden: exceeded quota: gpus"]), "Quota"),
        (attempt("not_started", events=["Warning FailedCreate job/x: failed quota: q: must specify limits.cpu"]), "Quota"),
        (
            attempt("not_started", events=['Warning FailedCreate job/x: pods "x" is forbidden: violates PodSecurity "restricted"']),
            "AdmissionDenied",
        ),
        (
            attempt("not_started", message='Internal error: failed calling webhook "v.kueue": dial tcp: connection refused'),
            "AdmissionDenied",
        ),
        (attempt("not_started", events=['Warning Failed pod/x: Failed to pull image "x": not found']), "ImagePull"),
        (attempt("timed_out", events=["Warning FailedMount pod/x: MountVolume.SetUp failed"]), "SetupError"),
        (attempt("timed_out"), "TimedOut"),
        (attempt("timed_out", pods=[pod("Evicted")], message="timeout"), "Evicted"),
        (attempt(reason="DeadlineExceeded", message="Job was active longer than specified deadline"), "TimedOut"),
        (attempt(reason="WorkloadFailed", message="ssh: Could not resolve hostname w-1", exit_code=255), "LauncherFailed"),
        (attempt(message="ORTE was unable to reliably start one or more daemons", exit_code=1), "LauncherFailed"),
        (attempt(reason="BackoffLimitExceeded", message="Job has reached the specified backoff limit", exit_code=3), "WorkloadFailed"),
        (attempt(exit_code=139), "WorkloadFailed"),
        (attempt(exit_code=127), "SetupError"),
        (attempt(exit_code=124), "TimedOut"),
        (attempt(exit_code=1), "WorkloadFailed"),
        (attempt(), "WorkloadFailed"),
        (attempt("cancelled"), "Cancelled"),
        (attempt("cancelled", reason="Cancelled", message="the run's deadline is over"), "Cancelled"),
        (attempt("not_started"), "Untested"),
        (
            attempt(health=[{"node": "n1", "message": "n1: condition GPUHealthy=False: XID 79", "evidence": ["XID 79"]}]),
            "HardwareFailureDetected",
        ),
        (attempt(health=[{"node": "n1", "message": "n1: condition Ready=Unknown: Kubelet stopped posting", "evidence": []}]), "NodeLost"),
    ],
)
def test_cause(given, reason):
    cause = cause_of(given)
    assert cause["reason"] == reason
    assert cause["message"]
    assert cause["retryable"] is (REASONS[reason].retryable and given["outcome"] != "cancelled")


def test_success_has_no_cause():
    assert cause_of(attempt("succeeded", exit_code=0, events=["Warning FailedScheduling x", "Warning Failed to pull image"])) is None


def test_success_with_an_evicted_pod_is_told():
    """A pod evicted for ephemeral storage may end with exit code 0."""
    assert cause_of(attempt("succeeded", exit_code=0, pods=[pod("Evicted")]))["reason"] == "Evicted"


def test_the_cause_comes_before_its_consequences():
    given = attempt(
        exit_code=255,
        message="ssh: connect to host w-1: Connection refused",
        pods=[pod("Error", "n2"), pod("UnexpectedAdmissionError", "n1")],
    )
    cause = cause_of(given)
    assert (cause["reason"], cause["nodes"]) == ("DeviceRejected", ["n1"])


def test_normal_events_accuse_nobody():
    assert cause_of(attempt(exit_code=1, events=["Normal Pulled pod/x: exceeded quota is only a word here"]))["reason"] == "WorkloadFailed"


def test_health_names_the_node_and_quotes_the_condition():
    cause = cause_of(
        attempt(exit_code=1, health=[{"node": "n7", "message": "n7: condition GPUHealthy=False", "evidence": ["GPUHealthy=False: XID 79"]}])
    )
    assert cause["nodes"] == ["n7"]
    assert cause["evidence"] == ["GPUHealthy=False: XID 79"]


@pytest.mark.parametrize("word", sorted(API_WORDS))
def test_every_api_word_means_a_reason_of_the_table(word):
    reason = API_WORDS[word].reason
    assert reason in REASONS
    assert cause_of(attempt(pods=[pod(word)]))["reason"] == reason


@pytest.mark.parametrize("word", ["NodeShutdown", "Shutdown", "Terminated"])
def test_a_machine_that_somebody_shuts_down_is_not_condemned(word):
    """Two tables once disagreed: an operator's shutdown failed the node."""
    assert refusal_of(word) == "Evicted" and reason_of(refusal_of(word)).effect == "untested"


def test_a_pod_that_no_longer_fits_the_labels_of_its_node_accuses_nobody():
    assert refusal_of("NodeAffinity") == "SetupError"
    assert cause_of(attempt(pods=[pod("NodeAffinity")]))["reason"] == "SetupError"


def test_only_words_of_trouble_are_waited_for_with_a_grace_time():
    assert waiting_of("InvalidImageName") is Waiting.FATAL
    assert waiting_of("ImagePullBackOff") is Waiting.TRANSIENT
    assert waiting_of("ContainerCreating") is None and waiting_of(None) is None


@pytest.mark.parametrize("code", sorted(EXITS))
def test_exit_codes_are_spelled_out(code):
    cause = cause_of(attempt(exit_code=code))
    assert cause["reason"] == EXITS[code].reason
    assert str(code) in cause["message"]


def test_every_reason_that_any_table_names_is_in_the_table_of_reasons():
    named = {word.reason for word in API_WORDS.values()} | {reason for reason, _pattern in WORDINGS}
    named |= {reason for row in EXITS.values() for reason in (row.reason, row.log_reason)} | {reason for _prefix, reason in PREFIXES}
    assert named <= set(REASONS)


@pytest.mark.parametrize(
    "warning",
    [
        "FailedScheduling g001-0: 0/4 nodes are available: 1 Insufficient nvidia.com/gpu.",
        'FailedMount g001-0: MountVolume.SetUp failed for volume "x": failed to sync configmap cache',
        'Failed g001-0: Failed to pull image "x": net/http: TLS handshake timeout',
        "FailedCreate g001: pods is forbidden: exceeded quota: gpus",
        "UnexpectedAdmissionError g001-0: Allocate failed due to no healthy devices present",
    ],
)
@pytest.mark.parametrize(("outcome", "reason"), [("failed", "WorkloadFailed"), ("timed_out", "TimedOut")])
def test_a_warning_of_the_start_does_not_hide_how_an_attempt_that_ran_ended(warning, outcome, reason):
    """A crash was once "Unschedulable": untested, not repeated, and no search for the node at fault."""
    assert cause_of(attempt(outcome, exit_code=3, events=[warning], started="2026-03-02T08:00:00Z"))["reason"] == reason
    assert cause_of(attempt("not_started", events=[warning]))["reason"] not in ("WorkloadFailed", "TimedOut", "Untested")


def test_what_we_could_not_ask_is_no_cause():
    line = 'not read: events of g001-0: events is forbidden: User "u" cannot list resource "events"'
    assert cause_of(attempt(exit_code=3, events=[line]))["reason"] == "WorkloadFailed"


def test_a_success_whose_log_could_not_be_read_says_why_and_is_repeated():
    cause = cause_of(attempt("succeeded", exit_code=0, pods=[pod(None, log_problem="401: the token has expired")]))
    assert (cause["reason"], cause["retryable"]) == ("LogUnavailable", True)
    assert "401: the token has expired" in cause["message"]


@pytest.mark.parametrize("word", ["Evicted", "Preempted", "Preempting", "NodeShutdown", "Terminated", "EvictionByEvictionAPI"])
def test_eviction_drain_shutdown_and_preemption_never_convict(word):
    cause = cause_of(attempt("failed", exit_code=137, pods=[pod(word), pod("ContainerStatusUnknown", "n2")]))
    assert reason_of(cause["reason"]).effect == "untested"
