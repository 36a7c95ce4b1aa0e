# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The one table of API kinds: where each is served, and what a run does with it.

The client's paths, the preflight's questions, the cleanup's order, the permissions in docs/rbac.yml and in the modules' notes come from it.
"""

from __future__ import annotations

import typing as t


class Kind(t.NamedTuple):
    """One kind of the API.

    group: "" for the core. verbs: what a run does in the namespace of its workload, or in the cluster for kinds without one.
    owned: a run creates objects of this kind, so a cleanup looks for them.
    """

    name: str
    api_version: str
    group: str
    version: str
    plural: str
    namespaced: bool
    verbs: tuple[str, ...]
    owned: bool = False
    subresource: str = ""

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of the collection, or of one object; without a namespace, of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = f"/{name}" if name else ""
        return f"{root}{where}/{self.plural}{tail}" + (f"/{self.subresource}" if self.subresource else "")

    @property
    def resource(self) -> str:
        """As RBAC names it: pods, pods/log."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural


_OWNED = ("create", "get", "list", "delete")

JOB = Kind("job", "batch/v1", "batch", "v1", "jobs", True, ("create", "get", "list", "watch", "patch", "delete"), owned=True)
SERVICE = Kind("service", "v1", "", "v1", "services", True, _OWNED, owned=True)
SECRET = Kind("secret", "v1", "", "v1", "secrets", True, _OWNED, owned=True)
# Patched: the heartbeat of the anchor, by which others see that its run lives.
CONFIG_MAP = Kind("configmap", "v1", "", "v1", "configmaps", True, ("create", "get", "list", "patch", "delete"), owned=True)
POD = Kind("pod", "v1", "", "v1", "pods", True, ("list", "watch", "delete"), owned=True)
POD_LOG = Kind("pod log", "v1", "", "v1", "pods", True, ("get",), subresource="log")
EVENT = Kind("event", "v1", "", "v1", "events", True, ("list",))
NODE = Kind("node", "v1", "", "v1", "nodes", False, ("get", "list", "watch"))

# Owners first: what they own goes with them. Pods last, since a Job would make new ones.
OWNED = (JOB, SERVICE, SECRET, CONFIG_MAP, POD)
# Only to let the API server examine a pod before there is one (dry run); whoever may create Jobs gains nothing by it.
POD_EXAMINED = POD._replace(verbs=("create",), owned=False)
NAMESPACED = (JOB, POD, POD_LOG, CONFIG_MAP, SERVICE, SECRET, EVENT)
CLUSTER = (NODE,)
# What discovery looks at where it may; without it the snapshot has a note.
RESOURCE_SLICE = Kind("resource slice", "resource.k8s.io/v1", "resource.k8s.io", "v1", "resourceslices", False, ("list",))
# Read once: no two clusters have a namespace kube-system of the same UID.
NAMESPACE = Kind("namespace", "v1", "", "v1", "namespaces", False, ("get",))
OPTIONAL = (SERVICE._replace(namespaced=False, verbs=("list",), owned=False), RESOURCE_SLICE, NAMESPACE)


def rules(kinds: t.Iterable[Kind]) -> list[dict[str, list[str]]]:
    """RBAC rules for these kinds: kinds of one group with the same verbs share a rule."""
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for kind in kinds:
        merged.setdefault((kind.group, kind.verbs), []).append(kind.resource)
    return [{"apiGroups": [group], "resources": resources, "verbs": list(verbs)} for (group, verbs), resources in merged.items()]
