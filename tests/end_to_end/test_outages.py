# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The way to the API server is cut, or falls silent: results survive, nobody is accused, and whoever wants to leave can."""

from __future__ import annotations

import time

import pytest

from ansible_collections.gpu_cluster.readiness.tests.end_to_end.world import N, Tap, World, small

AWAY_S = 30
ENDS_S = 120


@pytest.fixture
def tapped(start_cluster):
    """(cluster, tap, world) of a play that reaches the API server through the tap."""
    cluster = small(start_cluster, 2)
    tap = Tap(cluster)
    yield cluster, tap, World(cluster)
    tap.open()


@pytest.mark.parametrize("how", ["refuse", "hang"])
def test_an_api_server_that_is_away_for_half_a_minute_costs_no_result(tapped, how):
    """The tests end meanwhile: their logs are still there when it is back, and must not be deleted unread."""
    cluster, tap, world = tapped
    world.begin(readiness_kubeconfig=str(tap.kubeconfig)).until_running(N[1])
    getattr(tap, how)()
    time.sleep(AWAY_S)
    tap.open()
    result = world.end()
    assert result.status == 0 and result.verdicts() == {"passed": set(N[:2])}, result.output
    assert result.report["cleanup"]["proven"] and cluster.objects_of_ours() == []


def test_ctrl_c_ends_a_run_soon_although_nothing_answers_and_the_cleanup_play_removes_what_is_left(tapped):
    cluster, tap, world = tapped
    world.begin(readiness_kubeconfig=str(tap.kubeconfig)).until_running(N[1])
    tap.hang()
    time.sleep(8)  # a log is being read
    begun = world.interrupt()
    world.process.communicate(timeout=ENDS_S + 60)
    assert time.monotonic() - begun < ENDS_S
    assert world.process.returncode != 0
    world.until_ended()
    run_id = next((cluster.work / "runs").glob("2*")).name
    proof = world.entries()[-1]["cleanup"]
    assert not proof["proven"] and "cannot be listed" in proof["message"], "nothing is claimed that was not seen"
    tap.open()
    removed = cluster.play("cleanup", {"run_id": run_id, "readiness_kubeconfig": str(tap.kubeconfig)})
    assert removed.status == 0 and cluster.objects_of_ours() == [], removed.output
