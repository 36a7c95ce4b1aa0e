# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Training jobs: Megatron, NeMo and Lightning lines, checkpoints, goodput."""

from __future__ import annotations
