# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Action plugin behind gpu_cluster.readiness.certification_report: the report of a run, from its archive."""

from __future__ import annotations

import os
import typing as t

from ansible.utils.display import Display

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import point_latest, redact, write_manifest, write_text
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.model import render_json, summary
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.rebuild import report_from_archive
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.text import render_text
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._action import ReadinessAction


class ActionModule(ReadinessAction):
    """Needs no cluster: a report can be rebuilt from an archive at any time, byte for byte the same."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {
        "run_dir": {"type": "path", "required": True},
        "print": {"type": "bool", "default": True},
    }

    def act(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Writes report.json, report.txt, the manifest and the link `latest`; prints the text."""
        run_dir = os.path.abspath(os.path.expanduser(arguments["run_dir"]))
        report = redact(report_from_archive(run_dir))
        files = {os.path.join(run_dir, "report.json"): render_json(report), os.path.join(run_dir, "report.txt"): render_text(report)}
        changed = any(_content(path) != text for path, text in files.items())
        if not self.check_mode:
            _write(run_dir, files)
        if arguments["print"]:
            Display().display(f"{files[os.path.join(run_dir, 'report.txt')]}Archive    {run_dir}")
        short = summary(report)
        short["report"] = os.path.join(run_dir, "report.json")
        return {"changed": changed, "summary": short, "report": short["report"], "report_text": os.path.join(run_dir, "report.txt")}


def _write(run_dir: str, files: dict[str, str]) -> None:
    try:
        for path, text in files.items():
            write_text(path, text)
        write_manifest(run_dir)
        point_latest(run_dir)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=run_dir, hint="Check free space and permissions") from error


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return stream.read()
    except OSError:
        return None
