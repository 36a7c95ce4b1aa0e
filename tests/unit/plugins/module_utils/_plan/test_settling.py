# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What remains of a group is judged by the plan of what it is: the mate of a broken node must not become suspect."""

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.settling import settle, without

FLOORS = [
    {"test": "t", "path": "local", "nodes_max": None, "criteria": ["measured.bus_bandwidth >= 400"], "source": "one node"},
    {"test": "t", "path": "rdma", "nodes_max": 2, "criteria": ["measured.bus_bandwidth >= 350"], "source": "a pair"},
    {"test": "t", "path": "rdma", "nodes_max": None, "criteria": ["measured.bus_bandwidth >= 300"], "source": "many"},
]


def rows(*names: str, clique: str | None = None) -> list[t.Any]:
    return [{"name": name, "domains": {"clique": clique}} for name in names]


def category(*groups: list[str], scale: str = "intra-rack", wanted: str | None = None, floors: t.Any = None, mnnvl: bool = False) -> t.Any:
    return {
        "id": "c02",
        "test_scale": scale,
        "criteria": ["measured.bus_bandwidth >= 320"],
        "expect_transport": wanted,
        "floors": floors,
        "template": {"transport": None, "nic_resource": "rdma/hca", "env": [{"name": "NCCL_MNNVL_ENABLE", "value": "1"}] if mnnvl else []},
        "explain": [],
        "groups": [
            {"name": f"g{index:03d}", "nodes": nodes, "domain": None, "expected_transport": None} for index, nodes in enumerate(groups, 1)
        ],
        "untested": [],
    }


def names(made: t.Any) -> list[list[str]]:
    return [group["nodes"] for group in made["groups"]]


def transports(made: t.Any) -> list[str | None]:
    return [group["expected_transport"] for group in made["groups"]]


def test_the_last_of_its_rack_is_not_asked_for_the_network() -> None:
    nodes = rows("a0", "a1", "b0", "b1")
    planned = settle(category(["a0", "a1"], ["b0", "b1"]), nodes)
    assert transports(planned) == ["rdma", "rdma"]
    left = without(planned, {"a0": "left out"}, nodes)
    assert names(left) == [["a1"], ["b0", "b1"]] and transports(left) == [None, "rdma"]
    assert left["untested"] == [{"node": "a0", "reason": "Untested", "message": "left out"}]
    alone = settle(category(["a1"], ["b0", "b1"]), nodes)
    assert left["groups"] == alone["groups"] and left["criteria"] == alone["criteria"]


@pytest.mark.parametrize(("wanted", "alone"), [("ib", None), ("efa", None), ("mnnvl", None), ("nvlink", "nvlink"), ("any", "any")])
def test_a_transport_the_user_names_is_asked_only_where_it_can_be_shown(wanted: str, alone: str | None) -> None:
    nodes = rows("a0", "a1")
    left = without(settle(category(["a0", "a1"], wanted=wanted), nodes), {"a0": "x"}, nodes)
    assert transports(left) == [alone]
    assert transports(settle(category(["a0"], scale="intra-node", wanted=wanted), nodes)) == [wanted]


def test_the_rest_of_a_group_over_two_cliques_is_held_to_the_clique_it_is() -> None:
    nodes = rows("a0", "a1", clique="u.1") + rows("b0", clique="u.2")
    planned = settle(category(["a0", "a1", "b0"], scale="full-scale", mnnvl=True), nodes)
    assert transports(planned) == ["rdma"]
    assert transports(without(planned, {"b0": "x"}, nodes)) == ["mnnvl"]


def test_floors_follow_the_size_of_what_is_left() -> None:
    nodes = rows("a0", "a1", "a2")
    planned = settle(category(["a0", "a1", "a2"], floors=FLOORS), nodes)
    assert planned["criteria"] == ["measured.bus_bandwidth >= 300"]
    assert without(planned, {"a0": "x"}, nodes)["criteria"] == ["measured.bus_bandwidth >= 350"]
    single = without(planned, {"a0": "x", "a1": "x"}, nodes)
    assert single["criteria"] == ["measured.bus_bandwidth >= 400"]
    assert [item["rule"] for item in single["explain"] if item["path"] == "criteria"] == ["catalog floor: one node"]


def test_a_rest_without_a_floor_is_untested_and_takes_no_criterion_from_the_others() -> None:
    nodes = rows("a0", "a1", "b0", "b1")
    floors = [row for row in FLOORS if row["path"] == "rdma"]
    planned = settle(category(["a0", "a1"], ["b0", "b1"], floors=floors), nodes)
    left = without(planned, {"a0": "x"}, nodes)
    assert names(left) == [["b0", "b1"]] and left["criteria"] == planned["criteria"] == ["measured.bus_bandwidth >= 350"]
    assert [item["node"] for item in left["untested"]] == ["a0", "a1"] and "no calibrated floor" in left["untested"][1]["message"]
    nothing = without(planned, {"a0": "x", "b1": "x"}, nodes)
    assert names(nothing) == [] and sorted(item["node"] for item in nothing["untested"]) == ["a0", "a1", "b0", "b1"]


def test_the_users_own_criteria_stay() -> None:
    nodes = rows("a0", "a1")
    assert without(settle(category(["a0", "a1"]), nodes), {"a0": "x"}, nodes)["criteria"] == ["measured.bus_bandwidth >= 320"]


def test_a_plan_of_an_earlier_version_is_read() -> None:
    nodes = rows("a0", "a1")
    old = category(["a0", "a1"])
    del old["floors"], old["expect_transport"]
    assert transports(without(old, {"a0": "x"}, nodes)) == [None]


@given(st.sets(st.integers(0, 5)), st.booleans())
def test_every_node_stays_in_a_group_or_is_untested_with_a_reason(gone: set[int], with_floors: bool) -> None:
    everyone = [f"n{index}" for index in range(6)]
    nodes = rows(*everyone)
    planned = settle(category(everyone[:3], everyone[3:5], everyone[5:], floors=FLOORS[1:] if with_floors else None), nodes)
    left = without(planned, {f"n{index}": "x" for index in gone}, nodes)
    placed = [name for group in left["groups"] for name in group["nodes"]]
    assert sorted(placed + [item["node"] for item in left["untested"]]) == everyone
    assert not {f"n{index}" for index in gone} & set(placed)
    assert left == without(planned, {f"n{index}": "x" for index in gone}, nodes)
