# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How an object goes: preconditions, grace, the finalizers of a propagation policy, and when nothing holds it any more."""

from __future__ import annotations

import datetime

from . import clock
from .errors import conflict, invalid, unsupported
from .objects import Object
from .resources import Resource
from .store import Stored

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_POLICIES = ("Background", "Foreground", "Orphan")


def check_preconditions(resource: Resource, old: Stored, wanted: Object) -> None:
    """That an object is still the one a client means. Raises 409."""
    uid, version = wanted.get("uid"), wanted.get("resourceVersion")
    actual = old.obj["metadata"]["uid"]
    if uid and uid != actual:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
        raise conflict(resource.group, resource.plural, old.name, why)
    if version and version != str(old.version):
        why = f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {old.version}"
        raise conflict(resource.group, resource.plural, old.name, why)


def grace_period_s(resource: Resource, old: Stored, delete_options: Object) -> int:
    """Seconds a pod stays for its node agent to stop it; 0 for pods that run nowhere and for every other kind."""
    if resource.kind != "Pod" or resource.group:
        return 0
    spec, status = old.obj["spec"], old.obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    grace = delete_options.get("gracePeriodSeconds")
    if grace is None:
        grace = spec.get("terminationGracePeriodSeconds", 30)
    before = old.obj["metadata"].get("deletionGracePeriodSeconds")
    return max(0, int(grace)) if before is None else max(0, min(int(grace), int(before)))


def finalizer_of(resource: Resource, delete_options: Object) -> str:
    """The finalizer that the propagation policy means, "" for Background. Raises 422 for an unknown policy."""
    policy = delete_options.get("propagationPolicy")
    if policy not in (None, "", *_POLICIES):
        raise invalid("meta.k8s.io", "DeleteOptions", "", [unsupported("propagationPolicy", policy, _POLICIES)])
    if not policy:
        orphan = delete_options.get("orphanDependents")
        policy = "Orphan" if (_orphans_by_default(resource) if orphan is None else orphan) else "Background"
    if policy == "Orphan":
        return ORPHAN
    return FOREGROUND if policy == "Foreground" else ""


def _orphans_by_default(resource: Resource) -> bool:
    """Whether a delete without a policy leaves the dependents alone, as old kinds do for compatibility."""
    return (resource.group, resource.kind) in (("batch", "Job"), ("", "ReplicationController"))


def mark_deleted(resource: Resource, metadata: Object, grace_s: int) -> None:
    """Note, in place, that an object is being deleted. A second delete may shorten the grace, not lengthen it."""
    if metadata.get("deletionTimestamp") and metadata.get("deletionGracePeriodSeconds", 0) <= grace_s:
        return
    metadata["deletionTimestamp"] = clock.stamp(clock.now() + datetime.timedelta(seconds=grace_s))
    metadata["deletionGracePeriodSeconds"] = grace_s
    if resource.generation:
        metadata["generation"] = metadata.get("generation", 0) + 1


def is_held(resource: Resource, obj: Object) -> bool:
    """Whether finalizers or, in a namespace, its content keep an object that is being deleted."""
    return bool(obj["metadata"].get("finalizers")) or (resource.kind == "Namespace" and bool((obj.get("spec") or {}).get("finalizers")))


def may_vanish(resource: Resource, obj: Object) -> bool:
    """Whether an object being deleted has nothing left to wait for."""
    metadata = obj["metadata"]
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("deletionGracePeriodSeconds") and not is_held(resource, obj)
