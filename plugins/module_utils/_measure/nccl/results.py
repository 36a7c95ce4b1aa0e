# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements of nccl-tests runs: what the numbers are, whether they are complete, and what went wrong."""

from __future__ import annotations

import typing as t

from ..._common.shapes import Measurement, MeasurementFinding
from ..measurement import UNSTABLE_SPREAD, finding, measurement
from ..metrics import units
from . import facts
from .checks import Result
from .context import Context, read_context
from .log import read_log
from .parsed import parsed_log
from .sections import Section
from .values import worst_values

# Of several faults the one that is told: what convicts before what leaves open.
_GRAVEST = (
    "DataCorruption",
    "WorkloadFailed",
    "TimedOut",
    "SetupError",
    "TransportFallback",
    "LogIncomplete",
    "NoMeasurement",
    "ThresholdViolation",
)


def measure_files(paths: list[str], context: dict[str, t.Any]) -> Measurement:
    """The measurement of one attempt: see docs/data_shapes.md. Keys of the context that are not ours are ignored.

    A log may hold several tests, and runs of one test again. All of them must be whole, and `values` are the worst of what
    they say, so that a criterion is held against the worst: see `worst_values`.
    """
    given = read_context(context)
    log = read_log(paths)
    for section in log.sections:
        facts.fill_collective(section, given)
    chosen = _choose_sections(log.sections, given)
    summary = log.transport.summary(chosen[0].devices)
    for section in log.sections:
        facts.mark_contradictions(section, facts.ranks_of(section, summary.get("n_ranks")))
    results = [Result(section, given, log, summary, last=section is log.sections[-1]) for section in chosen]
    telling = _compared(results, given)
    gravest = min(results, key=lambda result: _gravity(result.verdict))
    values = worst_values([result.values for result in telling])
    findings = [item for result in results for item in result.findings]
    return measurement(
        "nccl",
        gravest.verdict,
        gravest.reason if gravest.verdict or len(telling) == 1 else _reason(telling, values),
        complete=all(result.complete for result in results),
        values=values,
        units=units("nccl", values),
        parsed=parsed_log(log, chosen[0], given),
        transport=summary,
        judged=_judged(telling),
        findings=[item for number, item in enumerate(findings) if item not in findings[:number]] + _differences(telling),
    )


def _gravity(verdict: str | None) -> int:
    if verdict is None:
        return len(_GRAVEST) + 1
    return _GRAVEST.index(verdict) if verdict in _GRAVEST else 1


# --- which runs count ------------------------------------------------------------------------------------------


def _choose_sections(sections: list[Section], given: Context) -> list[Section]:
    """The runs that count, in order of appearance.

    A run that did not come to its end counts unless the same test was run again after it: a script may try twice. When the
    last run of a test is cut, the whole ones before it count too, and their good numbers do not cover its end.
    """
    tests: dict[tuple[t.Any, ...], list[Section]] = {}
    for section in sections:
        key = _test(section)
        if section.collective is None:  # its program does not say its name: the request tells
            key = next((known for known in tests if known[1:] == key[1:]), key)
        tests.setdefault(key, []).append(section)
    chosen = [run for runs in tests.values() for run in runs if facts.counts(run) or run is runs[-1]]
    wanted = [section for section in chosen if given.collective and section.collective == given.collective]
    return sorted(wanted or chosen, key=sections.index)


def _test(section: Section) -> tuple[t.Any, ...]:
    config = section.config
    return (section.collective, *(config.get(key) for key in ("min_bytes", "max_bytes", "step", "step_mode")))


def _compared(results: list[Result], given: Context) -> list[Result]:
    """The runs whose numbers are compared: of every collective those of its largest size, or of the judged one.

    A warm-up with small messages has other numbers and is not the measurement.
    """
    found: list[Result] = []
    for name in dict.fromkeys(result.section.collective for result in results):
        own = [result for result in results if result.section.collective == name and result.judged is not None]
        if given.judged_size is not None:
            own = [result for result in own if "bus_bandwidth" in result.values] or own
        elif own:
            largest = max(result.values["message_size"] for result in own)
            own = [result for result in own if result.values["message_size"] == largest]
        found += own
    return found or results[:1]


def _judged(results: list[Result]) -> dict[str, t.Any] | None:
    """What was judged: of one collective as it is, of several by name. Of several runs of one the slowest."""
    slowest: dict[str, dict[str, t.Any] | None] = {}
    for result in results:
        name, known = str(result.section.collective), slowest.get(str(result.section.collective))
        if known is None or (result.judged and result.judged["busBandwidthGBps_at_max_size"] < known["busBandwidthGBps_at_max_size"]):
            slowest[name] = result.judged
    return slowest if len(slowest) > 1 else next(iter(slowest.values()))


def _reason(results: list[Result], values: dict[str, t.Any]) -> str:
    names = list(dict.fromkeys(str(result.section.collective) for result in results))
    what = f"{len(names)} collectives" if len(names) > 1 else f"{len(results)} runs"
    return f"the slowest of {what} is {values['collective']}: {values.get('bus_bandwidth')} GB/s at {values.get('message_size')} bytes"


def _differences(results: list[Result]) -> list[MeasurementFinding]:
    """A finding for every test whose runs contradict each other."""
    found = []
    for name in dict.fromkeys(result.section.collective for result in results):
        speeds = [result.values.get("bus_bandwidth") for result in results if result.section.collective == name]
        known = [speed for speed in speeds if speed is not None]
        if len(known) > 1 and max(known) and (max(known) - min(known)) / max(known) > UNSTABLE_SPREAD:
            text = f"{len(known)} runs of {name} in one log give from {min(known)} to {max(known)} GB/s: the slowest counts"
            found.append(finding("Unstable", text))
    return found
