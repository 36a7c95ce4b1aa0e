# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over logs that are read by a log profile."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import finite
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._log_paths import log_paths


@plain_filter
def log_profile_results(paths: t.Any, context: dict[str, t.Any]) -> t.Any:
    """The metrics that a log profile declares, from the logs of one run."""
    if not isinstance(context, dict) or not context.get("profile"):
        raise InputError("the context must name a log profile", hint="Give {'profile': NAME_OR_PATH}")
    return finite(measure("log_profile", log_paths(paths), context))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"log_profile_results": log_profile_results}
