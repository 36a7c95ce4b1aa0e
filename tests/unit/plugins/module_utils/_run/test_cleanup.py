# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a cleanup says of the cluster is what it has seen, and it ends whatever the API server does."""

from __future__ import annotations

import threading
import time

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.kinds import CONFIG_MAP, OWNED
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import cleanup


class Server:
    """Objects by path; refuses what it is told to."""

    def __init__(self, *names):
        self.objects = {OWNED[0].path("ns", name): name for name in names}
        self.refused, self.held, self.asked, self.list_s = set(), set(), 0, 0.0
        self.at_once, self.most = 0, 0
        self._lock = threading.Lock()

    def hurried(self):
        return self

    def list(self, path, label_selector):
        with self._lock:
            self.asked += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.list_s)
        with self._lock:
            self.at_once -= 1
        if "list" in self.refused:
            raise ClusterError("etcdserver: request timed out", status=500)
        if "lie" in self.refused:
            return []
        return [{"metadata": {"name": name, "uid": name}} for item, name in self.objects.items() if item.startswith(path)]

    def get(self, path):
        if path not in self.objects:
            raise ClusterError("not found", status=404)
        return {"metadata": {"name": self.objects[path], "uid": self.objects[path]}}

    def delete(self, path, **_options):
        if "delete" in self.refused:
            raise ClusterError("jobs.batch is forbidden", status=403)
        if self.objects[path] not in self.held:
            del self.objects[path]


class Clock:
    def __init__(self):
        self.now, self.when = 0.0, {}

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        for moment in sorted(moment for moment in self.when if moment <= self.now):
            self.when.pop(moment)()


def clean(server, clock, **bounds):
    return cleanup.clean(server, "ns", "x=y", clock=clock, sleep=clock.sleep, **bounds)


def test_nothing_is_left_and_proven():
    server = Server("a", "b")
    assert clean(server, Clock()) == {"proven": True, "left": [], "message": ""} and not server.objects


def test_a_refusal_that_stays_is_waited_for_no_longer_than_an_outage_may_last():
    """A run that may not delete waited three minutes for each category, twice."""
    server, clock = Server("a"), Clock()
    server.refused.add("delete")
    proof = clean(server, clock, timeout_s=180, outage_s=20)
    assert not proof["proven"] and proof["left"] == ["job/a"] and "jobs.batch is forbidden" in proof["message"]
    assert 20 <= clock.now <= 25


def test_an_outage_that_is_longer_than_the_patience_with_objects_is_survived():
    server, clock = Server("a"), Clock()
    server.refused.add("list")
    clock.when[250] = server.refused.clear
    assert clean(server, clock, timeout_s=180, outage_s=300)["proven"] and clock.now >= 250


def test_an_object_that_stays_is_waited_for_its_time_while_all_is_answered():
    server, clock = Server("a"), Clock()
    server.held.add("a")
    proof = clean(server, clock, timeout_s=180, outage_s=20)
    assert proof["left"] == ["job/a"] and 180 <= clock.now <= 185


def test_a_list_that_hangs_delays_no_other():
    server = Server()
    server.list_s = 0.1
    assert cleanup.remaining(server, "ns", "x=y").problems == []
    assert server.asked == server.most == len(OWNED)


def test_an_anchor_that_no_list_shows_is_removed_all_the_same():
    """A cache that said "no ConfigMaps" made a cleanup proven, with the anchor still there."""
    server = Server()
    server.objects[CONFIG_MAP.path("ns", "anchor")] = "anchor"
    server.refused.add("lie")
    assert clean(server, Clock(), anchors=[{"name": "anchor", "uid": "anchor"}])["proven"] and not server.objects


def test_an_anchor_of_that_name_which_another_made_is_left_alone():
    server = Server()
    server.objects[CONFIG_MAP.path("ns", "anchor")] = "anchor"
    server.refused.add("lie")
    assert clean(server, Clock(), anchors=[{"name": "anchor", "uid": "of ours"}])["proven"] and server.objects
