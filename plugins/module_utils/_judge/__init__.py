# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From measurements to verdicts: expressions, reasons, causes, roll-up. Start reading at `verdict.py`."""

from __future__ import annotations
