# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters over the logs of small tools and of users' own tests."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import finite
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._log_paths import log_paths


@plain_filter
def perftest_results(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Bandwidth or latency of one RDMA pair."""
    return finite(measure("perftest", log_paths(paths), context or {}))


@plain_filter
def fio_results(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Storage bandwidth, rates and latency."""
    return finite(measure("fio", log_paths(paths), context or {}))


@plain_filter
def nvbandwidth_results(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Copy bandwidth between host and GPUs."""
    return finite(measure("nvbandwidth", log_paths(paths), context or {}))


@plain_filter
def gpu_burn_results(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Throughput and errors of GPUs under load."""
    return finite(measure("gpu_burn", log_paths(paths), context or {}))


@plain_filter
def key_value_results(paths: t.Any, context: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Results that a test printed as key=value or JSON lines."""
    return finite(measure("key_value", log_paths(paths), context or {}))


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {
            "perftest_results": perftest_results,
            "fio_results": fio_results,
            "nvbandwidth_results": nvbandwidth_results,
            "gpu_burn_results": gpu_burn_results,
            "key_value_results": key_value_results,
        }
