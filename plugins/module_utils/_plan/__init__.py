# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The request, what becomes of it on a cluster (categories, groups, floors), and the waves of isolation."""

from __future__ import annotations
