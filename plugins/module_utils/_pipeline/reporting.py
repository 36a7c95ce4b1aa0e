# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run, written into its archive, which it finishes."""

from __future__ import annotations

import typing as t

from .._archive.files import redact
from .._archive.run_directory import RunDirectory
from .._common.shapes import Report
from .._report.model import render_json
from .._report.rebuild import report_from_archive
from .._report.text import render_text


def write_report(run: RunDirectory, *, dry: bool = False) -> tuple[Report, str, bool]:
    """The report as data and as text, and whether it differs from what the archive had. Raises InputError.

    A finished archive is verified first; afterwards it is sealed. dry: nothing is written.
    """
    run.check()
    report = t.cast(Report, redact(report_from_archive(run)))
    text = render_text(report)
    files = {run.report: render_json(report), run.report_text: text}
    changed = any(_content(path) != wanted for path, wanted in files.items())
    if not dry:
        for path, wanted in files.items():
            run.write_text(path, wanted)
        run.seal()
    return report, text, changed


def _content(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            return stream.read()
    except OSError:
        return None
