# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects of a run and of one attempt, as plain dicts.

One attempt is an Indexed Job with one pod per node, a headless Service and a ConfigMap with the hostfile. The Job is created
suspended and owns the other two, so that deleting it, or its time to live, takes everything along, even when we are gone.
"""

from __future__ import annotations

import typing as t

from . import names
from .mpi_script import ssh_config
from .pods import JOB_NAME_LABEL, Manifest, ends, pod_spec, port_of
from .shell_parts import HOSTFILE, host_names

TTL_S = 600  # a Job nobody deleted removes itself this long after its end


def anchor(run_id: str, namespace: str, category: str, annotations: t.Mapping[str, str], owner: t.Sequence[Manifest] = ()) -> Manifest:
    """The ConfigMap that owns the objects of a category of a run. annotations: whose it is, and when a later run may sweep it away."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.anchor_name(run_id, category),
            "namespace": namespace,
            "labels": names.category_labels(run_id, category),
            "annotations": dict(annotations),
            "ownerReferences": list(owner),
        },
        "data": {"run": run_id},
    }


def fuse(template: t.Mapping[str, t.Any], run_id: str, category: str, start: str, seconds: int) -> Manifest:
    """A Job of no pods. It is complete at once, and its time to live takes along what it owns when nobody else does.

    Neither a ConfigMap nor a suspended Job has a time to live. Its pod template is that of an attempt, so that what admits those admits it.
    """
    identity = {"run_id": run_id, "category": category, "group": "fuse", "attempt": 1, "owner": []}
    job = _job(template, identity, {"labels": names.category_labels(run_id, category), "name": "fuse"}, ["none"])
    del job["spec"]["template"]["spec"]["affinity"]  # no node is meant
    for key in ("completionMode", "activeDeadlineSeconds", "successPolicy"):
        job["spec"].pop(key, None)
    job["spec"] |= {"suspend": False, "completions": 0, "parallelism": 0, "ttlSecondsAfterFinished": seconds}
    job["metadata"] = {
        "name": names.fuse_name(run_id, category, start),
        "namespace": template["namespace"],
        "labels": names.category_labels(run_id, category),
    }
    return job


def ssh_secret(
    run_id: str, namespace: str, category: str, owner: t.Sequence[Manifest], *, private_key: str, public_key: str, port: int
) -> Manifest:
    """The key pair by which launchers reach their workers; made fresh for each category of a run and stored nowhere else."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.secret_name(run_id, category),
            "namespace": namespace,
            "labels": names.category_labels(run_id, category),
            "ownerReferences": list(owner),
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": {
            "id_ed25519": private_key,
            "id_ed25519.pub": public_key,
            "authorized_keys": public_key,
            "known_hosts": f"* {public_key}",
            "config": ssh_config(port),
        },
    }


def attempt_objects(template: t.Mapping[str, t.Any], identity: t.Mapping[str, t.Any], nodes: t.Sequence[str]) -> dict[str, Manifest]:
    """The manifests of one attempt: job, config_map and, for several nodes, service.

    template: a category's template (docs/data_shapes.md). identity: {run_id, category, group, attempt, owner[]}.
    Service and ConfigMap get their owner, the Job, when the Job exists: see the engine.
    """
    name = names.attempt_name(identity["run_id"], identity["category"], identity["group"], identity["attempt"])
    labels = names.attempt_labels(identity["run_id"], identity["category"], identity["group"], identity["attempt"])
    meta = {"name": name, "namespace": template["namespace"], "labels": labels}
    hosts = host_names(name, template["namespace"], len(nodes))
    hostfile = "".join(f"{host} slots={template['gpus_per_node']}\n" for host in hosts)
    result = {
        "job": _job(template, identity, meta, nodes),
        "config_map": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": dict(meta),
            "immutable": True,
            "data": {HOSTFILE.rsplit("/", 1)[1]: hostfile, **template.get("files", {})},
        },
    }
    if len(nodes) > 1:
        result["service"] = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": dict(meta),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {JOB_NAME_LABEL: name},
                "ports": [{**port_of(template), "protocol": "TCP"}],
            },
        }
    return result


def _job(template: t.Mapping[str, t.Any], identity: t.Mapping[str, t.Any], meta: Manifest, nodes: t.Sequence[str]) -> Manifest:
    spec: Manifest = {
        "suspend": True,
        "completionMode": "Indexed",
        "completions": len(nodes),
        "parallelism": len(nodes),
        "backoffLimit": 0,  # an attempt is one execution; a retry is a new attempt with its own record
        "activeDeadlineSeconds": template["active_deadline_s"],
        "ttlSecondsAfterFinished": TTL_S,
        "template": {
            "metadata": {"labels": {**template.get("labels", {}), **meta["labels"]}},
            "spec": pod_spec(template, identity, meta["name"], nodes),
        },
    }
    if template.get("annotations"):
        spec["template"]["metadata"]["annotations"] = dict(template["annotations"])
    if template["success_policy"] and len(nodes) > 1 and ends(template) == "first":
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**meta, "ownerReferences": list(identity["owner"])}, "spec": spec}
