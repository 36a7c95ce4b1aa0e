# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that say nothing of GPUs although their likes have some: one machine type of one node pool is built alike."""

from __future__ import annotations

import typing as t
from collections.abc import Iterator, Mapping

from .._causes.evidence import Evidence
from .nodes import looks_like_gpu

Raw = Mapping[str, t.Any]
# Pools in which a cloud or an autoscaler makes all nodes of a machine type from the same template. A type alone is no such promise:
# small distributions give the same one to every node.
POOL_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "doks.digitalocean.com/node-pool-id",
)
TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


def gpu_nodes(nodes: t.Iterable[Raw], evidence: Evidence) -> Iterator[tuple[Raw, str]]:
    """(node, mark) of each node that has, had, or should have GPUs, in any order.

    mark: why it counts where only its likes say so; "" for a node that says it itself.
    """
    with_gpus: set[tuple[str, ...]] = set()
    others: list[tuple[tuple[str, ...], Raw]] = []
    for raw in nodes:
        kind = _kind(raw)
        if looks_like_gpu(raw, evidence):
            if kind:
                with_gpus.add(kind)
            yield raw, ""
        elif kind and not _denies(raw):
            others.append((kind, _slim(raw)))
    for kind, raw in others:
        if kind in with_gpus:
            yield raw, f"pool {kind[1]} with its other nodes of type {kind[2]}"


def _kind(raw: Raw) -> tuple[str, ...] | None:
    labels = raw.get("metadata", {}).get("labels") or {}
    pool = next(((key, str(labels[key])) for key in POOL_LABELS if labels.get(key)), None)
    machine = next((str(labels[key]) for key in TYPE_LABELS if labels.get(key)), None)
    return (*pool, machine) if pool and machine else None


def _denies(raw: Raw) -> bool:
    """Whether feature discovery has looked and found no GPU."""
    return str((raw.get("metadata", {}).get("labels") or {}).get("nvidia.com/gpu.present", "")).strip().lower() == "false"


def _slim(raw: Raw) -> Raw:
    """The node without what makes up most of it; there may be thousands."""
    metadata = {key: value for key, value in raw.get("metadata", {}).items() if key != "managedFields"}
    status = {key: value for key, value in raw.get("status", {}).items() if key not in ("images", "volumesInUse", "volumesAttached")}
    return {**raw, "metadata": metadata, "status": status}
