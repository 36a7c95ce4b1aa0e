# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster as read once: nodes, pools, platform, capabilities. The shape is described in docs/data_shapes.md."""

from __future__ import annotations

import datetime
import typing as t
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .._common.errors import ClusterError, unknown_value
from .._common.words import counted
from . import capabilities as probing
from . import slices
from .client import Client
from .kinds import NAMESPACE, NODE
from .nodes import project
from .platforms import detect_platform, summarize
from .pools import pool_rows, set_expectations, set_findings
from .siblings import gpu_nodes
from .topology import set_domains

SCHEMA_VERSION = 1
Row = dict[str, t.Any]

# Keys of a row that only this module needs.
_NOT_KEPT = ("deleting", "starting", "gpu_mark", "mass_event")
_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def take_snapshot(
    client: Client,
    catalog: Mapping[str, t.Any],
    *,
    platform: str | None = None,
    rack_label: str | None = None,
    expected_gpus: int | None = None,
    keep_labels: Sequence[str] = (),
    now: datetime.datetime | None = None,
) -> dict[str, t.Any]:
    """Reads the cluster. Only the node list is needed; whatever else may not be read becomes a line of `notes`.

    platform, rack_label, expected_gpus: the user's word instead of detection, candidate labels, GPU table.
    now: the time to write down; default: the clock.
    Raises ClusterError when the API server or the node list cannot be read.
    """
    notes: list[str] = []
    version = client.version()
    apis = probing.read_apis(client, notes)
    # Projected page by page: the raw list of 1000 nodes is 20 MB.
    found = gpu_nodes(_nodes(client, apis, notes), catalog["evidence"])
    seen = [(project(raw, catalog, keep_labels=keep_labels, mark=mark), detect_platform(raw, catalog)) for raw, mark in found]
    capabilities = probing.probe(client, apis, version, notes)
    made = build_snapshot(seen, catalog, platform=platform, rack_label=rack_label, expected_gpus=expected_gpus)
    moment = now or datetime.datetime.now(datetime.UTC)
    return {
        "schema_version": SCHEMA_VERSION,
        "taken_at": moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "server": {"version": version.get("gitVersion"), "host": client.host, "uid": cluster_uid(client, notes)},
        "platform": made["platform"],
        "capabilities": capabilities,
        "topology": made["topology"],
        "gpus": made["gpus"],
        "nodes": made["nodes"],
        "notes": notes + made["notes"],
    }


def cluster_uid(client: Client, notes: list[str]) -> str | None:
    """The UID of namespace kube-system, by which a cluster is known again; None, and a note, where it may not be read."""
    try:
        return str(client.get(NAMESPACE.path(name="kube-system"))["metadata"]["uid"])
    except ClusterError as error:
        if error.status != 404:
            notes.append(f"the UID of namespace kube-system could not be read, by which a resumed run knows its cluster: {error.message}")
    except (KeyError, TypeError):
        notes.append("namespace kube-system was served without a UID, by which a resumed run knows its cluster")
    return None


def build_snapshot(
    seen: Sequence[tuple[Row, tuple[str | None, str]]],
    catalog: Mapping[str, t.Any],
    *,
    platform: str | None = None,
    rack_label: str | None = None,
    expected_gpus: int | None = None,
) -> dict[str, t.Any]:
    """The part of a snapshot that follows from the nodes: {platform, topology, gpus, nodes, notes}. No cluster needed.

    seen: (row of nodes.project, platform and evidence) per node.
    """
    if platform is not None and platform not in catalog["platforms"]:
        raise unknown_value("platform", platform, catalog["platforms"], "platform")
    notes = []
    rows = sorted((row for row, _rest in seen), key=lambda row: row["name"])
    for row, (name, _rest) in seen:
        row["platform"] = platform or name
    found: dict[str, t.Any] = (
        {"name": platform, "evidence": ["given by the user"]} if platform else summarize([item for _rest, item in seen])
    )
    if found["name"] is None and seen:
        notes.append("the nodes stand on different platforms: " + "; ".join(found["evidence"]))
    topology = set_domains(rows, catalog, found["name"], rack_label=rack_label)
    notes += set_expectations(rows, catalog, expected_gpus)
    notes += set_findings(rows, catalog["evidence"])
    notes += _said_aloud(rows)
    for row in rows:
        row["exclusion"] = exclusion(row)
        row["target"] = row["exclusion"] is None
        for key in _NOT_KEPT:
            del row[key]
    gpus = pool_rows(rows)
    if len({(pool["model"], pool["product"]) for pool in gpus}) > 1:
        notes.append("several GPU products: each pool is tested by itself; choose one with target.gpu")
    return {"platform": found, "topology": topology, "gpus": gpus, "nodes": rows, "notes": notes}


def exclusion(row: Row) -> dict[str, str] | None:
    """Why the node cannot be tested at all: {reason, message}, or None.

    Cordoned comes last, so that a cordoned node that is included after all has no other obstacle.
    """
    gpu = row["gpu"]
    name = f"NVIDIA GPU ({gpu['product']})" if gpu["product"] else "NVIDIA GPU"
    speaks = row["gpu_mark"] or "a resource of quantity 0"
    if gpu["mig"]:
        return _reason("Mig", f"{name} is split by MIG: a part of a GPU has no performance verdict")
    if gpu["shared_replicas"] > 1:
        return _reason("TimeSlicing", f"{name} is shared, {gpu['shared_replicas']} pods each: a shared GPU has no performance verdict")
    if not gpu["capacity"] and not gpu["allocatable"]:
        return _reason(
            "LabelWithoutResource", f"{speaks} speaks of an {name}, but the node offers no {gpu['resource']}: driver or device plugin?"
        )
    if row["deleting"]:
        return _reason("Deleting", "the node is being deleted")
    if row["leaving"]:
        return _reason("Leaving", f"the node is about to be taken away: {row['leaving'][0]['quote']}")
    conditions = {condition["type"]: condition for condition in row["unhealthy"]}
    if not row["ready"]:
        ready = conditions.get("Ready", {"status": "unknown", "message": "the kubelet has not reported", "reason": ""})
        return _reason("NotReady", f"Ready={ready['status']}: {ready['message'] or ready['reason']}")
    for kind in _PRESSURE:
        if kind in conditions:
            return _reason(kind, f"{kind}={conditions[kind]['status']}: {conditions[kind]['message'] or conditions[kind]['reason']}")
    if row["starting"]:
        return _reason("Starting", f"the node is not yet set up: {row['starting']}")
    if row["mass_event"]:
        return _reason(row["mass_event"]["reason"], row["mass_event"]["message"])
    if row["cordoned"]:
        return _reason("Cordoned", "the node is cordoned (spec.unschedulable)")
    return None


def _said_aloud(rows: Sequence[Row]) -> list[str]:
    """What is not as it should be and yet condemns nobody: one note for each kind, not one for each node."""
    counts = Counter(
        (f"{item['type']}={item['status']}", item["why"])
        for row in rows
        for item in row["unhealthy"]
        if not item["hardware"] and item["says"] not in ("node", "leaving")
    )
    return [
        f"{kind} on {counted(count, 'node')} accuses nobody: {why or 'it does not speak of the hardware'}"
        for (kind, why), count in sorted(counts.items())
    ]


def _nodes(client: Client, apis: Mapping[str, t.Any], notes: list[str]) -> Iterable[Mapping[str, t.Any]]:
    """Raw nodes; where GPUs are only published as ResourceSlices, those are read into the node first."""
    devices: dict[str, list[dict[str, t.Any]]] | None = None
    try:
        raw: Mapping[str, t.Any]
        for raw in client.list(NODE.path()):
            if slices.may_be_dra_only(raw) and "resource.k8s.io" in apis:
                if devices is None:
                    devices = slices.read_devices(client, apis, notes)
                raw = slices.add_devices(raw, devices)
            yield raw
    except ClusterError as error:
        if error.status in (401, 403) and not error.hint:
            error.hint = "Allow our user to list nodes cluster-wide."
        raise


def _reason(reason: str, message: str) -> dict[str, str]:
    return {"reason": reason, "message": message}
