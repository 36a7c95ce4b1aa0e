# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""Ordinary API clients of the simulated cluster: scheduler, Job controller, node agents."""

from __future__ import annotations
