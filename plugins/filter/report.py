# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that make the report and its views."""

from __future__ import annotations

import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import snapshot_given
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report import model, text
from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._filters import plain_filter


@plain_filter
def report_model(judged: t.Any, run: dict[str, t.Any], snapshot: t.Any, plan: t.Any = None, cleanup: t.Any = None) -> t.Any:
    """The report as data, see docs/report.schema.json."""
    return model.build_report(run, snapshot_given(snapshot), plan, judged, cleanup)


@plain_filter
def report_text(report: dict[str, t.Any]) -> str:
    """The report for people."""
    return text.render_text(report)


@plain_filter
def report_summary(report: t.Any, limit: int = 200) -> dict[str, t.Any]:
    """What a pipeline needs of a report."""
    return model.summary(report, limit)


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Name to function."""
        return {"report_model": report_model, "report_text": report_text, "report_summary": report_summary}
