# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
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
