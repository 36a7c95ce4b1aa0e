# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The fault matrix: certifications of small simulated clusters through an API that fails, cell by cell. See docs/fault_matrix.md."""

from __future__ import annotations
