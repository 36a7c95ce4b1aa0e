# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated machines: definition, products, platforms, faults, and the seam through which programs and agents meet them."""

from __future__ import annotations
