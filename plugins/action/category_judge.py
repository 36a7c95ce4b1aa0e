# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.category_judge: reads the logs of a category, measures, judges."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.categories import effective_category, judge_run_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.isolation import must_isolate
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


class ActionModule(ReadinessAction):
    """Works from the archive alone, so a category can be judged again at any time, also offline."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "run_dir": {"type": "path", "required": True},
        "category": {"type": "str", "required": True},
        "failure": {"type": "str"},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """failure: why the batch of the category broke off, when it left no observation."""
        run = RunDirectory(arguments["run_dir"])
        with self.holding(run):
            run.check()
            if not self.check_mode:
                run.open()
            category = effective_category(run, arguments["category"])
            judged = judge_run_category(run, category, arguments["failure"] or "", dry=self.check_mode)
            if not self.check_mode:
                run.write(run.judged(category["id"]), judged)
        self.progress(f"{category['title']}: {judged['verdict']}: {judged['why']}")
        counts: dict[str, int] = {}
        for member in judged["members"].values():
            counts[member["verdict"]] = counts.get(member["verdict"], 0) + 1
        return {
            "changed": not self.check_mode,
            "verdict": judged["verdict"],
            "why": judged["why"],
            "nodes": counts,
            "isolate": judged["isolation"] is None and must_isolate(category, judged),
            "judged": run.judged(category["id"]),
        }
