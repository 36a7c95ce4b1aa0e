# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A whole certification in one call, for those who drive it from Python; playbooks take the same steps one by one."""

from __future__ import annotations

import time
import typing as t

from .._archive.lock import RunLock
from .._archive.run_directory import RunDirectory, new_run_id
from .._cluster.client import Client
from .._common.errors import ReadinessError
from .._common.shapes import Category, Report
from .._plan.isolation import must_isolate
from .._run import preflight
from .batches import category_to_run, engine_of, run_category
from .categories import effective_category, judge_run_category
from .discovery import discover
from .isolating import isolation_turn
from .reporting import write_report
from .runs import open_run, plan_of, refuse_elsewhere, request_of

Progress = t.Callable[[str], None]


def certify(
    client: Client,
    certification: t.Any,
    directories: t.Sequence[str],
    runs_dir: str,
    *,
    run_id: str | None = None,
    progress: Progress = lambda _text: None,
) -> tuple[Report, RunDirectory]:
    """Discovers, plans, runs, measures, judges, isolates and reports.

    certification: the user's mapping. directories: catalog directories, the user's before the shipped one. runs_dir: of the archive.
    Raises InputError or ClusterError before anything is created; what breaks off later is in the report as such.
    """
    now = time.time()
    request, entries = request_of(certification, directories)
    keep = [request["topology_key"]] if request["topology_key"] else []
    snapshot = discover(client, directories, target=t.cast("dict[str, t.Any]", request["target"]), keep_labels=keep)
    plan = plan_of(request, entries, snapshot, directories)
    chosen = new_run_id(run_id, now)
    run = RunDirectory.create(runs_dir, chosen)
    preflight.check(client, chosen, plan["categories"])
    lock = RunLock(run.path, tell=progress)
    refuse_elsewhere(client, chosen, plan, lock.owner)
    with lock:
        try:
            open_run(run, chosen, request, snapshot, plan, now=now)
            for category in plan["categories"]:
                try:
                    _certify_category(run, category, client, progress, lock)
                except ReadinessError as error:
                    lock.require()
                    judged = judge_run_category(run, effective_category(run, category["id"]), error.render())
                    run.write(run.judged(category["id"]), judged)
            report, _text, _changed = write_report(run)
        finally:
            lock.release()  # the caller's process may live on, and the run be taken up by another
    return report, run


def _certify_category(run: RunDirectory, planned: Category, client: Client, progress: Progress, lock: RunLock) -> None:
    """Runs and judges one category; where that leaves suspects, or is a search from the start, wave by wave."""
    searched = planned["test_scale"] == "diagnose"
    if not searched:
        _run(run, planned["id"], client, progress, lock)
        searched = _judge(run, planned["id"], progress)
    if not searched:
        return
    while isolation_turn(run, effective_category(run, planned["id"]))["conclusion"] is None:
        _run(run, planned["id"], client, progress, lock, wave=True)
    _judge(run, planned["id"], progress)


def _run(run: RunDirectory, category_id: str, client: Client, progress: Progress, lock: RunLock, *, wave: bool = False) -> None:
    category = category_to_run(run, category_id, wave=wave)
    engine = engine_of(run, category, client, lock.owner, progress=progress)
    run_category(run, category, engine, lock)


def _judge(run: RunDirectory, category_id: str, progress: Progress) -> bool:
    """Judges a category as it stands; whether its fault is still to be located."""
    category = effective_category(run, category_id)
    judged = judge_run_category(run, category)
    run.write(run.judged(category_id), judged)
    progress(f"{category['title']}: {judged['verdict']}: {judged['why']}")
    return judged["isolation"] is None and must_isolate(category, judged)
