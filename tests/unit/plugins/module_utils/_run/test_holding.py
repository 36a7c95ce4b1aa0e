# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Only one run at a time uses a run_id in a namespace: a live one is never swept, a dead one is taken over by one alone."""

from __future__ import annotations

import copy
import json
import threading

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive import owners
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import anchors, holding
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.holding import Holding
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import Batch
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload import names

DEAD = {"pid": 2**22 + 1, "started": "1"}
ELSEWHERE = {**owners.this_owner(), "machine": "another/1", "host": "control-2", "user": "ada"}
TEMPLATE = {
    "framework": "mpi",
    "namespace": "default",
    "image": "x",
    "env": [],
    "gpus_per_node": 8,
    "resources": {},
    "tolerations": [],
    "security": {},
    "ssh_port": 2222,
    "success_policy": True,
    "active_deadline_s": 60,
    "mpi": {"mpirun": "mpirun", "mpirun_args": [], "binary": "b", "args": []},
}
NAME = names.anchor_name("run", "c01")


class Api:
    """An API server of few words: optimistic concurrency, names that exist once, and a clock of its own."""

    def __init__(self):
        self.objects, self.version, self.time, self.calls = {}, 0, 1e9, []
        self.before_create = self.before_patch = lambda _path: None

    def now(self):
        return self.time

    def hurried(self):
        return self

    def create(self, path, body, is_ours=None):
        self.before_create(path)
        name = body["metadata"]["name"]
        if f"{path}/{name}" in self.objects:
            raise ClusterError("exists", status=409, api_reason="AlreadyExists")
        self.version += 1
        meta = {
            **body["metadata"],
            "uid": f"u{self.version}",
            "resourceVersion": str(self.version),
            "creationTimestamp": f"{self.version:09}",
        }
        self.objects[f"{path}/{name}"] = made = {**copy.deepcopy(body), "metadata": meta}
        self.calls.append(f"create {name}")
        return copy.deepcopy(made)

    def patch(self, path, body):
        self.before_patch(path)
        found = self.get(path)
        wanted = body["metadata"]
        if wanted.get("resourceVersion") not in (None, found["metadata"]["resourceVersion"]):
            raise ClusterError("changed", status=409, api_reason="Conflict")
        self.version += 1
        found["metadata"]["annotations"] |= wanted["annotations"]
        found["metadata"]["resourceVersion"] = str(self.version)
        self.objects[path] = found
        self.calls.append(f"patch {path.rsplit('/', 1)[1]}")
        return copy.deepcopy(found)

    def get(self, path):
        if path not in self.objects:
            raise ClusterError("gone", status=404)
        return copy.deepcopy(self.objects[path])

    def list(self, path, label_selector):
        wanted = dict(pair.partition("=")[::2] for pair in label_selector.split(","))
        for key, item in list(self.objects.items()):
            labels = item["metadata"]["labels"]
            if key.startswith(f"{path}/") and all(
                labels.get(name) == value or (not value and name in labels) for name, value in wanted.items()
            ):
                yield copy.deepcopy(item)

    def delete(self, path, uid=None, **_options):
        if path in self.objects and self.objects[path]["metadata"]["uid"] == uid:
            del self.objects[path]
            self.calls.append(f"delete {path.rsplit('/', 1)[1]}")

    def names(self):
        return sorted(path.rsplit("/", 1)[1] for path in self.objects)


def hold(api, owner=None, run_dir="", category="c01", lost=lambda _why: None, nodes=1, tell=lambda _text: None):
    group = {"name": "g001", "nodes": [f"n{index}" for index in range(nodes)]}
    batch = Batch("run", run_dir, category, category, TEMPLATE, [group], {}, 0.0, owner=owner or owners.this_owner())
    return Holding(api, batch, lost=lost, tell=tell)


def left_by(api, owner, category="c01", beat=None):
    """What a run left: its anchor, a Job and a Secret."""
    marks = anchors.marks(owner, api.time if beat is None else beat, api.time + 3600)
    labels = names.category_labels("run", category)
    meta = {"name": names.anchor_name("run", category), "labels": labels, "annotations": marks}
    made = api.create("/api/v1/namespaces/default/configmaps", {"metadata": meta, "data": {}})
    api.create("/apis/batch/v1/namespaces/default/jobs", {"metadata": {"name": f"old-{category}", "labels": labels}})
    api.create("/api/v1/namespaces/default/secrets", {"metadata": {"name": f"old-{category}-ssh", "labels": labels}})
    return made


@pytest.fixture
def api():
    return Api()


def other_play():
    return {**owners.this_owner(), "play": owners._process(1), "worker": DEAD, "user": "ada"}


@pytest.mark.parametrize("category", ["c01", "c02"], ids=["same batch", "another batch"])
@pytest.mark.parametrize("owner", [other_play(), ELSEWHERE], ids=["here", "elsewhere"])
def test_a_live_run_of_the_same_id_is_refused_with_its_owner_and_nothing_of_it_is_touched(api, owner, category):
    left_by(api, owner, category)
    before, calls = copy.deepcopy(api.objects), len(api.calls)
    mine = hold(api)
    with pytest.raises(anchors.NotOurs, match=f"ada@{owner['host']}, process {owner['play']['pid']}, since {owner['since']}"):
        mine.take(60)
    proof = mine.clean_up(set())
    assert not proof["proven"] and "is going on here" in proof["message"]
    assert api.objects == before and len(api.calls) == calls


def test_a_batch_with_nothing_left_to_run_does_not_sweep_a_live_run_of_its_id(api):
    left_by(api, ELSEWHERE)
    before = copy.deepcopy(api.objects)
    assert not hold(api).clean_up(set())["proven"]
    assert api.objects == before


@pytest.mark.parametrize(
    ("owner", "beat"),
    [
        ({**owners.this_owner(), "play": DEAD, "worker": DEAD}, None),
        (ELSEWHERE, 1e9 - owners.STALE_S),
        ({}, None),
    ],
    ids=["its process is dead", "no heartbeat for the stated time", "of an earlier version"],
)
def test_a_dead_run_is_taken_over_and_what_it_left_is_swept_before_anything_is_made(api, owner, beat):
    left_by(api, owner, beat=beat)
    mine = hold(api, nodes=2)
    (reference,) = mine.take(60)
    claimed, created = api.calls.index(f"patch {NAME}"), api.calls.index(f"create {NAME}", 1)
    assert claimed < api.calls.index("delete old-c01") < created, "claimed first, so that nobody else sweeps what follows"
    (found,) = anchors.anchors(api, "default", "run")
    assert found.uid == reference["uid"] and found.owner == mine._batch.owner and found.lives(api.now())
    assert "old-c01" not in api.names() and names.secret_name("run", "c01") in api.names()
    assert mine.clean_up(set())["proven"] and api.names() == []


def test_a_heartbeat_is_dated_and_judged_by_the_servers_clock_alone(api):
    """The control node's clock is wrong by years here, and nobody is taken for dead or alive by it."""
    left_by(api, ELSEWHERE, beat=api.time - owners.STALE_S + 1)
    with pytest.raises(anchors.NotOurs):
        hold(api).take(60)
    api.time += 1
    hold(api).take(60)


def test_the_one_who_comes_second_to_a_dead_run_touches_nothing(api):
    left_by(api, {**owners.this_owner(), "play": DEAD, "worker": DEAD})
    first, second = hold(api, other_play()), hold(api)

    def first_was_faster(_path):
        api.before_patch = lambda _path: None
        first.take(60)

    api.before_patch = first_was_faster
    with pytest.raises(anchors.NotOurs, match="at the same moment"):
        second.take(60)
    before = copy.deepcopy(api.objects)
    assert not second.clean_up(set())["proven"] and api.objects == before
    assert first.clean_up(set())["proven"]


def test_of_two_that_begin_at_the_same_moment_one_goes_on_and_the_other_leaves_nothing(api):
    first, second = hold(api, other_play()), hold(api)

    def first_was_faster(path):
        if path.endswith("configmaps"):
            api.before_create = lambda _path: None
            first.take(60)

    api.before_create = first_was_faster
    with pytest.raises(anchors.NotOurs):
        second.take(60)
    assert [item.owner["user"] for item in anchors.anchors(api, "default", "run")] == ["ada"]
    assert first.clean_up(set())["proven"] and api.names() == [], "the fuse of the second is out too"


def test_of_two_that_begin_different_batches_at_the_same_moment_the_younger_yields(api):
    older, younger = hold(api, other_play()), hold(api, category="c02")

    def older_was_faster(path):
        if path.endswith("configmaps"):
            api.before_create = lambda _path: None
            older.take(60)

    api.before_create = older_was_faster
    with pytest.raises(anchors.NotOurs):
        younger.take(60)
    assert [item.category for item in anchors.anchors(api, "default", "run")] == ["c01"]
    older.clean_up(set())


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(holding, "HEARTBEAT_S", 0.01)


def waiting():
    told, seen = [], threading.Event()
    return told, seen, lambda why: (told.append(why), seen.set())


def test_the_heartbeat_goes_on_whoever_labels_the_anchor_meanwhile(api, fast):
    told, seen, lost = waiting()
    mine = hold(api, lost=lost)
    mine.take(60)
    path = f"/api/v1/namespaces/default/configmaps/{NAME}"
    for _beat in range(20):
        api.time += 60
        api.objects[path]["metadata"]["resourceVersion"] = f"touched-{_beat}"
        for _look in range(500):
            if anchors.read_anchor(api.get(path)).beat == anchors.utc(api.time):
                break
            threading.Event().wait(0.01)
        else:
            pytest.fail("no heartbeat came")
    assert not told
    mine.clean_up(set())


def test_a_run_that_was_taken_over_ends_and_leaves_the_others_objects_alone(api, fast):
    told, seen, lost = waiting()
    mine = hold(api, lost=lost)
    mine.take(60)
    path = f"/api/v1/namespaces/default/configmaps/{NAME}"
    taken = anchors.marks(ELSEWHERE, api.time, api.time + 60)
    api.objects[path]["metadata"] |= {"annotations": taken, "resourceVersion": "taken"}
    assert seen.wait(10) and "ada@control-2" in told[0]
    before = copy.deepcopy(api.objects)
    assert not mine.clean_up(set())["proven"] and api.objects == before


def test_a_run_whose_anchor_somebody_removed_ends(api, fast):
    told, seen, lost = waiting()
    mine = hold(api, lost=lost)
    mine.take(60)
    del api.objects[f"/api/v1/namespaces/default/configmaps/{NAME}"]
    assert seen.wait(10) and "removed from the cluster" in told[0]


def test_what_a_foreign_hand_wrote_as_owner_keeps_no_run_alive(api):
    made = left_by(api, ELSEWHERE)
    made["metadata"]["annotations"][names.OWNER_ANNOTATION] = json.dumps({"host": "x", "play": {"pid": -1}})
    assert not anchors.read_anchor(made).lives(api.now())
    made["metadata"]["annotations"] |= {names.OWNER_ANNOTATION: json.dumps(ELSEWHERE), names.HEARTBEAT_ANNOTATION: "yesterday"}
    assert not anchors.read_anchor(made).lives(api.now())


def test_only_dead_runs_are_swept_as_expired(api):
    """A live run whose announced end has passed, by whatever clock, is left alone."""
    left_by(api, ELSEWHERE)
    api.time += 7200
    api.objects[f"/api/v1/namespaces/default/configmaps/{NAME}"]["metadata"]["annotations"][names.HEARTBEAT_ANNOTATION] = anchors.utc(
        api.time
    )
    assert anchors.expired_runs(api, "default") == []
    api.time += owners.STALE_S
    assert anchors.expired_runs(api, "default") == ["run"]


def test_a_category_holds_as_many_objects_of_each_kind_as_the_table_of_quotas_says(api):
    """docs/rbac.md: a Job that nobody runs, its fuse, an anchor, and a key where groups start over ssh."""
    hold(api, nodes=2).take(60)
    kinds = sorted(path.rsplit("/", 2)[1] for path in api.objects)
    assert kinds == ["configmaps", "jobs", "secrets"]


def test_a_quota_that_leaves_no_room_for_the_fuse_stops_nothing_and_is_told(api):
    def refuse(path):
        if path.endswith("/jobs"):
            raise ClusterError('jobs.batch "x" is forbidden: exceeded quota: jobs', status=403)

    api.before_create, told = refuse, []
    mine = hold(api, tell=told.append)
    assert mine.take(60)
    assert len(told) == 1 and "its objects stay until they are cleaned up" in told[0] and "exceeded quota" in told[0]
    assert mine.clean_up(set())["proven"] and api.names() == []
