# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The table of kinds the server serves, and the ones that custom resource definitions add."""

from __future__ import annotations

import dataclasses
import typing as t

from .errors import FieldError
from .objects import Object
from .schema import TypeNode


class CustomKind(t.Protocol):
    """One version of a custom kind, as its CustomResourceDefinition describes it.

    columns:    what tables show of it, as additionalPrinterColumns.
    selectable: the fields that field selectors may name.
    """

    schema: Object
    columns: list[Object]
    selectable: tuple[str, ...]
    node: TypeNode

    def clean(self, obj: Object) -> list[tuple[t.Any, ...]]:
        """Prune, then default, in place. Returns the pruned paths."""

    def check(self, obj: Object, old: Object | None) -> list[FieldError]:
        """Every violation of the schema and of its rules."""


@dataclasses.dataclass(frozen=True, eq=False)
class Resource:
    """One kind in one API version.

    generation: metadata.generation is kept and counts changes of everything but metadata and status.
    keeps_status: a create keeps the status of its body (Node); otherwise the status subresource is the only way to write it.
    custom: None for built-in kinds.
    prefix: the first bytes of every serialized object: kind and apiVersion.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    generation: bool = False
    keeps_status: bool = False
    create_only: bool = False
    storage_group: str | None = None
    list_kind: str = ""
    custom: CustomKind | None = None
    prefix: bytes = dataclasses.field(init=False, default=b"")

    def __post_init__(self) -> None:
        prefix = f'{{"kind":"{self.kind}","apiVersion":"{self.api_version}",'
        object.__setattr__(self, "prefix", prefix.encode())
        if not self.singular:
            object.__setattr__(self, "singular", self.kind.lower())
        if not self.list_kind:
            object.__setattr__(self, "list_kind", self.kind + "List")

    @property
    def api_version(self) -> str:
        """group/version, or version alone in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> tuple[str, str]:
        """Which collection holds the objects; versions of one kind share it."""
        return (self.group if self.storage_group is None else self.storage_group, self.plural)

    @property
    def has_status(self) -> bool:
        """Whether status is a subresource."""
        return "status" in self.subresources

    @property
    def verbs(self) -> tuple[str, ...]:
        """What discovery announces."""
        if self.create_only:
            return ("create",)
        return ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


# group, version: kind, plural, namespaced, short names (space separated), flags.
# Flags: s status subresource, g generation, k keeps status on create, c create only (reviews), a category "all".
_BUILT_IN: dict[tuple[str, str], tuple[tuple[str, str, bool, str, str], ...]] = {
    ("", "v1"): (
        ("Namespace", "namespaces", False, "ns", "s"),
        ("Node", "nodes", False, "no", "sk"),
        ("Pod", "pods", True, "po", "sga"),
        ("Service", "services", True, "svc", "sa"),
        ("Endpoints", "endpoints", True, "ep", ""),
        ("ConfigMap", "configmaps", True, "cm", ""),
        ("Secret", "secrets", True, "", ""),
        ("ServiceAccount", "serviceaccounts", True, "sa", ""),
        ("Event", "events", True, "ev", ""),
        ("PersistentVolumeClaim", "persistentvolumeclaims", True, "pvc", "s"),
        ("PersistentVolume", "persistentvolumes", False, "pv", "s"),
        ("ResourceQuota", "resourcequotas", True, "quota", "s"),
        ("LimitRange", "limitranges", True, "limits", ""),
        ("PodTemplate", "podtemplates", True, "", "g"),
        ("ReplicationController", "replicationcontrollers", True, "rc", "sga"),
    ),
    ("apps", "v1"): (
        ("DaemonSet", "daemonsets", True, "ds", "sga"),
        ("Deployment", "deployments", True, "deploy", "sga"),
        ("ReplicaSet", "replicasets", True, "rs", "sga"),
        ("StatefulSet", "statefulsets", True, "sts", "sga"),
        ("ControllerRevision", "controllerrevisions", True, "", ""),
    ),
    ("batch", "v1"): (
        ("Job", "jobs", True, "", "sga"),
        ("CronJob", "cronjobs", True, "cj", "sga"),
    ),
    ("events.k8s.io", "v1"): (("Event", "events", True, "ev", ""),),
    ("coordination.k8s.io", "v1"): (("Lease", "leases", True, "", ""),),
    ("discovery.k8s.io", "v1"): (("EndpointSlice", "endpointslices", True, "", "g"),),
    ("policy", "v1"): (("PodDisruptionBudget", "poddisruptionbudgets", True, "pdb", "sg"),),
    ("scheduling.k8s.io", "v1"): (("PriorityClass", "priorityclasses", False, "pc", "g"),),
    ("node.k8s.io", "v1"): (("RuntimeClass", "runtimeclasses", False, "", ""),),
    ("storage.k8s.io", "v1"): (
        ("StorageClass", "storageclasses", False, "sc", ""),
        ("CSIDriver", "csidrivers", False, "", ""),
        ("CSINode", "csinodes", False, "", ""),
        ("VolumeAttachment", "volumeattachments", False, "", "s"),
    ),
    ("networking.k8s.io", "v1"): (
        ("NetworkPolicy", "networkpolicies", True, "netpol", "g"),
        ("Ingress", "ingresses", True, "ing", "sg"),
        ("IngressClass", "ingressclasses", False, "", "g"),
    ),
    ("rbac.authorization.k8s.io", "v1"): (
        ("Role", "roles", True, "", ""),
        ("RoleBinding", "rolebindings", True, "", ""),
        ("ClusterRole", "clusterroles", False, "", ""),
        ("ClusterRoleBinding", "clusterrolebindings", False, "", ""),
    ),
    ("resource.k8s.io", "v1"): (
        ("ResourceClaim", "resourceclaims", True, "", "s"),
        ("ResourceClaimTemplate", "resourceclaimtemplates", True, "", ""),
        ("ResourceSlice", "resourceslices", False, "", "g"),
        ("DeviceClass", "deviceclasses", False, "", "g"),
    ),
    ("apiextensions.k8s.io", "v1"): (("CustomResourceDefinition", "customresourcedefinitions", False, "crd crds", "sg"),),
    ("admissionregistration.k8s.io", "v1"): (
        ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False, "", "g"),
        ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False, "", "g"),
    ),
    ("authorization.k8s.io", "v1"): (
        ("SelfSubjectAccessReview", "selfsubjectaccessreviews", False, "", "c"),
        ("SelfSubjectRulesReview", "selfsubjectrulesreviews", False, "", "c"),
        ("SubjectAccessReview", "subjectaccessreviews", False, "", "c"),
        ("LocalSubjectAccessReview", "localsubjectaccessreviews", True, "", "c"),
    ),
    ("authentication.k8s.io", "v1"): (
        ("SelfSubjectReview", "selfsubjectreviews", False, "", "c"),
        ("TokenReview", "tokenreviews", False, "", "c"),
    ),
}

_MORE_SUBRESOURCES = {
    ("", "pods"): ("log", "binding", "eviction"),
    ("", "namespaces"): ("finalize",),
    ("", "serviceaccounts"): ("token",),
}
_SINGULAR = {"endpoints": "endpoints"}


def _built_in(group: str, version: str, row: tuple[str, str, bool, str, str]) -> Resource:
    kind, plural, namespaced, short, flags = row
    subresources = (("status",) if "s" in flags else ()) + _MORE_SUBRESOURCES.get((group, plural), ())
    return Resource(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        namespaced=namespaced,
        singular=_SINGULAR.get(plural, ""),
        short_names=tuple(short.split()),
        categories=("all",) if "a" in flags else (),
        subresources=frozenset(subresources),
        generation="g" in flags,
        keeps_status="k" in flags,
        create_only="c" in flags,
        # The two event APIs are views of the same objects.
        storage_group="" if group == "events.k8s.io" else None,
    )


class ResourceTable:
    """Every kind served now, by group, version and plural. groups keeps the order in which groups and versions were added."""

    def __init__(self) -> None:
        self.by_path: dict[tuple[str, str, str], Resource] = {}
        self.groups: dict[str, list[str]] = {}
        self.revision = 0
        self._storages: dict[tuple[str, str], Resource] = {}
        self._storage_revision = -1
        for (group, version), rows in _BUILT_IN.items():
            for row in rows:
                self.add(_built_in(group, version, row))

    def add(self, resource: Resource) -> None:
        """Serve a kind."""
        self.by_path[(resource.group, resource.version, resource.plural)] = resource
        versions = self.groups.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
        self.revision += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a kind in all its versions."""
        for key in [key for key in self.by_path if key[0] == group and key[2] == plural]:
            del self.by_path[key]
        live = {(key[0], key[1]) for key in self.by_path}
        self.groups = {g: kept for g, versions in self.groups.items() if (kept := [v for v in versions if (g, v) in live])}
        self.revision += 1

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The kind at a path, or None."""
        return self.by_path.get((group, version, plural))

    def of_version(self, group: str, version: str) -> list[Resource]:
        """The kinds of one group version, in the order added."""
        return [resource for key, resource in self.by_path.items() if key[0] == group and key[1] == version]

    def stored(self) -> list[Resource]:
        """One resource per collection that can hold objects."""
        return list(self._by_storage().values())

    def of_storage(self, key: tuple[str, str]) -> Resource | None:
        """A resource whose objects are in a collection, or None when its kind is no longer served."""
        return self._by_storage().get(key)

    def _by_storage(self) -> dict[tuple[str, str], Resource]:
        if self._storage_revision != self.revision:
            self._storages = {}
            for resource in self.by_path.values():
                if not resource.create_only:
                    self._storages.setdefault(resource.storage, resource)
            self._storage_revision = self.revision
        return self._storages
