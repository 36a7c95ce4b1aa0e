# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""The simulated cluster: an API server in memory, its ordinary clients, and a hardware model."""

from __future__ import annotations
