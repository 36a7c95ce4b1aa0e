# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A watch that dies unseen leaves a run blind; one that never pauses takes an API server down."""

from __future__ import annotations

import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.sending import Expired
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.watcher import MAX_BACKOFF_S, Watcher


def thing(name, version="1"):
    return {"metadata": {"name": name, "resourceVersion": version}, "name": name}


class Server:
    """Plays one step for each list and each watch: an exception, or what it yields. A watch may advance the clock."""

    def __init__(self, lists=(), watches=()):
        self.lists, self.watches, self.now, self.requests = list(lists), list(watches), 0.0, []

    def list_result(self, _path, label_selector, project):
        self.requests.append(("list", self.now))
        step = self.lists.pop(0) if self.lists else []
        if isinstance(step, Exception):
            raise step
        return types.SimpleNamespace(items=[project(item) for item in step], resource_version="7")

    def watch(self, _path, resource_version, label_selector, timeout_s):
        self.requests.append(("watch", self.now))
        step = self.watches.pop(0) if self.watches else ()
        if isinstance(step, Exception):
            raise step
        for item in step:
            if isinstance(item, (int, float)):
                self.now += item
            else:
                yield item


def watch(server, *, rounds=50, outage_s=300.0):
    seen, pauses = [], []

    def pause(seconds):
        pauses.append(seconds)
        server.now += seconds
        if len(pauses) >= rounds:
            made.stop()

    made = Watcher(
        server, "pod", "/pods", lambda item: {"name": item["metadata"]["name"]}, lambda *told: seen.append(told),
        outage_s=outage_s, clock=lambda: server.now, pause=pause,
    )  # fmt: skip
    made.run()
    return seen, pauses


def test_a_server_that_refuses_a_version_again_and_again_is_asked_ever_more_slowly():
    server = Server(watches=[Expired("gone", status=410)] * 100)
    _seen, pauses = watch(server, rounds=20)
    assert max(pauses) > 10 and all(0 < pause <= MAX_BACKOFF_S for pause in pauses)
    assert len([1 for kind, at in server.requests if at < 5]) < 15, "never a hot loop"


def test_a_watch_that_ends_at_once_is_not_repeated_without_a_pause():
    """A load balancer, or a server that drains."""
    server = Server()
    _seen, pauses = watch(server, rounds=10)
    assert len(pauses) == 10 and pauses[-1] > pauses[0]


def test_a_watch_that_lasted_forgets_the_pauses_before_it():
    server = Server(watches=[(), (), (), (20.0,), ()])
    _seen, pauses = watch(server, rounds=4)
    assert pauses[3] < 2


@pytest.mark.parametrize(
    "error", [ClusterError("503", status=503), ClusterError("403 once", status=403), ValueError("garbage"), AssertionError()]
)
def test_an_outage_within_its_bound_is_survived_and_what_was_missed_is_listed(error):
    server = Server(lists=[[thing("a")], error, error, [thing("b")]], watches=[(20.0,), error])
    seen, _pauses = watch(server, rounds=6)
    events = [(event, facts and facts["name"]) for _kind, event, facts in seen if event != "SYNCED"]
    assert events[:3] == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert not any(event == "ERROR" for _kind, event, _facts in seen)


def test_an_outage_beyond_its_bound_is_told_and_ends_the_thread():
    server = Server(lists=[ClusterError("connection refused")] * 1000)
    seen, _pauses = watch(server, rounds=1000, outage_s=120.0)
    assert [event for _kind, event, _facts in seen] == ["ERROR"] and "connection refused" in seen[0][2]
    assert 120 <= server.now < 200


def test_a_strange_object_is_passed_over_and_named_once():
    """Anybody may put a pod with our label into the namespace."""
    strange = {"metadata": {}}
    server = Server(lists=[[thing("a"), strange]], watches=[(("MODIFIED", strange), ("ADDED", thing("b")), 20.0)])
    seen, _pauses = watch(server, rounds=2)
    assert [facts["name"] for _kind, event, facts in seen if event == "ADDED"] == ["a", "b"]
    assert [event for _kind, event, _facts in seen].count("STRANGE") == 1
