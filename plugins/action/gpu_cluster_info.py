# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.gpu_cluster_info."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.summary import summarize_snapshot
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.discovery import discover
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction, catalog_directories


class ActionModule(ReadinessAction):
    """Reads the cluster; changes nothing, so check mode is the same."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
        "target": {
            "type": "dict",
            "options": {
                "node_selector": {"type": "dict"},
                "match_expressions": {"type": "list", "elements": "dict"},
                "node_names": {"type": "list", "elements": "str"},
                "include_cordoned": {"type": "bool", "default": False},
                "gpu": {"type": "str"},
            },
        },
        "tolerations": {"type": "list", "elements": "dict"},
        "platform": {"type": "str"},
        "rack_label": {"type": "str"},
        "expected_gpus": {"type": "int"},
        "keep_labels": {"type": "list", "elements": "str", "default": []},
        "catalog_dirs": {"type": "list", "elements": "path", "default": []},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The snapshot of the cluster, with the user's selection applied."""
        given = {key: arguments[key] for key in ("target", "tolerations", "platform", "rack_label", "expected_gpus", "keep_labels")}
        snapshot = discover(Client.from_options(arguments), catalog_directories(arguments["catalog_dirs"]), **given)
        return {"changed": False, "snapshot": snapshot, "summary": summarize_snapshot(snapshot)}
