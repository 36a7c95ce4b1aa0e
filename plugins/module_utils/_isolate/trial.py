# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One test of a search, as it is asked for and as it came back."""

from __future__ import annotations

import dataclasses
import typing as t

from .node_sets import Nodes


@dataclasses.dataclass(eq=False)
class Trial:
    """One test. Nodes are indexes. wave is 0 for evidence that existed before."""

    shape: str
    transport: str
    nodes: Nodes
    purpose: str
    hypothesis: str
    id: str = ""
    wave: int = 0
    done: bool = False
    outcome: str = ""
    value: float | None = None
    expected: float | None = None
    passed: bool | None = None
    binding: bool = True
    reason: str = ""
    log: str = ""
    unmeasured: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    asked: Nodes = ()  # without the known-good nodes it was filled with
    avoid: frozenset[int] = frozenset()  # nodes it must not be filled with
    exclusive: bool = False  # runs in a wave of its own

    def take(self, result: dict[str, t.Any]) -> None:
        """Fill in what came back."""
        self.outcome = result["outcome"]
        self.value, self.expected, self.passed = result.get("value"), result.get("expected"), result.get("passed")
        self.binding = result.get("binding", True)
        self.reason, self.log = result.get("reason", ""), result.get("log", "")
        self.done = True
