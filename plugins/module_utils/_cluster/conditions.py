# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Node conditions: the kubelet's own, and those that health agents write about GPUs and fabric."""

from __future__ import annotations

import re
import typing as t
from collections.abc import Mapping, Sequence

# The kubelet's conditions and the status they should have. Type "Ready" is named NotReady in messages.
KUBELET = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "NetworkUnavailable": "False"}


def unhealthy_conditions(conditions: Sequence[Mapping[str, t.Any]], rules: Sequence[Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """The conditions that are not as they should be: [{type, status, reason, message, hardware}].

    hardware: whether a rule of the catalog (health_conditions) says that this condemns GPUs or fabric. A condition with
    status Unknown is listed and condemns nothing.
    """
    found = []
    for condition in conditions:
        kind, status = str(condition.get("type", "")), str(condition.get("status", ""))
        hardware = False
        if kind in KUBELET:
            if status == KUBELET[kind]:
                continue
        else:
            rule = next((rule for rule in rules if re.fullmatch(rule["pattern"], kind, re.IGNORECASE)), None)
            hardware = rule is not None and status == rule["bad"]
            if not hardware and (rule is None or rule["bad"] == "never" or status != "Unknown"):
                continue
        found.append(
            {
                "type": kind,
                "status": status,
                "reason": str(condition.get("reason") or ""),
                "message": str(condition.get("message") or ""),
                "hardware": hardware,
            }
        )
    return found


def quote(condition: Mapping[str, t.Any]) -> str:
    """The condition as one line: `GpuHealthy=False (XidError): GPU 3 fell off the bus`."""
    text = f"{condition['type']}={condition['status']}"
    if condition["reason"]:
        text += f" ({condition['reason']})"
    return f"{text}: {condition['message']}" if condition["message"] else text
