# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A run that is killed with all it started, after whatever entry of its journal, comes to what it would have come to undisturbed."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal
import subprocess
import threading
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import LOCK, is_half_written
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.manifest import verify_manifest
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common import shapes

N = [f"gpu-r0-n0{index}" for index in range(4)]
SLOW = N[1]
# Entries that no ordinary run makes have a test of their own.
UNUSUAL = {"attempt_acquitted"}
PLAY_S = 240

# In the environment of the play, not in the product: once the entry is on disk, the play and the worker of its task are killed.
HOOK = """
import json, os, re, signal
sync, event, place = os.fsync, os.environ["KILL_AFTER"], os.environ["KILL_IN"]

def fsync(handle):
    sync(handle)
    path = os.readlink(f"/proc/self/fd/{handle}")
    if path.endswith("/journal.jsonl"):
        with open(path) as journal:
            last = json.loads(journal.read().splitlines()[-1])
        if last["event"] == event and re.fullmatch(place, last["category"]):
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

os.fsync = fsync
"""
CATEGORY, WAVE = r"c\d+", r"c\d+w\d+"


class Run:
    """One run, however many plays it takes."""

    def __init__(self, cluster, **certification):
        self.cluster, self.certification = cluster, certification
        self.hook = cluster.work / "hook"
        self.hook.mkdir()
        (self.hook / "sitecustomize.py").write_text(HOOK)

    @property
    def directory(self) -> pathlib.Path | None:
        return next(iter((self.cluster.work / "runs").glob("2*")), None)

    def variables(self) -> dict[str, t.Any]:
        return {"resume_run_dir": str(self.directory)} if self.directory else {"certification": self.certification}

    def until_killed(self, event: str, place: str) -> None:
        path = os.pathsep.join(filter(None, [str(self.hook), os.environ.get("PYTHONPATH")]))
        environment = {**self.cluster.environment(), "PYTHONPATH": path, "KILL_AFTER": event, "KILL_IN": place}
        command = self.cluster.command("certify", self.variables())
        with (self.cluster.work / "play.log").open("w") as log:
            ended = subprocess.run(
                command, cwd=self.cluster.work, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=PLAY_S, check=False
            )
        said = (self.cluster.work / "play.log").read_text()
        assert ended.returncode == -signal.SIGKILL, f"no entry {event} in {place}: {said}"
        assert self.entries()[-1]["event"] == event

    def entries(self) -> list[dict[str, t.Any]]:
        return [json.loads(line) for line in (self.directory / "journal.jsonl").read_text().splitlines()]

    def finish(self):
        """Lets it come to its end, and sees that nothing is wrong with what it left."""
        result = self.cluster.play("certify", self.variables())
        assert result.report is not None, result.output
        assert result.report["cleanup"]["proven"], result.output
        assert self.cluster.objects_of_ours() == []
        assert verify_manifest(self.directory) == []
        assert {item["event"] for item in self.entries()} <= set(t.get_args(shapes.JournalEvent)), "an entry that no test kills after"
        left = [path for path in self.directory.rglob("*") if path.is_file() and (is_half_written(path) or path.name == LOCK)]
        assert left == []
        done = [item for item in self.entries() if item["event"] == "attempt_done" and item["record"]["outcome"] == "succeeded"]
        twice = collections.Counter((item["category"], item["group"], item["record"]["repeat"]) for item in done)
        assert set(twice.values()) == {1}, "an attempt succeeded twice"
        for log in (self.directory / "logs").rglob("*.log"):
            assert log.read_text().count("# nThread") <= 1, f"{log} holds the logs of two executions"
        return result


def one_slow_node(start_cluster) -> Run:
    cluster = start_cluster(racks=1, nodes_per_rack=3, time_scale=60, faults=[{"kind": "node_slow", "node": SLOW, "factor": 0.5}])
    category = {"test": "communication/nccl-all-reduce", "test_scale": "intra-node", "criteria": ["measured.bus_bandwidth >= 400"]}
    return Run(cluster, categories=[category], bounds={"max_concurrent": 2})


def assert_undisturbed(result) -> None:
    assert result.status != 0 and result.report["verdict"] == "failed", result.output
    assert result.verdicts() == {"failed": {SLOW}, "passed": {N[0], N[2]}}, result.output


def test_undisturbed_the_slow_node_alone_is_convicted(start_cluster):
    assert_undisturbed(one_slow_node(start_cluster).finish())


@pytest.mark.parametrize("event", [event for event in t.get_args(shapes.JournalEvent) if event not in UNUSUAL])
def test_a_run_that_was_killed_in_its_category_and_again_in_a_wave_comes_to_the_same(start_cluster, event):
    run = one_slow_node(start_cluster)
    run.until_killed(event, CATEGORY)
    run.until_killed(event, WAVE)
    assert_undisturbed(run.finish())


@pytest.mark.long
def test_a_run_that_was_killed_while_it_took_an_accusation_back_accuses_nobody(start_cluster):
    """First one node falls silent and is held lost, then all do: contact was being lost, and the first is acquitted."""
    cluster = start_cluster(racks=1, nodes_per_rack=4, time_scale=10)
    category = {"test": "communication/nccl-all-reduce", "test_scale": "intra-node", "criteria": ["measured.bus_bandwidth >= 400"]}
    bounds = {"max_concurrent": 1, "node_grace_s": 3, "start_grace_s": 2}
    long = {"max_bytes": "16G", "iterations": 400}
    run = Run(cluster, categories=[category], bounds=bounds, isolate="never", options=long)
    api, stop = Client.from_options({"kubeconfig": str(cluster.kubeconfig)}), threading.Event()
    condition = {"type": "Ready", "reason": "KubeletNotReady", "message": "silent"}

    def happened(event: str, words: str = "") -> bool:
        if run.directory is None or not (run.directory / "journal.jsonl").exists():
            return False
        return any(item["event"] == event and words in json.dumps(item) for item in run.entries())

    def silence():
        while not stop.wait(0.2):
            if happened("attempt_running"):
                for name in N if happened("attempt_done", "NodeLost") else N[:1]:
                    status = {"conditions": [{**condition, "status": "False"}]}
                    api.patch(f"/api/v1/nodes/{name}/status", {"status": status}, kind="strategic")

    hand = threading.Thread(target=silence)
    hand.start()
    try:
        run.until_killed("attempt_acquitted", CATEGORY)
    finally:
        stop.set()
        hand.join()
    for name in N:
        api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [{**condition, "status": "True"}]}}, kind="strategic")
    result = run.finish()
    assert result.status == 0 and result.verdicts() == {"passed": set(N)}, result.output
