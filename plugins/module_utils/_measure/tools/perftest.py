# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""perftest (ib_write_bw, ib_read_bw, ib_send_bw, ib_write_lat, ib_send_lat ...): text and JSON, client or server side.

perftest's "MB/sec" and "MiB/sec" are 2^20 bytes, its "Gb/sec" 10^9 bits. JSON names no unit: it is the one in which the average is
message rate times size, and without such a unit nothing was measured. A log may hold several tables: the worst one counts.
"""

from __future__ import annotations

import re
import statistics
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import MeasurementFinding
from ..lines import LogLine
from ..measurement import finding
from ..outcomes import is_possible, number, text_of, whole
from . import loose_json
from .tool import Context, Document, Log, Said, Tool, is_short

_TITLE = re.compile(
    r"((?:RDMA_(?:Write|Read|Atomic)|Atomic|Send|Raw ?Ethernet)\S{0,40}(?: [A-Z][A-Za-z]{0,20}){0,3}?)"
    r" (BW|Latency)(?: [a-zA-Z]{1,20})? Test"
)
_SETTING = re.compile(r"(?:^|\t)\s{0,8}(Device|Link type|Mtu|Number of qps|Connection type|Transport type)\s{0,20}:\s{0,8}(\S{1,100})")
_COLUMN = re.compile(r"#\w{1,40}|[^\s#\[\]]{1,40}(?: [^\s#\[\]]{1,40}){0,4}(?:\[[^\]]{0,40}\])?")
_RULE = re.compile(r"-{20,}")
_JSON_START = re.compile(r'\{\s*"?(?:test_info|results)"?\s*:')

# Bytes per second of one unit of the column.
_BANDWIDTH_UNITS = {"mb/sec": 2.0**20, "mib/sec": 2.0**20, "gb/sec": 1e9 / 8}
_BINARY, _DECIMAL = 2.0**20, 1e9 / 8
# Average and message rate are rounded, and some versions count one direction of two in one of them.
_AGREES = (0.45, 2.2)

_SETUP = re.compile(
    r"couldn't connect to|unable to (?:init the socket|open file descriptor|find the infiniband)"
    r"|ib device \S{1,100} not found|no ib devices? found"
    r"|failed to exchange data|couldn't (?:get|allocate|open|listen)|failed to modify qp|invalid mtu|versions? mismatch",
    re.I,
)
# What our own script of a group prints before the table of each pair of NICs.
_PAIR = re.compile(r"pair: (\S{1,253} \S{1,100} - \S{1,253})")
# A pair that is so much worse than the middle of all is named: share of bandwidth, share of latency.
_SLOW, _LATE = 0.1, 0.25
_FAILED = re.compile(
    r"completion with error|\bproblems with|port number \d{1,9} state is (?!active)|local qp operation error|failed status \d", re.I
)


class _Row(t.NamedTuple):
    """One message size. cells: column name (lower case) -> number."""

    size: int
    cells: dict[str, float]

    def cell(self, *starts: str) -> tuple[float | None, str]:
        """(value, name) of the first column whose name begins like one of these, blanks and underscores alike."""
        plain = {re.sub(r"[_\s]+", " ", name): (value, name) for name, value in self.cells.items()}
        for start in starts:
            for name, found in plain.items():
                if name.startswith(start):
                    return found
        return None, ""

    @property
    def is_bandwidth(self) -> bool:
        return self.cell("bw average", "bw peak")[0] is not None

    def unit(self) -> float | None:
        """Bytes per second of one unit of its bandwidths; None when nothing says it."""
        average, name = self.cell("bw average")
        named = re.search(r"\[([^\]]{0,40})\]", name)
        if named:
            return _BANDWIDTH_UNITS.get(named.group(1).strip().lower())
        rate = self.cell("msgrate", "message rate")[0]
        if not rate or not average:
            return None
        return next((scale for scale in (_BINARY, _DECIMAL) if _agree(average * scale, rate * 1e6 * self.size)), None)

    def bandwidth(self, *starts: str) -> float | None:
        """Bytes per second."""
        value, unit = self.cell(*starts)[0], self.unit()
        return None if value is None or unit is None else value * unit

    def damage(self) -> str:
        """Why the numbers cannot be as they were printed, or ""."""
        if not self.is_bandwidth:
            latency, name = self.cell("t typical", "t avg")
            return "" if latency is None or is_possible(latency, "us") else f"no run can have {name} {latency:g}"
        average, rate = self.bandwidth("bw average"), self.cell("msgrate", "message rate")[0]
        if average is None:
            return "the unit of the bandwidth cannot be told"
        if not is_possible(average / 1e9, "GB/s"):
            return f"no run can have a bandwidth of {average / 1e9:g} GB/s"
        # A rate of few messages per second is rounded to nothing.
        if rate is not None and rate >= 1e-4 and not _agree(average, rate * 1e6 * self.size):
            return "the bandwidth is not message rate times size"
        return ""


def _agree(moved: float, counted: float) -> bool:
    return counted > 0 and _AGREES[0] <= moved / counted <= _AGREES[1]


class _Table(t.NamedTuple):
    """One run: its settings, its rows, and whether its end was printed."""

    form: str
    settings: dict[str, str]
    rows: list[_Row]
    closed: bool

    def judged(self, wanted: t.Any) -> _Row | None:
        """Bandwidth is judged at the largest message, latency at the smallest, unless the caller names a size; the worst of equal sizes."""
        sizes = [row.size for row in self.rows]
        is_bandwidth = any(row.is_bandwidth for row in self.rows)
        size = wanted if isinstance(wanted, int) else (max if is_bandwidth else min)(sizes, default=None)
        rows = [row for row in self.rows if row.size == size]
        return min(rows, key=_rank, default=None)


def _rank(row: _Row) -> tuple[bool, float]:
    """What is worse sorts first: damaged rows, low bandwidth, high latency."""
    speed = row.bandwidth("bw average")
    return not row.damage(), speed if speed is not None else -(row.cell("t typical", "t avg")[0] or 0.0)


# --- reading ---------------------------------------------------------------------------------------------------


class _Text:
    """The text output, line by line."""

    def __init__(self) -> None:
        self.tables: list[_Table] = []
        self.failure = ""
        self.setup = ""
        self.pairs: dict[str, str] = {}  # those that were announced -> what could not be set up for them
        self._settings: dict[str, str] = {}
        self._pair = ""
        self._columns: list[str] = []
        self._just_closed = False
        self._held: _Row | None = None  # the last line of a text may be cut inside a number: it counts only when another follows

    def feed(self, line: LogLine) -> None:
        text = line.text
        self._keep()
        if match := _PAIR.fullmatch(text.strip()):
            self._pair = match.group(1)
            self.pairs[self._pair] = ""
        self._said(text)
        if "Test" in text and (match := _TITLE.search(text)):
            # The settings of a new run: what the one before said is not carried over.
            self._settings = {"test": f"{match.group(1)} {match.group(2)}".lower()}
            if self._just_closed:
                self.tables[-1] = self.tables[-1]._replace(closed=False)  # that rule belongs to this title
        elif ":" in text:
            self._settings.update((match.group(1).lower(), match.group(2)) for match in _SETTING.finditer(text))
        stripped = text.strip()
        self._just_closed = bool(self._columns) and _RULE.fullmatch(stripped) is not None
        if stripped.startswith("#bytes"):
            self._columns = [name.strip().lower() for name in _COLUMN.findall(text)]
            if self.tables and not self.tables[-1].rows:
                self.tables.pop()  # server and client in one log print it twice
            pair = {"pair": self._pair} if self._pair else {}
            self.tables.append(_Table("text", {**self._settings, **pair}, [], False))
        elif self._just_closed:
            self.tables[-1] = self.tables[-1]._replace(closed=True)
            self._columns = []
        elif self._columns and not line.torn:
            self._held = _text_row(self._columns, text.split())

    def _keep(self) -> None:
        if self._held is not None:
            self.tables[-1].rows.append(self._held)
            self._held = None

    def _said(self, text: str) -> None:
        if not self.failure and _FAILED.search(text):
            self.failure = text.strip()
        if _SETUP.search(text):
            self.setup = self.setup or text.strip()
            if self._pair:
                self.pairs[self._pair] = self.pairs[self._pair] or text.strip()

    def unmeasured(self) -> str:
        """The first pair without a result and why, or ""."""
        measured = {table.settings.get("pair") for table in self.tables if table.rows}
        missing = [pair for pair in self.pairs if pair not in measured]
        why = next((self.pairs[pair] for pair in missing if self.pairs[pair]), "")
        return f"{len(missing)} of {len(self.pairs)} pairs have no result, {missing[0]}{f': {why}' if why else ''}" if missing else ""

    def finish(self) -> list[_Table]:
        """Tables with rows, and one at the end that was cut before its first."""
        last = len(self.tables) - 1
        return [table for number, table in enumerate(self.tables) if table.rows or (number == last and not table.closed)]


def _text_row(columns: list[str], words: list[str]) -> _Row | None:
    numbers = [number(word) for word in words]
    if len(words) < 3 or len(words) != len(columns) or any(value is None for value in numbers):
        return None
    cells = dict(zip(columns, t.cast(list[float], numbers), strict=True))
    size = whole(cells.pop("#bytes", None))
    return None if size is None else _Row(size, cells)


def _json_tables(text: str) -> list[_Table]:
    """One table per document."""
    starts = [match.start() for match in _JSON_START.finditer(text)]
    tables = []
    for index, start in enumerate(starts):
        root, closed = loose_json.read(text[start : starts[index + 1] if index + 1 < len(starts) else len(text)])
        tables.append(_json_table(root or {}, closed))
    return tables


def _json_table(root: dict[str, t.Any], closed: bool) -> _Table:
    info = root.get("test_info")
    settings = {}
    for key, value in info.items() if isinstance(info, dict) else ():
        word = text_of(value)
        if word is not None:
            settings[str(key).replace("_", " ").lower()] = word
    results = root.get("results")
    rows = []
    for entry in results if isinstance(results, list) else [results]:
        if not isinstance(entry, dict):
            continue
        cells = {str(key).lower(): found for key, value in entry.items() if (found := number(value)) is not None}
        size = whole(next((cells.pop(name) for name in ("msgsize", "#bytes", "bytes", "size") if name in cells), None))
        if size is not None:
            rows.append(_Row(size, cells))
    return _Table("json", settings, rows, closed)


# --- judgement -------------------------------------------------------------------------------------------------


def _judge(logs: t.Sequence[Log], context: Context) -> Said:
    """One pair, or several one after the other. context: exit_code, judged_size, expected_sizes."""
    text, document = _Text(), Document()
    for log in logs:
        for line in log:
            document.feed(line)
            if is_short(line):
                text.feed(line)
    # The text names its units.
    tables = text.finish()
    if not any(table.rows for table in tables):
        tables = _json_tables(document.text) or tables
    wanted = context.get("judged_size")
    verdict, reason = _verdict(text, tables, context)
    findings = [finding("WorkloadFailed", text.failure, evidence=[text.failure])] if text.failure else []
    if verdict is None:
        findings += _slow_pairs(tables, wanted)
    parsed = {
        "format": tables[-1].form if tables else "text",
        "settings": tables[-1].settings if tables else {},
        "rows": [{"size": row.size, **row.cells} for table in tables for row in table.rows],
        "closed": all(table.closed for table in tables),
        "tables": len(tables),
    }
    return Said(verdict, reason, _values(tables, wanted), parsed, findings)


def _of_pairs(tables: list[_Table], wanted: t.Any) -> list[tuple[str, float, str]]:
    """(pair, number, unit) of each table of a pair: its bandwidth in Gb/s, or its latency."""
    found = []
    for table in tables:
        row, pair = table.judged(wanted), table.settings.get("pair")
        if row is not None and pair and not row.damage():
            speed, latency = row.bandwidth("bw average"), row.cell("t typical", "t avg")[0]
            found.append((pair, (speed or 0.0) * 8e-9, "Gb/s") if row.is_bandwidth else (pair, latency or 0.0, "us"))
    return found


def _slow_pairs(tables: list[_Table], wanted: t.Any) -> list[MeasurementFinding]:
    """The pairs of NICs that are worse than the others. Neither side is accused: the criteria judge, and isolation finds the node."""
    found = _of_pairs(tables, wanted)
    middle = statistics.median([value for _pair, value, _unit in found]) if found else 0.0
    bad = [item for item in found if (item[1] < (1 - _SLOW) * middle if item[2] == "Gb/s" else item[1] > (1 + _LATE) * middle)]
    return [
        finding("Warning", f"{pair}: {value:.4g} {unit}, the middle of {len(found)} pairs is {middle:.4g}") for pair, value, unit in bad
    ]


def _values(tables: list[_Table], wanted: t.Any) -> dict[str, t.Any]:
    """Bandwidth of the slowest table, latency of the slowest table; settings are those of the table that is judged first."""
    chosen = [(row, table) for table in tables if (row := table.judged(wanted)) is not None]
    bandwidths = [item for item in chosen if item[0].is_bandwidth]
    latencies = [item for item in chosen if not item[0].is_bandwidth]
    values: dict[str, t.Any] = {"test": None, "device": None, "link_type": None, "mtu": None}
    if not chosen:
        return {**values, **_settings(tables[-1].settings)} if tables else values
    for group, own in ((latencies, _latency_values), (bandwidths, _bandwidth_values)):
        if group:
            row, table = min(group, key=lambda item: _rank(item[0]))
            iterations, _name = row.cell("#iterations", "n iterations", "iterations")
            values.update(_settings(table.settings), message_size=row.size, iterations=whole(iterations), **own(row))
    pairs = [value for _pair, value, _unit in _of_pairs(tables, wanted)]
    if pairs:
        values.update(pairs=len(pairs), pairs_spread=round((max(pairs) - min(pairs)) / max(pairs), 6) if max(pairs) > 0 else None)
    return values


def _settings(settings: dict[str, str]) -> dict[str, t.Any]:
    mtu = re.match(r"\d{1,9}", settings.get("mtu", ""))
    return {
        "test": settings.get("test"),
        "device": settings.get("device"),
        "link_type": settings.get("link type"),
        "mtu": int(mtu.group()) if mtu else None,
    }


def _bandwidth_values(row: _Row) -> dict[str, t.Any]:
    average = None if row.damage() else row.bandwidth("bw average")
    peak = row.bandwidth("bw peak")
    return {
        "bandwidth": _rounded(average, 1e9),
        "bandwidth_gbit": _rounded(average, 1e9 / 8),
        "bandwidth_peak": _rounded(peak, 1e9) if peak else None,
        "message_rate": row.cell("msgrate", "message rate")[0],
    }


def _latency_values(row: _Row) -> dict[str, t.Any]:
    return {
        "latency_us": row.cell("t typical", "t avg")[0],
        "latency_avg_us": row.cell("t avg")[0],
        "latency_min_us": row.cell("t min")[0],
        "latency_max_us": row.cell("t max")[0],
        "latency_p99_us": row.cell("99% percentile", "t 99 percentile", "99 percentile", "percentile 99", "99%")[0],
    }


def _rounded(value: float | None, scale: float) -> float | None:
    return None if value is None else round(value / scale, 6)


def _verdict(text: _Text, tables: list[_Table], context: Context) -> tuple[str | None, str]:
    exit_code, wanted = context.get("exit_code"), context.get("judged_size")
    sizes = sorted({row.size for table in tables for row in table.rows})
    if text.failure:
        return "WorkloadFailed", text.failure
    if text.setup and not sizes:
        return "SetupError", text.setup
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code} after {len(sizes)} message sizes"
    if not sizes:
        return ("LogIncomplete", "the table is cut") if any(not table.closed for table in tables) else ("NoMeasurement", "no result row")
    missing = sorted(
        {size for size in context.get("expected_sizes") or [] for table in tables if size not in {row.size for row in table.rows}}
    )
    if missing:
        return "LogIncomplete", f"message sizes missing: {', '.join(map(str, missing[:8]))}"
    unmeasured = text.unmeasured()
    if unmeasured:
        return "LogIncomplete", unmeasured
    judged = [table.judged(wanted) for table in tables]
    if None in judged:
        return "LogIncomplete", f"the judged message size {wanted} is missing"
    if not all(table.closed for table in tables):
        return "LogIncomplete", "the table is cut"
    damage = next((f"{row.size} bytes: {why}" for row in judged if row and (why := row.damage())), None)
    if damage:
        return "LogIncomplete", damage
    shown = ", ".join(dict.fromkeys(str(row.size) for row in judged if row))
    return None, f"{len(sizes)} message sizes{f' in {len(tables)} tables' if len(tables) > 1 else ''}, judged at {shown} bytes"


_TOOL = Tool("perftest", _judge)
measure_files, parse = _TOOL.measure_files, _TOOL.parse
