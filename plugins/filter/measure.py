# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter that measures log files of any kind."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import finite
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import find as log_files
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter


@plain_filter
def measure_logs(logs: t.Any, kind: str = "auto", context: dict[str, t.Any] | None = None, together: bool = False) -> t.Any:
    """One entry per log: name, paths, kind, measurement."""
    found = log_files.find_logs(logs, kind, together=together)
    return finite(log_files.measure_logs(found["logs"], context or {}))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"measure_logs": measure_logs}
