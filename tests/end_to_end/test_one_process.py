# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A run is one process's: nobody else takes it up, sweeps it or uses its id while it lives, and whatever ends it frees it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.manifest import verify_manifest
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.kinds import CONFIG_MAP, JOB, SECRET
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.times import utc
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload import names
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.objects import anchor, attempt_objects, fuse, ssh_secret

CERTIFICATION = {
    "categories": [{"test": "communication/nccl-all-reduce", "test_scale": "intra-node", "criteria": ["measured.bus_bandwidth >= 400"]}],
    "bounds": {"max_concurrent": 1},
}
WAIT_S = 120
ID = "the-one"


def files(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".ansible" not in path.parts}


class Alive:
    """A run that is going on, with an attempt that runs."""

    def __init__(self, cluster):
        self.cluster, self.directory = cluster, cluster.work / "runs" / ID
        with (cluster.work / "first.log").open("w") as log:
            command = cluster.command("certify", {"certification": CERTIFICATION, "run_id": ID})
            self.play = subprocess.Popen(command, cwd=cluster.work, env=cluster.environment(), stdout=log, stderr=subprocess.STDOUT)
        self.until(lambda: "attempt_running" in self.events(), "the workloads never started")
        (self.worker,) = children(self.play.pid)

    def until(self, condition, why):
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{why}: {(self.cluster.work / 'first.log').read_text()}"
            time.sleep(0.2)

    def events(self):
        journal = self.directory / "journal.jsonl"
        return [json.loads(line)["event"] for line in journal.read_text().splitlines()] if journal.exists() else []

    @contextlib.contextmanager
    def frozen(self):
        """While others reach for it, so that it does not end before they do."""
        for pid in (self.worker, self.play.pid):
            os.kill(pid, signal.SIGSTOP)
        yield
        for pid in (self.worker, self.play.pid):
            os.kill(pid, signal.SIGCONT)

    def kill(self):
        for pid in [*children(self.play.pid), self.play.pid] if self.play.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        self.play.wait(timeout=WAIT_S)

    def end(self):
        self.play.wait(timeout=WAIT_S)
        return self.cluster.result(self.play.returncode, (self.cluster.work / "first.log").read_text())


def children(pid):
    shown = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(number) for number in shown.split()]


@pytest.fixture
def alive(start_cluster):
    run = Alive(start_cluster(racks=1, nodes_per_rack=2, time_scale=10))
    yield run
    run.kill()


def test_whoever_reaches_for_a_run_that_is_alive_is_refused_and_the_run_does_not_notice(alive, tmp_path):
    cluster = alive.cluster
    copied = cluster.work / "copy" / ID
    elsewhere = {"certification": CERTIFICATION, "run_id": ID, "runs_dir": str(tmp_path / "other")}
    who = f"process {alive.play.pid}, since "
    refused = {
        "its resumption": ("certify", {"resume_run_dir": str(alive.directory)}),
        "a run of the same id elsewhere": ("certify", elsewhere),
        "its cleanup": ("cleanup", {"run_id": ID}),
    }
    with alive.frozen():
        shutil.copytree(alive.directory, copied)
        (copied / ".lock").unlink()
        refused["the resumption of a copy"] = ("certify", {"resume_run_dir": str(copied)})
        before, objects = files(cluster.work / "runs") | files(copied), cluster.objects_of_ours()
        for what, (playbook, variables) in refused.items():
            result = cluster.play(playbook, variables)
            assert result.status != 0 and who in result.output and "going on" in result.output, f"{what}: {result.output}"
        assert files(cluster.work / "runs") | files(copied) == before, "a directory was touched"
        assert cluster.objects_of_ours() == objects, "an object was touched"
        assert not (tmp_path / "other").exists(), "a directory was made for a run that could not begin"
    ended = alive.end()
    assert ended.status == 0 and alive.events().count("attempt_done") == 2, ended.output
    assert cluster.objects_of_ours() == [] and verify_manifest(alive.directory) == []
    assert not (alive.directory / ".lock").exists()


def test_a_cleanup_by_force_ends_a_run_that_is_alive(alive):
    with alive.frozen():
        result = alive.cluster.play("cleanup", {"run_id": ID, "cleanup_force": True})
        assert result.status == 0, result.output
    ended = alive.end()
    assert ended.status != 0, ended.output
    assert alive.cluster.objects_of_ours() == []


@pytest.mark.parametrize("afterwards", ["resume", "cleanup"])
def test_when_the_worker_alone_is_killed_the_play_fails_and_its_lock_is_in_nobodys_way(alive, afterwards):
    os.kill(alive.worker, signal.SIGKILL)
    assert alive.play.wait(timeout=WAIT_S) != 0
    assert alive.cluster.objects_of_ours(), "nobody was left to clean up"
    if afterwards == "cleanup":
        result = alive.cluster.play("cleanup", {"run_id": ID})
        assert result.status == 0, result.output
    else:
        result = alive.cluster.play("certify", {"resume_run_dir": str(alive.directory)})
        assert result.status == 0 and result.report["verdict"] == "passed", result.output
        assert verify_manifest(alive.directory) == []
    assert alive.cluster.objects_of_ours() == []


def test_an_interruption_does_not_use_up_the_repetition_of_a_group(start_cluster):
    """Interrupted and then evicted once, with one repetition: the verdict is that of an eviction in a run that nobody disturbed."""
    alive = Alive(start_cluster(racks=1, nodes_per_rack=1, time_scale=10))
    alive.play.send_signal(signal.SIGTERM)
    alive.until(lambda: "batch_end" in alive.events(), "the batch did not come to its end")
    alive.play.wait(timeout=WAIT_S)
    cluster, seen = alive.cluster, len(alive.events())
    with (cluster.work / "second.log").open("w") as log:
        command = cluster.command("certify", {"resume_run_dir": str(alive.directory)})
        play = subprocess.Popen(command, cwd=cluster.work, env=cluster.environment(), stdout=log, stderr=subprocess.STDOUT)
    alive.until(lambda: "attempt_running" in alive.events()[seen:], "the resumed run did not begin")
    cluster.kubectl("delete", "pods", "--all", "--wait=false")
    play.wait(timeout=WAIT_S)
    result = cluster.result(play.returncode, (cluster.work / "second.log").read_text())
    entries = [json.loads(line) for line in (alive.directory / "journal.jsonl").read_text().splitlines()]
    records = [item["record"] for item in entries if item["event"] == "attempt_done"]
    outcomes = [(record["outcome"], record["cause"] and record["cause"]["reason"]) for record in records]
    assert outcomes == [("cancelled", "Cancelled"), ("failed", "Evicted"), ("succeeded", None)], result.output
    assert result.status == 0 and result.report["verdict"] == "passed", result.output


def test_the_heartbeat_of_a_live_run_moves_in_its_directory_and_in_the_cluster(start_cluster):
    alive = Alive(start_cluster(racks=1, nodes_per_rack=2, time_scale=1))
    api = Client.from_options({"kubeconfig": str(alive.cluster.kubeconfig)})

    def beats():
        meta = api.get(CONFIG_MAP.path("default", names.anchor_name(ID, "c01")))["metadata"]
        assert [item["kind"] for item in meta["ownerReferences"]] == ["Job"], "the fuse was refused"
        marks = meta["annotations"]
        owner = json.loads(marks[names.OWNER_ANNOTATION])
        assert owner["play"]["pid"] == alive.play.pid and owner["worker"]["pid"] == alive.worker
        return (alive.directory / ".lock").stat().st_mtime_ns, marks[names.HEARTBEAT_ANNOTATION]

    try:
        first = beats()
        alive.until(lambda: all(now != before for now, before in zip(beats(), first, strict=True)), "no heartbeat")
    finally:
        alive.kill()


def test_what_a_dead_control_node_left_removes_itself_suspended_jobs_and_keys_too(start_cluster):
    """Nobody cleans up here: the fuse of the category is all there is. Its time is seconds here instead of hours."""
    cluster = start_cluster(racks=1, nodes_per_rack=2)
    planned = cluster.play("certify", {"certification": CERTIFICATION})
    template = json.loads((planned.run_dir / "plan.json").read_text())["categories"][0]["template"]
    api = Client.from_options({"kubeconfig": str(cluster.kubeconfig)})
    lit = api.create(JOB.path("default"), fuse(template, ID, "c01", "0a", 5))
    marks = {names.EXPIRES_ANNOTATION: utc(time.time() + 3600)}
    owner = [names.owner_reference({"apiVersion": "batch/v1", "kind": "Job", **lit})]
    held = api.create(CONFIG_MAP.path("default"), anchor(ID, "default", "c01", marks, owner))
    owner = [names.owner_reference({"apiVersion": "v1", "kind": "ConfigMap", **held})]
    api.create(SECRET.path("default"), ssh_secret(ID, "default", "c01", owner, private_key="x", public_key="y", port=2222))
    identity = {"run_id": ID, "category": "c01", "group": "g001", "attempt": 1, "owner": owner}
    job = api.create(JOB.path("default"), attempt_objects(template, identity, ["gpu-r0-n00"])["job"])
    assert job["spec"]["suspend"] is True
    deadline = time.monotonic() + WAIT_S
    while cluster.objects_of_ours():
        assert time.monotonic() < deadline, cluster.objects_of_ours()
        time.sleep(0.5)
    assert list(api.list(JOB.path("default"))) == []
