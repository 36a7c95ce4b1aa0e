# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The Node objects of a cluster: what a kubelet adds to them, and how it registers them."""

from __future__ import annotations

import copy

from .api import Api, ApiError, Object, now_rfc3339, resource_path

_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)
KUBELET_CONDITIONS = ("Ready", *(kind for kind, _reason, _message in _PRESSURES))


def complete_node(node: Object, host: str, log_port: int) -> Object:
    """A model's Node with what a kubelet adds. host, log_port: where its log server listens."""
    node = copy.deepcopy(node)
    node.update(apiVersion="v1", kind="Node")
    name = node["metadata"]["name"]
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    node["metadata"]["labels"] = {**labels, **(node["metadata"].get("labels") or {})}
    status = node.setdefault("status", {})
    status.setdefault("capacity", {}).setdefault("pods", "110")
    status.setdefault("allocatable", dict(status["capacity"]))
    others = [row for row in status.get("addresses") or [] if row["type"] not in ("InternalIP", "Hostname")]
    status["addresses"] = [{"type": "InternalIP", "address": host}, {"type": "Hostname", "address": name}, *others]
    status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": log_port}}
    given = {row["type"]: row for row in status.get("conditions") or []}
    status["conditions"] = [with_times(row) for row in {**_healthy_conditions(), **given}.values()]
    return node


def _healthy_conditions() -> dict[str, Object]:
    rows = [{"type": kind, "status": "False", "reason": reason, "message": words} for kind, reason, words in _PRESSURES]
    rows.append({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"})
    return {row["type"]: row for row in rows}


def with_times(row: Object) -> Object:
    """A node condition with its times."""
    now = now_rfc3339()
    return {**row, "lastHeartbeatTime": row.get("lastHeartbeatTime") or now, "lastTransitionTime": row.get("lastTransitionTime") or now}


async def register(api: Api, node: Object) -> Object:
    """Creates the Node; the object as the API has it."""
    try:
        return await api.create("/api/v1/nodes", node)
    except ApiError as exc:
        if exc.status != 409:
            raise
    # It exists: an agent that was restarted. Its labels and its status (the log server's port) are renewed.
    path = resource_path("nodes", name=node["metadata"]["name"])
    await api.patch(path, {"metadata": {"labels": node["metadata"]["labels"]}})
    return await api.patch(f"{path}/status", {"status": node["status"]})
