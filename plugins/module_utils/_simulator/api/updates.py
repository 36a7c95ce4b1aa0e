# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What an update may change of an object, and what of it stays."""

from __future__ import annotations

from .errors import bad_request, conflict, forbidden_field, invalid
from .objects import Object
from .resources import Resource
from .store import Stored

_FIXED_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "generateName")
_STALE = "the object has been modified; please apply your changes to the latest version and try again"


def check_identity(resource: Resource, old: Stored, metadata: Object) -> None:
    """That the new metadata speaks of this object in this version. Raises 400 or 409."""
    if metadata.get("name", old.name) != old.name:
        raise bad_request(f"the name of the object ({metadata['name']}) does not match the name on the URL ({old.name})")
    if metadata.get("namespace", old.namespace) != old.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    uid = metadata.get("uid") or old.obj["metadata"]["uid"]
    if uid != old.obj["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.obj['metadata']['uid']}"
        raise conflict(resource.group, resource.plural, old.name, why)
    version = metadata.get("resourceVersion")
    if version and version != str(old.version):
        raise conflict(resource.group, resource.plural, old.name, _STALE)


def merge_parts(resource: Resource, old: Object, new: Object, subresource: str) -> Object:
    """Keep what this path may not write: everything but status on /status, the status elsewhere."""
    if subresource == "status":
        return _with_new_status(resource, old, new)
    result = dict(new)
    if resource.has_status:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if resource.kind == "Namespace" and subresource != "finalize":
        result["spec"] = old.get("spec", {})
    return result


def _with_new_status(resource: Resource, old: Object, new: Object) -> Object:
    # Built-in kinds let a status write change labels and annotations; custom kinds do not.
    metadata = old["metadata"] if resource.custom is not None else new["metadata"]
    result = {**old, "metadata": {**metadata}}
    result["metadata"]["ownerReferences"] = old["metadata"].get("ownerReferences")
    if result["metadata"]["ownerReferences"] is None:
        del result["metadata"]["ownerReferences"]
    result.pop("status", None)
    if "status" in new:
        result["status"] = new["status"]
    return result


def keep_fixed_metadata(old: Stored, metadata: Object) -> None:
    """Put back, in place, what a client may not change."""
    before = old.obj["metadata"]
    for key in _FIXED_METADATA:
        metadata.pop(key, None)
        if key in before:
            metadata[key] = before[key]
    metadata["name"] = old.name
    metadata.pop("selfLink", None)
    if old.namespace:
        metadata["namespace"] = old.namespace


def check_finalizers(resource: Resource, old: Stored, metadata: Object) -> None:
    """That an object being deleted gets no new finalizers. Raises 422."""
    if not metadata.get("deletionTimestamp"):
        return
    added = set(metadata.get("finalizers") or ()) - set(old.obj["metadata"].get("finalizers") or ())
    if added:
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers {sorted(added)}"
        raise invalid(resource.group, resource.kind, old.name, [forbidden_field("metadata.finalizers", why)])


def count_generation(resource: Resource, old: Object, obj: Object) -> None:
    """Raise the generation, in place, when more than metadata and status has changed."""
    if resource.generation and _content(obj, resource) != _content(old, resource):
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _content(obj: Object, resource: Resource) -> Object:
    ignored = ("metadata", "status") if resource.has_status or resource.custom is None else ("metadata",)
    return {key: value for key, value in obj.items() if key not in ignored}
