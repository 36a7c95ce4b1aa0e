# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The engine: launches workloads, follows them, keeps the journal, cleans up."""

from __future__ import annotations
