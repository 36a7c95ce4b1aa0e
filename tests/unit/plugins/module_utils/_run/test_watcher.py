# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A watch neither hammers an API server in trouble, nor loses what it missed, nor dies unseen."""

from __future__ import annotations

import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.sending import Expired
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.watcher import GOOD_WATCH_S, Watcher

OUTAGE_S = 300.0


class Server:
    """Lists and watches as it is told, on a clock of its own. Each answer takes a hundredth of a second."""

    def __init__(self, listed=None, watched=None):
        self.now, self.asked, self._listed, self._watched = 0.0, [], listed, watched
        self.things = [pod("a")]
        self.until_s, self.stop = 0.0, None

    def list_result(self, _path, *, label_selector, project):
        self._ask("list")
        if self._listed:
            self._listed(self)
        return types.SimpleNamespace(items=[project(item) for item in self.things], resource_version="1")

    def watch(self, _path, *, resource_version, label_selector, timeout_s, silence_s):
        self._ask("watch")
        yield from (self._watched(self) or ()) if self._watched else ()

    def _ask(self, what):
        self.now += 0.01
        if self.now >= self.until_s:
            self.stop()
        self.asked.append((self.now, what))


def pod(name, **more):
    return {"metadata": {"name": name, "resourceVersion": "2"}, **more}


def facts(thing):
    return {"name": thing["metadata"]["name"], "size": thing.get("size", 0)}


def run(server, until_s, project=facts):
    """What a watcher delivered in so many seconds."""
    seen = []

    def pause(seconds):
        server.now += seconds

    watcher = Watcher(
        server, "pod", "/pods", project, lambda *said: seen.append(said[1:]), outage_s=OUTAGE_S, clock=lambda: server.now, pause=pause
    )
    server.until_s, server.stop = until_s, watcher.stop
    watcher.run()
    return seen


def gone(_server):
    raise Expired("too old")


def refused(_server):
    raise ClusterError("etcdserver: request timed out", status=500)


@pytest.mark.parametrize(
    "trouble",
    [{"listed": gone}, {"watched": gone}, {}, {"listed": refused}, {"watched": refused}, {"watched": lambda _server: [("ADDED", None)]}],
    ids=["410 on the list", "410 on the watch", "ends at once", "list refused", "watch refused", "no object"],
)
def test_a_server_in_trouble_is_asked_ever_more_seldom(trouble):
    server = Server(**trouble)
    run(server, 290)
    assert 10 <= len(server.asked) <= 60, "it is asked again and again, and not five times a second"
    lists = [at for at, what in server.asked if what == "list"]
    assert max(later - before for before, later in zip(lists, lists[1:], strict=False)) <= 31, "and not too seldom to see that it is back"


def test_a_refusal_that_lasts_as_long_as_an_outage_is_told_as_the_end():
    seen = run(Server(listed=refused), 2 * OUTAGE_S)
    assert [event for event, _facts in seen] == ["ERROR"] and "etcdserver" in seen[0][1]


def test_a_hiccup_is_no_end():
    server = Server(listed=lambda server: refused(server) if server.now < 100 else None)
    assert "ERROR" not in [event for event, _facts in run(server, 2 * OUTAGE_S)]


def test_what_was_missed_between_two_watches_is_told_by_the_next_list():
    def change(server):
        server.things = [pod("b"), pod("c", size=1)] if server.now > 5 else [pod("a"), pod("c")]
        return ()

    seen = run(Server(watched=change), 60)
    told = [(event, facts["name"]) for event, facts in seen if facts]
    assert told == [("ADDED", "a"), ("ADDED", "c"), ("ADDED", "b"), ("ADDED", "c"), ("DELETED", "a")]


def test_a_strange_object_is_told_once_and_passed_over():
    server = Server()
    server.things = [pod("a"), {"metadata": {"name": "strange"}, "size": 1}]

    def project(thing):
        return {**facts(thing), "half": 1 / (1 - thing.get("size", 0))}

    seen = run(server, 60, project)
    assert [(event, text) for event, text in seen if event == "STRANGE"] == [("STRANGE", seen[0][1])] and "strange" in seen[0][1]
    assert ("ADDED", {"name": "a", "size": 0, "half": 1.0}) in seen


def test_a_watch_that_lasts_forgets_the_trouble_before():
    def watched(server):
        if server.now > 100:
            server.now += 2 * GOOD_WATCH_S
        return ()

    server = Server(watched=watched)
    run(server, 400)
    watches = [at for at, what in server.asked if what == "watch" and at > 160]
    assert all(later - before < 31 for before, later in zip(watches, watches[1:], strict=False)), "no pause between good watches"


@pytest.mark.parametrize("problem", [refused, lambda _server: [("ADDED", None)]], ids=["refused", "no object"])
def test_a_hiccup_after_hours_of_good_watches_is_no_end(problem):
    """Its outage was counted from the list that the watches went on from, so that a single 403 ended a run of more than five minutes."""

    def watched(server):
        if not 7200 <= server.now < 7300:
            server.now += 240
            return ()
        return problem(server)

    server = Server(watched=watched)
    seen = run(server, 9000)
    assert "ERROR" not in [event for event, _facts in seen] and server.asked[-1][1] == "watch"
