# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From measurements to verdicts: of groups, categories, the certification, each node. Start reading at `certification.py`."""

from __future__ import annotations
