# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a measurement carries of its log as it was read: configuration, devices, rows, footer, failures."""

from __future__ import annotations

import math
import typing as t

from . import facts
from .context import Context
from .log import Log
from .rows import Row
from .sections import Section

COLUMNS = ["size", "count", "type", "redop", "root"]
_GROUP = ["time_us", "algbw", "busbw"]
_PER_ITERATION = ["i_min_us", "i_max_us", "i_p99_us", "i_cv_pct"]


def parsed_log(log: Log, primary: Section, given: Context) -> dict[str, t.Any]:
    parsed = _parsed_section(primary, given)
    parsed["section_count"] = len(log.sections)
    if log.unavailable:
        parsed["log_unavailable"] = True
    if log.json_path:
        parsed["json_path"] = log.json_path
    if log.unparsable_json:
        parsed["json_unparsable"] = True
    if len(log.sections) > 1:
        parsed["sections"] = [_parsed_section(section, given) for section in log.sections]
    return parsed


def _parsed_section(section: Section, given: Context) -> dict[str, t.Any]:
    ranks = facts.ranks_for_factor(section)
    parsed: dict[str, t.Any] = {
        "source": section.source,
        "collective": section.collective,
        "layout": facts.layout(section),
        "versions": section.versions,
        "config": section.config,
        "devices": _devices(section, ranks),
        "columns": _columns(section),
        "row_count": len(section.rows),
        "rows": [_row_values(row) for row in section.rows],
        "footer": _footer(section),
        "time_is": "cpu" if section.reader.titles and section.reader.titles.cpu_time else "wall",
        "missing_sizes": facts.missing_sizes(section, given, ranks or 1),
        "size_zero_rows": sum(not row.size for row in section.rows),
        "distinct_keys": len({(row.type, row.redop, row.root) for row in section.rows}),
        "rejoined_rows": section.reader.rejoined,
        "lost_rows": section.reader.lost,
        "partial_last_line": section.partial_last_line,
        "failures": section.failures,
        "ib_errors": section.ib_errors,
        "head_lost": (bool(section.rows) or section.footer_complete) and facts.head_lost(section),
    }
    if parsed["missing_sizes"]:
        parsed["missing_because"] = "memory_limit" if facts.reduced(section) else "cut"
    stamps = [row.timestamp for row in section.rows if row.timestamp]
    optional = {
        "row_timestamps": stamps or None,
        "setup": section.setup or None,
        "version_mismatch": section.version_mismatch or None,
        "watchdog_seconds": section.watchdog[1] if section.watchdog else None,
        "watchdog_host": section.watchdog[0] if section.watchdog else None,
        "unfinished_size": section.unfinished_size,
        "exit_rank": section.exit_rank,
        "exit_host": section.exit_host,
        "exit_signal": section.exit_signal,
        "skipped": section.skipped,
        "setup_faults": list(section.setup_faults) or None,
        "config_notes": section.config_notes or None,
    }
    parsed.update({key: value for key, value in optional.items() if value is not None})
    if section.document:
        parsed.update(section.document)
        parsed["distinct_keys"] = len({(row.type, row.redop, row.root) for row in section.rows})
        parsed["nccl_version"] = section.versions.get("nccl_runtime")
        parsed["ranks"] = ranks
        parsed["hosts"] = section.hosts
        parsed["out_of_bounds"] = section.out_of_bounds
        parsed["avg_busbw"] = section.average
    return parsed


def _devices(section: Section, ranks: int | None) -> dict[str, t.Any]:
    return {
        "ranks": len(section.devices) or None,
        "hosts": section.hosts,
        "groups": len({device[1] for device in section.devices}),
        "n_for_factor": ranks,
        "list_cut": section.devices_cut,
    }


def _columns(section: Section) -> list[str]:
    titles = section.reader.titles
    delta = titles.max_delta if titles else any(row.max_delta for row in section.rows)
    per_iteration = any(row.in_place.per_iteration for row in section.rows) or bool(titles and titles.per_iteration)
    group = [*_GROUP, "max_delta" if delta else "wrong", *(_PER_ITERATION if per_iteration else [])]
    return [*COLUMNS, *(f"oop_{name}" for name in group), *(f"ip_{name}" for name in group)]


def _row_values(row: Row) -> list[t.Any]:
    into = row.in_place.printed
    cells = [*(row.out_of_place.printed if row.out_of_place else (None,) * len(into)), *into]
    return [row.size, row.elements, row.type, row.redop, row.root, *(_plain(cell) for cell in cells)]


def _plain(cell: float | None) -> float | None:
    return cell if cell is None or math.isfinite(cell) else None


def _footer(section: Section) -> dict[str, t.Any] | None:
    if section.out_of_bounds_word is None and not section.average_seen:
        return None
    return {
        "out_of_bounds": section.out_of_bounds,
        "oob": section.out_of_bounds_word,
        "avg_busbw": section.average,
        "min_bw_check": section.min_bandwidth,
        # Programs facts.before 2.16.9 print neither line.
        "concluded": section.concluded if section.started or section.concluded else None,
        "error_text": section.error_text,
    }
