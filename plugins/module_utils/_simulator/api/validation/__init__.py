# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The rules a genuine server enforces beyond types; `checks` knows which kind has which."""

from __future__ import annotations
