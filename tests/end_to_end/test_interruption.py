# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A play that is ended midway leaves nothing in the cluster, whatever ended it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

CERTIFICATION = {
    "categories": [{"test": "communication/nccl-all-reduce", "test_scale": "intra-node", "criteria": ["measured.bus_bandwidth >= 400"]}],
    "bounds": {"max_concurrent": 2},
}
WAIT_S = 60


def until(condition, why):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_killing_the_play_leaves_nothing(start_cluster, number):
    cluster = start_cluster(time_scale=5)  # slow enough to be interrupted
    command = cluster.command("certify", {"certification": CERTIFICATION})
    with (cluster.work / "play.log").open("w") as log:
        play = subprocess.Popen(command, cwd=cluster.work, env=cluster.environment(), stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: any(name.startswith("pod/") for name in cluster.objects_of_ours()), "the workloads never started")
        os.kill(play.pid, number)
        play.wait(timeout=WAIT_S)
    finally:
        if play.poll() is None:
            play.kill()
    until(lambda: cluster.objects_of_ours() == [], "objects were left behind")
    assert play.returncode != 0
    run = next(path for path in (cluster.work / "runs").iterdir() if path.is_dir() and not path.is_symlink())

    def last() -> dict:
        return json.loads((run / "journal.jsonl").read_text().splitlines()[-1])

    until(lambda: last()["event"] == "batch_end", "the batch did not come to its end")
    assert last()["cleanup"]["proven"]


def descendants(pid):
    """The process and all below it; ansible-core starts its workers in sessions of their own."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [pid, *(found for child in children for found in descendants(int(child)))]


def test_a_run_whose_control_node_died_is_resumed_over_what_it_left(start_cluster):
    cluster = start_cluster(time_scale=5, racks=1, nodes_per_rack=2)
    with (cluster.work / "play.log").open("w") as log:
        command = cluster.command("certify", {"certification": CERTIFICATION})
        play = subprocess.Popen(command, cwd=cluster.work, env=cluster.environment(), stdout=log, stderr=subprocess.STDOUT)
    until(lambda: any(name.startswith("pod/") for name in cluster.objects_of_ours()), "the workloads never started")
    for pid in descendants(play.pid):
        os.kill(pid, signal.SIGKILL)
    play.wait(timeout=WAIT_S)
    assert cluster.objects_of_ours(), "nobody was left to clean up"
    run = next((cluster.work / "runs").glob("2*"))
    result = cluster.play("certify", {"resume_run_dir": str(run)})
    assert result.status == 0, result.output
    assert cluster.objects_of_ours() == []


def test_an_interrupted_run_goes_on_and_runs_nothing_twice(start_cluster):
    cluster = start_cluster(time_scale=30, racks=1, nodes_per_rack=6)
    certification = {**CERTIFICATION, "bounds": {"max_concurrent": 1}}
    with (cluster.work / "play.log").open("w") as log:
        play = subprocess.Popen(
            cluster.command("certify", {"certification": certification}),
            cwd=cluster.work,
            env=cluster.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def entries() -> list[dict]:
        found = list((cluster.work / "runs").glob("2*/journal.jsonl"))
        return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []

    def succeeded() -> list[str]:
        return [item["group"] for item in entries() if item["event"] == "attempt_done" and item["record"]["outcome"] == "succeeded"]

    until(lambda: len(succeeded()) >= 2, "no group was finished")
    os.kill(play.pid, signal.SIGKILL)
    play.wait(timeout=WAIT_S)
    until(lambda: entries()[-1]["event"] == "batch_end", "the batch did not come to its end")
    before = succeeded()
    assert 2 <= len(before) < 6, "the run was interrupted midway"
    run = next((cluster.work / "runs").glob("2*"))
    result = cluster.play("certify", {"resume_run_dir": str(run)})
    assert result.status == 0, result.output
    assert sorted(succeeded()) == sorted(set(succeeded())) == [f"g00{index}" for index in range(1, 7)]
    assert result.report["verdict"] == "passed" and len(result.verdicts()["passed"]) == 6
    assert cluster.objects_of_ours() == []
