# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The script behind "make certify": whatever ends it, no simulated cluster goes on behind the user's back."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time

import pytest

pytestmark = pytest.mark.simulator
ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT_S = 60


def servers(marker):
    lines = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if marker in line and "_simulator" in line]


def until(condition, why):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.2)


@pytest.fixture
def small(tmp_path):
    definition = tmp_path / "small.yml"
    definition.write_text("racks: 1\nnodes_per_rack: 2\n")
    return definition


def test_the_exit_status_is_the_commands_and_the_cluster_is_stopped(small):
    done = subprocess.run(
        ["tools/with_simulated_cluster", str(small), "sh", "-c", 'test -s "$KUBECONFIG" && exit 7'],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "")
    assert servers(str(small)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_no_cluster_outlives_the_script(small, number):
    started = small.with_name("started")
    command = ["tools/with_simulated_cluster", str(small), "sh", "-c", f"touch '{started}'; sleep 3"]
    environment = {**os.environ, "TMPDIR": str(small.parent)}  # a script that is killed cannot remove its folder
    script = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(started.exists, "the command never started")
    assert servers(str(small))
    script.send_signal(number)
    script.wait(timeout=WAIT_S)
    assert script.returncode != 0
    until(lambda: servers(str(small)) == [], "the simulated cluster still runs")
