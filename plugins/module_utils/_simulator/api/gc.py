# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The two controllers a genuine control plane always runs beside its API: garbage collection by owner and emptying of namespaces.

They live in the server because they need to see every kind; they change objects only through the registry.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import typing as t

from . import admission, clock, quantity
from .deletion import FOREGROUND, ORPHAN
from .errors import ApiError
from .options import Options
from .registry import Registry
from .resources import Resource
from .store import Change, Stored, owner_uids

Place = tuple[tuple[str, str], str, str]
Task = tuple[t.Callable[..., None], tuple[t.Any, ...]]
# Work that looks at many objects waits this long for more reasons to do it.
_SETTLE_SECONDS = 0.05
# How many objects of a namespace are deleted before requests get their turn.
_BLOCK = 256
_LOG = logging.getLogger(__name__)


class Housekeeper:
    """Follows every write and works off what it implies, soon after, in the order it came."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._queue: collections.deque[Task] = collections.deque()
        self._settling: set[Task] = set()
        self._wake = asyncio.Event()
        registry.store.listeners.append(self._on_change)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                task, arguments = self._queue.popleft()
                try:
                    task(*arguments)
                except ApiError as error:
                    _LOG.debug("housekeeping: %s", error.message)
                # Requests go first: a cascade over thousands of objects must not hold them up.
                await asyncio.sleep(0)

    def _later(self, task: t.Callable[..., None], *arguments: t.Any) -> None:
        self._queue.append((task, arguments))
        self._wake.set()

    def _when_settled(self, task: t.Callable[..., None], *arguments: t.Any) -> None:
        """Do something soon, once, however often it is asked for until then."""
        key = (task, arguments)
        if key in self._settling:
            return
        self._settling.add(key)

        def due() -> None:
            self._settling.discard(key)
            self._later(task, *arguments)

        asyncio.get_running_loop().call_later(_SETTLE_SECONDS, due)

    def _on_change(self, key: tuple[str, str], change: Change) -> None:
        metadata = change.new.obj["metadata"]
        place = (key, change.new.namespace, change.new.name)
        if change.type == "DELETED":
            self._later(self._owner_gone, metadata["uid"])
            self._blocked_owners(metadata)
            if key[1] == "customresourcedefinitions":
                self._later(self._forget_kind, change.new.obj["spec"])
            self._namespace_touched(change.new.namespace)
        elif metadata.get("deletionTimestamp"):
            self._later(self._deleting, place)
        elif metadata.get("ownerReferences") and (change.old is None or owner_uids(metadata) != owner_uids(change.old.obj["metadata"])):
            self._later(self._check_owners, place)
        if key in (("", "pods"), ("", "resourcequotas")):
            self._quota_touched(change.new.namespace)

    # --- owners -----------------------------------------------------------------------------------------------------------

    def _find(self, place: Place) -> tuple[Resource | None, Stored | None]:
        key, namespace, name = place
        collection = self._registry.store.collections.get(key)
        stored = collection.get(namespace, name) if collection else None
        if stored is None:
            return None, None
        return self._registry.table.of_storage(key), stored

    def _owner_gone(self, uid: str) -> None:
        for place in list(self._registry.store.dependents.get(uid, ())):
            self._later(self._check_owners, place)

    def _check_owners(self, place: Place) -> None:
        """Delete an object none of whose owners exists; drop the references to missing owners of one that has another."""
        resource, stored = self._find(place)
        if resource is None or stored is None:
            return
        references = stored.obj["metadata"].get("ownerReferences") or []
        alive = [reference for reference in references if self._is_owner(reference, stored)]
        if references and not alive:
            self._delete(resource, stored, "Background")
        elif len(alive) < len(references):
            self._set_owners(resource, stored, alive)

    def _is_owner(self, reference: dict[str, t.Any], stored: Stored) -> bool:
        """Whether the object a reference names exists under that uid, in the same namespace or cluster-wide."""
        place = self._registry.store.live.get(reference.get("uid", ""))
        if place is None or place[2] != reference.get("name") or place[1] not in ("", stored.namespace):
            return False
        resource, _owner = self._find(place)
        return resource is not None and resource.kind == reference.get("kind")

    def _set_owners(self, resource: Resource, stored: Stored, owners: list[dict[str, t.Any]]) -> None:
        change = {"metadata": {"ownerReferences": owners or None}}
        self._registry.patch(resource, stored.namespace, stored.name, "merge", change, Options(validation="Ignore"))

    def _delete(self, resource: Resource, stored: Stored, policy: str) -> None:
        delete_options = {"propagationPolicy": policy, "preconditions": {"uid": stored.obj["metadata"]["uid"]}}
        self._registry.delete(resource, stored.namespace, stored.name, delete_options)

    # --- objects being deleted --------------------------------------------------------------------------------------------

    def _deleting(self, place: Place) -> None:
        resource, stored = self._find(place)
        if resource is None or stored is None:
            return
        finalizers = stored.obj["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            self._orphan(resource, stored)
        elif FOREGROUND in finalizers:
            self._foreground(resource, stored)
        if resource.kind == "Namespace" and not resource.group:
            self._empty_namespace(stored.name)

    def _dependents(self, uid: str) -> list[tuple[Resource, Stored]]:
        found = (self._find(place) for place in list(self._registry.store.dependents.get(uid, ())))
        return [(resource, stored) for resource, stored in found if resource is not None and stored is not None]

    def _orphan(self, resource: Resource, stored: Stored) -> None:
        uid = stored.obj["metadata"]["uid"]
        for kind, dependent in self._dependents(uid):
            owners = [item for item in dependent.obj["metadata"]["ownerReferences"] if item.get("uid") != uid]
            self._set_owners(kind, dependent, owners)
        self._registry.finish(resource, stored, ORPHAN)

    def _foreground(self, resource: Resource, stored: Stored) -> None:
        """Delete the dependents; the owner goes when none that blocks it is left."""
        uid = stored.obj["metadata"]["uid"]
        blocking = False
        for kind, dependent in self._dependents(uid):
            reference = next(item for item in dependent.obj["metadata"]["ownerReferences"] if item.get("uid") == uid)
            blocking = blocking or bool(reference.get("blockOwnerDeletion"))
            if not dependent.obj["metadata"].get("deletionTimestamp"):
                self._delete(kind, dependent, "Foreground")
        if not blocking or not self._dependents(uid):
            self._registry.finish(resource, self._registry.get(resource, stored.namespace, stored.name), FOREGROUND)

    def _blocked_owners(self, metadata: dict[str, t.Any]) -> None:
        """An owner deleted in the foreground may be free now that this dependent is gone."""
        for uid in owner_uids(metadata):
            place = self._registry.store.live.get(uid)
            if place is None:
                continue
            _resource, owner = self._find(place)
            if owner is not None and FOREGROUND in (owner.obj["metadata"].get("finalizers") or ()):
                self._when_settled(self._deleting, place)

    # --- namespaces -------------------------------------------------------------------------------------------------------

    def _namespace_touched(self, name: str) -> None:
        space = self._registry.store.collection(("", "namespaces")).get("", name) if name else None
        if space is not None and space.obj["metadata"].get("deletionTimestamp"):
            self._when_settled(self._empty_namespace, name)

    def _empty_namespace(self, name: str) -> None:
        """Delete what is in a namespace that is going; when nothing is left, let the namespace go."""
        left = deleted = 0
        for resource in self._registry.table.stored():
            if not resource.namespaced:
                continue
            for stored in list(self._registry.store.collection(resource.storage).ordered(name)):
                left += 1
                if stored.obj["metadata"].get("deletionTimestamp"):
                    continue
                left -= self._registry.delete(resource, name, stored.name, {"propagationPolicy": "Background"})[1]
                deleted += 1
                if deleted == _BLOCK:
                    self._later(self._empty_namespace, name)
                    return
        namespaces = self._registry.store.collection(("", "namespaces"))
        space = namespaces.get("", name)
        if left or space is None or not (space.obj.get("spec") or {}).get("finalizers"):
            return
        resource = t.cast(Resource, self._registry.table.find("", "v1", "namespaces"))
        body = {**space.obj, "metadata": dict(space.obj["metadata"]), "spec": {"finalizers": []}}
        self._registry.update(resource, "", name, body, Options(), "finalize")

    # --- kinds and quotas -------------------------------------------------------------------------------------------------

    def _forget_kind(self, spec: dict[str, t.Any]) -> None:
        """The objects of a custom kind go with its definition."""
        key = (spec["group"], spec["names"]["plural"])
        collection = self._registry.store.collections.get(key)
        if collection is None or self._registry.table.of_storage(key) is not None:
            return
        for stored in list(collection.ordered(None)):
            self._registry.store.remove(key, stored)
        self._registry.store.drop_collection(key)

    def _quota_touched(self, namespace: str) -> None:
        if self._registry.store.collection(("", "resourcequotas")).ordered(namespace):
            self._when_settled(self._update_quotas, namespace)

    def _update_quotas(self, namespace: str) -> None:
        """Write the use of each quota of a namespace into its status."""
        resource = t.cast(Resource, self._registry.table.find("", "v1", "resourcequotas"))
        used = admission.used_in(self._registry.store, namespace)
        for stored in list(self._registry.store.collection(resource.storage).ordered(namespace)):
            hard = (stored.obj.get("spec") or {}).get("hard") or {}
            shown = {name: quantity.show(used[name]) if name in used else "0" for name in hard}
            change = {"status": {"hard": hard, "used": shown}}
            self._registry.patch(resource, namespace, stored.name, "merge", change, Options(), "status")


def collect_lost_pods(registry: Registry) -> None:
    """Remove pods whose node no longer exists and whose grace period is long over: nobody is left to confirm their end."""
    nodes = registry.store.collection(("", "nodes"))
    resource = t.cast(Resource, registry.table.find("", "v1", "pods"))
    now = clock.now()
    for stored in list(registry.store.collection(resource.storage).ordered(None)):
        due = stored.obj["metadata"].get("deletionTimestamp")
        if due and clock.parse(due) < now and nodes.get("", stored.obj["spec"].get("nodeName", "")) is None:
            registry.delete(resource, stored.namespace, stored.name, {"gracePeriodSeconds": 0})
