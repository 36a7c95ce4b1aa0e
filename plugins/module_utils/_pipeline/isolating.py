# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One turn of the search for a component at fault: results in, the next wave or a conclusion out; the archive remembers."""

from __future__ import annotations

from .._archive.run_directory import RunDirectory
from .._common.errors import InputError
from .._common.shapes import Category
from .._plan import isolation
from .categories import judge_observed


def isolation_turn(run: RunDirectory, category: Category) -> isolation.Record:
    """Takes in the wave before, if it was run to its end, and says what to run next or what was found. Writes the record.

    A search that was interrupted goes on where it was; a wave that was not run to its end is run again.
    """
    run.open()
    known = run.read_isolation(category["id"])
    record = _begin(run, category) if known is None else _next(run, category, known)
    run.write(run.isolation(category["id"]), record)
    return record


def _begin(run: RunDirectory, category: Category) -> isolation.Record:
    members = {name for group in category["groups"] for name in group["nodes"]}
    rows = [row for row in run.read_snapshot()["nodes"] if row["name"] in members]
    judged = None if category["test_scale"] == "diagnose" else run.read_judged(category["id"])
    request = run.read_request()
    if request is None:
        raise InputError("this archive holds logs that were analyzed, and there is nothing to run for a search", place=run.path)
    return isolation.advance(isolation.start(category, judged, rows, request), None)


def _next(run: RunDirectory, category: Category, record: isolation.Record) -> isolation.Record:
    if record["conclusion"] is not None:
        return record
    wave = isolation.wave_category(category, record)
    observation = run.read_observation(wave["id"])
    if observation is None:
        return record
    judged = judge_observed(run, wave, observation)
    run.write(run.judged(wave["id"]), judged)
    return isolation.advance(record, isolation.results_of(category, judged, record["tests"]))
