# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Selectors, patches and field ownership without a server."""

from __future__ import annotations

import copy
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api import patch, quantity, selectors, server_side_apply
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.errors import ApiError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.schema import TypeNode, built_in_types

Object = dict[str, t.Any]
TYPES = built_in_types("v1.36.3")


def type_of(group: str, version: str, kind: str) -> TypeNode:
    return TYPES.node(TYPES.names[(group, version, kind)])


POD, NODE, DEPLOYMENT = type_of("", "v1", "Pod"), type_of("", "v1", "Node"), type_of("apps", "v1", "Deployment")
SIMPLE = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c/d~e"]), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), SIMPLE, max_size=3)


# --- selectors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "2"}, False),
        ("a!=1", {}, True),
        ("a in (1, 2),b", {"a": "2", "b": ""}, True),
        ("a notin (1)", {}, True),
        ("!a", {"a": ""}, False),
        ("a=", {"a": ""}, True),
        ("nvidia.com/gpu.present=true", {"nvidia.com/gpu.present": "true"}, True),
        ("n>4", {"n": "5"}, True),
        ("n<4", {"n": "x"}, False),
    ],
)
def test_label_selectors(text: str, labels: Object, expected: bool) -> None:
    test = selectors.label_selector(text)
    assert test is not None and test(labels) is expected


@pytest.mark.parametrize("text", ["a in b", "a=b=c", "=a", "a in (b", "a b", "a=b c", ","])
def test_broken_label_selectors_are_refused(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        selectors.label_selector(text)
    assert caught.value.code == 400


def test_field_selectors_compare_text() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": {}}
    unbound = selectors.field_selector("spec.nodeName!=,status.phase=", "", "Pod")
    assert unbound is not None and unbound(pod)
    node = {"metadata": {"name": "n"}, "spec": {}}
    schedulable = selectors.field_selector("spec.unschedulable=false", "", "Node")
    assert schedulable is not None and schedulable(node)


# --- patches --------------------------------------------------------------------------------------------------------------


@given(OBJECTS, OBJECTS)
def test_merge_patch_leaves_its_input_alone_and_is_repeatable(target: Object, change: Object) -> None:
    before = copy.deepcopy(target)
    once = patch.merge_patch(target, change)
    assert target == before
    assert patch.merge_patch(once, change) == once
    assert all(key not in once for key, value in change.items() if value is None)


@given(OBJECTS, SIMPLE)
def test_json_patch_adds_what_it_later_finds(target: Object, value: t.Any) -> None:
    before = copy.deepcopy(target)
    operations = [{"op": "add", "path": "/x~1y", "value": value}, {"op": "test", "path": "/x~1y", "value": value}]
    changed = patch.json_patch(target, operations)
    assert changed["x/y"] == value and target == before
    assert patch.json_patch(changed, [{"op": "remove", "path": "/x~1y"}]) == before


def test_json_patch_moves_inside_lists() -> None:
    document = {"a": [1, 2, 3]}
    assert patch.json_patch(document, [{"op": "move", "from": "/a/0", "path": "/a/-"}]) == {"a": [2, 3, 1]}
    assert patch.json_patch(document, [{"op": "replace", "path": "/a/1", "value": 9}]) == {"a": [1, 9, 3]}
    for broken in (
        {"op": "replace", "path": "/b", "value": 1},
        {"op": "remove", "path": "/a/3"},
        {"op": "add", "path": "/b/c", "value": 1},
    ):
        with pytest.raises(ApiError) as caught:
            patch.json_patch(document, [broken])
        assert caught.value.code == 422


def test_strategic_patch_joins_lists_by_key() -> None:
    pod = {"spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "2"}]}}
    change = {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}, {"name": "c", "image": "3"}]}}
    result = patch.strategic_patch(pod, change, POD)["spec"]["containers"]
    assert [item["name"] for item in result] == ["a", "b", "c"]
    assert [item["name"] for item in result[0]["env"]] == ["X", "Y"]


def test_strategic_patch_directives() -> None:
    pod = {"spec": {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]}}
    gone = {"spec": {"volumes": [{"name": "a", "$patch": "delete"}]}}
    assert [item["name"] for item in patch.strategic_patch(pod, gone, POD)["spec"]["volumes"]] == ["b"]
    fresh = {"spec": {"volumes": [{"$patch": "replace"}, {"name": "c", "emptyDir": {}}]}}
    assert [item["name"] for item in patch.strategic_patch(pod, fresh, POD)["spec"]["volumes"]] == ["c"]
    deployment = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    recreate = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert patch.strategic_patch(deployment, recreate, DEPLOYMENT)["spec"]["strategy"] == {"type": "Recreate"}
    held = {"metadata": {"finalizers": ["a", "b"]}}
    dropped = patch.strategic_patch(held, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, POD)
    assert dropped["metadata"]["finalizers"] == ["b"]


def test_lists_without_a_key_are_replaced() -> None:
    node = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    taints = [{"key": "b", "effect": "NoSchedule"}]
    assert patch.strategic_patch(node, {"spec": {"taints": taints}}, NODE)["spec"]["taints"] == taints
    pod = {"spec": {"containers": [{"name": "a", "args": ["1", "2"]}]}}
    changed = patch.strategic_patch(pod, {"spec": {"containers": [{"name": "a", "args": ["3"]}]}}, POD)
    assert changed["spec"]["containers"][0]["args"] == ["3"]


# --- server-side apply ----------------------------------------------------------------------------------------------------


class Applied:
    """An object and its owners, changed by several managers."""

    def __init__(self, node: TypeNode) -> None:
        self.node = node
        self.live: Object = {}
        self.ownership = server_side_apply.Ownership(())

    def apply(self, manager: str, config: Object, *, force: bool = False) -> Object:
        who = (manager, "Apply", "")
        self.live = server_side_apply.apply(self.live, config, self.node, self.ownership, who, force=force, api_version="v1")
        # As it is stored and read again.
        self.ownership = server_side_apply.Ownership(self.ownership.entries("v1", "now", who))
        return self.live


def containers(*items: Object) -> Object:
    return {"spec": {"containers": list(items)}}


def test_managers_of_different_items_do_not_meet() -> None:
    pod = Applied(POD)
    pod.apply("one", containers({"name": "a", "image": "1"}))
    pod.apply("two", containers({"name": "b", "image": "2"}))
    assert [item["name"] for item in pod.live["spec"]["containers"]] == ["a", "b"]
    pod.apply("one", {"metadata": {"labels": {"x": "y"}}})
    assert [item["name"] for item in pod.live["spec"]["containers"]] == ["b"]


def test_an_item_stays_while_another_manager_owns_part_of_it() -> None:
    pod = Applied(POD)
    pod.apply("one", containers({"name": "a", "image": "1", "workingDir": "/"}))
    pod.apply("two", containers({"name": "a", "image": "1"}))
    assert pod.apply("one", {}) == containers({"name": "a", "image": "1"})


def test_a_conflict_names_the_field_and_force_moves_it() -> None:
    pod = Applied(POD)
    pod.apply("one", containers({"name": "a", "image": "1"}))
    with pytest.raises(ApiError) as caught:
        pod.apply("two", containers({"name": "a", "image": "2"}))
    assert caught.value.details is not None
    assert caught.value.details["causes"][0]["field"] == '.spec.containers[name="a"].image'
    assert pod.live["spec"]["containers"][0]["image"] == "1"
    pod.apply("two", containers({"name": "a", "image": "2"}), force=True)
    assert pod.live["spec"]["containers"][0]["image"] == "2"
    pod.apply("one", containers({"name": "a"}))
    assert pod.live["spec"]["containers"][0]["image"] == "2"


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy"), max_size=4),
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy")),
)
def test_a_single_manager_always_gets_what_it_applied_last(first: Object, second: Object) -> None:
    config_map = Applied(type_of("", "v1", "ConfigMap"))
    config_map.apply("one", {"data": first})
    assert (config_map.apply("one", {"data": second}).get("data") or {}) == second


@given(st.sets(st.lists(st.sampled_from(["f:a", "f:b", 'k:{"n":"x"}', "v:1"]), min_size=1, max_size=3).map(tuple)))
def test_ownership_survives_its_encoding(paths: set[tuple[str, ...]]) -> None:
    assert server_side_apply.decode(server_side_apply.encode(paths)) == paths


# --- quantities -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**7), st.sampled_from(["", "m", "k", "Ki", "Mi", "Gi", "G", "e3"]))
def test_canonical_quantities_keep_their_value(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    written = quantity.canonical(text)
    assert quantity.parse(written) == quantity.parse(text)
    assert quantity.canonical(written) == written


@pytest.mark.parametrize(("text", "written"), [("0.5", "500m"), ("1024Mi", "1Gi"), ("2000", "2k"), ("1500Mi", "1500Mi"), ("0", "0")])
def test_quantities_come_back_canonical(text: str, written: str) -> None:
    assert quantity.canonical(text) == written


@pytest.mark.parametrize("text", ["", "eight", "1 Gi", "1GiB", "--1", "1.2.3"])
def test_what_is_no_quantity(text: str) -> None:
    assert quantity.parse(text) is None
