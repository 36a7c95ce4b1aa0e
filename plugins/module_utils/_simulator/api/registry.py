# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the API does to objects, without HTTP: create, update, patch and delete with everything that belongs to them.

Objects inside carry no kind and no apiVersion (see store). All methods run to the end without giving up control, so each is atomic.
"""

from __future__ import annotations

import typing as t

from . import admission, clock, defaults, deletion, event_views, patch, server_side_apply, structural, updates
from .decoding import Decoder
from .deps import orjson
from .errors import FieldError, already_exists, bad_request, invalid, not_found, unsupported_media_type
from .objects import Object
from .options import Options
from .resources import Resource, ResourceTable
from .schema import BuiltInTypes, TypeNode
from .store import Store, Stored
from .validation.checks import check_create, check_update

_DEFINITIONS = ("apiextensions.k8s.io", "customresourcedefinitions")


class Registry:
    """All kinds and all objects of one server."""

    def __init__(self, types: BuiltInTypes, history_limit: int) -> None:
        self.table = ResourceTable()
        self.store = Store(history_limit)
        self._types = types
        self._decoder = Decoder(types)

    # --- reading ----------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        """One object. Raises 404."""
        found = self.store.collection(resource.storage).get(namespace, name)
        if found is None:
            raise not_found(resource.group, resource.plural, name)
        return found

    def shown(self, resource: Resource, stored: Stored) -> Object:
        """An object as a dict, with kind and apiVersion. Not to be changed."""
        obj = event_views.from_core(stored.obj) if resource.group == "events.k8s.io" else stored.obj
        return {"kind": resource.kind, "apiVersion": resource.api_version, **obj}

    def body(self, resource: Resource, stored: Stored) -> bytes:
        """An object as JSON, with kind and apiVersion."""
        return resource.prefix + self.tail(resource, stored)

    def tail(self, resource: Resource, stored: Stored) -> bytes:
        """An object as JSON without kind and apiVersion and without its opening brace."""
        if resource.group == "events.k8s.io":
            return orjson.dumps(event_views.from_core(stored.obj))[1:]
        return stored.tail

    def _node(self, resource: Resource) -> TypeNode:
        """The type of a kind's objects."""
        if resource.custom is not None:
            return resource.custom.node
        return self._types.node(self._types.names.get((resource.group, resource.version, resource.kind)))

    # --- create -----------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: t.Any, options: Options) -> Stored:
        """Create an object. Raises 400, 403, 404, 409 or 422."""
        obj, missing = self._decoder.decode(resource, body, options)
        if obj["metadata"].get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        return self._create(resource, namespace, obj, missing, options)

    def _create(self, resource: Resource, namespace: str, obj: Object, missing: list[FieldError], options: Options) -> Stored:
        metadata = obj["metadata"]
        defaults.set_new_metadata(resource, namespace, metadata)
        options.name = metadata["name"]
        defaults.set_defaults(resource, obj)
        defaults.set_initial(resource, obj)
        admission.admit(self.store, resource, obj, options.warnings)
        errors = missing + check_create(resource, obj) + _check_custom(resource, obj, None)
        if errors:
            raise invalid(resource.group, resource.kind, metadata["name"], errors)
        if self.store.collection(resource.storage).get(namespace, metadata["name"]) is not None:
            raise already_exists(resource.group, resource.plural, metadata["name"])
        if options.dry_run:
            return Stored(obj, None)
        stored = self.store.write(resource.storage, obj, None)
        self._created(resource, stored)
        return self.get(resource, namespace, stored.name)

    def _created(self, resource: Resource, stored: Stored) -> None:
        """What follows at once from a new object."""
        if resource.kind == "Namespace" and not resource.group:
            self._furnish(stored.name)
        elif resource.kind == "CustomResourceDefinition":
            self._establish(stored)

    def _furnish(self, namespace: str) -> None:
        """Create what every namespace has. This server speaks plain HTTP, so its root certificate is empty."""
        certificates = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ""}}
        for plural, obj in (("serviceaccounts", {"metadata": {"name": "default"}}), ("configmaps", certificates)):
            resource = t.cast(Resource, self.table.find("", "v1", plural))
            self.create(resource, namespace, obj, Options())

    def _establish(self, stored: Stored) -> None:
        """Serve the kinds of a CustomResourceDefinition and say so in its status."""
        definition = stored.obj
        spec = definition["spec"]
        self.table.remove(spec["group"], spec["names"]["plural"])
        for resource in structural.resources_of(definition, self._types):
            self.table.add(resource)
        before, status = definition.get("status") or {}, structural.established_status(spec)
        if before.get("acceptedNames") != status["acceptedNames"] or before.get("storedVersions") != status["storedVersions"]:
            self.store.write(_DEFINITIONS, _copy({**definition, "status": status}), stored)

    # --- update -----------------------------------------------------------------------------------------------------------

    def update(self, resource: Resource, namespace: str, name: str, body: t.Any, options: Options, subresource: str = "") -> Stored:
        """Replace an object, or its status. Raises 400, 404, 409 or 422."""
        old = self.get(resource, namespace, name)
        obj, missing = self._decoder.decode(resource, body, options)
        return self._update(resource, old, obj, missing, options, subresource)

    def _update(
        self,
        resource: Resource,
        old: Stored,
        obj: Object,
        missing: list[FieldError],
        options: Options,
        subresource: str,
        owned: list[Object] | None = None,
    ) -> Stored:
        """owned: the managedFields when server-side apply has computed them; None for every other write."""
        updates.check_identity(resource, old, obj["metadata"])
        obj = updates.merge_parts(resource, old.obj, obj, subresource)
        metadata = obj["metadata"]
        updates.keep_fixed_metadata(old, metadata)
        updates.check_finalizers(resource, old, metadata)
        if subresource != "status":
            defaults.set_defaults(resource, obj)
        if subresource != "status" or resource.custom is not None:
            errors = missing + check_update(resource, obj, old.obj) + _check_custom(resource, obj, old.obj)
            if errors:
                raise invalid(resource.group, resource.kind, old.name, errors)
        updates.count_generation(resource, old.obj, obj)
        if owned is not None:
            metadata["managedFields"] = owned
        else:
            manager = (options.manager, "Update", subresource)
            server_side_apply.carry_on(old.obj, obj, self._node(resource), manager, resource.api_version)
        return self._commit(resource, old, obj, options)

    def _commit(self, resource: Resource, old: Stored, obj: Object, options: Options) -> Stored:
        obj["metadata"]["resourceVersion"] = str(old.version)
        # A write that changes nothing keeps the version and wakes nobody.
        if obj == old.obj:
            return old
        if options.dry_run:
            return Stored(obj, old.version)
        if deletion.may_vanish(resource, obj):
            return self._remove(resource, self.store.write(resource.storage, obj, old))
        stored = self.store.write(resource.storage, obj, old)
        if resource.kind == "CustomResourceDefinition":
            self._establish(stored)
            return self.get(resource, "", stored.name)
        return stored

    def _remove(self, resource: Resource, stored: Stored) -> Stored:
        last = self.store.remove(resource.storage, stored)
        if resource.kind == "CustomResourceDefinition":
            spec = stored.obj["spec"]
            self.table.remove(spec["group"], spec["names"]["plural"])
        return last

    # --- patch ------------------------------------------------------------------------------------------------------------

    def patch(
        self, resource: Resource, namespace: str, name: str, kind: str, change: t.Any, options: Options, subresource: str = ""
    ) -> Stored:
        """Patch an object, or its status. kind: json, merge or strategic. Raises 400, 404, 409, 415 or 422."""
        old = self.get(resource, namespace, name)
        # A deep copy: everything below may change it.
        current = orjson.loads(self.body(resource, old))
        if kind == "json":
            result = patch.json_patch(current, change)
        elif not isinstance(change, dict):
            raise bad_request("a patch of this type is an object")
        elif kind == "merge":
            result = patch.merge_patch(current, change)
        elif resource.custom is not None:
            accepted = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
            raise unsupported_media_type("application/strategic-merge-patch+json", accepted)
        else:
            result = patch.strategic_patch(current, change, self._node(resource))
        obj, missing = self._decoder.decode(resource, result, options)
        return self._update(resource, old, obj, missing, options, subresource)

    def apply(
        self, resource: Resource, namespace: str, name: str, config: t.Any, options: Options, subresource: str = ""
    ) -> tuple[Stored, bool]:
        """Server-side apply. Returns the object and whether it was created. Raises 400, 404, 409 or 422."""
        if not isinstance(config, dict) or not config.get("kind") or not config.get("apiVersion"):
            raise bad_request("invalid object type: apiVersion and kind must be set in an applied configuration")
        if (config.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        old = self.store.collection(resource.storage).get(namespace, name)
        applied = self._decoder.applied(resource, namespace, name, _copy(config), options)
        if old is not None:
            return self._apply_to(resource, old, applied, options, subresource), False
        if subresource:
            raise not_found(resource.group, resource.plural, name)
        manager = (options.manager, "Apply", subresource)
        ownership = server_side_apply.Ownership(())
        ownership.sets[manager] = set(server_side_apply.fields(applied, self._node(resource)))
        obj, missing = self._decoder.decode(resource, _copy(applied), options)
        obj["metadata"]["managedFields"] = ownership.entries(resource.api_version, clock.stamp(clock.now()), manager)
        return self._create(resource, namespace, obj, missing, options), True

    def _apply_to(self, resource: Resource, old: Stored, applied: Object, options: Options, subresource: str) -> Stored:
        manager, node = (options.manager, "Apply", subresource), self._node(resource)
        ownership = server_side_apply.Ownership.before_apply(old.obj, node)
        current = orjson.loads(self.body(resource, old))
        version = applied["metadata"].pop("resourceVersion", None)
        merged = server_side_apply.apply(current, applied, node, ownership, manager, force=options.force, api_version=resource.api_version)
        if version:
            merged["metadata"]["resourceVersion"] = version
        obj, missing = self._decoder.decode(resource, _copy(merged), options)
        owned = ownership.entries(resource.api_version, clock.stamp(clock.now()), manager)
        return self._update(resource, old, obj, missing, options, subresource, owned)

    # --- delete -----------------------------------------------------------------------------------------------------------

    def delete(
        self, resource: Resource, namespace: str, name: str, delete_options: Object, *, dry_run: bool = False
    ) -> tuple[Stored, bool]:
        """Delete an object, or begin to. Returns its last version and whether it is gone now. Raises 403, 404, 409 or 422."""
        old = self.get(resource, namespace, name)
        deletion.check_preconditions(resource, old, delete_options.get("preconditions") or {})
        admission.guard_delete(resource, old)
        grace_s = deletion.grace_period_s(resource, old, delete_options)
        obj = _copy(old.obj)
        metadata = obj["metadata"]
        finalizer = deletion.finalizer_of(resource, delete_options)
        if finalizer and finalizer not in (metadata.get("finalizers") or ()):
            metadata["finalizers"] = [*(metadata.get("finalizers") or ()), finalizer]
        waits = grace_s > 0 or deletion.is_held(resource, obj)
        if dry_run:
            return old, not waits
        if not waits:
            return self._remove(resource, old), True
        deletion.mark_deleted(resource, metadata, grace_s)
        if resource.kind == "Namespace":
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        if obj == old.obj:
            return old, False
        return self.store.write(resource.storage, obj, old), False

    def finish(self, resource: Resource, stored: Stored, finalizer: str) -> None:
        """Take one finalizer away, and the object with it when that was the last thing it waited for."""
        obj = _copy(stored.obj)
        metadata = obj["metadata"]
        left = [item for item in metadata.get("finalizers") or () if item != finalizer]
        if left:
            metadata["finalizers"] = left
        else:
            metadata.pop("finalizers", None)
        self._commit(resource, stored, obj, Options())


def _check_custom(resource: Resource, obj: Object, old: Object | None) -> list[FieldError]:
    """What the definition of a custom kind says against an object, or what is wrong with a definition."""
    if resource.custom is not None:
        return resource.custom.check(obj, old)
    if resource.kind == "CustomResourceDefinition":
        return structural.check_definition(obj)
    return []


def _copy(obj: Object) -> Object:
    return t.cast(Object, orjson.loads(orjson.dumps(obj)))
