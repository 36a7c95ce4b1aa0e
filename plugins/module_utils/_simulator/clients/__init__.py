# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Ordinary API clients of the simulated cluster: scheduler, Job controller, node agents."""

from __future__ import annotations
