# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.certification_report: the report of a run, from its archive."""

from __future__ import annotations

import typing as t

from ansible.utils.display import Display

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.reporting import write_report
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.model import summary
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


class ActionModule(ReadinessAction):
    """Needs no cluster: a report can be rebuilt from an archive at any time, byte for byte the same."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "run_dir": {"type": "path", "required": True},
        "print": {"type": "bool", "default": True},
    }

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Writes report.json, report.txt, the manifest and the link `latest`; prints the text."""
        run = RunDirectory(arguments["run_dir"])
        with self.holding(run) as lock:
            report, text, changed = write_report(run, dry=self.check_mode)
            lock.release()
        if arguments["print"]:
            Display().display(f"{text}Archive    {run.path}")
        short = {**summary(report), "report": run.report}
        return {"changed": changed, "summary": short, "report": run.report, "report_text": run.report_text}
