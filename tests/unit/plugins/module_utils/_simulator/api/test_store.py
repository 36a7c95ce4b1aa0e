# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The store: a lost or repeated change would make a watching controller believe in a cluster that is not there."""

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.errors import ApiError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.store import Store

KEY = ("", "configmaps")


def obj(name: str, namespace: str = "ns", **data: t.Any) -> dict[str, t.Any]:
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}, "data": data}


def names(store: Store, namespace: str | None = None) -> list[tuple[str, str]]:
    return [(item.namespace, item.name) for item in store.collection(KEY).ordered(namespace)]


def test_lists_are_sorted_by_namespace_and_name() -> None:
    store = Store()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        store.write(KEY, obj(name, namespace), None)
    assert names(store) == [("a", "y"), ("a", "z"), ("b", "x")]
    assert names(store, "a") == [("a", "y"), ("a", "z")]
    assert names(store, "none") == []


def test_a_delete_is_numbered_and_empties_the_place() -> None:
    store = Store()
    first = store.write(KEY, obj("a"), None)
    last = store.remove(KEY, first)
    assert last.version == first.version + 1
    assert last.obj["metadata"]["resourceVersion"] == str(last.version)
    assert first.obj["metadata"]["resourceVersion"] == str(first.version)
    assert store.collection(KEY).get("ns", "a") is None
    assert names(store) == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40), st.integers(0, 40))
def test_replaying_the_history_gives_the_state(writes: list[tuple[str, bool]], start: int) -> None:
    """A client that listed at any moment and then follows the changes ends with what the server has."""
    store = Store()
    collection = store.collection(KEY)
    seen: dict[str, str] = {}
    version = store.version
    for number, (name, delete) in enumerate(writes):
        if number == start:
            seen = {item.name: str(item.obj["data"]) for item in collection.ordered(None)}
            version = store.version
        old = collection.get("ns", name)
        if delete and old is not None:
            store.remove(KEY, old)
        else:
            store.write(KEY, obj(name, number=number), old)
    for change in collection.since(collection.sequence_after(version)):
        if change.type == "DELETED":
            del seen[change.new.name]
        else:
            assert (change.type == "ADDED") == (change.new.name not in seen)
            seen[change.new.name] = str(change.new.obj["data"])
    assert seen == {item.name: str(item.obj["data"]) for item in collection.ordered(None)}


@given(st.integers(1, 8), st.integers(0, 60))
def test_history_is_bounded_and_says_when_it_is_gone(limit: int, count: int) -> None:
    store = Store(history_limit=limit)
    collection = store.collection(KEY)
    start = store.version
    for number in range(count):
        store.write(KEY, obj("a", number=number), collection.get("ns", "a"))
    assert len(collection.changes) < 2 * limit + 1
    for version in range(start, store.version + 1):
        try:
            after = collection.since(collection.sequence_after(version))
        except ApiError as error:
            assert (error.code, error.reason) == (410, "Expired")
            assert version < collection.expired_version
        else:
            assert len(after) == store.version - version


def test_a_slow_watcher_is_told() -> None:
    store = Store(history_limit=2)
    collection = store.collection(KEY)
    for number in range(10):
        store.write(KEY, obj("a", number=number), collection.get("ns", "a"))
    with pytest.raises(ApiError, match="too old"):
        collection.since(0)


def test_the_owner_index_follows_the_references() -> None:
    store = Store()
    child = obj("child")
    child["metadata"]["ownerReferences"] = [{"uid": "one"}, {"uid": "two"}]
    first = store.write(KEY, child, None)
    assert set(store.dependents) == {"one", "two"}
    moved = obj("child")
    moved["metadata"]["ownerReferences"] = [{"uid": "two"}]
    second = store.write(KEY, moved, first)
    assert set(store.dependents) == {"two"}
    store.remove(KEY, second)
    assert store.dependents == {} and store.live == {}
