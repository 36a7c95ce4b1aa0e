# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.certification_look: what has become of the nodes that were tested."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.looking import look_at_all
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


class ActionModule(ReadinessAction):
    """Reads the nodes once all categories are judged; the report compares them with what they were when they were tested."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
        "run_dir": {"type": "path", "required": True},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The result is small; what was seen is in the archive."""
        run = RunDirectory(arguments["run_dir"])
        if self.check_mode:
            return {"changed": False, "seen": None, "why": ""}
        parent = os.getppid()
        client = Client.from_options(arguments)
        with self.holding(run):
            look = look_at_all(run, client, progress=self.progress, alive=lambda: os.getppid() == parent)
        return {"changed": True, "seen": None if look["nodes"] is None else len(look["nodes"]), "why": look["why"]}
