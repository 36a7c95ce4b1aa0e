# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The user says which nodes are meant; a typo must not test the wrong ones or none."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.selection import select
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError

from .builders import node, snapshot

NODES = snapshot(
    node("gpu-a", labels={"pool": "one", "gen": "3"}),
    node("gpu-b", labels={"pool": "two", "gen": "5"}, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]),
    node("gpu-c", product="NVIDIA-H200"),
    node("gpu-d", unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
    node("gpu-e", conditions=[{"type": "Ready", "status": "False"}]),
)["nodes"]


def chosen(target: dict[str, t.Any] | None = None, **options: t.Any) -> list[str]:
    return [row["name"] for row in select(NODES, target, **options) if row["target"]]


def test_everything_that_can_be_tested_by_default() -> None:
    assert chosen() == ["gpu-a", "gpu-b", "gpu-c"]
    assert len(select(NODES)) == 5


def test_node_selector_and_expressions() -> None:
    assert chosen({"node_selector": {"pool": "one"}}) == ["gpu-a"]
    assert chosen({"match_expressions": [{"key": "pool", "operator": "In", "values": ["one", "two"]}]}) == ["gpu-a", "gpu-b"]
    assert chosen({"match_expressions": [{"key": "pool", "operator": "NotIn", "values": ["one"]}]}) == ["gpu-b", "gpu-c"]
    assert chosen({"match_expressions": [{"key": "pool", "operator": "Exists"}]}) == ["gpu-a", "gpu-b"]
    assert chosen({"match_expressions": [{"key": "pool", "operator": "DoesNotExist"}]}) == ["gpu-c"]
    assert chosen({"match_expressions": [{"key": "gen", "operator": "Gt", "values": ["4"]}]}) == ["gpu-b"]


def test_unknown_operator_suggests() -> None:
    with pytest.raises(InputError, match="Did you mean 'Exists'"):
        select(NODES, {"match_expressions": [{"key": "pool", "operator": "Exist"}]})


def test_unknown_node_name_lists_near_ones() -> None:
    with pytest.raises(InputError) as caught:
        select(NODES, {"node_names": ["gpu-a", "gpu-bb"]})
    assert "'gpu-bb'" in caught.value.message and "gpu-b" in caught.value.hint and "'gpu-a'" not in caught.value.message


def test_named_node_that_cannot_be_tested_stays_excluded_with_its_own_reason() -> None:
    rows = {row["name"]: row for row in select(NODES, {"node_names": ["gpu-a", "gpu-e"]})}
    assert rows["gpu-e"]["exclusion"]["reason"] == "NotReady" and rows["gpu-b"]["exclusion"]["reason"] == "NotSelected"


def test_cordoned_on_request() -> None:
    assert "gpu-d" in chosen({"include_cordoned": True})


def test_gpu_by_model_or_product() -> None:
    assert chosen({"gpu": "h200"}) == ["gpu-c"] == chosen({"gpu": "NVIDIA-H200"})
    assert {row["exclusion"]["reason"] for row in select(NODES, {"gpu": "h200"}) if not row["target"]} == {"OtherGpuModel"}


def test_untolerated_taint_is_a_reason_and_kubernetes_own_taints_are_not() -> None:
    assert chosen({"include_cordoned": True}, tolerations=[]) == ["gpu-a", "gpu-c", "gpu-d"]
    for toleration in (
        {"operator": "Exists"},
        {"key": "team", "operator": "Exists"},
        {"key": "team", "value": "x", "effect": "NoSchedule"},
    ):
        assert "gpu-b" in chosen(tolerations=[toleration])
    assert "gpu-b" not in chosen(tolerations=[{"key": "team", "value": "y"}])


def test_nothing_left_says_why() -> None:
    with pytest.raises(InputError, match="none of 5 GPU nodes can be tested: 5 NotSelected"):
        select(NODES, {"node_selector": {"pool": "nine"}})
    with pytest.raises(InputError, match="no GPU node"):
        select([])


def test_the_snapshot_itself_is_not_changed() -> None:
    select(NODES, {"node_names": ["gpu-a"]})
    assert chosen() == ["gpu-a", "gpu-b", "gpu-c"]
