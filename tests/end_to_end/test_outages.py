# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The way to the API server is cut, or falls silent: results survive, nobody is accused, and whoever wants to leave can."""

from __future__ import annotations

import time

import pytest

from ansible_collections.gpu_cluster.readiness.tests.end_to_end.world import BOUNDS, N, Tap, World, small

AWAY_S = 30
OUTAGE_S = 10
ENDS_S = 120


@pytest.fixture
def tapped(start_cluster):
    """(cluster, tap, world) of a play that reaches the API server through the tap."""
    cluster = small(start_cluster, 2)
    tap = Tap(cluster)
    yield cluster, tap, World(cluster)
    tap.open()


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.simulator
@pytest.mark.parametrize(
    "how, words", [("refuse", "no answer from"), ("hang", "no answer from"), ("deny", "the API server answered 401: Unauthorized")]
)
def test_a_run_whose_api_server_is_gone_for_good_ends_soon_and_its_report_says_so(tapped, how, words):
    """It went on for 1309 seconds after its deadline of 300, and the report said "the log is empty", also where the token had expired."""
    _cluster, tap, world = tapped
    world.spec["bounds"] = {**BOUNDS, "api_outage_s": OUTAGE_S}
    world.begin(readiness_kubeconfig=str(tap.kubeconfig)).until_running(N[1])
    getattr(tap, how)()
    begun = time.monotonic()
    result = world.end()
    assert time.monotonic() - begun < 280, "minutes after the server is known to be gone, and hours before its deadline"
    assert result.status != 0 and result.verdicts() == {"untested": set(N[:2])}, result.output
    findings = {finding["reason"]: finding["message"] for name in N[:2] for finding in result.node(name)["findings"]}
    assert words in str(findings) and "NoMeasurement" not in findings and "log is empty" not in result.output, findings
    assert not result.report["cleanup"]["proven"] and words in result.report["cleanup"]["message"], result.report["cleanup"]
