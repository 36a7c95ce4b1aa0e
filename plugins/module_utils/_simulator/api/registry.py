# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the API does to objects, without HTTP: create, update, patch and delete with everything that belongs to them.

Objects inside carry no kind and no apiVersion (see store). All methods run to the end without giving up control, so each is atomic.
"""

from __future__ import annotations

import dataclasses
import datetime
import secrets
import typing as t
import uuid

from ..deps import orjson
from . import admission, clock, defaults, event_views, patch, structural, validation
from . import apply as server_side_apply
from . import errors as api_errors
from .resources import Resource, ResourceTable
from .schema import OBJECT_META, BuiltInTypes, TypeNode, drop_nulls, drop_path, path_text
from .store import Store, Stored

Object = dict[str, t.Any]

_NAME_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_FIXED_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName")
_STALE = "the object has been modified; please apply your changes to the latest version and try again"
ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"


@dataclasses.dataclass
class Options:
    """The query of a write. validation: Strict, Warn or Ignore. warnings and name (of a new object) are filled by serving it."""

    dry_run: bool = False
    validation: str = "Warn"
    manager: str = "unknown"
    force: bool = False
    warnings: list[str] = dataclasses.field(default_factory=list)
    name: str = ""


class Registry:
    """All kinds and all objects of one server."""

    def __init__(self, types: BuiltInTypes, history_limit: int) -> None:
        self.types = types
        self.table = ResourceTable()
        self.store = Store(history_limit)

    # --- reading ----------------------------------------------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        """One object. Raises 404."""
        found = self.store.collection(resource.storage).get(namespace, name)
        if found is None:
            raise api_errors.not_found(resource.group, resource.plural, name)
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

    def node(self, resource: Resource) -> TypeNode:
        """The type of a kind's objects."""
        if resource.custom is not None:
            return resource.custom.node
        return self.types.node(self._definition(resource))

    def _definition(self, resource: Resource) -> str | None:
        return self.types.names.get((resource.group, resource.version, resource.kind))

    def default_priority_class(self) -> Object | None:
        """The priority class with globalDefault, if any."""
        for item in self.store.collection(("scheduling.k8s.io", "priorityclasses")).ordered(None):
            if item.obj.get("globalDefault"):
                return item.obj
        return None

    # --- decoding a body --------------------------------------------------------------------------------------------------

    def decode(self, resource: Resource, body: t.Any, options: Options) -> tuple[Object, list[api_errors.FieldError]]:
        """A body as an object of the kind: types checked, unknown fields dropped. Returns it with the fields it lacks.

        Raises 400 for a wrong type, and for unknown fields under Strict validation.
        """
        obj = self._headed(resource, body)
        if resource.custom is not None:
            self._decode_custom(resource, obj, options)
            missing: list[api_errors.FieldError] = []
        else:
            missing = self._decode_built_in(resource, obj, options)
        if resource.group == "events.k8s.io":
            obj = event_views.to_core(obj)
        return obj, missing

    @staticmethod
    def _headed(resource: Resource, body: t.Any) -> Object:
        if not isinstance(body, dict):
            raise api_errors.bad_request(f"the body is not a {resource.kind} object")
        obj = dict(body)
        if resource.custom is not None and not obj.get("kind"):  # of a built-in kind the path is enough
            words = f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' is missing"
            raise api_errors.bad_request(words)
        kind, api_version = obj.pop("kind", None) or resource.kind, obj.pop("apiVersion", None) or resource.api_version
        if (kind, api_version) != (resource.kind, resource.api_version):
            wanted = f"{resource.api_version}, Kind={resource.kind}"
            raise api_errors.bad_request(f"the object provided is {api_version}, Kind={kind}; this path takes {wanted}")
        if obj.get("metadata") is None:
            obj["metadata"] = {}
        return obj

    def _decode_built_in(self, resource: Resource, obj: Object, options: Options) -> list[api_errors.FieldError]:
        drop_nulls(obj)
        name = self._definition(resource)
        if name is None:
            return []
        findings = self.types.check(name, obj)
        if findings.types:
            where, message = findings.types[0]
            raise api_errors.bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {where}: {message}'
            )
        self._unknown(findings.unknown, options)
        for path in findings.unknown:
            drop_path(obj, path)
        if resource.kind == "Secret" and (problem := validation.secret_data_problem(obj)):
            raise api_errors.bad_request(f'Secret in version "v1" cannot be handled as a Secret: {problem}')
        # Containers without a name are reported with their other errors, by validation.
        covered = resource.kind in ("Pod", "Job", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet")
        return [] if covered else [api_errors.required(where) for where, _message in findings.missing]

    def _decode_custom(self, resource: Resource, obj: Object, options: Options) -> None:
        drop_nulls(obj["metadata"])
        findings = self.types.check(OBJECT_META, obj["metadata"])
        if findings.types:
            where, message = findings.types[0]
            raise api_errors.bad_request(f"{resource.kind} cannot be handled: metadata.{where}: {message}")
        for path in findings.unknown:
            drop_path(obj["metadata"], path)
        dropped = [("metadata", *path) for path in findings.unknown] + resource.custom.clean(obj)
        self._unknown(dropped, options)

    @staticmethod
    def _unknown(paths: t.Sequence[tuple[t.Any, ...]], options: Options) -> None:
        texts = [f'unknown field "{path_text(path)}"' for path in paths]
        if texts and options.validation == "Strict":
            raise api_errors.bad_request(f"strict decoding error: {', '.join(texts)}")
        if options.validation == "Warn":
            options.warnings += texts

    # --- create -----------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: t.Any, options: Options) -> Stored:
        """Create an object. Raises 400, 403, 404, 409 or 422."""
        obj, missing = self.decode(resource, body, options)
        if obj["metadata"].get("resourceVersion"):
            raise api_errors.bad_request("resourceVersion should not be set on objects to be created")
        return self._create(resource, namespace, obj, missing, options)

    def _create(self, resource: Resource, namespace: str, obj: Object, missing: list[api_errors.FieldError], options: Options) -> Stored:
        self._new_metadata(resource, namespace, obj)
        metadata = obj["metadata"]
        options.name = metadata["name"]
        self._set_defaults(resource, obj, created=True)
        admission.admit(self, resource, obj, options.warnings)
        errors = missing + validation.check_create(resource, obj) + self._check_custom(resource, obj, None)
        if errors:
            raise api_errors.invalid(resource.group, resource.kind, metadata["name"], errors)
        if self.store.collection(resource.storage).get(namespace, metadata["name"]) is not None:
            raise api_errors.already_exists(resource.group, resource.plural, metadata["name"])
        if options.dry_run:
            return Stored(obj, None)
        stored = self.store.write(resource.storage, obj, None)
        self._created(resource, stored)
        return self.get(resource, namespace, stored.name)

    def _new_metadata(self, resource: Resource, namespace: str, obj: Object) -> None:
        metadata = obj["metadata"]
        if metadata.get("namespace", namespace) != namespace:
            raise api_errors.bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if namespace:
            metadata["namespace"] = namespace
        else:
            metadata.pop("namespace", None)
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                raise api_errors.invalid(
                    resource.group, resource.kind, "", [api_errors.required("metadata.name", "name or generateName is required")]
                )
            metadata["name"] = metadata["generateName"][:58] + "".join(secrets.choice(_NAME_CHARACTERS) for _index in range(5))
        for key in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            metadata.pop(key, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = clock.stamp(clock.now())
        if resource.generation:
            metadata["generation"] = 1

    def _set_defaults(self, resource: Resource, obj: Object, *, created: bool) -> None:
        kind = (resource.group, resource.kind)
        fill = defaults.BY_KIND.get(kind)
        if fill:
            fill(obj)
        if resource.kind == "CustomResourceDefinition":
            structural.complete_names(obj)
        if not created:
            return
        if kind == ("batch", "Job"):
            defaults.job_selector(obj)
        if resource.has_status and not resource.keeps_status:
            obj.pop("status", None)
        if kind in defaults.INITIAL_STATUS:
            defaults.INITIAL_STATUS[kind](obj)

    def _check_custom(self, resource: Resource, obj: Object, old: Object | None) -> list[api_errors.FieldError]:
        if resource.custom is not None:
            return resource.custom.check(obj, old)
        if resource.kind == "CustomResourceDefinition":
            return structural.check_definition(obj)
        return []

    def _created(self, resource: Resource, stored: Stored) -> None:
        """What follows at once from a new object."""
        if resource.kind == "Namespace" and not resource.group:
            self._new_namespace(stored.name)
        elif resource.kind == "CustomResourceDefinition":
            self.establish(stored)

    def _new_namespace(self, name: str) -> None:
        for plural, obj in (("serviceaccounts", {"metadata": {"name": "default"}}), ("configmaps", _root_certificates())):
            resource = t.cast(Resource, self.table.find("", "v1", plural))
            self.create(resource, name, obj, Options())

    def establish(self, stored: Stored) -> None:
        """Serve the kinds of a CustomResourceDefinition and say so in its status."""
        definition = stored.obj
        spec = definition["spec"]
        self.table.remove(spec["group"], spec["names"]["plural"])
        for resource in structural.resources_of(definition, self.types):
            self.table.add(resource)
        status = {
            "conditions": [
                _condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                _condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
            "acceptedNames": spec["names"],
            "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
        }
        before = definition.get("status") or {}
        if before.get("acceptedNames") != status["acceptedNames"] or before.get("storedVersions") != status["storedVersions"]:
            self.store.write(("apiextensions.k8s.io", "customresourcedefinitions"), _copy({**definition, "status": status}), stored)

    # --- update -----------------------------------------------------------------------------------------------------------

    def update(self, resource: Resource, namespace: str, name: str, body: t.Any, options: Options, subresource: str = "") -> Stored:
        """Replace an object, or its status. Raises 400, 404, 409 or 422."""
        old = self.get(resource, namespace, name)
        obj, missing = self.decode(resource, body, options)
        return self._update(resource, old, obj, missing, options, subresource)

    def _update(
        self,
        resource: Resource,
        old: Stored,
        obj: Object,
        missing: list[api_errors.FieldError],
        options: Options,
        subresource: str,
        owned: list[Object] | None = None,
    ) -> Stored:
        """owned: the managedFields when server-side apply has computed them; None for every other write."""
        self._check_identity(resource, old, obj["metadata"])
        obj = self._merge_parts(resource, old.obj, obj, subresource)
        self._old_metadata(old, obj["metadata"])
        self._check_finalizers(resource, old, obj["metadata"])
        if subresource != "status":
            self._set_defaults(resource, obj, created=False)
        errors = [] if subresource == "status" and resource.custom is None else self._errors(resource, obj, old.obj, missing)
        if errors:
            raise api_errors.invalid(resource.group, resource.kind, old.name, errors)
        if resource.generation and _content(obj, resource) != _content(old.obj, resource):
            obj["metadata"]["generation"] = old.obj["metadata"].get("generation", 0) + 1
        self._manage(resource, old, obj, options, subresource, owned)
        return self._commit(resource, old, obj, options)

    def _errors(self, resource: Resource, obj: Object, old: Object, missing: list[api_errors.FieldError]) -> list[api_errors.FieldError]:
        return missing + validation.check_update(resource, obj, old) + self._check_custom(resource, obj, old)

    @staticmethod
    def _check_identity(resource: Resource, old: Stored, metadata: Object) -> None:
        if metadata.get("name", old.name) != old.name:
            raise api_errors.bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({old.name})")
        if metadata.get("namespace", old.namespace) != old.namespace:
            raise api_errors.bad_request("the namespace of the provided object does not match the namespace sent on the request")
        uid = metadata.get("uid") or old.obj["metadata"]["uid"]
        if uid != old.obj["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.obj['metadata']['uid']}"
            raise api_errors.conflict(resource.group, resource.plural, old.name, why)
        version = metadata.get("resourceVersion")
        if version and version != str(old.version):
            raise api_errors.conflict(resource.group, resource.plural, old.name, _STALE)

    @staticmethod
    def _merge_parts(resource: Resource, old: Object, new: Object, subresource: str) -> Object:
        """Keep what this path may not write: everything but status on /status, the status elsewhere."""
        if subresource == "status":
            # Built-in kinds let a status write change labels and annotations; custom kinds do not.
            metadata = old["metadata"] if resource.custom is not None else {**new["metadata"]}
            result = {**old, "metadata": {**metadata}}
            result["metadata"]["ownerReferences"] = old["metadata"].get("ownerReferences")
            if result["metadata"]["ownerReferences"] is None:
                del result["metadata"]["ownerReferences"]
            result.pop("status", None)
            if "status" in new:
                result["status"] = new["status"]
            return result
        result = dict(new)
        if resource.has_status:
            result.pop("status", None)
            if "status" in old:
                result["status"] = old["status"]
        if resource.kind == "Namespace" and subresource != "finalize":
            result["spec"] = old.get("spec", {})
        return result

    @staticmethod
    def _old_metadata(old: Stored, metadata: Object) -> None:
        before = old.obj["metadata"]
        for key in _FIXED_METADATA:
            metadata.pop(key, None)
            if key in before:
                metadata[key] = before[key]
        metadata["name"] = old.name
        metadata.pop("selfLink", None)
        if old.namespace:
            metadata["namespace"] = old.namespace

    @staticmethod
    def _check_finalizers(resource: Resource, old: Stored, metadata: Object) -> None:
        if not metadata.get("deletionTimestamp"):
            return
        added = set(metadata.get("finalizers") or ()) - set(old.obj["metadata"].get("finalizers") or ())
        if added:
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {sorted(added)}"
            raise api_errors.invalid(resource.group, resource.kind, old.name, [api_errors.forbidden_field("metadata.finalizers", why)])

    def _manage(self, resource: Resource, old: Stored, obj: Object, options: Options, subresource: str, owned: list[Object] | None) -> None:
        """Bring metadata.managedFields up to date. Fields are tracked from an object's first apply on."""
        metadata = obj["metadata"]
        if owned is not None:
            metadata["managedFields"] = owned
            return
        if metadata.get("managedFields") == []:
            del metadata["managedFields"]
            return
        entries = old.obj["metadata"].get("managedFields")
        if not entries:
            metadata.pop("managedFields", None)
            return
        ownership = server_side_apply.Ownership(entries)
        manager = (options.manager, "Update", subresource)
        server_side_apply.track(old.obj, obj, self.node(resource), ownership, manager)
        metadata["managedFields"] = ownership.entries(resource.api_version, clock.stamp(clock.now()), manager)

    def _commit(self, resource: Resource, old: Stored, obj: Object, options: Options) -> Stored:
        metadata = obj["metadata"]
        metadata["resourceVersion"] = str(old.version)
        # A write that changes nothing keeps the version and wakes nobody.
        if obj == old.obj:
            return old
        if options.dry_run:
            return Stored(obj, old.version)
        if self._may_vanish(resource, obj):
            return self._remove(resource, self.store.write(resource.storage, obj, old))
        stored = self.store.write(resource.storage, obj, old)
        if resource.kind == "CustomResourceDefinition":
            self.establish(stored)
            return self.get(resource, "", stored.name)
        return stored

    @staticmethod
    def _may_vanish(resource: Resource, obj: Object) -> bool:
        """Whether an object being deleted has nothing left to wait for."""
        metadata = obj["metadata"]
        if not metadata.get("deletionTimestamp") or metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
            return False
        return not (resource.kind == "Namespace" and (obj.get("spec") or {}).get("finalizers"))

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
            raise api_errors.bad_request("a patch of this type is an object")
        elif kind == "merge":
            result = patch.merge_patch(current, change)
        elif resource.custom is not None:
            accepted = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
            raise api_errors.unsupported_media_type("application/strategic-merge-patch+json", accepted)
        else:
            result = patch.strategic_patch(current, change, self.node(resource))
        obj, missing = self.decode(resource, result, options)
        return self._update(resource, old, obj, missing, options, subresource)

    def apply(
        self, resource: Resource, namespace: str, name: str, config: t.Any, options: Options, subresource: str = ""
    ) -> tuple[Stored, bool]:
        """Server-side apply. Returns the object and whether it was created. Raises 400, 409 or 422."""
        if not isinstance(config, dict) or not config.get("kind") or not config.get("apiVersion"):
            raise api_errors.bad_request("invalid object type: apiVersion and kind must be set in an applied configuration")
        if (config.get("metadata") or {}).get("managedFields"):
            raise api_errors.bad_request("metadata.managedFields must be nil")
        old = self.store.collection(resource.storage).get(namespace, name)
        manager = (options.manager, "Apply", subresource)
        applied = self._applied(resource, namespace, name, config, options)
        now, node = clock.stamp(clock.now()), self.node(resource)
        if old is None:
            if subresource:
                raise api_errors.not_found(resource.group, resource.plural, name)
            ownership = server_side_apply.Ownership(())
            ownership.sets[manager] = set(server_side_apply.fields(applied, node))
            obj, missing = self.decode(resource, _copy(applied), options)
            obj["metadata"]["managedFields"] = ownership.entries(resource.api_version, now, manager)
            return self._create(resource, namespace, obj, missing, options), True
        ownership = self._ownership(old, node)
        current = orjson.loads(self.body(resource, old))
        version = applied["metadata"].pop("resourceVersion", None)
        merged = server_side_apply.apply(current, applied, node, ownership, manager, force=options.force, api_version=resource.api_version)
        if version:
            merged["metadata"]["resourceVersion"] = version
        obj, missing = self.decode(resource, _copy(merged), options)
        owned = ownership.entries(resource.api_version, now, manager)
        return self._update(resource, old, obj, missing, options, subresource, owned), False

    def _applied(self, resource: Resource, namespace: str, name: str, config: Object, options: Options) -> Object:
        """The applied configuration, checked for unknown fields before anything merges."""
        obj = self._headed(resource, _copy(config))
        metadata = obj["metadata"]
        if metadata.get("name", name) != name:
            raise api_errors.bad_request("metadata.name must match the name on the URL")
        metadata["name"] = name
        if namespace:
            metadata["namespace"] = namespace
        if resource.custom is not None:
            drop_nulls(metadata)
            self._unknown(structural.prune(obj, resource.custom.schema, root=True), options)
        else:
            self._decode_built_in(resource, obj, options)
        return {"kind": resource.kind, "apiVersion": resource.api_version, **obj}

    @staticmethod
    def _ownership(old: Stored, node: TypeNode) -> server_side_apply.Ownership:
        entries = old.obj["metadata"].get("managedFields") or ()
        ownership = server_side_apply.Ownership(entries)
        if not entries:
            spoken = {key: value for key, value in old.obj.items() if key != "status"}
            ownership.sets[("before-first-apply", "Update", "")] = set(server_side_apply.fields(spoken, node))
        return ownership

    # --- delete -----------------------------------------------------------------------------------------------------------

    def delete(self, resource: Resource, namespace: str, name: str, how: Object, *, dry_run: bool = False) -> tuple[Stored, bool]:
        """Delete an object, or begin to. how: DeleteOptions. Returns its last version and whether it is gone now. Raises 403, 404, 409."""
        old = self.get(resource, namespace, name)
        self._preconditions(resource, old, how.get("preconditions") or {})
        admission.guard_delete(resource, old)
        grace = self._grace(resource, old, how)
        obj = _copy(old.obj)
        metadata = obj["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        extra = self._propagation(resource, how)
        if extra and extra not in finalizers:
            finalizers.append(extra)
        waits = bool(finalizers) or grace > 0 or (resource.kind == "Namespace" and bool((obj.get("spec") or {}).get("finalizers")))
        if dry_run:
            return old, not waits
        if not waits:
            return self._remove(resource, old), True
        if finalizers:
            metadata["finalizers"] = finalizers
        self._mark_deleted(resource, metadata, grace)
        if resource.kind == "Namespace":
            obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        if obj == old.obj:
            return old, False
        return self.store.write(resource.storage, obj, old), False

    @staticmethod
    def _preconditions(resource: Resource, old: Stored, wanted: Object) -> None:
        uid, version = wanted.get("uid"), wanted.get("resourceVersion")
        actual = old.obj["metadata"]["uid"]
        if uid and uid != actual:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
            raise api_errors.conflict(resource.group, resource.plural, old.name, why)
        if version and version != str(old.version):
            why = f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {old.version}"
            raise api_errors.conflict(resource.group, resource.plural, old.name, why)

    @staticmethod
    def _grace(resource: Resource, old: Stored, how: Object) -> int:
        """Seconds a pod stays for its node agent to stop it; 0 for pods that run nowhere and for every other kind."""
        if resource.kind != "Pod" or resource.group:
            return 0
        spec, status = old.obj["spec"], old.obj.get("status") or {}
        if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
            return 0
        grace = how.get("gracePeriodSeconds")
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds", 30)
        before = old.obj["metadata"].get("deletionGracePeriodSeconds")
        return max(0, int(grace)) if before is None else max(0, min(int(grace), int(before)))

    @staticmethod
    def _propagation(resource: Resource, how: Object) -> str:
        """The finalizer a propagation policy means; none for Background."""
        policy = how.get("propagationPolicy")
        if policy not in (None, "", "Orphan", "Background", "Foreground"):
            allowed = ("Background", "Foreground", "Orphan")
            raise api_errors.invalid("meta.k8s.io", "DeleteOptions", "", [api_errors.unsupported("propagationPolicy", policy, allowed)])
        if not policy:
            orphan = how.get("orphanDependents")
            policy = "Orphan" if (orphans_by_default(resource) if orphan is None else orphan) else "Background"
        if policy == "Orphan":
            return ORPHAN
        return FOREGROUND if policy == "Foreground" else ""

    @staticmethod
    def _mark_deleted(resource: Resource, metadata: Object, grace: int) -> None:
        if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds", 0) <= grace:
            return
        metadata["deletionTimestamp"] = clock.stamp(clock.now() + datetime.timedelta(seconds=grace))
        metadata["deletionGracePeriodSeconds"] = grace
        if resource.generation:
            metadata["generation"] = metadata.get("generation", 0) + 1

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


def orphans_by_default(resource: Resource) -> bool:
    """Whether a delete without a policy leaves the dependents alone, as old kinds do for compatibility."""
    return (resource.group, resource.kind) in (("batch", "Job"), ("", "ReplicationController"))


def _copy(obj: Object) -> Object:
    return orjson.loads(orjson.dumps(obj))


def _content(obj: Object, resource: Resource) -> Object:
    """What a generation counts."""
    ignored = ("metadata", "status") if resource.has_status or resource.custom is None else ("metadata",)
    return {key: value for key, value in obj.items() if key not in ignored}


def _condition(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "lastTransitionTime": clock.stamp(clock.now()), "reason": reason, "message": message}


def _root_certificates() -> Object:
    """The ConfigMap every namespace gets. This server speaks plain HTTP, so it holds no certificate."""
    return {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ""}}
