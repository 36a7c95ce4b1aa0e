# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Judged values: samples of every size, their means, and what a criterion sees of them."""

from __future__ import annotations

import math
import operator
import typing as t

from ..measurement import is_unstable
from . import facts
from .context import Context
from .facts import Key, data_correct, usable
from .rows import Cell, Cells, Row
from .sections import Section

# At the largest size less than this part of the peak: large messages collapse.
COLLAPSE = 0.9


# Which cell of a group of cells is meant.
Pick: t.TypeAlias = t.Callable[[Cells], Cell]
TIME: Pick = operator.attrgetter("time_us")
ALGBW: Pick = operator.attrgetter("algbw")
BUSBW: Pick = operator.attrgetter("busbw")


class Samples:
    """Out-of-place samples of one size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.by_key: dict[Key, list[Row]] = {}

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.by_key.values() for row in rows]

    def mean(self, cell: Pick) -> float:
        return mean_of(self.rows, cell)

    def worst_key(self) -> Key:
        """The (type, operation, root) with the lowest mean bus bandwidth; algorithm bandwidth for one rank."""
        return min(self.by_key, key=lambda key: (mean_of(self.by_key[key], BUSBW), mean_of(self.by_key[key], ALGBW)))


def mean_of(rows: list[Row], cell: Pick) -> float:
    """The mean of one out-of-place cell; N/A counts as 0."""
    return math.fsum(_cells(rows, cell)) / len(rows)


def _cells(rows: list[Row], cell: Pick) -> list[float]:
    return [(cell(row.out_of_place) if row.out_of_place else None) or 0.0 for row in rows]


def samples_of(section: Section) -> list[Samples]:
    """Samples of every size, smallest first."""
    found: dict[int, Samples] = {}
    for row in usable(section):
        samples = found.setdefault(row.size, Samples(row.size))
        samples.by_key.setdefault((row.type, row.redop, row.root), []).append(row)
    return [found[size] for size in sorted(found)]


def judge(section: Section) -> dict[str, t.Any] | None:
    """The numbers of the out-of-place group, NVCRE's peak among them; None without a usable row. Four decimals."""
    samples = samples_of(section)
    sized = [item for item in samples if item.size] or samples
    if not sized:
        return None
    # Of equal peaks the first counts; with one rank all bus bandwidths are 0 and the algorithm bandwidth decides.
    peak = max(sized, key=lambda item: (item.mean(BUSBW), item.mean(ALGBW)))
    largest = sized[-1]
    rows = largest.by_key[largest.worst_key()]
    spread = spread_of(rows)
    collapse = largest.mean(BUSBW) / peak.mean(BUSBW) if peak.mean(BUSBW) else None
    return {
        "placement": "out_of_place",
        "samples_per_size": sorted({len(item.rows) for item in samples}),
        "busBandwidthGBps_peak": round(peak.mean(BUSBW), 4),
        "busBandwidthGBps_peak_size": peak.size,
        "busBandwidthGBps_at_max_size": round(largest.mean(BUSBW), 4),
        "algBandwidthGBps_peak": round(max(item.mean(ALGBW) for item in sized), 4),
        "algBandwidthGBps_at_max_size": round(largest.mean(ALGBW), 4),
        "max_size": largest.size,
        "data_correct": data_correct(section),
        "at_max_size": {"samples": _cells(rows, BUSBW), "mean": round(mean_of(rows, BUSBW), 4), **spread},
        "unstable": _is_unstable(rows),
        "at_max_over_peak": round(collapse, 4) if collapse is not None else None,
        "collapse": collapse is not None and collapse < COLLAPSE,
    }


def spread_of(rows: list[Row]) -> dict[str, t.Any]:
    values = _cells(rows, BUSBW)
    low, high = min(values), max(values)
    return {"min": low, "max": high, "spread": round((high - low) / high, 4) if high else 0.0}


def _is_unstable(rows: list[Row]) -> bool:
    return is_unstable(spread_of(rows)["spread"], len(rows))


# --- what a criterion sees ---


def judged_samples(section: Section, given: Context, ranks: int | None) -> Samples | None:
    """Samples at the judged size; without one, at the largest measured."""
    samples = [item for item in samples_of(section) if item.size] or samples_of(section)
    if given.judged_size is None:
        return samples[-1] if samples else None
    fitting = [item for item in samples if facts.has_size([item.size], given.judged_size, ranks or 1)]
    return fitting[-1] if fitting else None


def values_of(
    section: Section, given: Context, judged: dict[str, t.Any] | None, summary: dict[str, t.Any], ranks: int | None
) -> dict[str, t.Any]:
    """The `values` of a measurement, as far as known: names and units as in the table of metrics.

    judged:  of `judge(section)`. summary: of the transport. ranks: of the judged group, None when unknown.
    """
    hosts = set() if section.devices_cut else {device[2] for device in section.printed_group()}
    correct = data_correct(section) if section.rows else None
    said: dict[str, t.Any] = {
        "collective": section.collective,
        "ranks": ranks,
        "nodes": max(len(hosts), summary["n_nodes"] or 0) or None,
        "transport": summary["class"],
        "gdr": summary["gdr"],
        "nvls": summary["nvls"],
        "data_correct": correct,
        "wrong": facts.wrong_elements(section) if correct is not None else None,
        "avg_bus_bandwidth": section.average,
        "nccl_version": section.versions.get("nccl_runtime") or facts.library_version(section),
    }
    samples = judged_samples(section, given, ranks)
    return said if judged is None or samples is None else said | _numbers(section, samples, judged, ranks)


def _numbers(section: Section, samples: Samples, judged: dict[str, t.Any], ranks: int | None) -> dict[str, t.Any]:
    rows = samples.by_key[samples.worst_key()]
    spread = spread_of(rows)
    smallest = next((item for item in samples_of(section) if item.size), samples)
    numbers: dict[str, t.Any] = {
        "bus_bandwidth": mean_of(rows, BUSBW),
        "alg_bandwidth": mean_of(rows, ALGBW),
        "time_us": mean_of(rows, TIME),
        "bus_bandwidth_min": spread["min"],
        "bus_bandwidth_max": spread["max"],
        "spread": spread["spread"],
        "samples": len(rows),
        "message_size": samples.size,
        "latency_us": None if section.shortened else smallest.mean(TIME),
        "bus_bandwidth_peak": judged["busBandwidthGBps_peak"],
        "alg_bandwidth_peak": judged["algBandwidthGBps_peak"],
        "collapse": None if section.shortened else judged["at_max_over_peak"],
        "datatype": _the_one(key[0] for key in samples.by_key),
        "redop": _the_one(key[1] for key in samples.by_key),
    }
    if facts.ratio_of(section, ranks) == 0.0 and not spread["max"]:
        # One rank moves nothing over a link: the printed 0 is no bandwidth.
        numbers |= dict.fromkeys(("bus_bandwidth", "bus_bandwidth_min", "bus_bandwidth_max", "bus_bandwidth_peak", "spread"))
        numbers["collapse"] = None
    return numbers


def _the_one(words: t.Iterable[str | None]) -> str | None:
    """The word that all share, or None."""
    different = set(words)
    return different.pop() if len(different) == 1 else None


# Of several runs the worst value answers for all; of the other metrics the slowest run's.
_LOWEST = ("bus_bandwidth", "alg_bandwidth", "bus_bandwidth_peak", "alg_bandwidth_peak", "bus_bandwidth_min", "bus_bandwidth_max",
           "avg_bus_bandwidth", "collapse", "samples", "message_size", "ranks", "nodes")  # fmt: skip
_HIGHEST = ("time_us", "latency_us", "spread", "wrong")


def worst_values(runs: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    """The `values` of several runs as one: each number the worst of them, null where one of them does not know it.

    runs: `values_of` each run that is compared, at least one. Words are those of the run with the lowest bus bandwidth;
    datatype and redop are null when they differ, data_correct is false when one is.
    """
    if len(runs) == 1:
        return runs[0]
    slowest = min(runs, key=lambda run: math.inf if run.get("bus_bandwidth") is None else run["bus_bandwidth"])
    worst = dict(slowest)
    for names, choose in ((_LOWEST, min), (_HIGHEST, max)):
        for name in names:
            numbers = [run.get(name) for run in runs]
            if any(name in run for run in runs):
                worst[name] = None if None in numbers else choose(numbers)  # type: ignore[type-var]
    correct = [run["data_correct"] for run in runs]
    worst["data_correct"] = False if False in correct else None if None in correct else True
    for name in ("datatype", "redop"):
        worst[name] = _the_one(run.get(name) for run in runs)
    return worst
