# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Small tools: perftest, fio, nvbandwidth, gpu-burn, and key=value results of users' own tests."""

from __future__ import annotations
