# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Logs from anywhere, measured, judged and left as the archive of a run."""

from __future__ import annotations

import os
import shutil
import typing as t

from .._archive.run_directory import RunDirectory
from .._common.errors import InputError
from .._common.shapes import JudgedCategory
from .._common.times import utc
from .._judge.categories import judge_category
from .._judge.offline import compile_for_kinds, run_of_logs
from .._measure.find import find_logs, measure_logs


def analyze(
    logs: t.Any,
    kind: str,
    criteria: t.Any,
    thresholds: t.Any,
    *,
    context: t.Mapping[str, t.Any],
    nodes: t.Sequence[str] = (),
    together: bool = False,
    allow_no_criteria: bool = False,
) -> dict[str, t.Any]:
    """Measures and judges logs. Criteria are compiled before the first log is read; raises InputError.

    logs: paths, folders or patterns. kind: of measurement, or auto. context: of the readers. nodes: the hosts of all logs.
    Returns {run: snapshot, plan, observations, measurements; judged: by category; logs; notes}.
    """
    found = find_logs(logs, kind, together=together)
    wanted = [criteria] if isinstance(criteria, str) else criteria
    compiled = compile_for_kinds([log["kind"] for log in found["logs"]], wanted, thresholds)
    measured = [{**log, "nodes": list(nodes)} for log in measure_logs(found["logs"], dict(context))]
    run = run_of_logs(measured, compiled)
    judged: dict[str, JudgedCategory] = {
        category["id"]: judge_category(
            category,
            run["observations"][category["id"]],
            run["measurements"][category["id"]],
            compiled[category["measure"]["kind"]],
            allow_no_criteria=allow_no_criteria,
        )
        for category in run["plan"]["categories"]
    }
    return {"run": run, "judged": judged, "logs": measured, "notes": found["notes"]}


def keep(run: RunDirectory, run_id: str, analysis: t.Mapping[str, t.Any], now: float) -> None:
    """The run directory: what a certification leaves, and a copy of every log. Raises InputError when it cannot be written."""
    run.write(run.snapshot, analysis["run"]["snapshot"])
    run.write(run.plan, analysis["run"]["plan"])
    for category_id, judged in analysis["judged"].items():
        run.write(run.judged(category_id), judged)
        run.write(run.observation(category_id), analysis["run"]["observations"][category_id])
    try:
        os.makedirs(run.logs(), exist_ok=True)
        for number, log in enumerate(analysis["logs"], start=1):
            for path in log["paths"]:
                shutil.copyfile(path, os.path.join(run.logs(), f"{number:03d}-{os.path.basename(path)}"))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=run.path, hint="Set runs_dir to another directory") from error
    stamp = utc(now)
    run.write(run.meta, {"run_id": run_id, "started": stamp, "finished": stamp, "name": "analyze", "notes": analysis["notes"]})
