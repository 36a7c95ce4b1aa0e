# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""fio: its JSON output (--output-format=json), with or without text around it.

A local run lists its `jobs`; `fio --client` lists the jobs of all clients under `client_stats`, and when there are several an entry
named "All clients" that holds their sum.
"""

from __future__ import annotations

import re
import typing as t

from ..._causes.exit_codes import log_reason_of
from .. import json_documents
from ..outcomes import number, text_of
from .tool import Context, Document, Log, Said, Tool, is_short

_FIRST_KEYS = ("fio version", "jobs", "client_stats")
_SUM_OF_CLIENTS = "All clients"
# What fio says when it cannot begin as asked: nothing was measured, and no disk is slow for that.
_SETUP = re.compile(
    r"fio: .{0,300}(?:is not a directory|No such file or directory|Permission denied|Read-only file system|No space left on device"
    r"|engine \S{1,40} not loadable|does not support direct=1)"
)


def _judge(logs: t.Sequence[Log], context: Context) -> Said:
    """One run; with several logs (one per pod) their jobs are taken together. context: exit_code."""
    found: list[dict[str, t.Any]] = []
    unreadable: list[bool] = []  # of each log without a whole document: whether it begins one
    setup = ""
    for log in logs:
        document = Document()
        for line in log:
            document.feed(line)
            if not setup and is_short(line) and _SETUP.match(line.text):
                setup = line.text
        root, damaged = json_documents.find_last(document.text, _is_root, _FIRST_KEYS)
        if root is not None and not damaged:
            found.append(root)
        else:
            unreadable.append(damaged or "{" in document.text)
    jobs = [job for root in found for job in _jobs(root)]
    values = _values(jobs)
    verdict, reason = ("SetupError", setup) if setup else _verdict(found, unreadable, jobs, values, context)
    parsed = {
        "version": next((text_of(root.get("fio version")) for root in found), None),
        "jobs": [_job_row(job) for job in jobs],
    }
    return Said(verdict, reason, values, parsed)


def _is_root(value: t.Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(key), list) for key in ("jobs", "client_stats"))


def _entries(root: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    listed = [value for key in ("jobs", "client_stats") if isinstance(value := root.get(key), list)]
    return [entry for entries in listed for entry in entries if isinstance(entry, dict)]


def _is_sum(root: dict[str, t.Any], entry: dict[str, t.Any]) -> bool:
    return "client_stats" in root and entry.get("jobname") == _SUM_OF_CLIENTS


def _jobs(root: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    return [entry for entry in _entries(root) if not _is_sum(root, entry)]


def _lost_clients(root: dict[str, t.Any]) -> bool:
    """Whether the sum of all clients counts more than the jobs that are listed."""
    totals = [entry for entry in _entries(root) if _is_sum(root, entry)]
    return any(_moved(totals, side) > 1.01 * _moved(_jobs(root), side) for side in ("read", "write") if totals)


def _moved(entries: list[dict[str, t.Any]], side: str) -> float:
    return sum(number(_side(entry, side).get("io_bytes")) or 0.0 for entry in entries)


def _side(job: dict[str, t.Any], side: str) -> dict[str, t.Any]:
    """`read` or `write` of a job; empty when it did none."""
    part = job.get(side)
    return part if isinstance(part, dict) and (number(part.get("total_ios")) or number(part.get("io_bytes"))) else {}


def _bytes_per_second(part: dict[str, t.Any]) -> float | None:
    exact = number(part.get("bw_bytes"))
    kibibytes = number(part.get("bw"))
    return exact if exact is not None else None if kibibytes is None else kibibytes * 1024


def _latency_us(part: dict[str, t.Any], percentile: float | None = None) -> float | None:
    """Completion latency: fio 3 prints nanoseconds, fio 2 microseconds."""
    for name, scale in (("clat_ns", 1e-3), ("clat", 1.0)):
        latency = part.get(name)
        if not isinstance(latency, dict) or number(latency.get("N")) == 0:
            continue  # not measured
        if percentile is None:
            value = number(latency.get("mean"))
        else:
            table = latency.get("percentile")
            pairs = table.items() if isinstance(table, dict) else ()
            value = next((number(cell) for key, cell in pairs if number(key) == percentile), None)
        if value:  # older versions print 0 for what they did not measure
            return round(value * scale, 4)
    return None


def _total(numbers: list[float]) -> float | None:
    """The sum, or a number below zero that it would hide."""
    if any(value < 0 for value in numbers):
        return min(numbers)
    return sum(numbers) if numbers else None


def _job_row(job: dict[str, t.Any]) -> dict[str, t.Any]:
    row: dict[str, t.Any] = {"name": text_of(job.get("jobname")), "error": number(job.get("error"))}
    for side in ("read", "write"):
        part = _side(job, side)
        if part:
            speed = _bytes_per_second(part)
            row[side] = {
                "bandwidth": None if speed is None else round(speed / 1e9, 6),
                "iops": number(part.get("iops")),
                "latency_us": _latency_us(part),
                "latency_p99_us": _latency_us(part, 99.0),
            }
    return row


def _values(jobs: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    values: dict[str, t.Any] = {
        "jobs": len(jobs),
        "errors": sum(1 for job in jobs if number(job.get("error")) or number(job.get("total_err"))),
    }
    for side in ("read", "write"):
        parts = [part for job in jobs if (part := _side(job, side))]
        speeds = [speed for part in parts if (speed := _bytes_per_second(part)) is not None]
        rates = [rate for part in parts if (rate := number(part.get("iops"))) is not None]
        means = [(mean, number(part.get("total_ios")) or 1.0) for part in parts if (mean := _latency_us(part)) is not None]
        tails = [tail for part in parts if (tail := _latency_us(part, 99.0)) is not None]
        weight = sum(count for _mean, count in means)
        values[f"{side}_bandwidth"] = None if (speed := _total(speeds)) is None else round(speed / 1e9, 6)
        values[f"{side}_iops"] = None if (rate := _total(rates)) is None else round(rate, 4)
        values[f"{side}_latency_us"] = round(sum(mean * count for mean, count in means) / weight, 4) if weight else None
        values[f"{side}_latency_p99_us"] = max(tails, default=None)
    longest = max((number(job.get("job_runtime")) or 0.0 for job in jobs), default=0.0)
    values["runtime_s"] = round(longest / 1000.0, 3) if longest else None
    return values


def _verdict(
    found: list[dict[str, t.Any]], unreadable: list[bool], jobs: list[dict[str, t.Any]], values: dict[str, t.Any], context: Context
) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}"
    if values["errors"]:
        return "WorkloadFailed", f"{values['errors']} of {len(jobs)} jobs ended with an error"
    if unreadable:
        return ("LogIncomplete", "the document is cut or damaged") if any(unreadable) else ("NoMeasurement", "no fio document")
    if not jobs or (values["read_bandwidth"] is None and values["write_bandwidth"] is None):
        return "NoMeasurement", "no job moved any data"
    if any(_lost_clients(root) for root in found):
        return "LogIncomplete", "the sum of all clients holds more than the clients that are listed"
    return None, f"{len(jobs)} jobs"


_TOOL = Tool("fio", _judge)
measure_files, parse = _TOOL.measure_files, _TOOL.parse
