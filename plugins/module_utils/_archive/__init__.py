# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The run directory: paths, reading and writing, manifest, journal, lock."""

from __future__ import annotations
