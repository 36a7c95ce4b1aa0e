# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""fio: its JSON output (--output-format=json), with or without text around it."""

from __future__ import annotations

import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement
from .. import json_documents
from ..lines import read_text
from ..measurement import measurement
from ..metrics import units
from ..outcomes import number, text_of

_FIRST_KEYS = ("fio version", "jobs")


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one fio run; with several files (one per pod) their jobs are taken together."""
    return _measure([read_text(path) for path in paths], context)


def parse(text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """Judge the output of one fio. Never raises for its content."""
    return _measure([text], context or {})


def _measure(texts: list[str], context: t.Mapping[str, t.Any]) -> Measurement:
    found = [json_documents.find_last(text, _is_root, _FIRST_KEYS) for text in texts]
    roots = [root for root, damaged in found if root is not None and not damaged]
    jobs = [job for root in roots for job in root["jobs"] if isinstance(job, dict)]
    values = _values(jobs)
    verdict, reason = _verdict(texts, roots, jobs, values, context)
    return measurement(
        "fio",
        verdict,
        reason,
        complete=verdict is None,
        values=values,
        units=units("fio", values),
        parsed={
            "version": next((text_of(root.get("fio version")) for root in roots), None),
            "jobs": [_job_row(job) for job in jobs],
        },
    )


def _is_root(value: t.Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("jobs"), list)


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
        if not isinstance(latency, dict):
            continue
        if percentile is None:
            value = number(latency.get("mean"))
        else:
            table = latency.get("percentile")
            pairs = table.items() if isinstance(table, dict) else ()
            value = next((number(cell) for key, cell in pairs if number(key) == percentile), None)
        if value is not None:
            return round(value * scale, 4)
    return None


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
        values[f"{side}_bandwidth"] = round(sum(speeds) / 1e9, 6) if speeds else None
        values[f"{side}_iops"] = round(sum(rates), 4) if rates else None
        values[f"{side}_latency_us"] = round(sum(mean * count for mean, count in means) / weight, 4) if weight else None
        values[f"{side}_latency_p99_us"] = max(tails, default=None)
    longest = max((number(job.get("job_runtime")) or 0.0 for job in jobs), default=0.0)
    values["runtime_s"] = round(longest / 1000.0, 3) if longest else None
    return values


def _verdict(
    texts: list[str],
    roots: list[dict[str, t.Any]],
    jobs: list[dict[str, t.Any]],
    values: dict[str, t.Any],
    context: t.Mapping[str, t.Any],
) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}"
    if values["errors"]:
        return "WorkloadFailed", f"{values['errors']} of {len(jobs)} jobs ended with an error"
    if len(roots) < len(texts):
        started = any("{" in text for text in texts)
        return ("LogIncomplete", "the document is cut or damaged") if started else ("NoMeasurement", "no fio document")
    if not jobs or (values["read_bandwidth"] is None and values["write_bandwidth"] is None):
        return "NoMeasurement", "no job moved any data"
    return None, f"{len(jobs)} jobs"
