# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""DCGM diagnostics: JSON and text output of every version, entities, error codes."""

from __future__ import annotations
