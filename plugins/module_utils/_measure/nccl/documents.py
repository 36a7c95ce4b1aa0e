# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The `-J` documents of nccl-tests become sections, as its text does."""

from __future__ import annotations

import json
import math
import typing as t

from .. import prefixes
from .rows import Cells, Row, parse_cell, ratio_bounds
from .sections import Section, collective_of

_MAX_JSON_BYTES = 1 << 26


def looks_like_json(path: str) -> bool:
    """Whether the file begins with a brace."""
    for block in prefixes.read_blocks(path):
        for line in block.lines:
            if line.strip():
                return line.lstrip()[0] == "{"
    return False


def read_document(path: str) -> Section | None:
    """The `-J` document of a run, or None when it does not parse or is none. The environment is dropped."""
    pieces: list[str] = []
    size = 0
    for block in prefixes.read_blocks(path):
        pieces += block.lines
        size += sum(map(len, block.lines))
        if size > _MAX_JSON_BYTES:
            return None
    try:
        document = json.loads("\n".join(pieces))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("results"), list) or "version" not in document:
        return None
    try:
        return _section_of(document)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None


def _section_of(document: dict[str, t.Any]) -> Section:
    section = Section()
    section.source = "json"
    section.started = section.table_seen = True
    arguments = document.get("args") or []
    section.collective = collective_of(str(arguments[0])) if arguments else None
    section.config = _document_config(document.get("config") or {})
    for device in (document.get("config") or {}).get("devices") or []:
        section.add_device(int(device["rank"]), int(device.get("group") or 0), str(device["hostname"]), int(device.get("pid") or 0))
    section.rows = [_document_row(item) for item in document["results"]]
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, dict):
        section.out_of_bounds = int(bounds["count"])
        section.out_of_bounds_word = "OK" if _truth(bounds.get("okay")) else "FAILED"
    # Misspelt in 2.17.3 to 2.17.8.
    average = document.get("average_bus_bandwidth") or document.get("average_bus_bandwidith")
    if isinstance(average, dict):
        section.average_seen = True
        section.average = _number(average.get("bandwidth", average.get("bandwidith")))
        okay = _truth(average.get("okay"))
        section.min_bandwidth = "unchecked" if okay is None else "OK" if okay else "FAILED"
    section.concluded = "end_time" in document
    if document.get("nccl_version"):
        section.versions["nccl_library"] = int(document["nccl_version"])
        section.versions["nccl_runtime"] = _version_text(int(document["nccl_version"]))
    section.document = {
        "json_version": document["version"],
        "collective_from": "args[0] basename",
        "per_iter": _truth((document.get("config") or {}).get("per_iter_timing")) or False,
        "errors": [str(error) for error in document.get("errors") or [] if str(error).strip()],
        "secrets_dropped": ["env"] if "env" in document else [],
    }
    return section


def _document_config(config: dict[str, t.Any]) -> dict[str, t.Any]:
    names = {
        "nthreads": "threads",
        "ngpus": "gpus",
        "minimum_bytes": "min_bytes",
        "maximum_bytes": "max_bytes",
        "warmup_iters": "warmup",
        "iterations": "iters",
        "aggregated_iterations": "agg_iters",
        "validation": "validation",
        "graph": "graph",
    }
    said: dict[str, t.Any] = {ours: int(config[theirs]) for theirs, ours in names.items() if config.get(theirs) is not None}
    for mode in ("factor", "bytes"):
        if config.get(f"step_{mode}") is not None:
            said["step"], said["step_mode"] = int(config[f"step_{mode}"]), mode
    return said


def _document_row(item: dict[str, t.Any]) -> Row:
    groups = [_document_cells(item.get(name)) for name in ("out_of_place", "in_place")]
    redop = item.get("redop")
    size, elements = int(item["size"]), int(item["count"])
    if not 0 <= size < 1 << 63 or not 0 <= elements < 1 << 63:
        raise ValueError("no message has so many bytes")
    ratios = (ratio_bounds(_near(group.algbw), _near(group.busbw)) for group in groups if group)
    return Row(
        size=size,
        elements=elements,
        type=str(item["type"]),
        redop=str(redop) if redop else None,
        root=int(item["root"]) if item.get("root") is not None else None,
        out_of_place=groups[0],
        in_place=groups[1] or Cells(None, None, None, None),
        agrees="cpu_time" in str(item.get("out_of_place")) or all(_agrees(size, group) for group in groups if group),
        ratios=tuple(ratio for ratio in ratios if ratio),
    )


def _near(value: float | None) -> tuple[float, float]:
    """The values that a number with six decimals may stand for."""
    return (0.0, 0.0) if value is None else (max(0.0, value - 5e-7), value + 5e-7)


def _agrees(size: int, group: Cells) -> bool:
    """Whether size / time is the algorithm bandwidth of a group, within two percent."""
    if not group.time_us or group.algbw is None or not math.isfinite(group.time_us) or not math.isfinite(group.algbw):
        return True
    return abs(group.algbw * group.time_us * 1000.0 - size) <= 0.02 * size + 5e-7 * group.time_us * 1000.0


def _document_cells(group: t.Any) -> Cells | None:
    if not isinstance(group, dict):
        return None
    time = group.get("time", group.get("cpu_time"))
    return Cells.of([_raw_number(value) for value in (time, group.get("alg_bw"), group.get("bus_bw"), group.get("nwrong"))])


def _raw_number(value: t.Any) -> float | None:
    """A number that may be written as a word ("nan"); None for null."""
    return parse_cell(str(value)) if value is not None else None


def _number(value: t.Any) -> float | None:
    number = _raw_number(value)
    return number if number is not None and math.isfinite(number) else None


def _truth(value: t.Any) -> bool | None:
    """Booleans are the strings "true" and "false"; "unchecked" and null are None."""
    return {"true": True, "false": False}.get(str(value).lower())


def _version_text(code: int) -> str:
    """22809 -> 2.28.9; before 2.9 the code was major x 1000 + minor x 100 + patch."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
