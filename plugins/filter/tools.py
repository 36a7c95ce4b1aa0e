# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over the logs of small tools and of users' own tests."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import log_filter


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {
            "perftest_results": log_filter("perftest_results", "perftest"),
            "fio_results": log_filter("fio_results", "fio"),
            "nvbandwidth_results": log_filter("nvbandwidth_results", "nvbandwidth"),
            "gpu_burn_results": log_filter("gpu_burn_results", "gpu_burn"),
            "node_facts_results": log_filter("node_facts_results", "node_facts"),
            "key_value_results": log_filter("key_value_results", "key_value"),
        }
