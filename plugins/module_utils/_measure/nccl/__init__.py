# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nccl-tests: its result tables, NCCL's own output, the path the data took."""

from __future__ import annotations
