# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's own bookkeeping, without a cluster."""

from __future__ import annotations

import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.attempt import Decision, State
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.engine import Engine
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Batch, Step, Taken
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import job_facts, node_facts

GROUP = {"name": "g001", "nodes": ["n0", "n1"]}


def engine(tmp_path, **options):
    batch = Batch(
        run_id="run",
        run_dir=str(tmp_path),
        category="c01",
        title="c01",
        template={"namespace": "default", "env": []},
        groups=[GROUP],
        bounds={"max_concurrent": 1, "retries": 1, "start_grace_s": 10},
        deadline_at=2e9,
    )
    made = Engine(types.SimpleNamespace(), batch, **options)
    made._submit = lambda *_work: None
    made._synced.add("node")
    return made


def take_at_once(made):
    """Steps are taken in this thread, and their results seen."""

    def submit(attempt, step, work):
        made._on_taken(Taken(step, attempt.name, result=work()))

    made._submit = submit


def only_attempt(made):
    attempts = list(made._live.values())
    assert len(attempts) == 1
    return attempts[0]


def node(name, ready="True"):
    return node_facts({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})


def test_a_node_that_fell_ill_while_nothing_ran_on_it_is_seen_when_its_test_starts(tmp_path):
    """Nothing changes on it any more, so no watch would ever tell of it."""
    made = engine(tmp_path, health=lambda facts: {"message": "sick", "evidence": []} if facts["metadata"]["name"] == "n1" else None)
    for name in GROUP["nodes"]:
        made._on_node("ADDED", node(name))
    made._admit()
    attempt = only_attempt(made)
    assert [item["node"] for item in attempt.health] == ["n1"]


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
    made._ask_refusal(attempt, 105.0)
    assert not asked
    made._ask_refusal(attempt, 111.0)
    assert words in attempt.refusal
    events[:] = [{"reason": "FailedCreate", "message": 'pods "x" is forbidden: exceeded quota: gpus'}]
    made._ask_refusal(attempt, 122.0)
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
    made = engine(tmp_path, health=lambda facts: {"message": "sick", "evidence": []} if facts["metadata"]["name"] == "n7" else None)
    asked = []

    def list_result(path, project):
        asked.append(path)
        nodes = [
            {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}} for name in [*names, "other"]
        ]
        return types.SimpleNamespace(items=[project(item) for item in nodes])

    made._client.list_result, made._client.list = list_result, lambda _path, **_options: []
    made._client.delete = lambda _path: None
    made._waiting = [{"name": "g001", "nodes": names}]
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


def test_losing_contact_with_most_nodes_at_once_accuses_none_of_them(tmp_path):
    made = engine(tmp_path)
    names = [f"n{index}" for index in range(8)]
    made._batch.groups[:] = [{"name": f"g{index}", "nodes": [name]} for index, name in enumerate(names)]
    made._records = {group["name"]: [] for group in made._batch.groups}
    made._records["g0"] = [attempt_record(1, "failed", Said("NodeLost", "n0 was lost", ("n0",)))]
    made._waiting = []
    for name in names[:4]:
        made._on_node("MODIFIED", node(name, "Unknown"))
    for name in names[4:]:
        made._on_node("MODIFIED", node(name))
    made._check_contact()
    assert made._records["g0"][0]["cause"]["reason"] == "NodeLost", "half of the nodes may really be down"
    made._on_node("MODIFIED", node("n4", "Unknown"))
    made._check_contact()
    assert "5 of 8 nodes" in made._broken
    assert made._records["g0"][0]["outcome"] == "cancelled"
    assert (made._records["g0"][0]["cause"]["reason"], made._records["g0"][0]["cause"]["nodes"]) == ("Cancelled", [])
