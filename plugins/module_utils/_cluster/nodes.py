# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One raw Node object becomes one row of the snapshot: facts only, no judgement that needs other nodes.

What a node carries is read from several places, because each of them lies at times: labels outlive the GPUs, shared GPUs
are counted many times, a MIG node also shows whole GPUs, and some clusters have no labels at all.
"""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping

from .._catalog.gpus import find_gpu
from .._catalog.load import shipped_evidence
from .._catalog.nics import is_network_resource
from .._causes.evidence import Evidence
from .conditions import unhealthy_conditions
from .leaving import leaving_marks

Raw = Mapping[str, t.Any]
Row = dict[str, t.Any]

GPU_RESOURCE = "nvidia.com/gpu"
_MIG_RESOURCE = re.compile(r"^nvidia\.com/mig-")
_SHARED_RESOURCE = re.compile(r"^nvidia\.com/.+\.shared$")
_HAMI_REGISTER = re.compile(r"(hami|4pd)\.io/node-(nvidia-)?register")

# Labels that are never used to choose or group nodes, and would make up most of the snapshot. The facts worth having
# among them stand in gpu and versions.
_DROPPED_LABELS = re.compile(
    r"^(feature\.node\.kubernetes\.io/|beta\.kubernetes\.io/|failure-domain\.beta\.kubernetes\.io/"
    r"|nvidia\.com/(cuda\.|gfd\.|gpu\.deploy\.|gpu\.compute|vgpu\.|mps\.))"
)


def looks_like_gpu(raw: Raw, evidence: Evidence | None = None) -> bool:
    """Whether anything about the node says that it has, had, or should have an NVIDIA GPU: it belongs in the denominator.

    A GPU resource of quantity 0 says so too, unless feature discovery has looked and found none.
    evidence: the table whose marks count; None: the shipped one.
    """
    metadata, status = raw.get("metadata", {}), raw.get("status", {})
    counts = [count for where in ("capacity", "allocatable") for count in gpu_resources(status.get(where)).values()]
    if any(count > 0 for count in counts):
        return True
    denied = str((metadata.get("labels") or {}).get("nvidia.com/gpu.present", "")).strip().lower() == "false"
    if denied:
        return False
    return bool(counts) or bool((evidence or shipped_evidence()).marks(raw, "gpu", "shared", "mig"))


def project(raw: Raw, catalog: Mapping[str, t.Any], *, keep_labels: t.Sequence[str] = (), mark: str = "") -> Row:
    """The row of a GPU-looking node; pool, platform, domains and verdicts are filled in by snapshot.py.

    keep_labels: keys or prefixes of labels to keep although they are dropped by default.
    mark: what else says that the node should have GPUs, where nothing on the node itself does.
    """
    metadata, spec, status = raw.get("metadata", {}), raw.get("spec", {}), raw.get("status", {})
    labels = metadata.get("labels") or {}
    info = status.get("nodeInfo") or {}
    conditions = status.get("conditions") or []
    ready = next((item for item in conditions if item.get("type") == "Ready"), None)
    evidence: Evidence = catalog["evidence"]
    unhealthy = unhealthy_conditions(conditions, evidence)
    return {
        "name": metadata.get("name", ""),
        "uid": metadata.get("uid"),
        "target": True,
        "exclusion": None,
        "findings": [],
        "gpu": gpu_facts(raw, catalog),
        "nics": _nics(status),
        "domains": {
            "clique": clique(labels),
            "rack": None,
            "block": None,
            "hostname": labels.get("kubernetes.io/hostname") or metadata.get("name", ""),
        },
        "platform": None,
        "provider_id": spec.get("providerID") or "",
        "ready": bool(ready and ready.get("status") == "True"),
        "cordoned": bool(spec.get("unschedulable")),
        "deleting": bool(metadata.get("deletionTimestamp")),
        "taints": [
            {"key": item.get("key", ""), "value": item.get("value", ""), "effect": item.get("effect", "")}
            for item in spec.get("taints") or []
        ],
        "leaving": leaving_marks(raw, unhealthy, evidence),
        "starting": next((words for _kind, _row, words in evidence.marks(raw, "starting")), ""),
        "gpu_mark": next((words for _kind, _row, words in evidence.marks(raw, "gpu")), mark),
        "unhealthy": unhealthy,
        "labels": {key: value for key, value in labels.items() if not _DROPPED_LABELS.match(key) or _kept(key, keep_labels)},
        "versions": {
            "driver": _version(labels, "nvidia.com/cuda.driver-version", "nvidia.com/cuda.driver", ("major", "minor", "rev")),
            "cuda": _version(labels, "nvidia.com/cuda.runtime-version", "nvidia.com/cuda.runtime", ("major", "minor")),
            "kubelet": info.get("kubeletVersion"),
            "os_image": info.get("osImage"),
            "kernel": info.get("kernelVersion"),
            "architecture": info.get("architecture"),
            "container_runtime": info.get("containerRuntimeVersion"),
            "boot_id": info.get("bootID"),
        },
    }


def gpu_facts(raw: Raw, catalog: Mapping[str, t.Any]) -> Row:
    """The gpu part of a row: physical GPUs of the node, and whether they are shared or split.

    allocatable, capacity: whole physical GPUs. count_label: what nvidia.com/gpu.count says, or None.
    """
    labels = raw.get("metadata", {}).get("labels") or {}
    capacity = gpu_resources(raw.get("status", {}).get("capacity"))
    allocatable = gpu_resources(raw.get("status", {}).get("allocatable"))
    product = labels.get("nvidia.com/gpu.product") or None
    memory = number(labels.get("nvidia.com/gpu.memory"))
    row = find_gpu(catalog, product, memory)
    count = number(labels.get("nvidia.com/gpu.count"))
    resource = _resource(capacity, allocatable)
    table = (row or {}).get("gpus_per_node")
    marks = {row["class"]: words for _kind, row, words in catalog["evidence"].marks(raw, "shared", "mig")}
    replicas = _replicas(labels, product or "", capacity, allocatable, count, table)
    if "shared" in marks:
        replicas = max(replicas, _said_replicas(raw), 2)
    return {
        "product": product,
        "model": row["name"] if row else None,
        "memory_mib": memory,
        "resource": resource,
        "allocatable": _physical(allocatable.get(resource, 0), replicas, count),
        "capacity": _physical(capacity.get(resource, 0), replicas, count),
        "expected": None,
        "majority": None,
        "count_label": count,
        "mig": "mig" in marks or "-MIG-" in (product or "").upper(),
        "shared_replicas": replicas,
    }


def gpu_resources(quantities: Mapping[str, t.Any] | None) -> dict[str, int]:
    """The GPU resources among these quantities: whole, shared and MIG."""
    found = {}
    for name, quantity in (quantities or {}).items():
        if name == GPU_RESOURCE or _SHARED_RESOURCE.match(name) or _MIG_RESOURCE.match(name):
            found[name] = number(quantity) or 0
    return found


def clique(labels: Mapping[str, str]) -> str | None:
    """The NVLink domain of the node, `UUID.clique` in full.

    The clique number alone is shared by unrelated racks (32766 is a sentinel), and an all-zero UUID means that NVLink does
    not leave the node: both give None.
    """
    uuid, dot, number_ = (labels.get("nvidia.com/gpu.clique") or "").strip().partition(".")
    if not dot or not uuid or not number_ or not uuid.strip("0-"):
        return None
    return f"{uuid}.{number_}"


def number(text: t.Any) -> int | None:
    """A whole number from a label or a quantity, or None."""
    try:
        return int(str(text).strip())
    except ValueError:
        return None


def _resource(capacity: Mapping[str, int], allocatable: Mapping[str, int]) -> str:
    """The resource that whole GPUs are asked by; a shared or MIG name only when the node has nothing else."""
    if capacity.get(GPU_RESOURCE) or allocatable.get(GPU_RESOURCE):
        return GPU_RESOURCE
    return next((name for name in sorted({**capacity, **allocatable}) if capacity.get(name) or allocatable.get(name)), GPU_RESOURCE)


def _replicas(
    labels: Mapping[str, str],
    product: str,
    capacity: Mapping[str, int],
    allocatable: Mapping[str, int],
    count: int | None,
    table: int | None,
) -> int:
    """How many pods share one GPU; 1 when it is not shared.

    The label `gpu.replicas` is wrong at times, so resources count as well: a *.shared resource, or more GPUs than the node
    and its product have.
    """
    said = number(labels.get("nvidia.com/gpu.replicas")) or 1
    shared = max(
        (max(capacity.get(name, 0), allocatable.get(name, 0)) for name in {**capacity, **allocatable} if _SHARED_RESOURCE.match(name)),
        default=0,
    )
    if shared:
        return max(said, shared // (count or 1), 2)
    whole = max(capacity.get(GPU_RESOURCE, 0), allocatable.get(GPU_RESOURCE, 0))
    surplus = whole // count if count and whole > max(count, table or 0) else 1
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "none").lower() not in ("", "none", "false")
    return max(said, surplus, 2 if strategy or product.upper().endswith("-SHARED") else 1)


def _physical(advertised: int, replicas: int, count: int | None) -> int:
    """Physical GPUs behind an advertised number."""
    if replicas == 1 or not advertised:
        return advertised
    return count or max(1, advertised // replicas)


def _said_replicas(raw: Raw) -> int:
    """How many pods share a GPU by the word of those who share it, where they give a number; else 1."""
    metadata = raw.get("metadata", {})
    said = number((metadata.get("labels") or {}).get("cloud.google.com/gke-max-shared-clients-per-gpu")) or 1
    for key, value in (metadata.get("annotations") or {}).items():
        if _HAMI_REGISTER.fullmatch(key):
            said = max([said, *(int(count) for count in re.findall(r'"count": ?(\d{1,4})\b', str(value)))])
    return said


def _nics(status: Raw) -> dict[str, int]:
    """Network resources that can be requested, zero included: a card that is gone should be seen."""
    names = {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}
    offered = status.get("allocatable") or {}
    return {name: number(offered.get(name)) or 0 for name in sorted(names) if is_network_resource(name)}


def _version(labels: Mapping[str, str], full: str, stem: str, parts: t.Sequence[str]) -> str | None:
    """A version from GPU feature discovery's labels, in the new spelling or the old one."""
    if labels.get(f"{full}.full"):
        return labels[f"{full}.full"]
    for base in (full, stem):
        found = [labels[f"{base}.{part}"] for part in (*parts, "revision") if labels.get(f"{base}.{part}")]
        if found:
            return ".".join(found)
    return None


def _kept(key: str, keep_labels: t.Sequence[str]) -> bool:
    return any(key == wanted or (wanted.endswith(("/", ".")) and key.startswith(wanted)) for wanted in keep_labels)
