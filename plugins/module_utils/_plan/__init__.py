# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The certification spec, sizing and grouping."""

from __future__ import annotations
