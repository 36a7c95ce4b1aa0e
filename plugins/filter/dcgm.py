# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Filters over DCGM diagnostics."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import log_filter


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"dcgm_results": log_filter("dcgm_results", "dcgm")}
