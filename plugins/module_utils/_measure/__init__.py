# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""From raw logs and diagnostic documents to measurements. Start reading at C(measurement.py)."""

from __future__ import annotations
