# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.isolation_step: one turn of the search for the component at fault."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import write_json, write_text
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan import isolation
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.isolation_svg import draw
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._categories import effective_category, judge


class ActionModule(ReadinessAction):
    """Takes in the results of the wave before, saves the state, and says what to run next or what was found."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "run_dir": {"type": "path", "required": True},
        "category": {"type": "str", "required": True},
    }
    _supports_check_mode = False

    def act(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The state is in the archive after every turn, so an interrupted search goes on where it was."""
        run = RunDirectory(arguments["run_dir"])
        category = effective_category(run, arguments["category"])
        path = run.isolation(category["id"])
        record = self._turn(run, category, run.read(path)) if os.path.exists(path) else self._begin(run, category)
        write_json(path, record)
        done = record["conclusion"] is not None
        self._tell(category, record)
        if done and record["mode"] == "search":
            picture = path.removesuffix(".json") + ".svg"
            write_text(picture, draw(record["conclusion"], category["title"]))
            self.say(f"{category['title']} isolation: drawn in {picture}")
        return {
            "changed": True,
            "done": done,
            "wave": record["wave"],
            "tests": len(record["tests"]),
            "verdict": record["conclusion"]["verdict"] if done else None,
            "reason": record["conclusion"]["reason"] if done else None,
            "state": path,
        }

    def _begin(self, run: RunDirectory, category: dict[str, t.Any]) -> isolation.Record:
        members = {name for group in category["groups"] for name in group["nodes"]}
        rows = [row for row in run.read(run.snapshot)["nodes"] if row["name"] in members]
        judged = None if category["test_scale"] == "diagnose" else run.read(run.judged(category["id"]))
        return isolation.advance(isolation.start(category, judged, rows, run.read(run.spec)), None)

    def _turn(self, run: RunDirectory, category: dict[str, t.Any], record: isolation.Record) -> isolation.Record:
        """The next turn; a wave that was not run to its end is run again."""
        if record["conclusion"] is not None:
            return record
        wave = isolation.wave_category(category, record)
        if not os.path.exists(run.observation(wave["id"])):
            return record
        judged = judge(run, wave, run.read(run.observation(wave["id"])))
        write_json(run.judged(wave["id"]), judged)
        return isolation.advance(record, isolation.results_of(category, judged, record["tests"]))

    def _tell(self, category: dict[str, t.Any], record: isolation.Record) -> None:
        title = f"{category['title']} isolation"
        if record["conclusion"] is not None:
            self.say(f"{title}: {record['conclusion']['verdict']}: {record['conclusion']['reason']}")
            for suspect in record["conclusion"]["suspects"]:
                self.say(
                    f"{title}: {suspect['class']} {', '.join(suspect['nodes'][:4])} ({suspect['confidence']:.0%}): {suspect['reason']}"
                )
            return
        self.say(f"{title} wave {record['wave']}: {len(record['tests'])} tests; {isolation.progress_line(record)}")
