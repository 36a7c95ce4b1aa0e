# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""perftest (ib_write_bw, ib_read_bw, ib_send_bw, ib_write_lat, ib_send_lat ...): text and JSON, client or server side.

perftest's "MB/sec" are 2^20 bytes, its "Gb/sec" 10^9 bits. JSON names no unit: it follows from message rate and size.
"""

from __future__ import annotations

import re
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement
from .. import json_documents
from ..lines import read_text
from ..measurement import finding, measurement
from ..metrics import units
from ..outcomes import number, text_of

_TITLE = re.compile(r"\b((?:RDMA_(?:Write|Read|Atomic)|Atomic|Send|Raw ?Ethernet)\S*(?: Bidirectional)?) (BW|Latency|Post List BW) Test")
_SETTING = re.compile(r"\s*(Device|Link type|Mtu|Number of qps|Connection type|Transport type)\s*:\s*(\S+)")
_SECOND_SETTING = re.compile(r"\t+\s*(Device|Transport type)\s*:\s*(\S+)")
_HEADER = re.compile(r"\s*#bytes\s+#iterations\s")
_COLUMN = re.compile(r"#bytes|#iterations|(?:BW|MsgRate|t_|tps|\d[\d.]*%)[^\[\]]*?(?:\[[^\]]*\]|(?=\s{2,}|\s*$))")
_RULE = re.compile(r"\s*-{20,}\s*")
_FIRST_KEYS = ("test_info", "results")

# Bytes per second of one unit of the column.
_BANDWIDTH_UNITS = {"mb/sec": 2.0**20, "mib/sec": 2.0**20, "gb/sec": 1e9 / 8, "gib/sec": 2.0**30}

_SETUP = re.compile(
    r"Couldn't connect to|Unable to (?:init the socket|open file descriptor|find the Infiniband)|"
    r"IB device .* not found|No IB devices? found|Failed to exchange data|Couldn't (?:get|allocate|open|listen)|"
    r"Failed to modify QP|Invalid MTU|Versions? mismatch",
    re.I,
)
_FAILED = re.compile(
    r"Completion with error|got completion with error|Problems with|Port number \d+ state is (?!Active)|local QP operation error", re.I
)


class _Row(t.NamedTuple):
    """One message size. cells: column name (lower case) -> number."""

    size: int
    cells: dict[str, float]


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one pair. context: exit_code, judged_size, expected_sizes.

    With several files the client's is read: the one with a table.
    """
    parts = [parse(read_text(path), context) for path in paths]
    if not parts:
        return parse("", context)
    return max(parts, key=lambda part: (len(part["parsed"]["rows"]), part["complete"]))


def parse(text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """Judge the output of one perftest program. Never raises for its content."""
    context = context or {}
    settings: dict[str, str] = {}
    root, damaged = json_documents.find_last(text, _is_root, _FIRST_KEYS)
    if root is not None or damaged:
        rows, closed = ([], False) if root is None else (_json_rows(root, settings), not damaged)
        form = "json"
    else:
        rows, closed = _text_rows(text, settings)
        form = "text"
    judged = _judged(rows, settings, context)
    verdict, reason = _verdict(text, rows, closed, judged, context)
    values = _values(judged, settings)
    failure = next((line.strip() for line in text.split("\n") if _FAILED.search(line)), None)
    return measurement(
        "perftest",
        verdict,
        reason,
        complete=verdict is None,
        values=values,
        units=units("perftest", values),
        parsed={"format": form, "settings": settings, "rows": [{"size": row.size, **row.cells} for row in rows], "closed": closed},
        findings=[finding("WorkloadFailed", failure, evidence=[failure])] if failure else [],
    )


def _is_root(value: t.Any) -> bool:
    return isinstance(value, dict) and "results" in value


def _text_rows(text: str, settings: dict[str, str]) -> tuple[list[_Row], bool]:
    """Rows of the last table, and whether its closing rule was printed."""
    rows: list[_Row] = []
    columns: list[str] = []
    closed = False
    lines = text.split("\n")
    for number_of_line, line in enumerate(lines):
        if match := _TITLE.search(line):
            settings["test"] = f"{match.group(1)} {match.group(2)}".lower()
        for match in (_SETTING.match(line), _SECOND_SETTING.search(line)):
            if match:
                settings[match.group(1).lower()] = match.group(2)
        if _HEADER.match(line):
            columns, rows, closed = [name.strip().lower() for name in _COLUMN.findall(line)], [], False
        elif columns and _RULE.fullmatch(line):
            closed = bool(rows)
            columns = [] if closed else columns
        elif columns and number_of_line < len(lines) - 1:
            # The last line of a text may be cut inside a number: it counts only when another line follows.
            row = _text_row(columns, line.split())
            if row is not None:
                rows.append(row)
    return rows, closed


def _text_row(columns: list[str], words: list[str]) -> _Row | None:
    numbers = [number(word) for word in words]
    if len(words) < 3 or len(words) != len(columns) or any(value is None for value in numbers):
        return None
    cells = dict(zip(columns, t.cast(list[float], numbers), strict=True))
    size = cells.pop("#bytes", None)
    return None if size is None else _Row(int(size), cells)


def _json_rows(root: dict[str, t.Any], settings: dict[str, str]) -> list[_Row]:
    info = root.get("test_info")
    for key, value in info.items() if isinstance(info, dict) else ():
        word = text_of(value)
        if word is not None:
            settings[str(key).replace("_", " ").lower()] = word
    results = root["results"]
    rows = []
    for entry in results if isinstance(results, list) else [results]:
        if not isinstance(entry, dict):
            continue
        cells = {str(key).lower(): found for key, value in entry.items() if (found := number(value)) is not None}
        size = next((cells.pop(name) for name in ("msgsize", "#bytes", "bytes", "size") if name in cells), None)
        if size is not None:
            rows.append(_Row(int(size), cells))
    return rows


def _cell(row: _Row, *starts: str) -> tuple[float | None, str]:
    """(value, name) of the first column whose name begins like one of these, blanks and underscores alike."""
    plain = {re.sub(r"[_\s]+", " ", name): (value, name) for name, value in row.cells.items()}
    for start in starts:
        for name, found in plain.items():
            if name.startswith(start):
                return found
    return None, ""


def _judged(rows: list[_Row], settings: dict[str, str], context: t.Mapping[str, t.Any]) -> _Row | None:
    """Bandwidth is judged at the largest message, latency at the smallest, unless the caller names a size."""
    wanted = context.get("judged_size")
    if isinstance(wanted, int):
        return next((row for row in rows if row.size == wanted), None)
    if not rows:
        return None
    is_bandwidth = _cell(rows[0], "bw average", "bw peak")[0] is not None
    return max(rows, key=lambda row: row.size) if is_bandwidth else min(rows, key=lambda row: row.size)


def _bytes_per_second(row: _Row, *starts: str) -> float | None:
    value, name = _cell(row, *starts)
    if value is None:
        return None
    unit = re.search(r"\[(.*?)\]", name)
    if unit and unit.group(1).strip().lower() in _BANDWIDTH_UNITS:
        return value * _BANDWIDTH_UNITS[unit.group(1).strip().lower()]
    rate, _name = _cell(row, "msgrate", "message rate")
    average, _name = _cell(row, "bw average")
    if not rate or not average:
        return value * 2.0**20
    # No unit is printed: it is the one in which average bandwidth is message rate times size.
    moved = rate * 1e6 * row.size
    return value * min(_BANDWIDTH_UNITS.values(), key=lambda scale: abs(average * scale - moved))


def _values(row: _Row | None, settings: dict[str, str]) -> dict[str, t.Any]:
    mtu = re.match(r"\d+", settings.get("mtu", ""))
    values: dict[str, t.Any] = {
        "test": settings.get("test"),
        "device": settings.get("device"),
        "link_type": settings.get("link type"),
        "mtu": int(mtu.group()) if mtu else None,
    }
    if row is None:
        return values
    average = _bytes_per_second(row, "bw average")
    peak = _bytes_per_second(row, "bw peak")
    iterations, _name = _cell(row, "#iterations", "n iterations", "iterations")
    values.update(
        message_size=row.size,
        iterations=None if iterations is None else int(iterations),
        bandwidth=_rounded(average, 1e9),
        bandwidth_gbit=_rounded(average, 1e9 / 8),
        bandwidth_peak=_rounded(peak, 1e9) if peak else None,
        message_rate=_cell(row, "msgrate", "message rate")[0],
        latency_us=_cell(row, "t typical", "t avg")[0],
        latency_avg_us=_cell(row, "t avg")[0],
        latency_min_us=_cell(row, "t min")[0],
        latency_max_us=_cell(row, "t max")[0],
        latency_p99_us=_cell(row, "99% percentile", "t 99 percentile", "99 percentile", "99%")[0],
    )
    return values


def _rounded(value: float | None, scale: float) -> float | None:
    return None if value is None else round(value / scale, 6)


def _verdict(text: str, rows: list[_Row], closed: bool, judged: _Row | None, context: t.Mapping[str, t.Any]) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    failure = next((line.strip() for line in text.split("\n") if _FAILED.search(line)), None)
    setup = next((line.strip() for line in text.split("\n") if _SETUP.search(line)), None)
    if failure:
        return "WorkloadFailed", failure
    if setup and not rows:
        return "SetupError", setup
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code} after {len(rows)} message sizes"
    if not rows:
        return "NoMeasurement", "no result row"
    missing = [size for size in context.get("expected_sizes") or [] if size not in {row.size for row in rows}]
    if missing:
        return "LogIncomplete", f"message sizes missing: {', '.join(map(str, missing[:8]))}"
    if judged is None:
        return "LogIncomplete", f"the judged message size {context.get('judged_size')} is missing"
    if not closed:
        return "LogIncomplete", "the table is cut"
    return None, f"{len(rows)} message sizes, judged at {judged.size} bytes"
