# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind holds GPUs of others: it is removed whatever cannot be asked, and never called gone without having looked."""

from __future__ import annotations

import threading
import time

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.kinds import OWNED, SECRET
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import cleanup
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.pool import Pool


class Server:
    """Objects by kind; refuses to list or delete what it is told to."""

    def __init__(self, **objects):
        self.objects = {kind.plural: list(objects.get(kind.plural, [])) for kind in OWNED}
        self.unlistable, self.undeletable, self.nodes, self.deleted = set(), set(), {}, []

    def hurried(self):
        return self

    def list(self, path, label_selector):
        kind = path.rsplit("/", 1)[1]
        if kind in self.unlistable:
            raise ClusterError(f"{kind} is forbidden", status=403)
        return list(self.objects[kind])

    def get(self, path):
        return self.nodes[path.rsplit("/", 1)[1]]

    def delete(self, path, uid=None, grace_period_s=None):
        kind, name = path.rsplit("/", 2)[1:]
        self.deleted.append((kind, name, uid, grace_period_s))
        if name in self.undeletable:
            raise ClusterError("refused", status=403)
        item = next(item for item in self.objects[kind] if item["metadata"]["name"] == name)
        if grace_period_s == 0 or "spec" not in item:
            self.objects[kind].remove(item)
        else:
            item["metadata"]["deletionTimestamp"] = "now"


def thing(name, node=None):
    made = {"metadata": {"name": name, "uid": f"uid-{name}"}}
    return {**made, "spec": {"nodeName": node}} if node else made


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, _seconds):
        self.now += 10.0


def clean(server, **options):
    clock = Clock()
    return cleanup.clean(server, "default", "run=x", sleep=clock.sleep, clock=clock, **options)


def node(name, ready):
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def test_what_is_gone_is_proven_gone_with_the_uid_of_each():
    server = Server(jobs=[thing("j1")], configmaps=[thing("c1")])
    assert clean(server) == {"proven": True, "left": [], "message": ""}
    assert ("jobs", "j1", "uid-j1", None) in server.deleted


def test_a_kind_that_cannot_be_listed_blocks_no_other_and_is_named():
    server = Server(jobs=[thing("j1")])
    server.unlistable.add(SECRET.plural)
    proof = clean(server)
    assert server.objects["jobs"] == [], "the Job holds GPUs"
    assert not proof["proven"] and "secrets cannot be listed" in proof["message"]


def test_what_cannot_be_deleted_is_left_and_named_within_the_time():
    server = Server(jobs=[thing("j1"), thing("j2")])
    server.undeletable.add("j1")
    proof = clean(server, timeout_s=60)
    assert (proof["proven"], proof["left"]) == (False, ["job/j1"]) and "refused" in proof["message"]


def test_only_pods_on_lost_nodes_are_removed_by_force_and_it_is_said():
    """On a node that answers, only its kubelet knows whether the process is gone."""
    server = Server(pods=[thing("p1", "n1"), thing("p2", "n2"), thing("p3", "n3")])
    server.nodes = {"n1": node("n1", "True"), "n2": node("n2", "Unknown")}
    proof = clean(server, timeout_s=120, lost_nodes={"n3"})
    assert proof["left"] == ["pod/p1"] and "2 pods on lost nodes were removed by force" in proof["message"]
    forced = {name for _kind, name, _uid, grace in server.deleted if grace == 0}
    assert forced == {"p2", "p3"}


def test_deletions_that_hang_end_with_the_time():
    class Hanging(Server):
        def delete(self, *_args, **_options):
            threading.Event().wait(30)

    started = time.monotonic()
    proof = cleanup.clean(Hanging(jobs=[thing(f"j{index}") for index in range(40)]), "default", "run=x", timeout_s=1.0)
    assert not proof["proven"] and time.monotonic() - started < 15


def test_a_pool_gives_back_results_and_errors_and_begins_nothing_after_its_end():
    pool = Pool(2, "test")
    assert [pool.submit(lambda value=value: value * 2).result(5) for value in range(5)] == [0, 2, 4, 6, 8]
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(5)
    gate = threading.Event()
    running = [pool.submit(gate.wait) for _ in range(2)]
    while not all(item.running() for item in running):
        time.sleep(0.01)
    late = pool.submit(lambda: "late")
    pool.stop()
    gate.set()
    assert [item.result(5) for item in running] == [True, True]
    assert pool.submit(lambda: 1).cancelled()
    with pytest.raises(BaseException):  # noqa: B017 - cancelled, as futures tell it
        late.result(5)


def test_a_pool_never_has_more_threads_than_its_size():
    pool, peak, lock, running = Pool(3, "test"), [0], threading.Lock(), [0]

    def work():
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1

    for item in [pool.submit(work) for _ in range(30)]:
        item.result(10)
    pool.stop()
    assert peak[0] <= 3
