# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs that only Dynamic Resource Allocation knows: ResourceSlices instead of labels and extended resources."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from .._common.errors import ClusterError
from .client import Client
from .kinds import RESOURCE_SLICE

DRIVER = "gpu.nvidia.com"
_VERSIONS = ("v1", "v1beta2", "v1beta1")


def may_be_dra_only(raw: Mapping[str, t.Any]) -> bool:
    """Whether the node lacks a product label or the GPU resource, so that slices may know more. A CPU node does too."""
    labels = raw.get("metadata", {}).get("labels") or {}
    capacity = raw.get("status", {}).get("capacity") or {}
    return not labels.get("nvidia.com/gpu.product") or not any(name.startswith("nvidia.com/") for name in capacity)


def read_devices(client: Client, apis: Mapping[str, t.Any], notes: list[str]) -> dict[str, list[dict[str, t.Any]]]:
    """Node name -> devices of NVIDIA's DRA driver: [{kind, product, memory_mib}]. Empty, with a note, when it may not be read."""
    version = next((version for version in _VERSIONS if version in apis["resource.k8s.io"]["versions"]), None)
    if version is None:
        return {}
    found: dict[str, list[dict[str, t.Any]]] = {}
    try:
        for item in client.list(RESOURCE_SLICE._replace(version=version).path()):
            spec = item.get("spec", {})
            if spec.get("driver") == DRIVER and spec.get("nodeName"):
                found.setdefault(spec["nodeName"], []).extend(_device(device) for device in spec.get("devices") or [])
    except ClusterError as error:
        notes.append(f"ResourceSlices could not be read, GPUs that only DRA knows are not seen: {error.render()}")
    return found


def add_devices(raw: Mapping[str, t.Any], devices: Mapping[str, t.Sequence[Mapping[str, t.Any]]]) -> Mapping[str, t.Any]:
    """The node with what slices know about it, as if labels and capacity said so. Whole GPUs and MIG parts are never added up."""
    name = raw.get("metadata", {}).get("name", "")
    own = [device for device in devices.get(name, []) if device["kind"] in ("gpu", "mig")]
    if not own:
        return raw
    whole = [device for device in own if device["kind"] == "gpu"]
    labels = dict(raw.get("metadata", {}).get("labels") or {})
    product = next((device["product"] for device in own if device["product"]), None)
    if product:
        labels.setdefault("nvidia.com/gpu.product", product)
    memory = next((device["memory_mib"] for device in whole if device["memory_mib"]), None)
    if memory:
        labels.setdefault("nvidia.com/gpu.memory", str(memory))
    status = dict(raw.get("status", {}))
    for where in ("capacity", "allocatable"):
        quantities = dict(status.get(where) or {})
        if not any(key.startswith("nvidia.com/") for key in quantities):
            if whole:
                quantities["nvidia.com/gpu"] = str(len(whole))
            if len(own) > len(whole):
                quantities["nvidia.com/mig-device"] = str(len(own) - len(whole))
        status[where] = quantities
    return {**raw, "metadata": {**raw.get("metadata", {}), "labels": labels}, "status": status}


def _device(device: Mapping[str, t.Any]) -> dict[str, t.Any]:
    body = device.get("basic") or device  # v1beta1 wraps attributes and capacity
    attributes = body.get("attributes") or {}
    memory = (body.get("capacity") or {}).get("memory")
    return {
        "kind": _text(attributes.get("type")) or "gpu",
        "product": _as_label(_text(attributes.get("productName"))),
        "memory_mib": _mib(memory.get("value") if isinstance(memory, Mapping) else memory),
    }


def _text(attribute: t.Any) -> str:
    return str((attribute or {}).get("string") or "") if isinstance(attribute, Mapping) else ""


def _as_label(product: str) -> str:
    """The product's name as GPU feature discovery would write it in a label."""
    return re.sub(r"\s+", "-", re.sub(r"[^A-Za-z0-9\-_. ]", "", product).strip())


def _mib(quantity: t.Any) -> int | None:
    match = re.fullmatch(r"(\d+)(Mi|Gi|Ki)?", str(quantity or ""))
    if not match:
        return None
    factor = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024, None: 1 / 1048576}[match.group(2)]
    return int(int(match.group(1)) * factor)
