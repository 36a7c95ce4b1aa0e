# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Filters over nccl-tests logs."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import log_filter, plain_filter
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._log_paths import log_paths


@plain_filter
def nccl_transport(paths: t.Any, context: dict[str, t.Any] | None = None) -> t.Any:
    """Which path the data of one run took."""
    return measure("nccl", log_paths(paths), context or {})["transport"]


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"nccl_results": log_filter("nccl_results", "nccl"), "nccl_transport": nccl_transport}
