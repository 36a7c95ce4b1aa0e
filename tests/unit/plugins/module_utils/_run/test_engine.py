# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's own bookkeeping, without a cluster."""

from __future__ import annotations

import time
import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.journal import finished_attempts, read_journal
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import engine as engine_module
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.attempt import Decision, State
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.fitness import Eyes
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Seen, Step, Taken
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import job_facts
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.records import record_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.steps import Collected, is_same

from .engine_bench import GROUP, engine, node, only_attempt, pod_of, take_at_once


def test_a_node_that_fell_ill_while_nothing_ran_on_it_is_seen_when_its_test_starts(tmp_path):
    """Nothing changes on it any more, so no watch would ever tell of it."""
    made = engine(
        tmp_path,
        eyes=Eyes(lambda facts: {"message": "sick", "evidence": [], "kinds": ["sick"]} if facts["metadata"]["name"] == "n1" else None),
    )
    made._admit()
    attempt = only_attempt(made)
    assert attempt.nodes == ["n0"], "the other member is tested all the same"
    assert [(item["node"], item["reason"], item["message"]) for item in attempt.excluded] == [("n1", "HardwareFailureDetected", "sick")]


def test_a_job_that_somebody_else_deletes_is_not_waited_for(tmp_path):
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    job = job_facts({"metadata": {"name": attempt.name, "uid": "u"}, "spec": {}, "status": {}})
    made._on_job("DELETED", job)
    assert attempt.removed == [f"Job {attempt.name}"]


def test_why_no_pod_comes_into_being_is_asked_once_the_grace_time_is_over(tmp_path):
    """Only events tell it. A service account that does not exist would otherwise hold 512 GPUs until queue_timeout_s."""
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    attempt.state, attempt.created_at = State.WAITING, 100.0
    words = 'Error creating: pods "x" is forbidden: error looking up service account default/nope: serviceaccount "nope" not found'
    events = [{"reason": "FailedCreate", "message": words}]
    asked = []
    made._client.list = lambda path, **_options: asked.append(path) or events
    take_at_once(made)
    made._questions.ask_refusal(attempt, 105.0)
    assert not asked
    made._questions.ask_refusal(attempt, 111.0)
    assert words in attempt.refusal
    events[:] = [{"reason": "FailedCreate", "message": 'pods "x" is forbidden: exceeded quota: gpus'}]
    made._questions.ask_refusal(attempt, 122.0)
    assert attempt.refusal == "", "quota may be freed"


def test_the_same_refusal_of_many_tries_is_told_once(tmp_path):
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    rows = [{"reason": "FailedCreate", "message": f'pods "{attempt.name}-0-{tail}" is forbidden: no'} for tail in ("7krk2", "x8ldw")]
    made._client.list = lambda _path, **_options: [*rows, {"reason": "Other", "message": "else"}]
    assert len(made._steps.events(attempt.target(), attempt.objects())) == 2


def test_the_last_look_at_many_nodes_is_one_list(tmp_path):
    """512 single reads in a row would hold a failed full-scale group for a minute."""
    names = [f"n{index}" for index in range(100)]
    made = engine(
        tmp_path,
        eyes=Eyes(
            lambda facts: (
                {"message": "sick", "evidence": [], "kinds": ["sick"]} if facts["status"]["nodeInfo"]["bootID"] == "sick" else None
            )
        ),
    )
    asked = []

    def list_result(path, project):
        asked.append(path)
        ready = [{"type": "Ready", "status": "True"}]
        nodes = [
            {"metadata": {"name": name}, "status": {"conditions": ready, "nodeInfo": {"bootID": "sick" if name == "n7" else "well"}}}
            for name in [*names, "other"]
        ]
        return types.SimpleNamespace(items=[project(item) for item in nodes])

    made._client.list_result, made._client.list = list_result, lambda _path, **_options: []
    made._client.delete = lambda _path: None
    made._groups.waiting = [{"name": "g001", "nodes": names}]
    for name in names:
        made._on_node("ADDED", node(name))
    made._admit()
    attempt = only_attempt(made)
    attempt.state = State.RUNNING
    take_at_once(made)
    made._to_decided(attempt, Decision("failed", None, "exit 1"))
    made._drain()
    assert asked == ["/api/v1/nodes"] and [item["node"] for item in attempt.health] == ["n7"]


@pytest.mark.parametrize("step", [Step.CREATE, Step.COLLECT, Step.REMOVE, Step.POLL_LOG, Step.ASK_REFUSAL])
def test_an_error_of_a_step_is_never_dropped(tmp_path, step):
    """Each is told, or decides the attempt; a defect of ours ends the batch instead of looking like a result."""
    told = []
    made = engine(tmp_path, progress=told.append)
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(step, attempt.name, error=ClusterError("the server is gone", status=503)))
    assert attempt.decision or any("the server is gone" in line for line in told)
    with pytest.raises(ZeroDivisionError):
        made._on_taken(Taken(step, attempt.name, error=ZeroDivisionError()))


def lose_contact(made, records):
    """Eight nodes with a group each go silent one after another; five of them for longer than the grace time."""
    made._contact.grace_s = 0
    names = [f"n{index}" for index in range(8)]
    made._batch.groups[:] = [{"name": f"g{index}", "nodes": [name]} for index, name in enumerate(names)]
    made._groups.records = {group["name"]: [] for group in made._batch.groups}
    made._groups.records["g0"] = records
    made._groups.waiting = []
    for name in names[:4]:
        made._on_node("MODIFIED", node(name, "Unknown"))
    for name in names[4:]:
        made._on_node("MODIFIED", node(name))
    made._check_contact()
    assert made._groups.records["g0"][0]["cause"]["reason"] == "NodeLost", "half of the nodes may really be down"
    made._on_node("MODIFIED", node("n4", "Unknown"))
    made._check_contact()


def test_losing_contact_with_most_of_the_cluster_accuses_no_node(tmp_path):
    made = engine(tmp_path)
    lose_contact(made, [attempt_record(1, "failed", Said("NodeLost", "n0 was lost", ("n0",)))])
    assert "5 of 8 nodes" in made._broken
    assert made._groups.records["g0"][0]["outcome"] == "cancelled"
    assert (made._groups.records["g0"][0]["cause"]["reason"], made._groups.records["g0"][0]["cause"]["nodes"]) == ("Cancelled", [])


def test_a_resumed_run_acquits_whom_the_first_start_had_acquitted(tmp_path):
    """In memory the accusation was taken back; the journal kept it, and the resumed run condemned four healthy nodes."""
    made = engine(tmp_path)
    record = attempt_record(1, "failed", Said("NodeLost", "n0 was lost", ("n0",)))
    made._journal.write("attempt_done", 0, category="c01", group="g0", record=record)
    lose_contact(made, [record])
    again = finished_attempts(read_journal(str(tmp_path / "journal.jsonl")), "c01")
    assert [(item["attempt"], item["outcome"], item["cause"]["reason"]) for item in again["g0"]] == [(1, "cancelled", "Cancelled")]


def test_the_loss_of_most_of_a_large_cluster_acquits_the_members_of_a_small_batch(tmp_path):
    """Each wave of an isolation is such a batch; what its two nodes have in common with all others is not their hardware."""
    made = engine(tmp_path)
    made._contact.grace_s = 0
    for index in range(2, 8):
        made._on_node("MODIFIED", node(f"n{index}", "Unknown"))
    made._on_node("MODIFIED", node("n0", "Unknown"))
    assert not made._contact.news(["n0", "n1"], time.monotonic()).lost, "too many are silent to accuse one of them"
    made._check_contact()
    assert "7 of 8 nodes of the cluster" in made._broken


def test_an_interruption_does_not_use_up_the_repetition_of_a_group(tmp_path):
    made = engine(tmp_path)
    cut_short = attempt_record(1, "cancelled", Said("Cancelled", "the play was ended"))
    evicted = attempt_record(2, "failed", Said("Evicted", "drained"))
    assert not made._groups.is_final(GROUP, [cut_short])
    assert not made._groups.is_final(GROUP, [cut_short, evicted]), "undisturbed, the same eviction would have been repeated"
    assert made._groups.is_final(GROUP, [cut_short, evicted, {**evicted, "attempt": 3}])


def test_a_node_that_was_not_ready_before_its_test_is_left_out_and_not_condemned(tmp_path):
    made = engine(tmp_path)
    made._on_node("MODIFIED", node("n1", "False"))
    made._admit()
    assert not made._live, "a kubelet that restarts is back in seconds"
    made._contact.grace_s = 0
    made._admit()
    attempt = only_attempt(made)
    assert attempt.nodes == ["n0"]
    assert [(item["node"], item["reason"]) for item in attempt.excluded] == [("n1", "NodeUnavailable")]


def test_a_group_of_which_no_node_can_be_tested_ends_at_once_with_the_reason(tmp_path):
    made = engine(tmp_path)
    made._contact.grace_s = 0
    made._batch.bounds["retries"] = 0
    made._batch.groups[:] = made._groups.waiting[:] = [{"name": "g001", "nodes": ["n0"]}]
    made._on_node("MODIFIED", node("n0", "False"))
    for name in ("n2", "n3", "n4"):
        made._on_node("ADDED", node(name))
    made._admit()
    (record,) = made._groups.records["g001"]
    assert not made._live and record["outcome"] == "not_started"
    assert (record["cause"]["reason"], record["cause"]["nodes"]) == ("NodeUnavailable", ["n0"])
    assert "Ready=False" in record["cause"]["message"]


@pytest.mark.parametrize(
    "planned, now, reason",
    [
        ({"uid": "machine-1"}, {"uid": "machine-2"}, "NodeUnavailable"),
        ({"gpus": 8}, {"gpus": 7}, "HardwareFailureDetected"),
        ({"uid": "machine-1", "gpus": 8}, {"uid": "machine-1", "gpus": 8}, None),
        ({"uid": None, "gpus": 8}, {"uid": "machine-1", "gpus": 8}, None),
        ({}, {"cordoned": True}, "NodeUnavailable"),
    ],
)
def test_a_node_that_is_not_what_was_planned_is_left_out(tmp_path, planned, now, reason):
    made = engine(tmp_path)
    made._contact.grace_s = 0
    made._batch.planned["n1"] = {"uid": None, "boot_id": None, "gpus": None, "trouble": None, **planned}
    made._on_node("MODIFIED", node("n1", **now))
    made._admit()
    attempt = only_attempt(made)
    assert [item["reason"] for item in attempt.excluded] == ([reason] if reason else [])


def test_nodes_that_are_all_short_of_gpus_are_left_out_and_not_condemned(tmp_path):
    made = engine(tmp_path)
    made._contact.grace_s = made._batch.bounds["retries"] = 0
    for name in GROUP["nodes"]:
        made._batch.planned[name] = {"uid": None, "boot_id": None, "gpus": 8, "trouble": None}
        made._on_node("MODIFIED", node(name, gpus=0))
    made._admit()
    (record,) = made._groups.records["g001"]
    assert record["cause"]["reason"] == "NodeUnavailable" and "device plugin" in record["cause"]["message"]


def test_a_pod_that_another_made_with_our_labels_is_no_evidence(tmp_path):
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    made._on_pod("ADDED", pod_of(attempt, "somebody", code=0))
    made._on_pod("ADDED", pod_of(attempt, "our-job"))
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    assert [pod["uid"] for pod in attempt.pods.values()] == ["uid-0-our-job"], "it came before the answer to our own request"
    made._on_pod("MODIFIED", pod_of(attempt, "somebody", code=0))
    assert attempt.launcher()["uid"] == "uid-0-our-job"


def test_a_restart_while_the_test_ran_is_in_the_record(tmp_path):
    made = engine(tmp_path)
    for name in GROUP["nodes"]:
        made._on_node("MODIFIED", node(name, boot="first", gpus=8))
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    made._on_pod("ADDED", pod_of(attempt, "our-job"))
    made._on_pod("ADDED", pod_of(attempt, "our-job", 1, "n1"))
    made._advance(attempt, time.monotonic())
    assert attempt.started_at is not None
    made._on_node("MODIFIED", node("n1", boot="first", gpus=7))
    made._on_node("MODIFIED", node("n1", boot="second", gpus=8))
    made._to_decided(attempt, Decision("succeeded", exit_code=0))
    seen = {item["node"]: item for item in record_of(attempt, attempt.decision)["machines"]}
    assert (seen["n0"]["before"], seen["n0"]["after"]) == (seen["n0"]["before"], seen["n0"]["before"])
    assert (seen["n1"]["before"]["boot_id"], seen["n1"]["after"]["boot_id"], seen["n1"]["fewest_gpus"]) == ("first", "second", 7)


def test_logs_of_a_killed_attempt_are_not_put_before_those_of_the_resumed_one(tmp_path):
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    folder = tmp_path / "logs" / "c01"
    folder.mkdir(parents=True)
    for name in ("g001-1-0.log.part", "g001-1-0.log", "g0011-1-0.log", "g001-2-0.log"):
        (folder / name).write_text("old")
    made._steps._forget_logs(attempt.target())
    assert sorted(path.name for path in folder.iterdir()) == ["g001-2-0.log", "g0011-1-0.log"]


def test_an_object_to_which_a_webhook_added_labels_is_still_ours():
    made = {"metadata": {"labels": {"run": "r"}, "ownerReferences": [{"uid": "anchor"}]}}
    found = {"metadata": {"labels": {"run": "r", "team": "x"}, "ownerReferences": [{"uid": "anchor", "kind": "ConfigMap"}]}}
    assert is_same(found, made)
    assert not is_same({"metadata": {"labels": {"run": "r", "team": "x"}}}, made), "without our anchor it is somebody else's"
    assert not is_same({"metadata": {**found["metadata"], "labels": {"team": "x"}}}, made)


def test_why_a_log_could_not_be_read_is_the_cause_and_the_group_is_run_again(tmp_path):
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    made._on_pod("ADDED", pod_of(attempt, "our-job", code=0))
    attempt.started_at = time.monotonic()
    made._to_decided(attempt, Decision("succeeded", exit_code=0))
    launcher = attempt.launcher()["name"]
    made._on_taken(Taken(Step.COLLECT, attempt.name, result=Collected(problems={launcher: "401: the token has expired"})))
    made._to_done(attempt)
    (record,) = made._groups.records["g001"]
    assert record["cause"]["reason"] == "LogUnavailable" and "401: the token has expired" in record["cause"]["message"]
    assert [group["name"] for group in made._groups.waiting] == ["g001"]
    made._admit()
    assert not made._live, "not at once: what kept the log back is still there"


def test_a_job_that_cannot_be_deleted_does_not_hold_nodes_on_which_its_pods_have_ended(tmp_path):
    """Where deletion is refused, each group kept its nodes for a minute, and the categories after it never began."""
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    attempt.own("u")
    attempt.decision, attempt.finished_at = Decision("succeeded"), time.monotonic()
    attempt.state = State.REMOVING
    running, ended = pod_of(attempt, "u", 1, "n1"), pod_of(attempt, "u", 0, "n0", 0)
    ended["phase"] = "Succeeded"
    for pod in (running, ended):
        attempt.claim_pod(pod, gone=False)
    made._on_taken(Taken(Step.REMOVE, attempt.name, error=ClusterError("jobs.batch is forbidden", status=403)))
    made._advance(attempt, time.monotonic())
    assert made._busy, "a worker still runs"
    attempt.claim_pod({**running, "phase": "Failed"}, gone=False)
    made._advance(attempt, time.monotonic())
    assert not made._busy and attempt.state is State.DONE


def test_events_are_asked_about_no_other_object_where_they_cannot_be_read(tmp_path):
    """They only explain: nine objects, each with the whole patience of the client, held the nodes for minutes."""
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    asked = []

    def refused(path, **_options):
        asked.append(path)
        raise ClusterError("etcdserver: request timed out", status=500)

    made._client.list = refused
    (line,) = made._steps.events(attempt.target(), ["job", "pod-0", "pod-1"])
    assert len(asked) == 1 and "etcdserver: request timed out" in line


def running(made):
    """The only attempt, with both of its pods running."""
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    for index, name in enumerate(GROUP["nodes"]):
        made._on_pod("ADDED", pod_of(attempt, "our-job", index, name))
    made._advance(attempt, time.monotonic())
    assert attempt.state is State.RUNNING
    return attempt


@pytest.mark.parametrize(
    "words, reason",
    [
        ('pods is forbidden: User "bob" cannot watch resource "pods" in API group "" in the namespace "default"', "Forbidden"),
        ("GET /api/v1/nodes: the API server answered 401: Unauthorized", "Cancelled"),
        ("GET /api/v1/nodes: no answer from https://api: connection refused", "Cancelled"),
    ],
)
def test_a_watch_that_is_over_ends_the_run_with_its_own_words_and_reason(tmp_path, words, reason):
    """A permission that was lost midway was told as pod security, and "a webhook"."""
    made = engine(tmp_path)
    attempt = running(made)
    made._on_seen(Seen("pod", "ERROR", words))
    made._check_ending()
    assert attempt.decision and attempt.state is State.COLLECTING
    made._to_done(attempt)
    (record,) = made._groups.records["g001"]
    assert record["outcome"] == "cancelled" and record["cause"]["reason"] == reason and words in record["cause"]["message"]
    assert not made._groups.waiting, "nothing is begun any more"


def test_a_step_that_hangs_does_not_hold_a_run_that_is_to_end(tmp_path, monkeypatch):
    """An API server that hangs for good: neither reading the logs nor deleting the Job ever comes back."""
    made = engine(tmp_path)
    attempt = running(made)
    made._on_seen(Seen("pod", "ERROR", "no answer"))
    made._check_ending()
    now = attempt.finished_at
    assert attempt.state is State.COLLECTING
    made._advance(attempt, now + engine_module.HURRY_S - 1)
    assert attempt.state is State.COLLECTING
    made._advance(attempt, now + engine_module.HURRY_S)
    assert attempt.state is State.REMOVING
    made._advance(attempt, now + 2 * engine_module.HURRY_S)
    assert attempt.state is State.DONE and not made._live


def test_a_log_is_asked_for_again_only_when_the_last_answer_came(tmp_path):
    """Polls of an endpoint that hangs piled up, 720 an hour, and Ctrl-C waited for all of them."""
    made = engine(tmp_path)
    attempt = running(made)
    asked = []
    made._workers.submit = lambda one, step, _work: (asked.append(step), one.under_way.add(step))
    for seconds in range(0, 3600, 5):
        made._questions.poll_log(attempt, attempt.started_at + 10 + seconds)
    assert asked == [Step.POLL_LOG]
    made._on_taken(Taken(Step.POLL_LOG, attempt.name, result=False))
    made._questions.poll_log(attempt, attempt.started_at + 4000)
    assert asked == [Step.POLL_LOG] * 2


def test_a_job_whose_creation_was_refused_is_not_deleted(tmp_path):
    """The name was somebody else's: without the UID of a Job of ours there is nothing to delete."""
    made = engine(tmp_path)
    deleted = []
    made._client.delete = lambda path, **options: deleted.append((path, options))
    made._admit()
    attempt = only_attempt(made)
    take_at_once(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, error=ClusterError("already exists", status=409, api_reason="AlreadyExists")))
    made._drain()
    assert attempt.state in (State.RELEASING, State.DONE) and deleted == []
