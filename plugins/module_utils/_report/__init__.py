# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""The report: one model (C(model.py)) and its views, and the checks of the archive it lies in."""

from __future__ import annotations
