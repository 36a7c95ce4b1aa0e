# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report: one model (`model.py`) and its views, and the checks of the archive it lies in."""

from __future__ import annotations
