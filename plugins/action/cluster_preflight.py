# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.cluster_preflight."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.owners import this_owner
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.shapes import Owner, Plan
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.runs import check_cluster, refuse_elsewhere
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import anchors, cleanup, preflight
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction, play_pid


class ActionModule(ReadinessAction):
    """Permissions, server-side dry run, and leftovers of our own dead runs."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
        "run_dir": {"type": "path"},
        "plan": {"type": "dict"},
    }
    SPEC_RULES: t.ClassVar[dict[str, t.Any]] = {"required_one_of": [["run_dir", "plan"]], "mutually_exclusive": [["run_dir", "plan"]]}

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Fails before anything is created; sweeps what an earlier run left whose announced end has passed."""
        client = Client.from_options(arguments)
        if arguments["plan"]:
            return self._check(client, "preflight", arguments["plan"], this_owner(play_pid()))
        run = RunDirectory(arguments["run_dir"])
        with self.holding(run) as lock:
            check_cluster(run, client)
            return self._check(client, run.read_meta()["run_id"], run.read_plan(), lock.owner)

    def _check(self, client: Client, run_id: str, plan: Plan, owner: Owner) -> dict[str, t.Any]:
        result = preflight.check(client, run_id, plan["categories"])
        refuse_elsewhere(client, run_id, plan, owner)
        for note in result["notes"]:
            self.progress(f"Preflight: {note}")
        swept = []
        for namespace in result["namespaces"]:
            for dead in anchors.expired_runs(client, namespace):
                self.progress(
                    f"Found leftovers of run {dead}, whose control node is gone: {'would remove' if self.check_mode else 'removing'} them"
                )
                if self.check_mode:
                    swept.append(dead)
                    continue
                proof = cleanup.clean(client, namespace, cleanup.selector(dead))
                if proof["proven"]:
                    swept.append(dead)
                else:
                    self.progress(f"Leftovers of run {dead} could not be removed: {proof.get('message')}")
        return {"changed": bool(swept) and not self.check_mode, "swept": swept, **result}
