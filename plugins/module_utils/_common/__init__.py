# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces every room uses: errors and conversion to plain Python."""

from __future__ import annotations
