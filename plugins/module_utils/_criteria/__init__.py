# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Criteria and node health: CEL expressions, compiled before a run, evaluated on complete measurements only."""

from __future__ import annotations
