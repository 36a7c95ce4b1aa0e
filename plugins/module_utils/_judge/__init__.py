# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""From measurements to verdicts: expressions, reasons, causes, roll-up. Start reading at C(verdict.py)."""

from __future__ import annotations
