# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot in a few lines."""

from __future__ import annotations

import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence

SHOWN = 10


def summarize_snapshot(snapshot: Mapping[str, t.Any]) -> dict[str, t.Any]:
    """{text, nodes, targets, failed, excluded, platform} of a snapshot; text is a list of lines for people."""
    nodes = snapshot["nodes"]
    targets = [node for node in nodes if node["target"]]
    failed = [node for node in targets if node["findings"]]
    excluded = Counter(node["exclusion"]["reason"] for node in nodes if node["exclusion"])
    text = [f"Kubernetes {snapshot['server']['version']} at {snapshot['server']['host']}", _platform(snapshot["platform"])]
    text += [_pool(pool) for pool in snapshot["gpus"]]
    text.append(f"{len(targets)} of {len(nodes)} GPU nodes to be tested, {len(failed)} of them with findings already")
    text += _shown([f"  {node['name']}: {finding['message']}" for node in failed for finding in node["findings"]])
    text += _shown(
        [f"  {node['name']}: {node['exclusion']['reason']}, {node['exclusion']['message']}" for node in nodes if _worth_naming(node)]
    )
    text += [f"Note: {note}" for note in snapshot["notes"]]
    return {
        "text": text,
        "nodes": len(nodes),
        "targets": len(targets),
        "failed": [node["name"] for node in failed],
        "excluded": dict(excluded),
        "platform": snapshot["platform"]["name"],
    }


def _platform(platform: Mapping[str, t.Any]) -> str:
    return f"Platform {platform['name'] or 'unknown'} ({'; '.join(platform['evidence'][:3]) or 'no node'})"


def _pool(pool: Mapping[str, t.Any]) -> str:
    product = pool["product"] or "unknown GPU"
    return f"{pool['nodes']} nodes with {pool['gpus_per_node']} x {product} ({pool['model'] or 'not in the GPU table'})"


def _worth_naming(node: Mapping[str, t.Any]) -> bool:
    """What the user left out on purpose needs no line."""
    return bool(node["exclusion"]) and node["exclusion"]["reason"] not in ("NotSelected", "OtherGpuModel")


def _shown(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many more there are."""
    return [*lines[:SHOWN], f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else list(lines)
