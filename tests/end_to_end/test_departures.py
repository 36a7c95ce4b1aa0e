# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that go as it was announced, and agents that speak of all nodes at once: nobody is accused, and the report says what happened."""

from __future__ import annotations

from ansible_collections.gpu_cluster.readiness.tests.end_to_end.world import BOUNDS, N, World, small


def test_a_node_that_is_taken_away_as_announced_is_not_condemned_and_the_others_are_tested(start_cluster):
    world = World(small(start_cluster, 4), "intra-rack", 1).begin()
    world.until_running(N[1])
    world.taint(N[1], "karpenter.sh/disrupted")
    with world.silent(N[1]):
        result = world.end()
    assert result.verdicts() == {"passed": {N[0], N[2], N[3]}, "untested": {N[1]}}, result.output
    assert result.reasons(N[1]) == {"NodeUnavailable"} and "karpenter.sh/disrupted" in str(result.node(N[1])["findings"])


def test_when_the_launchers_machine_dies_the_others_are_tested_without_it(start_cluster):
    """Nobody is left to say how the test ended. Also when nobody searches afterwards (isolate: never) the others get their test."""
    world = World(small(start_cluster, 4, faults=[{"kind": "node_lost", "node": N[0], "after_s": 60}]), "intra-rack", 1).begin()
    result = world.end()
    assert result.verdicts() == {"passed": set(N[1:]), "failed": {N[0]}}, result.output
    assert "NodeLost" in result.reasons(N[0])
    attempts = result.report["categories"][0]["groups"][0]["attempts"]
    assert [item["outcome"] for item in attempts] == ["failed", "succeeded"]
    # A genuine scheduler may have put the launcher elsewhere: then it lives to say that its partner is gone.
    assert attempts[0]["reason"] in {"NodeLost", "WorkloadFailed"}


def test_what_an_agent_says_of_most_nodes_at_once_condemns_none_of_them(start_cluster):
    """Its new version takes every node for broken. The first has been condemned before the third is marked."""
    world = World(small(start_cluster, 4), bounds={**BOUNDS, "max_concurrent": 4}).begin()
    world.until_running(N[3])
    for name in N[:3]:
        world.condition(name, "GpuXidError")
        world.until(lambda name=name: world.groups(name) <= ended(world), f"{name} is decided")
    result = world.end()
    assert result.verdicts() == {"passed": {N[3]}, "untested": set(N[:3])}, result.output
    assert result.reasons(N[0]) == {"NodeUnavailable"} and "3 of 4 nodes show the same at once" in result.output
    assert result.report["verdict"] == "incomplete" and result.status != 0


def ended(world):
    return {item["group"] for item in world.entries() if item["event"] == "attempt_decided"}
