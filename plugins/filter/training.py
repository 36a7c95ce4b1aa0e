# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over training logs."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import finite
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._log_paths import log_paths


@plain_filter
def training_results(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Step time, throughput, loss and checkpoints of a training job."""
    return finite(measure("training", log_paths(paths), context or {}))


@plain_filter
def goodput(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Goodput of a training job with its terms."""
    return finite(measure("goodput", log_paths(paths), context or {}))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"training_results": training_results, "goodput": goodput}
