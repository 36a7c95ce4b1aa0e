# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What can be known before the first object exists: permissions, and the API server's own opinion of our manifests."""

from __future__ import annotations

import typing as t

from .._cluster.client import Client
from .._cluster.kinds import CLUSTER, NAMESPACED
from .._common.errors import ClusterError
from .._workload.names import attempt_name
from .._workload.objects import attempt_objects
from .steps import OBJECT_KINDS


def missing_permissions(client: Client, namespace: str) -> list[str]:
    """What our user may not do, as "verb resource in namespace x"; empty when all is allowed."""
    missing = []
    for where, kinds in ((namespace, NAMESPACED), ("", CLUSTER)):
        for kind, verb in ((one, verb) for one in kinds for verb in one.verbs):
            if not client.can_i(verb, kind.plural, kind.group, where, kind.subresource):
                suffix = f" ({kind.group})" if kind.group else ""
                missing.append(f"{verb} {kind.resource}{suffix}" + (f" in namespace {where}" if where else " in the cluster"))
    return missing


def dry_run(client: Client, run_id: str, category: t.Mapping[str, t.Any]) -> None:
    """Lets the API server examine the objects of the category's largest group without storing them. Raises ClusterError."""
    template = category["template"]
    group = max(category["groups"], key=lambda item: len(item["nodes"]), default=None)
    if group is None:
        return
    identity = {"run_id": run_id, "category": category["short_id"], "group": group["name"], "attempt": 1, "owner": []}
    objects = attempt_objects(template, identity, group["nodes"])
    for kind, manifest in objects.items():
        try:
            client.create(OBJECT_KINDS[kind].path(template["namespace"]), manifest, dry_run=True)
        except ClusterError as error:
            if error.api_reason == "AlreadyExists":
                # Left by an earlier start of this run, whose node died; the engine removes it first. The manifest itself was examined.
                continue
            name = attempt_name(run_id, category["short_id"], group["name"], 1)
            raise ClusterError(
                f"the API server refuses the {kind.replace('_', ' ')} of {category['title']}: {error.message}",
                place=f"namespace {template['namespace']}, {name}",
                hint=error.hint or "Nothing was created. Change the certification's workload, or ask the cluster's administrator",
                status=error.status,
            ) from error


def check(client: Client, run_id: str, categories: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """Both checks for all categories. Returns {namespaces, examined}; raises ClusterError with everything that is missing."""
    namespaces = sorted({category["template"]["namespace"] for category in categories})
    missing = [item for namespace in namespaces for item in missing_permissions(client, namespace)]
    if missing:
        raise ClusterError(
            f"our user lacks {len(set(missing))} permissions: {'; '.join(sorted(set(missing)))}",
            place="preflight",
            hint="Nothing was created. Grant them with a Role in the namespace and a ClusterRole that reads nodes",
            status=403,
        )
    for category in categories:
        dry_run(client, run_id, category)
    return {"namespaces": namespaces, "examined": [category["id"] for category in categories]}
