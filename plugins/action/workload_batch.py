# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.workload_batch: the engine at Ansible's edge."""

from __future__ import annotations

import os
import signal
import time
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.lock import RunLock
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.argspec import AUTH_ARGUMENTS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.shapes import Category, Observation
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.times import utc
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.batches import (
    POOL_SIZE,
    category_to_run,
    engine_of,
    run_category,
)
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.engine import Engine
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction, play_pid

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ActionModule(ReadinessAction):
    """Runs one workload per group of a planned category and follows all of them to their clean end."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        **AUTH_ARGUMENTS,
        "run_dir": {"type": "path", "required": True},
        "category": {"type": "str", "required": True},
        "wave": {"type": "bool", "default": False},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The result is small; the observation is in the archive."""
        run = RunDirectory(arguments["run_dir"])
        category = category_to_run(run, arguments["category"], wave=arguments["wave"])
        client = Client.from_options(arguments, pool_size=POOL_SIZE)
        if self.check_mode:
            return {"changed": False, "observation": None, "groups": len(category["groups"])}
        with self.holding(run) as lock:
            engine = engine_of(run, category, client, lock.owner, progress=self.progress, alive=lambda: os.getppid() == play_pid())
            observation = _run_until_signalled(run, category, engine, lock)
        return _result(run.observation(category["id"]), observation)


def _run_until_signalled(run: RunDirectory, category: Category, engine: Engine, lock: RunLock) -> Observation:
    previous = {number: signal.signal(number, lambda *_args: engine.cancel("the play was ended by a signal")) for number in SIGNALS}
    try:
        return run_category(run, category, engine, lock)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _result(path: str, observation: Observation) -> dict[str, t.Any]:
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
        "finished_at": utc(time.time()),
    }
