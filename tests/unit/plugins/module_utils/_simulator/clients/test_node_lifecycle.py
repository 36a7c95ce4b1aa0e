# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Silent nodes: a busy machine must not make healthy simulated nodes look lost, and a lost node must still be noticed."""

from __future__ import annotations

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.node_lifecycle import SilenceWatch

NODES = [f"n{number}" for number in range(8)]
DURATION_S = 4.0


def rounds(watch: SilenceWatch, count: int, step_s: float, nodes: list[str] = NODES, first: int = 0) -> set[str]:
    """Every node renews its lease in turn, with a tick of step_s before each renewal. Returns all that ever looked silent."""
    found: set[str] = set()
    for turn in range(first, first + count):
        for node in nodes:
            watch.tick(step_s)
            found |= watch.silent()
            watch.renewed(node, f"{turn}", DURATION_S)
    return found


def test_a_node_that_stops_is_noticed_when_its_lease_has_run_out() -> None:
    watch = SilenceWatch()
    assert rounds(watch, 3, 0.125) == set()
    assert rounds(watch, 3, 0.125, NODES[1:], first=3) == set(), "the lease has not run out yet"
    assert rounds(watch, 2, 0.25, NODES[1:], first=6) == {"n0"}


def test_all_nodes_that_stop_together_are_noticed() -> None:
    watch = SilenceWatch()
    rounds(watch, 3, 0.125)
    for _tick in range(10):
        watch.tick(0.5)
    assert watch.silent() == set(NODES)


def test_a_stalled_process_loses_no_node() -> None:
    watch = SilenceWatch()
    rounds(watch, 3, 0.125)
    watch.tick(60.0)
    assert watch.silent() == set()


def test_renewals_that_slow_down_for_everybody_lose_no_node() -> None:
    watch = SilenceWatch()
    rounds(watch, 3, 0.125)
    assert rounds(watch, 3, 0.75, first=3) == set(), "a round takes longer than a lease lasts, but every node takes its turn"


def test_a_node_that_left_the_cluster_is_not_missed() -> None:
    watch = SilenceWatch()
    watch.renewed("n0", "0", DURATION_S)
    watch.forget("n0")
    for _tick in range(10):
        watch.tick(0.5)
    assert watch.silent() == set()
