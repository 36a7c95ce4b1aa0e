# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster as seen through the Kubernetes API: client, nodes, platform, topology, snapshot."""

from __future__ import annotations
