# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.run_cleanup."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.times import utc
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import cleanup
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


class ActionModule(ReadinessAction):
    """Deletes only, and only what carries the label of a run."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
        "run_id": {"type": "str"},
        "namespace": {"type": "str", "default": "default"},
        "wait_timeout": {"type": "int", "default": 180},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """One run by name, or every run whose announced end has passed."""
        client, namespace = Client.from_options(arguments), arguments["namespace"]
        runs = [arguments["run_id"]] if arguments["run_id"] else cleanup.expired_runs(client, namespace, utc(time.time()))
        removed: list[str] = []
        unproven: list[str] = []
        for run_id in runs:
            selector = cleanup.selector(run_id)
            found = cleanup.remaining(client, namespace, selector)
            names = [f"{item['kind']}/{item['name']}" for item in found.items]
            for problem in found.problems:
                self.progress(f"Run {run_id}: {problem}")
            if not names and not found.problems:
                self.progress(f"Run {run_id}: no object of it exists in namespace {namespace}")
                continue
            self.progress(f"Run {run_id}: {len(names)} objects{' would be removed' if self.check_mode else ''}")
            removed += names
            if self.check_mode:
                unproven += found.problems
                continue
            proof = cleanup.clean(client, namespace, selector, timeout_s=arguments["wait_timeout"])
            if not proof["proven"]:
                unproven.append(f"run {run_id}: {', '.join(proof['left'][:5]) or 'unknown objects'} may be left: {proof.get('message')}")
        for run_id, expires in cleanup.announced_runs(client, namespace).items():
            if run_id not in runs:
                self.progress(f"Run {run_id} may still be going on until {expires}; name it with run_id to remove its objects")
        if unproven:
            raise ClusterError(
                f"the removal is not proven: {'; '.join(unproven)}",
                place=f"namespace {namespace}",
                hint="Grant what is missing (docs/rbac.yml), look for finalizers, and clean up again",
            )
        return {"changed": bool(removed) and not self.check_mode, "runs": runs, "removed": removed, "proven": not self.check_mode}
