# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over DCGM diagnostics."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import finite
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._log_paths import log_paths


@plain_filter
def dcgm_results(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """What dcgmi diag proves about the GPUs of one or more nodes."""
    return finite(measure("dcgm", log_paths(paths), context or {}))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"dcgm_results": dcgm_results}
