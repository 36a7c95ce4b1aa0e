# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.workload_batch: the engine at Ansible's edge."""

from __future__ import annotations

import os
import signal
import time
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import write_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.journal import finished_attempts, read_journal
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import classify_attempt
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.conditions import quote, unhealthy_conditions
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ReadinessError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.health import (
    DEFAULT_EXPRESSION,
    compile_health,
    evaluate_health,
)
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.isolation import wave_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.batch import WORKERS, Batch, Engine
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._categories import effective_category

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ActionModule(ReadinessAction):
    """Runs one workload per group of a planned category and follows all of them to their clean end."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
        "run_dir": {"type": "path", "required": True},
        "category": {"type": "str", "required": True},
        "wave": {"type": "bool", "default": False},
    }

    def act(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The result is small; the observation is in the archive."""
        run = RunDirectory(arguments["run_dir"])
        category = effective_category(run, arguments["category"])
        if arguments["wave"]:
            category = wave_category(category, run.read(run.isolation(category["id"])))
        batch = _batch(run, category)
        client = Client.from_options(arguments, pool_size=WORKERS + 8)
        if self.check_mode:
            return {"changed": False, "observation": None, "groups": len(batch.groups)}
        check = compile_health(run.read(run.spec)["node_health"] or DEFAULT_EXPRESSION)
        conditions = run.read(run.plan).get("health_conditions") or []
        parent = os.getppid()
        engine = Engine(
            client,
            batch,
            classify=classify_attempt,
            health=lambda node: sick(check, conditions, node),
            progress=self.say,
            alive=lambda: os.getppid() == parent,
        )
        previous = {number: signal.signal(number, lambda *_args: engine.cancel("the play was ended by a signal")) for number in SIGNALS}
        try:
            observation = engine.run()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        path = run.observation(category["id"])
        write_json(path, observation)
        return _result(path, observation)


def _batch(run: RunDirectory, category: dict[str, t.Any]) -> Batch:
    meta = run.read(run.run)
    bounds = dict(run.read(run.plan)["bounds"])
    bounds["attempt_timeout_s"] = category["template"]["attempt_timeout_s"]
    return Batch(
        run_id=meta["run_id"],
        run_dir=run.path,
        category=category["short_id"],
        title=category["title"],
        template=category["template"],
        groups=category["groups"],
        bounds=bounds,
        deadline_at=meta["deadline_epoch"],
        finished=finished_attempts(read_journal(run.journal), category["short_id"]),
    )


def sick(check: t.Any, conditions: t.Sequence[t.Mapping[str, t.Any]], node: dict[str, t.Any]) -> dict[str, t.Any] | None:
    """What the node-health expression and the catalog's rules for node conditions say of a node: {message, evidence}, None if healthy.

    An expression that fails is loud, never a healthy node.
    """
    verdict = evaluate_health(check, node)
    if verdict["error"]:
        raise ReadinessError(verdict["error"], place="certification.node_health", hint="Make the expression safe for every node, see docs")
    condemned = [quote(item) for item in unhealthy_conditions(node["status"]["conditions"], conditions) if item["hardware"]]
    if not verdict["unhealthy"] and not condemned:
        return None
    evidence = verdict["evidence"] or [f"condition {text}" for text in condemned]
    return {"message": f"{node['metadata']['name']} became unhealthy: {'; '.join(evidence) or check.expression}", "evidence": evidence}


def _result(path: str, observation: dict[str, t.Any]) -> dict[str, t.Any]:
    outcomes: dict[str, int] = {}
    for group in observation["groups"]:
        outcome = group["attempts"][-1]["outcome"]
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return {
        "changed": True,
        "observation": path,
        "outcomes": outcomes,
        "cancelled": observation["cancelled"],
        "cleanup": observation["cleanup"],
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
