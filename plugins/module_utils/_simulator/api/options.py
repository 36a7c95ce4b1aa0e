# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the query of a write asks for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Options:
    """The query of a write. validation: Strict, Warn or Ignore. warnings and name (of a new object) are filled by serving it."""

    dry_run: bool = False
    validation: str = "Warn"
    manager: str = "unknown"
    force: bool = False
    warnings: list[str] = dataclasses.field(default_factory=list)
    name: str = ""
