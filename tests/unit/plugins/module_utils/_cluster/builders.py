# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Raw Node objects for tests, and what becomes of them."""

from __future__ import annotations

import functools
import pathlib
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.nodes import looks_like_gpu, project
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.platforms import detect_platform
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.snapshot import build_snapshot

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}


@functools.cache
def shipped() -> dict[str, t.Any]:
    return load_catalog([str(pathlib.Path(__file__).resolve().parents[5] / "catalog")])


def node(
    name: str = "n0",
    *,
    gpus: t.Any = 8,
    capacity: t.Any = None,
    product: str | None = "NVIDIA-H100-80GB-HBM3",
    labels: dict[str, str] | None = None,
    resources: dict[str, t.Any] | None = None,
    conditions: t.Sequence[dict[str, str]] = (),
    provider_id: str = "",
    **spec: t.Any,
) -> dict[str, t.Any]:
    """A Node of eight H100 unless told otherwise; gpus=None leaves the resource away."""
    own = {"kubernetes.io/hostname": name}
    if product:
        own.update({"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": product})
    extra = {key: str(value) for key, value in (resources or {}).items()}
    whole = {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    built = {} if gpus is None else {"nvidia.com/gpu": str(gpus if capacity is None else capacity)}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {**own, **(labels or {})}},
        "spec": {"providerID": provider_id, **spec},
        "status": {
            "allocatable": {"cpu": "64", **whole, **extra},
            "capacity": {"cpu": "64", **built, **extra},
            "conditions": [READY, *conditions] if not any(item["type"] == "Ready" for item in conditions) else list(conditions),
            "nodeInfo": {"kubeletVersion": "v1.34.0", "bootID": "b"},
        },
    }


def snapshot(*raws: dict[str, t.Any], **options: t.Any) -> dict[str, t.Any]:
    """What build_snapshot makes of these nodes."""
    catalog = shipped()
    seen = [(project(raw, catalog), detect_platform(raw, catalog)) for raw in raws if looks_like_gpu(raw)]
    return build_snapshot(seen, catalog, **options)


def rows(*raws: dict[str, t.Any], **options: t.Any) -> dict[str, dict[str, t.Any]]:
    """The snapshot's rows by name."""
    return {row["name"]: row for row in snapshot(*raws, **options)["nodes"]}
