# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""What simulated pods do: the seam to the node agents (C(base)) and the programs behind it."""

from __future__ import annotations
