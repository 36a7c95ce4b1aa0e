# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements of nccl-tests runs: what the numbers are, whether they are complete, and what went wrong."""

from __future__ import annotations

import typing as t

from ..._common.shapes import Measurement
from ..measurement import measurement
from ..metrics import units
from . import facts
from .checks import Result
from .context import Context, read_context
from .log import read_log
from .parsed import parsed_log
from .sections import Section


def measure_files(paths: list[str], context: dict[str, t.Any]) -> Measurement:
    """The measurement of one run: see docs/data_shapes.md. Keys of the context that are not ours are ignored."""
    given = read_context(context)
    log = read_log(paths)
    chosen = _choose_sections(log.sections, given)
    primary = chosen[0]
    for section in log.sections:
        facts.fill_collective(section, given)
    summary = log.transport.summary(primary.devices)
    results = [Result(section, given, log, summary, last=section is log.sections[-1]) for section in chosen]
    worst = next((result for result in results if result.verdict is not None), results[0])
    first = results[0]
    return measurement(
        "nccl",
        worst.verdict,
        worst.reason,
        complete=all(result.complete for result in results),
        values=first.values,
        units=units("nccl", first.values),
        parsed=parsed_log(log, primary, given),
        transport=summary,
        judged=first.judged if len(results) == 1 else {str(result.section.collective): result.judged for result in results},
        findings=[item for result in results for item in result.findings],
    )


def _choose_sections(sections: list[Section], given: Context) -> list[Section]:
    """The section that facts.counts for each collective, in order of appearance: the last complete one, else the last.

    A later one that failed outweighs a complete one: nobody may read a good number over the end of a bad run.
    """
    ended_badly = {id(section) for section in sections if _shows_failure(section)}
    if given.exit_code and not sections[-1].footer_complete:
        ended_badly.add(id(sections[-1]))
    by_collective: dict[str | None, Section] = {}
    for section in sections:
        known = by_collective.get(section.collective)
        if known is None or facts.counts(section) or not facts.counts(known) or id(section) in ended_badly:
            by_collective[section.collective] = section
    chosen = list(by_collective.values())
    telling = [section for section in chosen if section.rows or section.footer_complete or id(section) in ended_badly]
    wanted = [section for section in chosen if given.collective and section.collective == given.collective]
    return wanted or telling or chosen[-1:]


def _shows_failure(section: Section) -> bool:
    """Whether the texts of a section say that it did not come to its end."""
    texts = section.failures or section.ib_errors or section.watchdog or section.setup or section.setup_faults
    return not section.footer_complete and bool(texts or section.exit_rank is not None)
