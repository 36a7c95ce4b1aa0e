# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What is known beforehand: GPU products, platforms and their network settings, tests. Loading, merging, resolving."""

from __future__ import annotations
