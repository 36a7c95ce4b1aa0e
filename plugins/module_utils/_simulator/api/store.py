# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Objects in memory: one resourceVersion counter, serialized bytes per object, and a bounded history for watches.

Stored objects are never changed in place. They carry no kind and no apiVersion: the resource they are served as adds both.
"""

from __future__ import annotations

import asyncio
import typing as t

from .deps import orjson
from .errors import expired
from .objects import Object

# A server that has just started knows no history: versions below this one are expired.
FIRST_VERSION = 1000


class Stored:
    """One version of one object. tail: the serialized object without its opening brace (kind and apiVersion come before it).

    version None: the object is only shown, not stored (dry run).
    """

    __slots__ = ("name", "namespace", "obj", "tail", "version")

    def __init__(self, obj: Object, version: int | None) -> None:
        metadata = obj["metadata"]
        if version is not None:
            metadata["resourceVersion"] = str(version)
        self.obj = obj
        self.version = version or 0
        self.namespace: str = metadata.get("namespace", "")
        self.name: str = metadata["name"]
        self.tail: bytes = orjson.dumps(obj)[1:]


class Change(t.NamedTuple):
    """One write. type: ADDED, MODIFIED or DELETED. old: the version before it, None for ADDED."""

    type: str
    new: Stored
    old: Stored | None


class Collection:
    """All objects of one kind and the recent writes to them.

    first: the sequence number of the oldest change kept. A watcher remembers the sequence number it reads next.
    """

    def __init__(self, history_limit: int) -> None:
        self.spaces: dict[str, dict[str, Stored]] = {}
        self.changes: list[Change] = []
        self.first = 0
        self.expired_version = FIRST_VERSION - 1
        self.wakers: set[asyncio.Event] = set()
        self._limit = history_limit
        self._sorted: dict[str | None, list[Stored]] = {}

    @property
    def next(self) -> int:
        """The sequence number that the next change will get."""
        return self.first + len(self.changes)

    def get(self, namespace: str, name: str) -> Stored | None:
        """The current version of an object, or None."""
        return self.spaces.get(namespace, {}).get(name)

    def ordered(self, namespace: str | None) -> list[Stored]:
        """Current versions by namespace, then name. namespace None: of all namespaces."""
        cached = self._sorted.get(namespace)
        if cached is None:
            cached = self._sort(namespace)
            self._sorted[namespace] = cached
        return cached

    def _sort(self, namespace: str | None) -> list[Stored]:
        names = [namespace] if namespace is not None else sorted(self.spaces)
        result: list[Stored] = []
        for each in names:
            space = self.spaces.get(each, {})
            result.extend(space[name] for name in sorted(space))
        return result

    def record(self, change: Change) -> None:
        """Make a change current, keep it in the history and wake the watchers."""
        new = change.new
        if change.type == "DELETED":
            space = self.spaces[new.namespace]
            del space[new.name]
            if not space:
                del self.spaces[new.namespace]
        else:
            self.spaces.setdefault(new.namespace, {})[new.name] = new
        self._sorted.clear()
        self.changes.append(change)
        # Trim in blocks: deleting from the front of a list costs its length.
        if len(self.changes) >= 2 * self._limit:
            self.expired_version = self.changes[-self._limit - 1].new.version
            self.first += len(self.changes) - self._limit
            del self.changes[: -self._limit]
        for waker in self.wakers:
            waker.set()

    def sequence_after(self, version: int) -> int:
        """The sequence number of the first change newer than a resourceVersion. Raises 410 Expired when it is gone."""
        if version < self.expired_version:
            raise expired(f"too old resource version: {version} ({self.expired_version + 1})")
        low, high = 0, len(self.changes)
        while low < high:
            middle = (low + high) // 2
            if self.changes[middle].new.version <= version:
                low = middle + 1
            else:
                high = middle
        return self.first + low

    def since(self, sequence: int) -> list[Change]:
        """Changes from a sequence number on. Raises 410 Expired when the watcher was too slow."""
        if sequence < self.first:
            raise expired()
        return self.changes[sequence - self.first :]


class Store:
    """Every collection, the version counter and an index of owners.

    dependents: owner uid -> the (collection key, namespace, name) of objects that name it in ownerReferences.
    live: uid -> (collection key, namespace, name) of every object.
    listeners: called with (collection key, Change) after each write, in the same turn of the event loop.
    """

    def __init__(self, history_limit: int = 8192) -> None:
        self.version = FIRST_VERSION
        self.collections: dict[tuple[str, str], Collection] = {}
        self.dependents: dict[str, set[tuple[tuple[str, str], str, str]]] = {}
        self.live: dict[str, tuple[tuple[str, str], str, str]] = {}
        self.listeners: list[t.Callable[[tuple[str, str], Change], None]] = []
        self._history_limit = history_limit

    def collection(self, key: tuple[str, str]) -> Collection:
        """The collection of a (group, plural), made on first use."""
        found = self.collections.get(key)
        if found is None:
            found = self.collections[key] = Collection(self._history_limit)
        return found

    def write(self, key: tuple[str, str], obj: Object, old: Stored | None) -> Stored:
        """Store a new version of an object; the caller gives the object away."""
        self.version += 1
        new = Stored(obj, self.version)
        self._index(key, new, old)
        self._record(key, Change("MODIFIED" if old else "ADDED", new, old))
        return new

    def remove(self, key: tuple[str, str], old: Stored) -> Stored:
        """Delete an object. Returns its last version, numbered by the delete."""
        self.version += 1
        last = Stored({**old.obj, "metadata": dict(old.obj["metadata"])}, self.version)
        self._unindex(key, old)
        self._record(key, Change("DELETED", last, old))
        return last

    def drop_collection(self, key: tuple[str, str]) -> None:
        """Forget a kind that is no longer served; its objects were deleted before."""
        self.collections.pop(key, None)

    def _record(self, key: tuple[str, str], change: Change) -> None:
        self.collection(key).record(change)
        for listener in self.listeners:
            listener(key, change)

    def _index(self, key: tuple[str, str], new: Stored, old: Stored | None) -> None:
        place = (key, new.namespace, new.name)
        metadata = new.obj["metadata"]
        owners = owner_uids(metadata)
        before = owner_uids(old.obj["metadata"]) if old else ()
        if old is None:
            self.live[metadata["uid"]] = place
        if owners != before:
            self._forget_owners(place, before)
            for uid in owners:
                self.dependents.setdefault(uid, set()).add(place)

    def _unindex(self, key: tuple[str, str], old: Stored) -> None:
        metadata = old.obj["metadata"]
        self.live.pop(metadata["uid"], None)
        self._forget_owners((key, old.namespace, old.name), owner_uids(metadata))

    def _forget_owners(self, place: tuple[tuple[str, str], str, str], owners: t.Iterable[str]) -> None:
        for uid in owners:
            places = self.dependents.get(uid)
            if places is not None:
                places.discard(place)
                if not places:
                    del self.dependents[uid]


def owner_uids(metadata: Object) -> tuple[str, ...]:
    """The uids of an object's owners."""
    return tuple(reference.get("uid", "") for reference in metadata.get("ownerReferences") or ())
