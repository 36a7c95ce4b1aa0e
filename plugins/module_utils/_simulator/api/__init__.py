# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated API server: storage, validation, admission, watches."""

from __future__ import annotations
