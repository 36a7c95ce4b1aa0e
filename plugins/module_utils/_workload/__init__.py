# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""From a catalog test and a group of nodes to Kubernetes objects."""

from __future__ import annotations
