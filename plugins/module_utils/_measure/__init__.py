# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From raw logs and diagnostic documents to measurements. Start reading at `measurement.py`."""

from __future__ import annotations
