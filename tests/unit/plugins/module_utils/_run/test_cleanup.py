# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a cleanup says of the cluster is what it has seen, and it ends whatever the API server does."""

from __future__ import annotations

import threading
import time

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.kinds import CONFIG_MAP, OWNED, POD, SECRET
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import cleanup


class Server:
    """Objects by path; refuses what it is told to. held: these stay after their deletion, by finalizers where `finalizers` names some."""

    def __init__(self, *names):
        self.objects = {OWNED[0].path("ns", name): name for name in names}
        self.refused, self.held, self.asked, self.list_s = set(), set(), 0, 0.0
        self.finalizers, self.deleted, self.nodes, self.forced, self.hung = {}, set(), {}, [], threading.Event()
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
        if "list" in self.refused or path in self.refused:
            raise ClusterError("etcdserver: request timed out", status=500)
        if "lie" in self.refused:
            return []
        return [self._object(name) for item, name in self.objects.items() if item.startswith(path)]

    def _object(self, name):
        meta = {"name": name, "uid": name, "resourceVersion": f"{name in self.deleted}", "finalizers": self.finalizers.get(name, [])}
        return {
            "metadata": {**meta, **({"deletionTimestamp": "2026-03-02T08:00:00Z"} if name in self.deleted else {})},
            "spec": {"nodeName": f"node-of-{name}"},
        }

    def get(self, path):
        node = path.rpartition("/")[2]
        if node in self.nodes:
            return {"metadata": {"name": node}, "status": {"conditions": [{"type": "Ready", "status": self.nodes[node]}]}}
        if path not in self.objects:
            raise ClusterError("not found", status=404)
        return {"metadata": {"name": self.objects[path], "uid": self.objects[path]}}

    def delete(self, path, grace_period_s=None, **_options):
        if "hang" in self.refused:
            self.hung.wait(60)
            return
        if grace_period_s == 0:
            self.forced.append(self.objects[path])
        if "delete" in self.refused:
            raise ClusterError("jobs.batch is forbidden", status=403)
        self.deleted.add(self.objects[path])
        if self.objects[path] not in self.held or grace_period_s == 0:
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


def with_pods(server, *names):
    server.objects.update({POD.path("ns", name): name for name in names})
    server.held.update(names)
    return server


@pytest.mark.parametrize("names, said", [(["a"], "1 object"), (["a", "b"], "2 objects")])
def test_what_is_left_is_counted_as_people_count(names, said):
    server = Server(*names)
    server.held.update(names)
    assert clean(server, Clock(), timeout_s=20, outage_s=20)["message"].endswith(said)


def test_a_kind_that_cannot_be_listed_blocks_the_removal_of_no_other():
    """Where Secrets could not be listed any more, running Jobs kept their GPUs."""
    server, clock = Server("a", "b"), Clock()
    server.refused.add(SECRET.path("ns"))
    proof = clean(server, clock, timeout_s=20, outage_s=20)
    assert not server.objects and proof == {"proven": False, "left": [], "message": proof["message"]}
    assert "secrets cannot be listed" in proof["message"]


def test_deletions_that_hang_do_not_hold_the_cleanup():
    """One after another, each with the whole patience of the client, 512 of them took three hours instead of three minutes."""
    names = [f"job-{index}" for index in range(64)]
    server = Server(*names)
    server.refused.add("hang")
    try:
        begun = time.monotonic()
        proof = clean(server, Clock(), timeout_s=0.5, outage_s=0.5)
        assert time.monotonic() - begun < 30 and len(proof["left"]) == 64
    finally:
        server.hung.set()


def test_a_pod_is_removed_by_force_from_a_lost_node_alone_and_that_is_said():
    """On a node that answers only the kubelet knows what still runs there: its API object gone, a hung driver would be called proven."""
    server, clock = with_pods(Server(), "well", "silent", "gone"), Clock()
    server.nodes.update({"node-of-well": "True", "node-of-silent": "Unknown"})
    proof = clean(server, clock, timeout_s=180, outage_s=20)
    assert sorted(set(server.forced)) == ["gone", "silent"] and proof["left"] == ["pod/well"] and not proof["proven"]
    assert "removed by force from lost nodes: 2 pods" in proof["message"]


def test_a_kubelet_that_restarts_during_the_cleanup_loses_its_node_nothing():
    server, clock = with_pods(Server(), "a"), Clock()
    server.nodes["node-of-a"] = "False"
    clock.when[35] = lambda: server.nodes.update({"node-of-a": "True"})
    clock.when[37] = lambda: server.nodes.update({"node-of-a": "False"})
    clock.when[60] = server.objects.clear
    assert clean(server, clock, timeout_s=180, outage_s=20) == {"proven": True, "left": [], "message": ""} and server.forced == []


def test_a_node_that_is_known_to_be_lost_is_not_waited_for():
    server, clock = with_pods(Server(), "silent"), Clock()
    proof = clean(server, clock, lost_nodes={"node-of-silent"})
    assert proof["proven"] and "removed by force from lost nodes: 1 pod;" in proof["message"] and clock.now < 5


def test_what_only_somebodys_finalizer_holds_is_named_with_it_before_the_time_is_up():
    server, clock = with_pods(Server(), "a"), Clock()
    server.nodes["node-of-a"] = "True"
    server.finalizers["a"] = ["example.com/held"]
    proof = clean(server, clock, timeout_s=180, outage_s=20)
    assert not proof["proven"] and proof["left"] == ["pod/a"] and 30 <= clock.now <= 35
    assert "pod/a is held by the finalizer example.com/held" in proof["message"] and "kubectl" in proof["message"]


def test_a_finalizer_that_is_taken_away_in_time_holds_nothing():
    server, clock = with_pods(Server(), "a"), Clock()
    server.nodes["node-of-a"] = "True"
    server.finalizers["a"] = ["example.com/held"]
    clock.when[20] = server.objects.clear
    assert clean(server, clock, timeout_s=180, outage_s=20) == {"proven": True, "left": [], "message": ""}


@pytest.mark.parametrize("finalizers", [["batch.kubernetes.io/job-tracking"], ["foregroundDeletion"], ["scheduling.k8s.io/x"], []])
def test_what_kubernetes_itself_holds_gets_its_whole_time(finalizers):
    """Its controllers take their finalizers away, and kubelets end pods in theirs."""
    server, clock = with_pods(Server(), "a", "held"), Clock()
    server.nodes.update({"node-of-a": "True", "node-of-held": "True"})
    server.finalizers.update({"a": finalizers, "held": ["example.com/held"]})
    proof = clean(server, clock, timeout_s=180, outage_s=20)
    assert clock.now >= 180 and proof["left"] == ["pod/a", "pod/held"]
    assert "pod/held is held" in proof["message"] and "pod/a is held" not in proof["message"]
