# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Builders of DCGM documents for the tests."""

from __future__ import annotations

import json
import typing as t

Node = dict[str, t.Any]


def result(
    entity: int, status: str = "Pass", *, code: int = 0, severity: int = 0, text: str = "synthetic", group: str = "GPU", **extra: t.Any
) -> Node:
    """A 4.x result; with a code it carries one warning."""
    node: Node = {"entity_group": group, "entity_group_id": 1 if group == "GPU" else 3, "entity_id": entity, "status": status, **extra}
    if code:
        node["warnings"] = [{"error_id": code, "error_severity": severity, "error_category": 10, "warning": text}]
    return node


def check(name: str, results: list[Node], status: str = "Pass") -> Node:
    return {"name": name, "results": results, "test_summary": {"status": status}}


def v4(*tests: Node, gpus: int = 8) -> str:
    """A 4.x document as dcgmi prints it."""
    root = {
        "DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": list(tests)}]},
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": [{"entity_id": number} for number in range(gpus)]}],
        "metadata": {"version": "4.5.2", "Driver Version Detected": "580.95.05"},
    }
    return json.dumps(root, indent=3, sort_keys=True)


def passing(name: str = "memory", gpus: int = 8) -> Node:
    return check(name, [result(number) for number in range(gpus)])


def failing(name: str, gpu: int, code: int, severity: int, text: str = "synthetic", gpus: int = 8) -> Node:
    results = [result(n, "Fail", code=code, severity=severity, text=text) if n == gpu else result(n) for n in range(gpus)]
    return check(name, results, "Fail")


TABLE_V3 = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.1.8                                          |
| Driver Version Detected   | 535.104.05                                     |
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
| Persistence Mode          | Warn - GPU: 1                                  |
| Warning                   | GPU 1 synthetic notice                         |
+-----  Integration  -------+------------------------------------------------+
| PCIe                      | Pass - All                                     |
+-----  Hardware  ----------+------------------------------------------------+
| GPU Memory                | Fail - GPUs: 0, 3                              |
| Diagnostic                | Skip - All                                     |
+---------------------------+------------------------------------------------+
"""
