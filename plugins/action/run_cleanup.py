# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.run_cleanup."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.words import counted
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import anchors, cleanup
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


class ActionModule(ReadinessAction):
    """Deletes only, and only what carries the label of a run."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
        "run_id": {"type": "str"},
        "namespace": {"type": "str", "default": "default"},
        "force": {"type": "bool", "default": False},
        "wait_timeout": {"type": "int", "default": 180},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """One run by name, or every run whose announced end has passed; a live one only by force."""
        client, namespace = Client.from_options(arguments), arguments["namespace"]
        runs = [arguments["run_id"]] if arguments["run_id"] else anchors.expired_runs(client, namespace)
        removed: list[str] = []
        unproven: list[str] = []
        for run_id in runs:
            self._refuse_live(client, namespace, run_id, force=arguments["force"])
            names, problem = self._clean(client, namespace, run_id, arguments["wait_timeout"])
            removed += names
            unproven += filter(None, [problem])
        if unproven:
            raise ClusterError(
                f"the removal is not proven: {'; '.join(unproven)}",
                place=f"namespace {namespace}",
                hint="Grant what is missing (docs/rbac.yml), look for finalizers, and clean up again",
            )
        self._tell_of_others(client, namespace, runs)
        return {"changed": bool(removed) and not self.check_mode, "runs": runs, "removed": removed, "proven": not self.check_mode}

    def _refuse_live(self, client: Client, namespace: str, run_id: str, *, force: bool) -> None:
        if force:
            return
        alive = [item for item in anchors.anchors(client, namespace, run_id) if item.lives(client.now())]
        if alive:
            raise ClusterError(
                f"run {run_id} is going on: {alive[0].who()}",
                place=f"namespace {namespace}, configmap {alive[0].name}",
                hint="Nothing was removed. End it where it runs (Ctrl-C), or remove its objects under it with force: true (cleanup_force)",
            )

    def _clean(self, client: Client, namespace: str, run_id: str, seconds: float) -> tuple[list[str], str]:
        """Names of the objects, and why it is not proven that they are gone, or ""."""
        selector = cleanup.selector(run_id)
        found = cleanup.remaining(client, namespace, selector)
        names = [f"{item['kind']}/{item['name']}" for item in found.items]
        for problem in found.problems:
            self.progress(f"Run {run_id}: {problem}")
        if not names and not found.problems:
            self.progress(f"Run {run_id}: no object of it exists in namespace {namespace}")
            return [], ""
        self.progress(f"Run {run_id}: {counted(len(names), 'object')}{' would be removed' if self.check_mode else ''}")
        if self.check_mode:
            return names, "; ".join(found.problems)
        proof = cleanup.clean(client, namespace, selector, timeout_s=seconds)
        if proof["proven"]:
            return names, ""
        return names, f"run {run_id}: {', '.join(proof['left'][:5]) or 'unknown objects'} may be left: {proof.get('message')}"

    def _tell_of_others(self, client: Client, namespace: str, runs: t.Sequence[str]) -> None:
        for run_id, own in anchors.announced_runs(client, namespace).items():
            if run_id in runs:
                continue
            expires = max(item.expires for item in own)
            alive = [item for item in own if item.lives(client.now())]
            if alive:
                self.progress(f"Run {run_id} is going on until {expires} at most: {alive[0].who()}")
            else:
                self.progress(f"Run {run_id} is dead, as far as can be seen; it may be resumed. Name it with run_id to remove its objects")
