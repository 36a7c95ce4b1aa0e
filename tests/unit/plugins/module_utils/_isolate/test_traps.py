# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One cluster for each known weakness of NVCRE's isolation: it passes or blames the wrong part, and we must not."""

from __future__ import annotations

import random
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import explain
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_campaign import matches, run_session
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_worlds import Fault, World
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.nvcre_method import Nvcre


def node(kind: str, number: int, factor: float = 0.6) -> Fault:
    """A fault of one node."""
    return Fault(kind, frozenset((number,)), factor)


class Glitch(World):
    """A world in which the first test of one whole rack is slow by chance."""

    def __init__(self, *args: t.Any, rack_with_glitch: int, **kwargs: t.Any) -> None:
        super().__init__(*args, **kwargs)
        self.left = 1
        self.members = frozenset(self.domains()[rack_with_glitch])

    def measure(self, nodes: t.Iterable[int], transport: str) -> float:
        nodes = frozenset(nodes)
        if self.left and nodes == self.members:
            self.left = 0
            return 0.75
        return super().measure(nodes, transport)


def conclude(make: t.Callable[[], World]) -> tuple[dict[str, t.Any], World]:
    """Our conclusion about a fresh copy of a world."""
    world = make()
    return explain.conclude(run_session(world).search), world


def exactly(conclusion: dict[str, t.Any], world: World) -> bool:
    """Every planted fault is named, and nothing else."""
    hard = [item for item in conclusion["suspects"] if item["class"] not in ("unresolved", "irreproducible")]
    named = all(any(matches(world, fault, item) for item in hard) for fault in world.faults)
    return named and len(hard) == len(world.faults) and conclusion["verdict"] == "failed"


def test_d1_noise_elsewhere_does_not_end_the_search() -> None:
    def make() -> World:
        return Glitch(64, 16, [node("nic", 5)], 0.01, 3, rack_with_glitch=2)

    assert Nvcre(make()).run().succeeded
    conclusion, world = conclude(make)
    accused = [item["nodes"] for item in conclusion["suspects"] if item["component"]["kind"] == "node"]
    assert accused == [["n0005"]] and world.faults


def test_d2_a_broken_uplink_is_named_and_no_representative() -> None:
    def make() -> World:
        return World(64, 16, [Fault("uplink", frozenset(range(16, 32)), 0.6)], 0.01, 4)

    theirs = Nvcre(make()).run()
    assert not theirs.succeeded and not theirs.confirmed and not theirs.links
    assert exactly(*conclude(make))


def test_d3_a_network_fault_beside_an_nvlink_fault_is_not_dropped() -> None:
    def make() -> World:
        return World(64, 16, [node("node", 3), node("nic", 20)], 0.01, 5, mnnvl=True)

    assert Nvcre(make()).run().confirmed == [3]
    assert exactly(*conclude(make))


def test_d4_a_split_nvlink_domain_is_probed_over_nvlink() -> None:
    def make() -> World:
        return World(64, 16, [Fault("trunk", frozenset(range(8)), 0.6, other=frozenset(range(8, 16)))], 0.01, 6, mnnvl=True)

    assert Nvcre(make()).run().succeeded
    assert exactly(*conclude(make))


def test_d4_sides_that_do_not_follow_the_order_of_names() -> None:
    for seed in range(6):
        chance = random.Random(seed)
        side = frozenset(chance.sample(range(16), chance.randint(3, 8)))
        world = World(64, 16, [Fault("trunk", side, 0.6, other=frozenset(range(16)) - side)], 0.01, seed, mnnvl=True)
        conclusion = explain.conclude(run_session(world).search)
        assert exactly(conclusion, world), (sorted(side), [item["reason"] for item in conclusion["suspects"]])


def test_d5_a_pair_off_the_diagonal() -> None:
    def make() -> World:
        return World(64, 16, [Fault("pair", frozenset((1, 14)), 0.6)], 0.01, 7)

    assert Nvcre(make()).run().succeeded
    assert exactly(*conclude(make))


def test_d6_a_link_fault_survives_suspects_that_clear() -> None:
    """A pair fault is on record, the only suspects clear: the run must still fail."""

    def make() -> World:
        return World(64, 16, [Fault("pair", frozenset((0, 8)), 0.6), node("intermittent", 20)], 0.01, 8)

    theirs = Nvcre(make())
    theirs.links, theirs.healthy = [((0,), (8,))], [1, 2, 3]
    theirs._confirm([40], filtered=False)
    assert theirs.succeeded  # the recorded link is forgotten
    conclusion, _world = conclude(make)
    assert conclusion["verdict"] == "failed"
    assert ["n0000", "n0008"] in [sorted(item["nodes"]) for item in conclusion["suspects"]]


def test_d7_membership_accuses_nobody() -> None:
    def make() -> World:
        return World(64, 16, [node("nic", 9)], 0.01, 9)

    assert Nvcre(make()).run().listed >= set(range(16))
    conclusion, world = conclude(make)
    assert exactly(conclusion, world)
    assert set(conclusion["cleared"]) == set(world.names) - {"n0009"}


def test_d8_no_half_of_one_node() -> None:
    def make() -> World:
        return World(72, 18, [node("nic", 15)], 0.01, 10)

    assert Nvcre(make()).run().confirmed != [15]
    conclusion, world = conclude(make)
    assert exactly(conclusion, world)
    assert conclusion["suspects"][0]["class"] == "nic"


def test_d10_nodes_without_labels_are_no_single_domain() -> None:
    def make() -> World:
        return World(512, 16, [node("node", 300)], 0.01, 11, bare=True)

    assert Nvcre(make()).run().waves >= 9
    conclusion, world = conclude(make)
    assert exactly(conclusion, world) and conclusion["cost"]["waves"] <= 5
    assert any("no usable domain label" in note for note in conclusion["coverage"]["notes"])


def test_d12_an_uplink_that_fails_only_under_load() -> None:
    def make() -> World:
        return World(64, 16, [Fault("uplink", frozenset(range(32, 48)), 0.6, load=True)], 0.01, 12)

    assert Nvcre(make()).run().succeeded and Nvcre(make(), documented=True).run().succeeded
    assert exactly(*conclude(make))


def test_d13_an_nvlink_port_is_confirmed_inside_its_domain() -> None:
    def make() -> World:
        return World(64, 16, [node("nvlport", 21)], 0.01, 13, mnnvl=True)

    assert Nvcre(make(), documented=True).run().succeeded
    assert not Nvcre(make()).run().confirmed
    conclusion, world = conclude(make)
    assert exactly(conclusion, world)
    assert conclusion["suspects"][0]["class"] == "nvl"
