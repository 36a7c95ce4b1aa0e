# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The last look waits for what may mend itself, and for nothing else."""

from __future__ import annotations

import concurrent.futures
import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import last_look
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.contact import Contact
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.fitness import Fitness
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.illness import Health
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.last_look import LastLook
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts

NAMES = ["n0", "n1", "n2"]
BEFORE = {name: [{"uid": name, "boot_id": "first", "gpus": 8, "trouble": None}] for name in NAMES}
OUTAGE_S, GRACE_S = 300, 40


def node(name, ready="True", gpus=8, sick=""):
    status = {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"bootID": "first"}, "allocatable": {"nvidia.com/gpu": gpus}}
    return node_facts({"metadata": {"name": name, "uid": name, "labels": {"sick": sick}}, "status": status})


class AtOnce:
    """A pool that works in the caller's thread."""

    def submit(self, work):
        future = concurrent.futures.Future()
        try:
            future.set_result(work())
        except ClusterError as error:
            future.set_exception(error)
        return future


@pytest.fixture
def look(monkeypatch):
    """look(answer) → (what was seen, seconds it took, what was told). answer(seconds since the beginning) → nodes; may raise."""

    def take(answer):
        clock = types.SimpleNamespace(now=1000.0)

        def sleep(seconds):
            clock.now += seconds

        monkeypatch.setattr(last_look, "time", types.SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now, sleep=sleep))
        told = []
        contact, health = Contact(GRACE_S), Health(unwell)
        fitness = Fitness(contact, health, {}, ())
        made = LastLook(AtOnce(), lambda _names: answer(clock.now - 1000), contact, health, fitness, told.append, OUTAGE_S)
        return made.take(BEFORE, None, lambda: True), clock.now - 1000, told

    return take


def unwell(facts):
    kind = facts["metadata"]["labels"]["sick"]
    return {"message": kind, "evidence": [kind], "kinds": [kind]} if kind else None


def test_nodes_that_are_well_are_looked_at_once(look):
    seen, seconds, told = look(lambda _at: [node(name) for name in NAMES])
    assert (sorted(seen), seconds, told) == (NAMES, 0, [])


def test_a_kubelet_and_a_device_plugin_that_restart_are_waited_for(look):
    seen, seconds, _told = look(lambda at: [node("n0"), node("n1", "False" if at < 10 else "True"), node("n2", gpus=0 if at < 20 else 8)])
    assert 20 <= seconds < 25 and [seen[name]["trouble"] for name in NAMES] == [None] * 3 and seen["n2"]["gpus"] == 8


def test_what_does_not_mend_itself_is_told_after_the_grace_time(look):
    seen, seconds, _told = look(lambda _at: [node("n0"), node("n1", "Unknown"), node("n2", sick="condition GpuXidError=True")])
    assert GRACE_S <= seconds < GRACE_S + 5
    assert seen["n1"]["trouble"] and seen["n1"]["since"] and seen["n2"]["illness"]["kinds"] == ["condition GpuXidError=True"]


def test_an_api_server_that_is_away_is_waited_for_as_long_as_it_may_be(look):
    def answer(at, back):
        if at < back:
            raise ClusterError("connection refused")
        return [node(name) for name in NAMES]

    seen, _seconds, told = look(lambda at: answer(at, 100))
    assert sorted(seen) == NAMES and "connection refused" in told[0]
    seen, seconds, _told = look(lambda at: answer(at, 1e9))
    assert seen is None and OUTAGE_S <= seconds < OUTAGE_S + 10


def test_silence_of_most_nodes_is_no_word_about_any_of_them(look):
    seen, _seconds, _told = look(lambda _at: [node("n0"), node("n1", "Unknown"), node("n2", "Unknown")])
    assert seen is None


def test_a_node_that_is_gone_is_none(look):
    seen, _seconds, _told = look(lambda _at: [node("n0"), node("n2")])
    assert seen["n1"] is None and seen["n0"]
