# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From a catalog test and a group of nodes to Kubernetes objects."""

from __future__ import annotations
