# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The Node objects of a definition, as kubelets, GPU feature discovery, the GPU operator and the platform make them."""

from __future__ import annotations

import hashlib
import typing as t
import uuid

from .definition import Definition
from .nodes import Node

_ARM_PRODUCTS = ("NVIDIA-GB200", "NVIDIA-GB300", "NVIDIA-GH200-480GB")

KERNEL = "6.8.0-1030-nvidia"


def node_object(node: Node, definition: Definition) -> dict[str, t.Any]:
    """The Node object of a GPU node, faults applied."""
    gpu, software = node.gpu, definition.software
    arm = gpu.product in _ARM_PRODUCTS
    resources = {
        "cpu": "144" if arm else "192",
        "memory": "1009Gi" if arm else "2015Gi",
        "ephemeral-storage": "3500Gi",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": "110",
        "nvidia.com/gpu": str(gpu.gpus_per_node),
        **{name: str(count) for name, count in node.nics.items()},
    }
    manifest: dict[str, t.Any] = {
        "metadata": {
            "name": node.name,
            "labels": {
                **_base_labels(node.name, arm),
                "topology.kubernetes.io/rack": node.rack,
                **definition.platform.labels(node.seat),
                **_gpu_labels(node, definition),
                **_nic_labels(definition.fabric),
            },
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {},
        "status": {
            "capacity": dict(resources),
            "allocatable": {**resources, "cpu": "142" if arm else "190", "memory": "1000Gi" if arm else "2000Gi"},
            "conditions": [],
            "nodeInfo": _node_info(node.seat.digest(32, "machine"), arm, software.kubelet),
        },
    }
    if "vpc.amazonaws.com/efa" in node.nics:  # images for EFA reserve huge pages for the provider
        for amounts in (manifest["status"]["capacity"], manifest["status"]["allocatable"]):
            amounts["hugepages-2Mi"] = "10256Mi"
    provider_id = definition.platform.provider_id(node.seat)
    if provider_id:
        manifest["spec"]["providerID"] = provider_id
    for fault in node.faults:
        fault.dress(manifest)
    return manifest


def _base_labels(name: str, arm: bool = False) -> dict[str, str]:
    return {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64" if arm else "amd64"}


def _gpu_labels(node: Node, definition: Definition) -> dict[str, str]:
    """The labels of GPU feature discovery and of the GPU operator."""
    gpu, software = node.gpu, definition.software
    driver = (*software.driver.split("."), "0")[:3]
    cuda = software.cuda.split(".")
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": gpu.product,
        "nvidia.com/gpu.family": gpu.family,
        "nvidia.com/gpu.count": str(gpu.gpus_per_node),
        "nvidia.com/gpu.memory": str(gpu.memory_mib),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.machine": "Simulated-GPU-Server",
        "nvidia.com/gpu.compute.major": str(gpu.compute[0]),
        "nvidia.com/gpu.compute.minor": str(gpu.compute[1]),
        "nvidia.com/cuda.driver.major": driver[0],
        "nvidia.com/cuda.driver.minor": driver[1],
        "nvidia.com/cuda.driver.rev": driver[2],
        "nvidia.com/cuda.driver-version.full": software.driver,
        "nvidia.com/cuda.driver-version.major": driver[0],
        "nvidia.com/cuda.driver-version.minor": driver[1],
        "nvidia.com/cuda.driver-version.revision": driver[2],
        "nvidia.com/cuda.runtime.major": cuda[0],
        "nvidia.com/cuda.runtime.minor": cuda[1],
        "nvidia.com/cuda.runtime-version.full": software.cuda,
        "nvidia.com/cuda.runtime-version.major": cuda[0],
        "nvidia.com/cuda.runtime-version.minor": cuda[1],
        "nvidia.com/mig.capable": str(gpu.compute >= (8, 0) and gpu.compute != (8, 9)).lower(),
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/vgpu.present": "false",
    }
    if node.clique:
        labels["nvidia.com/gpu.clique"] = node.clique
    return labels


def _nic_labels(fabric: str) -> dict[str, str]:
    if fabric not in ("ib", "roce"):
        return {}
    return {
        "feature.node.kubernetes.io/pci-15b3.present": "true",
        "feature.node.kubernetes.io/rdma.available": "true",
        "feature.node.kubernetes.io/rdma.capable": "true",
    }


def boot_id(digits: str) -> str:
    """The boot ID of a machine, as its kernel and its Node object tell it. digits: its machine ID."""
    return str(uuid.UUID(digits))[::-1]


def _node_info(digits: str, arm: bool, kubelet: str) -> dict[str, str]:
    return {
        "machineID": digits,
        "systemUUID": str(uuid.UUID(digits)),
        "bootID": boot_id(digits),
        "kernelVersion": KERNEL,
        "osImage": "Ubuntu 24.04.3 LTS",
        "containerRuntimeVersion": "containerd://2.1.4",
        "kubeletVersion": kubelet,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "arm64" if arm else "amd64",
    }


def cpu_node_object(number: int, definition: Definition) -> dict[str, t.Any]:
    """The Node object of a node without GPUs."""
    name = f"cpu-n{number:02d}"
    resources = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "900Gi", "pods": "110"}
    digits = hashlib.sha256(name.encode()).hexdigest()[:32]
    return {
        "metadata": {"name": name, "labels": _base_labels(name)},
        "spec": {},
        "status": {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": [],
            "nodeInfo": _node_info(digits, False, definition.software.kubelet),
        },
    }
