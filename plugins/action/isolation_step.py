# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.isolation_step: one turn of the search for the component at fault."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.shapes import Category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.categories import effective_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.isolating import isolation_turn
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.isolation import Record, progress_line
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.isolation_svg import draw
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


class ActionModule(ReadinessAction):
    """Takes in the results of the wave before, saves the state, and says what to run next or what was found."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "run_dir": {"type": "path", "required": True},
        "category": {"type": "str", "required": True},
    }
    _supports_check_mode = False

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The state is in the archive after every turn, so an interrupted search goes on where it was."""
        run = RunDirectory(arguments["run_dir"])
        with self.holding(run):
            category = effective_category(run, arguments["category"])
            record = isolation_turn(run, category)
            done = record["conclusion"] is not None
            self._tell(category, record)
            if done and record["mode"] == "search":
                run.write_text(run.drawing(category["id"]), draw(record["conclusion"], category["title"]))
                self.progress(f"{category['title']} isolation: drawn in {run.drawing(category['id'])}")
        return {
            "changed": True,
            "done": done,
            "wave": record["wave"],
            "tests": len(record["tests"]),
            "verdict": record["conclusion"]["verdict"] if done else None,
            "reason": record["conclusion"]["reason"] if done else None,
            "state": run.isolation(category["id"]),
        }

    def _tell(self, category: Category, record: Record) -> None:
        title = f"{category['title']} isolation"
        if record["conclusion"] is None:
            self.progress(f"{title} wave {record['wave']}: {len(record['tests'])} tests; {progress_line(record)}")
            return
        self.progress(f"{title}: {record['conclusion']['verdict']}: {record['conclusion']['reason']}")
        for suspect in record["conclusion"]["suspects"]:
            who = ", ".join(suspect["nodes"][:4])
            self.progress(f"{title}: {suspect['class']} {who} ({suspect['confidence']:.0%}): {suspect['reason']}")
