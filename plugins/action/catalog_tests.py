# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.catalog_tests: what the catalog can test, and how."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import check_directories
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.listing import list_tests, render_tests
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction, catalog_directories


class ActionModule(ReadinessAction):
    """Reads files alone; no cluster is asked."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "tests": {"type": "list", "elements": "str", "default": []},
        "catalog_dirs": {"type": "list", "elements": "path", "default": []},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Rows for programs, and lines for people."""
        directories = catalog_directories(arguments["catalog_dirs"])
        check_directories(directories)
        rows = list_tests(directories, arguments["tests"])
        return {"changed": False, "tests": rows, "lines": render_tests(rows)}
