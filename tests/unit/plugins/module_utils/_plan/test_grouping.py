# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Grouping: nobody is dropped in silence, nobody is tested twice at the same time, and a rack is the full clique id."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.grouping import group_nodes


def make(name, clique=None, rack=None, block=None):
    return {"name": name, "domains": {"clique": clique, "rack": rack, "block": block, "hostname": name}, "labels": {}}


clusters = st.lists(st.tuples(st.sampled_from([None, "r0", "r1", "r2"]), st.sampled_from([None, "a.0", "b.0"])), max_size=12).map(
    lambda rows: [make(f"n{index:02d}", clique, rack) for index, (rack, clique) in enumerate(rows)]
)


@given(clusters, st.sampled_from(["intra-node", "intra-rack", "full-scale", "diagnose"]))
def test_every_node_is_in_one_group_or_has_a_reason(nodes, scale):
    groups, untested = group_nodes(nodes, scale)
    placed = [name for group in groups for name in group["nodes"]]
    assert sorted(placed + [item["node"] for item in untested]) == sorted(node["name"] for node in nodes)
    assert all(item["message"] for item in untested)
    assert len({group["name"] for group in groups}) == len(groups)


@given(
    clusters,
    st.sampled_from(["intra-rack", "full-scale"]),
    st.integers(1, 5),
    st.sampled_from(["own_group", "untested", "pair_with_known_good"]),
)
def test_groups_of_one_size_test_every_node_once_or_say_why_not(nodes, scale, size, left_over):
    groups, untested = group_nodes(nodes, scale, group_size=size, left_over=left_over)
    own = [name for group in groups for name in group["nodes"] if name not in group.get("witnesses", [])]
    assert sorted(own + [item["node"] for item in untested]) == sorted(node["name"] for node in nodes)
    assert all(len(group["nodes"]) <= size for group in groups)
    assert len({group["name"] for group in groups}) == len(groups)
    tested_alone = {name for group in groups if not group.get("witnesses") for name in group["nodes"]}
    for group in groups:
        assert len(set(group["nodes"])) == len(group["nodes"])
        assert set(group.get("witnesses", [])) <= tested_alone, "a witness is tested by a group of its own"
        if scale == "intra-rack":
            assert len({node["domains"]["clique"] or node["domains"]["rack"] for node in nodes if node["name"] in group["nodes"]}) <= 2
    if left_over == "untested":
        assert all(len(group["nodes"]) == size for group in groups)


def test_what_fills_no_group_follows_the_policy():
    nodes = [make(f"n{index}", rack="r0") for index in range(5)]

    def made(left_over):
        groups, untested = group_nodes(nodes, "intra-rack", group_size=2, left_over=left_over)
        return [group["nodes"] for group in groups], [item["node"] for item in untested]

    assert made("own_group") == ([["n0", "n1"], ["n2", "n3"], ["n4"]], [])
    assert made("untested") == ([["n0", "n1"], ["n2", "n3"]], ["n4"])
    assert made("pair_with_known_good") == ([["n0", "n1"], ["n2", "n3"], ["n4", "n3"]], [])


def test_groups_of_one_size_over_all_nodes_stay_within_racks_as_far_as_they_go():
    nodes = [make(name, rack=rack) for name, rack in (("a", "r0"), ("b", "r1"), ("c", "r0"), ("d", "r1"))]
    groups, _rest = group_nodes(nodes, "full-scale", group_size=2)
    assert [(group["nodes"], group["domain"]) for group in groups] == [(["a", "c"], "r0"), (["b", "d"], "r1")]


@given(clusters)
def test_the_order_of_the_nodes_does_not_matter(nodes):
    assert group_nodes(nodes, "intra-rack") == group_nodes(list(reversed(nodes)), "intra-rack")


def test_intra_rack_keeps_racks_apart():
    groups, untested = group_nodes([make("a", rack="r0"), make("b", rack="r1"), make("c", rack="r0")], "intra-rack")
    assert [(group["domain"], group["nodes"]) for group in groups] == [("r0", ["a", "c"]), ("r1", ["b"])]
    assert not untested


def test_two_cliques_with_the_same_number_are_two_racks():
    groups, _rest = group_nodes([make("a", clique="uuid-1.32766"), make("b", clique="uuid-2.32766")], "intra-rack")
    assert len(groups) == 2


def test_the_users_label_decides_when_it_is_named():
    nodes = [make("a", rack="r0"), make("b", rack="r0")]
    nodes[0]["labels"]["site/pod"], nodes[1]["labels"]["site/pod"] = "p0", "p1"
    groups, _rest = group_nodes(nodes, "intra-rack", "site/pod")
    assert [group["domain"] for group in groups] == ["p0", "p1"]


def test_a_node_without_a_rack_is_told_not_lumped():
    groups, untested = group_nodes([make("a", rack="r0"), make("b")], "intra-rack")
    assert [group["nodes"] for group in groups] == [["a"]]
    assert untested[0]["node"] == "b" and "rack" in untested[0]["message"]


@pytest.mark.parametrize("scale", ["full-scale", "diagnose"])
def test_full_scale_is_one_group(scale):
    groups, _rest = group_nodes([make("a", rack="r0"), make("b", rack="r1")], scale)
    assert [group["nodes"] for group in groups] == [["a", "b"]]
    assert groups[0]["domain"] is None
