# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over training logs."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import log_filter


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"training_results": log_filter("training_results", "training"), "goodput": log_filter("goodput", "goodput")}
