# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the conditions and taints of a node say of its hardware, by the table of evidence: one rule before and during a test."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence

from .._causes.evidence import Evidence, quote_taint

# The kubelet's conditions and the status they should have. Type "Ready" is named NotReady in messages.
KUBELET = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "NetworkUnavailable": "False"}


def unhealthy_conditions(conditions: Sequence[Mapping[str, t.Any]], evidence: Evidence) -> list[dict[str, t.Any]]:
    """The conditions that are not as they should be: [{type, status, reason, message, hardware, says, why}].

    hardware: whether the table of evidence says that this condemns GPUs or fabric; says: the class it gives. Every other class
    condemns nobody; neither does a status that is neither True nor False.
    """
    found = []
    for condition in conditions:
        kind, status = str(condition.get("type", "")), str(condition.get("status", ""))
        hardware, says, why = False, "node", ""
        if kind in KUBELET:
            if status == KUBELET[kind]:
                continue
        else:
            said = evidence.of_condition(condition)
            if said is None:
                continue
            hardware, says, why = said.convicts, said.kind, said.title
        found.append(
            {
                "type": kind,
                "status": status,
                "reason": str(condition.get("reason") or ""),
                "message": str(condition.get("message") or ""),
                "hardware": hardware,
                "says": says,
                "why": why,
            }
        )
    return found


def hardware_evidence(node: Mapping[str, t.Any], evidence: Evidence) -> list[str]:
    """Each condition and taint of a Node object that condemns its hardware, quoted. Empty: nothing does."""
    conditions = (node.get("status") or {}).get("conditions") or []
    quotes = [f"condition {quote(item)}" for item in unhealthy_conditions(conditions, evidence) if item["hardware"]]
    return quotes + hardware_taints((node.get("spec") or {}).get("taints") or [], evidence)


def hardware_taints(taints: Sequence[Mapping[str, t.Any]], evidence: Evidence) -> list[str]:
    """The taints by which a health agent says that GPUs are broken, quoted."""
    return [f"taint {quote_taint(taint)}" for taint in taints if evidence.of_taint(taint, "hardware")]


def quote(condition: Mapping[str, t.Any]) -> str:
    """The condition as one line: `GpuHealthy=False (XidError): GPU 3 fell off the bus`."""
    text = f"{condition['type']}={condition['status']}"
    if condition["reason"]:
        text += f" ({condition['reason']})"
    return f"{text}: {condition['message']}" if condition["message"] else text
