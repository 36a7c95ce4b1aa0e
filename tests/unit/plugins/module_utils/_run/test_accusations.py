# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whom the engine accuses, whom it acquits, and whom it leaves out: what most nodes have in common is not their hardware."""

from __future__ import annotations

import time

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.journal import finished_attempts, read_journal
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.fitness import Eyes
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Step, Taken
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.records import record_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.steps import Now

from .engine_bench import GROUP, engine, node, only_attempt, pod_of


def ill_once_marked(facts):
    xid = any(item["type"] == "GpuXidError" and item["status"] == "True" for item in facts["status"]["conditions"])
    return {"message": "GpuXidError=True", "evidence": ["condition GpuXidError=True"], "kinds": ["xid"]} if xid else None


def marked(name):
    conditions = [{"type": "Ready", "status": "True"}, {"type": "GpuXidError", "status": "True"}]
    return node_facts({"metadata": {"name": name}, "status": {"conditions": conditions}})


def test_those_that_showed_first_what_most_nodes_show_are_acquitted_also_in_a_resumed_run(tmp_path):
    """A monitor is rolled out: it marks one node after another, and the first had been condemned before the third was marked."""
    made = engine(tmp_path, eyes=Eyes(ill_once_marked))
    made._on_node("ADDED", node("n2"))
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    made._on_pod("ADDED", pod_of(attempt, "our-job"))
    made._on_pod("ADDED", pod_of(attempt, "our-job", 1, "n1"))
    made._advance(attempt, time.monotonic())
    made._on_node("MODIFIED", marked("n0"))
    made._advance(attempt, time.monotonic())
    assert (attempt.decision.reason, attempt.decision.nodes) == ("HardwareFailureDetected", ["n0"])
    made._to_done(attempt)
    made._on_node("MODIFIED", marked("n1"))
    (record,) = made._groups.records["g001"]
    assert (record["cause"]["reason"], record["cause"]["nodes"]) == ("NodeUnavailable", [])
    assert "2 of 3 nodes show the same at once" in record["cause"]["message"]
    again = finished_attempts(read_journal(str(tmp_path / "journal.jsonl")), "c01")
    assert [item["cause"]["reason"] for item in again["g001"]] == ["NodeUnavailable"]
    assert made._fitness.excluded(["n0"], time.monotonic())[0]["reason"] == "NodeUnavailable"


def test_an_attempt_under_a_mass_event_ends_and_accuses_nobody(tmp_path):
    made = engine(tmp_path, eyes=Eyes(ill_once_marked))
    made._on_node("ADDED", node("n2"))
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    made._on_node("MODIFIED", marked("n0"))
    made._on_node("MODIFIED", marked("n1"))
    made._advance(attempt, time.monotonic())
    assert attempt.health == [] and (attempt.decision.reason, attempt.decision.nodes) == ("NodeUnavailable", ["n0", "n1"])
    assert record_of(attempt, attempt.decision)["cause"]["reason"] == "NodeUnavailable"


def lost_attempt(number=1, *nodes):
    return attempt_record(number, "failed", Said("NodeLost", f"{nodes[0]} was lost", nodes), started="2026-03-02T08:00:00Z")


def test_a_group_is_tested_without_the_member_that_died_under_it(tmp_path):
    """The others are untested for somebody else's death, also where no isolation follows."""
    made = engine(tmp_path)
    made._groups.waiting.clear()
    assert made._groups.keep("g001", lost_attempt(1, "n1"), 0.0, going=True)
    made._admit()
    attempt = only_attempt(made)
    assert (attempt.nodes, [(item["node"], item["reason"]) for item in attempt.excluded]) == (["n0"], [("n1", "NodeLost")])
    assert not made._groups.keep("g001", lost_attempt(2, "n0"), 0.0, going=True), "nobody is left"


def test_a_test_of_a_search_is_not_repeated_without_a_member(tmp_path):
    made = engine(tmp_path)
    made._batch.is_search = True
    assert made._groups.is_final(GROUP, [lost_attempt(1, "n1")]), "without it, it would be another question"


def test_beginning_without_a_node_that_is_away_does_not_use_up_the_repetition(tmp_path):
    """Its crash had ended the first attempt, and the second waited for it in vain: the others must still be tested."""
    made = engine(tmp_path)
    crashed = attempt_record(1, "failed", Said(None, "exit 1"), exit_code=1, started="2026-03-02T08:00:00Z")
    in_vain = attempt_record(2, "not_started", Said("NodeUnavailable", "n1 was lost before the test had begun", ("n1",)))
    assert not made._groups.is_final(GROUP, [crashed, in_vain])
    assert made._groups.is_final(GROUP, [crashed, in_vain, {**in_vain, "attempt": 3}]), "not for ever"
    assert made._groups.is_final(GROUP, [crashed, in_vain, {**crashed, "attempt": 3}])


def test_a_node_that_is_marked_to_be_taken_away_is_left_out(tmp_path):
    made = engine(
        tmp_path, eyes=Eyes(departure=lambda facts: "taint karpenter.sh/disrupted" if facts["metadata"]["name"] == "n1" else None)
    )
    made._admit()
    attempt = only_attempt(made)
    assert [(item["node"], item["reason"]) for item in attempt.excluded] == [("n1", "NodeUnavailable")]
    assert "taint karpenter.sh/disrupted" in attempt.excluded[0]["message"]


def test_a_mass_event_acquits_nobody_of_what_is_its_own(tmp_path):
    """One node lacks a GPU; that a monitor then marks it like all others takes nothing from that."""
    made = engine(tmp_path, eyes=Eyes(ill_once_marked))
    made._groups.waiting.clear()
    short = attempt_record(1, "not_started", Said("HardwareFailureDetected", "n0: n0 offers 7 GPUs, it offered 8", ("n0",)))
    made._groups.keep("g001", short, 0.0, going=False)
    for name in ("n0", "n1"):
        made._on_node("MODIFIED", marked(name))
    assert made._health.event("n0") and made._groups.records["g001"][0]["cause"]["reason"] == "HardwareFailureDetected"


def test_time_decides_nothing_while_the_api_server_is_away(tmp_path):
    """The test had ended, or the node was back: a watch that hears nothing says neither, and a healthy node was suspected, or lost."""
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    made._on_pod("ADDED", pod_of(attempt, "our-job"))
    made._on_pod("ADDED", pod_of(attempt, "our-job", 1, "n1"))
    now = time.monotonic()
    made._advance(attempt, now)
    asked = []
    made._workers.submit = lambda _attempt, step, _work: asked.append(step) if step is Step.ASK_NOW else None
    made._advance(attempt, now + 101)
    assert attempt.decision is None and asked == [Step.ASK_NOW]
    made._on_taken(Taken(Step.ASK_NOW, attempt.name, error=ClusterError("connection refused")))
    made._advance(attempt, now + 102)
    assert attempt.decision is None and asked == [Step.ASK_NOW], "it is not asked without a pause"
    made._on_taken(Taken(Step.ASK_NOW, attempt.name, result=Now([pod_of(attempt, "our-job", code=0)], [node("n0"), node("n1")])))
    made._advance(attempt, now + 108)
    assert attempt.decision.outcome == "succeeded", "as the cluster says once it is asked"


def test_a_hang_is_still_a_hang_when_the_cluster_was_asked(tmp_path):
    made = engine(tmp_path)
    made._admit()
    attempt = only_attempt(made)
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    for pod in (pod_of(attempt, "our-job"), pod_of(attempt, "our-job", 1, "n1")):
        made._on_pod("ADDED", pod)
    made._advance(attempt, now := time.monotonic())
    attempt.asked_at = now + 101
    made._advance(attempt, now + 102)
    assert attempt.decision.reason == "TimedOut"
