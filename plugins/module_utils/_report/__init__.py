# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report: one model (`model.py`), its views, and its rebuilding from the archive."""

from __future__ import annotations
