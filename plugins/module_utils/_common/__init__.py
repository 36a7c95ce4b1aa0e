# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pieces every room uses: shapes, errors, checks of input, conversion to plain Python, words."""

from __future__ import annotations
