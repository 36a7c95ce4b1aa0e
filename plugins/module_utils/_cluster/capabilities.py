# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the cluster can do for us, learnt from two or three cheap reads. Nothing here is allowed to end a run."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from .._common.errors import ClusterError
from .client import Client
from .kinds import SERVICE

Apis = dict[str, dict[str, t.Any]]

# API group -> name of the gang scheduler that brings it.
_SCHEDULERS = {
    "scheduling.run.ai": "kai-scheduler",
    "scheduling.volcano.sh": "volcano",
    "scheduling.x-k8s.io": "scheduler-plugins-scheduler",
}
_DCGM_SERVICES = ("nvidia-dcgm", "nvidia-dcgm-dra")
DCGM_PORT = 5555


def read_apis(client: Client, notes: list[str]) -> Apis:
    """API group -> {versions: [..], preferred: version}; empty, with a note, when it may not be read."""
    try:
        groups = client.document("/apis", "groups")["groups"]
    except ClusterError as error:
        notes.append(f"the API groups could not be read, so nothing is known of Trainer, JobSet, DRA and schedulers: {error.render()}")
        return {}
    return {
        group["name"]: {
            "versions": [version["version"] for version in group.get("versions") or []],
            "preferred": (group.get("preferredVersion") or {}).get("version"),
        }
        for group in groups
    }


def probe(client: Client, apis: Apis, version: Mapping[str, t.Any], notes: list[str]) -> dict[str, t.Any]:
    """The capabilities of docs/data_shapes.md."""
    return {
        "trainer": _served(client, apis, "trainer.kubeflow.org", "trainjobs", notes),
        "jobset": _served(client, apis, "jobset.x-k8s.io", "jobsets", notes),
        "dra": "resource.k8s.io" in apis,
        "compute_domains": _served(client, apis, "resource.nvidia.com", "computedomains", notes) is not None,
        "schedulers": [name for group, name in _SCHEDULERS.items() if group in apis],
        "dcgm_service": _dcgm_service(client, notes),
        "kueue": "kueue.x-k8s.io" in apis,
        "success_policy": at_least(version, 1, 31),
    }


def at_least(version: Mapping[str, t.Any], major: int, minor: int) -> bool:
    """Whether the server is of this release or later. Vendors write `31+` as the minor number."""
    numbers = [int(re.sub(r"\D.*$", "", str(version.get(key) or "0")) or 0) for key in ("major", "minor")]
    return numbers >= [major, minor]


def _served(client: Client, apis: Apis, group: str, resource: str, notes: list[str]) -> dict[str, str] | None:
    """{version} when the group really serves the resource: a group can be left over, or belong to something else."""
    version = apis.get(group, {}).get("preferred")
    if not version:
        return None
    try:
        resources = client.document(f"/apis/{group}/{version}", "resources")["resources"]
    except ClusterError as error:
        notes.append(f"{group} is announced but could not be read: {error.render()}")
        return None
    return {"version": version} if any(item.get("name") == resource for item in resources) else None


def _dcgm_service(client: Client, notes: list[str]) -> dict[str, t.Any] | None:
    """{namespace, name, port} of the standalone DCGM host engine, in whichever namespace it is."""
    try:
        for name in _DCGM_SERVICES:
            for service in client.list(SERVICE.path(), field_selector=f"metadata.name={name}"):
                metadata = service.get("metadata", {})
                if metadata.get("name") == name:  # a server that ignores the selector
                    return {"namespace": metadata.get("namespace"), "name": name, "port": _dcgm_port(service)}
    except ClusterError as error:
        notes.append(f"Services could not be read, so the DCGM host engine is not known: {error.render()}")
    return None


def _dcgm_port(service: Mapping[str, t.Any]) -> int:
    ports = [port.get("port") for port in service.get("spec", {}).get("ports") or []]
    return DCGM_PORT if DCGM_PORT in ports or not ports else ports[0]
