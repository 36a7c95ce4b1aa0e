# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks of an attempt around an outage of the API server: nobody is judged by time in which nothing could be told."""

from __future__ import annotations

import time
import types

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import engine as engine_module
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.attempt import State
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Step, Taken
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.steps import Now

from .engine_bench import GROUP, engine, node, only_attempt, pod_of


def waiting(tmp_path, took_s=0):
    """(engine, attempt) whose Job exists and waits for its pods, twenty seconds at most. took_s: how long its creation took."""
    made = engine(tmp_path)
    made._batch.bounds["queue_timeout_s"] = 20
    made._admit()
    attempt = only_attempt(made)
    attempt.created_at -= took_s
    made._on_taken(Taken(Step.CREATE, attempt.name, result="our-job"))
    return made, attempt


def asked_late(made, attempt, now):
    """The clock of this attempt has run out while the API server was away for ten seconds."""
    asked = []
    made._workers.submit = lambda _attempt, step, _work: asked.append(step) if step is Step.ASK_NOW else None
    made._advance(attempt, now)
    assert asked == [Step.ASK_NOW]


def test_kubelets_that_were_away_with_the_api_server_are_given_time_to_tell(tmp_path, monkeypatch):
    """The first answer after an outage is as old as the outage; a healthy node was untested, its pod "not started"."""
    made, attempt = waiting(tmp_path)
    now = attempt.created_at
    pending = {**pod_of(attempt, "our-job", 1, "n1"), "running": False}
    asked_late(made, attempt, now + 21)
    clock = types.SimpleNamespace(monotonic=lambda: now + 31, time=time.time)
    monkeypatch.setattr(engine_module, "time", clock)
    made._on_taken(Taken(Step.ASK_NOW, attempt.name, result=Now([pod_of(attempt, "our-job"), pending], [node("n0"), node("n1")])))
    made._advance(attempt, now + 32)
    assert attempt.decision is None
    for index, name in enumerate(GROUP["nodes"]):
        made._on_pod("MODIFIED", pod_of(attempt, "our-job", index, name))
    made._advance(attempt, now + 33)
    assert attempt.decision is None and attempt.state is State.RUNNING


def test_a_server_that_is_always_slow_puts_no_decision_off_for_ever(tmp_path, monkeypatch):
    made, attempt = waiting(tmp_path)
    made._workers.submit = lambda *_work: None
    start, now = attempt.created_at, attempt.created_at + 21
    while attempt.decision is None and now < start + 400:
        made._advance(attempt, now)
        now += 8
        monkeypatch.setattr(engine_module, "time", types.SimpleNamespace(monotonic=lambda at=now: at, time=time.time))
        made._on_taken(Taken(Step.ASK_NOW, attempt.name, result=Now([], [node("n0"), node("n1")])))
        made._advance(attempt, now)
    assert attempt.decision and attempt.decision.outcome == "not_started" and now < start + 200


def test_a_job_that_took_long_to_create_waits_for_its_pods_as_long_as_any(tmp_path):
    """The API server was away while it was created: its pods had no second to start in, and its node was untested."""
    made, attempt = waiting(tmp_path, took_s=30)
    attempt.asked_at = time.monotonic()
    made._advance(attempt, time.monotonic())
    assert attempt.decision is None
