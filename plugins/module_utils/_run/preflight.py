# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What can be known before the first object exists: permissions, and the API server's own opinion of our manifests."""

from __future__ import annotations

import typing as t

from .._causes.wordings import reason_of_refusal
from .._cluster.client import Client
from .._cluster.kinds import CLUSTER, NAMESPACED, POD
from .._common.errors import ClusterError
from .._common.words import counted
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


def dry_run_pod(client: Client, run_id: str, category: t.Mapping[str, t.Any]) -> str:
    """Lets the API server examine a pod as the Job would make it: pod security and most policies look at pods, not at Jobs.

    Returns what stays open, as a sentence, or "". Raises ClusterError when the pod is refused.
    """
    template = category["template"]
    namespace = template["namespace"]
    group = max(category["groups"], key=lambda item: len(item["nodes"]), default=None)
    if group is None:
        return ""
    if not client.can_i("create", POD.plural, POD.group, namespace):
        return f"whether namespace {namespace} lets our pods in shows with the first test: our user may not create pods, not even to try"
    identity = {"run_id": run_id, "category": category["short_id"], "group": group["name"], "attempt": 1, "owner": []}
    job = attempt_objects(template, identity, group["nodes"])["job"]
    made = job["spec"]["template"]
    name = f"{job['metadata']['name']}-0-00000"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**made["metadata"], "name": name, "namespace": namespace}, "spec": made["spec"]}
    try:
        client.create(POD.path(namespace), pod, dry_run=True)
    except ClusterError as error:
        if reason_of_refusal(error.status, error.message) == "Quota" or "does not support dry run" in error.message:
            return f"a pod of {category['title']} cannot be examined now: {error.message}"  # quota may be freed until its turn comes
        if error.api_reason == "AlreadyExists":
            return ""
        raise ClusterError(
            f"the cluster refuses the pods of {category['title']}: {error.message}",
            place=f"namespace {namespace}, {name}",
            hint="Nothing was created. Label the namespace for the pod security level that the test needs, or ask the policy's owner",
            status=error.status,
        ) from error
    return ""


def check(client: Client, run_id: str, categories: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """Both checks for all categories. Returns {namespaces, examined, notes}: notes say what stays open, and what
    the API server warned of. Raises ClusterError with everything that is missing."""
    namespaces = sorted({category["template"]["namespace"] for category in categories})
    missing = [item for namespace in namespaces for item in missing_permissions(client, namespace)]
    if missing:
        raise ClusterError(
            f"our user lacks {counted(len(set(missing)), 'permission')}: {'; '.join(sorted(set(missing)))}",
            place="preflight",
            hint="Nothing was created. Grant them with a Role in the namespace and a ClusterRole that reads nodes",
            status=403,
        )
    notes = []
    for category in categories:
        dry_run(client, run_id, category)
        notes.append(dry_run_pod(client, run_id, category))
    told = dict.fromkeys(note for note in [*notes, *client.warnings] if note)
    return {"namespaces": namespaces, "examined": [category["id"] for category in categories], "notes": list(told)}
