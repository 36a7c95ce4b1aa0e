# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a node is about to be taken away: one rule before, during and after its tests."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence

from .._causes.evidence import Evidence, quote_taint
from .conditions import quote, unhealthy_conditions

# What a kubelet says in its Ready condition once the machine's shutdown has begun.
_SHUTTING_DOWN = "node is shutting down"


def leaving_marks(node: Mapping[str, t.Any], unhealthy: Sequence[Mapping[str, t.Any]], evidence: Evidence) -> list[dict[str, t.Any]]:
    """Marks by which an autoscaler, an operator or the cloud says that it is about to take the node: [{quote, taint}].

    unhealthy: of `conditions.unhealthy_conditions`.
    """
    marks: list[dict[str, t.Any]] = [
        {"quote": words, "taint": None} for kind, _row, words in evidence.marks(node, "leaving") if kind != "taint"
    ]
    for taint in (node.get("spec") or {}).get("taints") or []:
        if evidence.of_taint(taint, "leaving"):
            marks.append({"quote": f"taint {quote_taint(taint)}", "taint": taint.get("key", "")})
    return marks + [{"quote": f"condition {quote(item)}", "taint": None} for item in unhealthy if item["says"] == "leaving"]


def wanted_all_the_same(marks: Sequence[Mapping[str, t.Any]], tolerations: Sequence[Mapping[str, t.Any]] | None) -> bool:
    """Whether the user names every taint by which the node is marked as leaving: a pool in maintenance is certified before its return."""
    keys = [mark["taint"] for mark in marks]
    named = {toleration.get("key") for toleration in tolerations or ()}
    return bool(keys) and all(key is not None and key in named for key in keys)


def departure(node: Mapping[str, t.Any], evidence: Evidence, tolerations: Sequence[Mapping[str, t.Any]]) -> str | None:
    """The mark by which the departure of a node under test is announced; None where nothing announces it, or the user asked for it so."""
    conditions = (node.get("status") or {}).get("conditions") or []
    marks = leaving_marks(node, unhealthy_conditions(conditions, evidence), evidence)
    if marks and not wanted_all_the_same(marks, tolerations):
        return str(marks[0]["quote"])
    ready = [item for item in conditions if item.get("type") == "Ready" and _SHUTTING_DOWN in str(item.get("message") or "")]
    return f"Ready={ready[0].get('status')}: {ready[0]['message']}" if ready else None
