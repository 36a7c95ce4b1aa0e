# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What simulated pods do: the seam to the node agents (`base`) and the programs behind it."""

from __future__ import annotations
