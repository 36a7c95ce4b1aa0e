# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start or stop a simulated GPU cluster on the control node. Documentation: plugins/modules/simulated_cluster.py"""

from __future__ import annotations

import os
import sys
import typing as t
from pathlib import Path

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import to_plain
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._simulator_launcher import Launcher

_COLLECTION = Path(__file__).resolve().parents[2]


class ActionModule(ReadinessAction):
    """Starts or stops the cluster that belongs to a kubeconfig."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
        "definition": {"type": "raw"},
        "kubeconfig": {"type": "path", "required": True},
        "timeout_s": {"type": "float", "default": 120.0},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """A cluster that already runs with this definition is left alone."""
        launcher = Launcher(arguments["kubeconfig"], import_root=_import_root())
        if arguments["state"] == "stopped":
            return self._stopped(launcher)
        return self._started(launcher, self._definition(arguments["definition"], task_vars), arguments["timeout_s"])

    def _started(self, launcher: Launcher, definition: t.Any, timeout_s: float) -> dict[str, t.Any]:
        if self.check_mode:
            return {"changed": launcher.wants_start(definition), "kubeconfig": str(launcher.kubeconfig), "started": False}
        running, started = launcher.start(definition, timeout_s)
        return {
            "changed": started,
            "started": started,
            "kubeconfig": running.kubeconfig,
            "pid": running.pid,
            "nodes": running.nodes,
            "log": str(launcher.log_file),
        }

    def _stopped(self, launcher: Launcher) -> dict[str, t.Any]:
        stops = launcher.running() is not None if self.check_mode else launcher.stop()
        return {"changed": stops, "kubeconfig": str(launcher.kubeconfig), "started": False}

    def _definition(self, value: t.Any, task_vars: dict[str, t.Any]) -> t.Any:
        """Data as it is; a path made absolute; the bare name of a built-in definition becomes its path."""
        if not isinstance(value, str):
            return value
        built_in = _COLLECTION / "catalog" / "simulations" / f"{value}.yml"
        if os.sep not in value and built_in.exists():
            return str(built_in)
        if os.path.exists(value):
            return os.path.abspath(value)
        return str(self._loader.path_dwim_relative(to_plain(task_vars.get("playbook_dir", os.getcwd())), "", value))


def _import_root() -> str:
    """The folder to put on PYTHONPATH so that another process can import this collection; "" if none is needed or known."""
    from ansible.utils.collection_loader import AnsibleCollectionConfig

    for root in [*AnsibleCollectionConfig.collection_paths, *sys.path]:
        here = Path(root) / "ansible_collections" / "gpu_cluster" / "readiness"
        if here.exists() and here.resolve() == _COLLECTION:
            return str(root)
    return ""
