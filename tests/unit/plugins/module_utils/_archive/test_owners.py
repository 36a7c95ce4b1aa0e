# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A run is its play's as long as a process of it lives, and no longer; a pid that was given away again is not taken for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive import owners


@pytest.fixture
def process():
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield started
    started.kill()
    started.wait()


def test_a_play_that_was_killed_is_dead_though_nobody_has_waited_for_it(process):
    owner = {**owners.this_owner(process.pid), "worker": owners._process(process.pid)}
    assert owners.lives(owner) is True
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    assert owners.lives(owner) is False


def test_a_worker_that_outlives_its_play_still_cleans_up_and_holds_the_run(process):
    owner = {**owners.this_owner(os.getpid()), "play": {"pid": 2**22 + 1, "started": "1"}, "worker": owners._process(process.pid)}
    assert owners.lives(owner) is True
    process.kill()
    process.wait()
    assert owners.lives(owner) is False


def test_a_pid_that_was_given_away_again_is_not_the_owner():
    ours = owners.this_owner()
    recycled = {"pid": os.getpid(), "started": "1"}
    assert owners.lives({**ours, "play": recycled, "worker": recycled}) is False


def test_pids_of_another_machine_or_container_say_nothing_here():
    assert owners.lives({**owners.this_owner(), "machine": "another boot/1"}) is None


def test_where_processes_of_others_are_hidden_only_the_heartbeat_can_tell(monkeypatch):
    monkeypatch.setattr(owners, "_look_at", lambda _pid: None)
    assert owners.lives(owners.this_owner()) is None


@pytest.mark.parametrize(
    "raw", [None, [], "x", {}, {"host": "h"}, {**owners.this_owner(), "play": {"pid": -1}}, {**owners.this_owner(), "worker": 1}]
)
def test_what_is_no_owner_is_not_believed(raw):
    assert owners.read_owner(raw) is None


def test_two_tasks_of_a_play_are_one_owner_and_two_plays_are_not():
    one, other = owners.this_owner(os.getppid()), owners.this_owner(os.getppid())
    assert one["token"] != other["token"] and owners.same_play(one, other)
    assert not owners.same_play(one, owners.this_owner())
