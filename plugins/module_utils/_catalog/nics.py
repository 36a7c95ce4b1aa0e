# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which extended resource is the RDMA network card, judged by what the nodes offer."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence

# Words in the name part of an extended resource that say: a network device.
_WORDS = re.compile(
    r"(^|[^a-z])(rdma|roce|sriov|hostdev|ib|ibs|infiniband|hca|mlnx|mlnxnics|mlx5?|cx[4-9]|bf[23]|connectx|nic|nics|vf|vfs|rail|macvlan)([^a-z]|$)"
)
# Domains under which only network device plugins of this kind publish.
_NETWORK_DOMAINS = ("rdma", "mellanox.com", "openshift.io")
_MIXED_DOMAINS = ("nvidia.com", "intel.com")
_CLOUD = re.compile(r"^(vpc\.amazonaws\.com/efa|nscale\.com/rdmashare|networking\.gke\.io\.networks/.+)$")

# Device plugins for shared adapters publish a made-up number of places (63, 64, 1000); one place shows all adapters.
SHARED_PLACES = 17


def is_candidate(resource: str) -> bool:
    """Whether a site's own device plugin publishes RDMA devices under this name: rdma/*, nvidia.com/mlnxnics, SR-IOV names."""
    domain, _mark, name = resource.partition("/")
    if not name:
        return False
    if domain in _NETWORK_DOMAINS or domain.endswith((".mellanox.com", ".openshift.io")):
        return True
    return domain in _MIXED_DOMAINS and bool(_WORDS.search(name.lower()))


def is_network_resource(resource: str) -> bool:
    """Whether the resource is any network device we can request: a candidate or a cloud's own (EFA, GKE networks …)."""
    return is_candidate(resource) or bool(_CLOUD.match(resource))


def count_to_request(offered: int, wanted: int | None) -> int:
    """How many devices a pod asks for when every node offers at least *offered*."""
    if offered >= SHARED_PLACES:
        return min(wanted or 1, 1)
    return min(wanted, offered) if wanted else offered


def detect_nic_resource(
    nodes: Sequence[Mapping[str, t.Any]], wanted: int | None, *, strict: bool = False
) -> tuple[str | None, int | None, str]:
    """The one candidate that every node offers: (resource, devices per pod, note).

    nodes:  snapshot rows; only their `nics` are read.
    wanted: devices per node that the GPU's usual server has; None when that is unknown.
    strict: fewer than *wanted* is not enough (the user asked for that number). Otherwise nodes that agree on a smaller
            number count as a smaller server, and the note says so.
    None found: (None, None, the reason).
    """
    names = sorted({name for node in nodes for name, count in node.get("nics", {}).items() if is_candidate(name) and count > 0})
    if not nodes or not names:
        return None, None, "no node offers an RDMA resource (rdma/*, nvidia.com/mlnxnics or SR-IOV names)"
    good, short = {}, []
    for name in names:
        counts = [node.get("nics", {}).get(name, 0) for node in nodes]
        least, most = min(counts), max(counts)
        enough = least >= (wanted or 1) or least >= SHARED_PLACES or (not strict and least == most and least > 0)
        if enough:
            good[name] = least
        else:
            short.append(f"{name} ({least} to {most} per node, {wanted or 1} wanted; {_shortest(nodes, name)})")
    if len(good) == 1:
        name, least = next(iter(good.items()))
        note = f"the only RDMA resource that all {len(nodes)} nodes offer"
        if wanted and least < wanted:
            note += f"; they offer {least}, the table says {wanted}"
        return name, count_to_request(least, wanted), note
    if good:
        return None, None, f"several RDMA resources are on every node: {', '.join(good)}; set nic_resource"
    return None, None, f"present, but not enough on every node: {'; '.join(short)}"


def _shortest(nodes: Sequence[Mapping[str, t.Any]], name: str) -> str:
    """Some nodes with the fewest of a resource, for a message."""
    least = min(node.get("nics", {}).get(name, 0) for node in nodes)
    found = [str(node.get("name", "?")) for node in nodes if node.get("nics", {}).get(name, 0) == least]
    return f"fewest on {', '.join(found[:3])}{' …' if len(found) > 3 else ''}"
