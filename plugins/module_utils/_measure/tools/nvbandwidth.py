# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nvbandwidth: copy bandwidth (GB/s) and latency (ns) between host and GPUs and between GPUs, text and JSON.

A test case prints one matrix with its sum, or, when copies run in both directions, one for each direction and one for their total.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import MeasurementFinding
from .. import json_documents
from ..blame import is_setup
from ..lines import LogLine
from ..measurement import finding
from ..outcomes import is_possible, number, text_of
from .tool import Context, Document, Log, Said, Tool, is_short

_FIRST_KEYS = ("nvbandwidth",)
_RUNNING = re.compile(r"Running (\S{1,200}?)\.?")
# With --perfFormatter the sum has a prefix, and its unit behind it.
_SUM = re.compile(r"(?:SUM|&&&& PERF) (\S{1,200}) (\S{1,40})(?: [+-](?:GB/s|ns))?")
_DEVICE = re.compile(r"Device \d{1,6}: .{1,200}|Process\s{1,8}\d{1,6} \(\S{1,200}\): device \d{1,6}: .{1,200}")
_VERSION = re.compile(r"nvbandwidth Version: (\S{1,40})")
_CELL = re.compile(r"-?\d{1,18}\.\d{1,9}|-?nan|-?inf|N/A")
_ERROR_STARTS = ("error", "[error", "cuda_error", "[cuda_error", "nvml_error", "[nvml_error", "not found:")
_ERROR_WORDS = ("cuda error", "nvml error", "invalid value when checking the pattern", "did not match any testcases")
_WRONG_DATA = "checking the pattern"
# Every title of a matrix has one of these.
_TITLE_WORDS = ("(row)", "(column)", "GB/s", "(ns)", " BW")
_END = "NOTE: The reported results may not reflect"
# Cells and sum are printed with two decimals each.
_ROUNDING = 0.0051

# Value of criteria -> names of the test cases it is the minimum over.
_GROUPS = {
    "host_to_device": re.compile(r"host_to_device_memcpy_(?:ce|sm)"),
    "device_to_host": re.compile(r"device_to_host_memcpy_(?:ce|sm)"),
    "device_to_device": re.compile(r"device_to_device_memcpy_(?:read|write)_(?:ce|sm)"),
}
_NAME_OF_VALUE = re.compile(r"[a-z][a-z0-9_]{0,80}")
# Copies between the host and one GPU at a time: healthy GPUs of a node are alike in them, whatever lies between two GPUs.
_OF_HOST = ("host_to_device_", "device_to_host_")
# A GPU that is so much slower than the middle of its neighbours is named.
_SLOW = 0.1


@dataclasses.dataclass
class _Matrix:
    """One table: numbers by row and column; None where a pair does not apply. columns: what its title line announces, if any."""

    description: str = ""
    columns: int | None = None
    rows: list[list[float | None]] = dataclasses.field(default_factory=list)
    total: float | None = None
    name: str = ""  # as its sum calls it

    @property
    def unit(self) -> str:
        if "(ns)" in self.description or "(GB/s)" in self.description:
            return "ns" if "(ns)" in self.description else "GB/s"
        return "ns" if "latency" in self.name else "GB/s"

    def cells(self) -> list[float]:
        return [cell for row in self.rows for cell in row if cell is not None]

    def damage(self) -> str:
        """Why the numbers cannot be as they were printed, or ""."""
        widths = {len(row) for row in self.rows}
        if not self.rows or len(widths) > 1 or (self.columns is not None and widths != {self.columns}):
            return "cells are missing"
        impossible = next((cell for cell in self.cells() if not is_possible(cell, self.unit)), None)
        if impossible is not None:
            return f"no run can have {impossible:g} {self.unit}"
        found = sum(self.cells())
        if self.total is None or abs(self.total - found) > _ROUNDING * (len(self.cells()) + 1) + 1e-4 * found:
            return f"the cells do not add up to the sum {self.total}"
        return ""


@dataclasses.dataclass
class _Case:
    """One test case. matrices: the last one holds the totals when there are several."""

    name: str
    status: str = "running"
    matrices: list[_Matrix] = dataclasses.field(default_factory=list)

    @property
    def last(self) -> _Matrix:
        return self.matrices[-1] if self.matrices else _Matrix()

    def damage(self) -> str:
        return next((damage for matrix in self.matrices if (damage := matrix.damage())), "")

    def row(self) -> dict[str, t.Any]:
        return {
            "name": self.name,
            "status": self.status,
            "description": self.last.description,
            "unit": self.last.unit,
            "matrix": self.last.rows,
            "total": self.last.total,
            "parts": [{"name": part.name, "matrix": part.rows, "total": part.total} for part in self.matrices[:-1]],
        }


@dataclasses.dataclass
class _Output:
    version: str | None = None
    devices: list[str] = dataclasses.field(default_factory=list)
    cases: list[_Case] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    ended: bool = False
    cut: bool = False  # a run before the last one has no end
    gpus_before: int = 0

    def gpus(self) -> int:
        """GPUs listed, or, where no list is printed, the columns of the widest table."""
        widest = max((len(row) for case in self.cases for matrix in case.matrices for row in matrix.rows), default=0)
        return max(self.gpus_before, len(self.devices)) or widest


# --- text ------------------------------------------------------------------------------------------------------


class _Text:
    """The text output, line by line."""

    def __init__(self) -> None:
        self.output = _Output()

    def feed(self, line: LogLine) -> None:
        text = line.text.strip()
        if line.torn and _END not in text:
            return  # a line that nothing follows may be cut
        output = self.output
        case = output.cases[-1] if output.cases else None
        if match := _VERSION.search(text):
            self._begin(match.group(1))
        elif _END in text:
            output.ended = True
        elif _DEVICE.fullmatch(text):
            output.devices.append(text)
        elif match := _RUNNING.fullmatch(text):
            output.cases.append(_Case(match.group(1)))
        elif text.upper().startswith("WAIVED"):
            self._waived(case)
        elif match := _SUM.fullmatch(text):
            _summed(case, match.group(1), number(match.group(2)))
        elif text.lower().startswith(_ERROR_STARTS) or any(word in text.lower() for word in _ERROR_WORDS):
            output.errors.append(text)
            if case and case.status == "running":
                case.status = "failed"
        elif case and case.status == "running" and text:
            self._table_line(case, text)

    def _begin(self, version: str) -> None:
        """The first line of a run; a log may hold several."""
        output = self.output
        if output.cases:
            output.cut = output.cut or not output.ended
            output.gpus_before = max(output.gpus_before, len(output.devices))
            output.devices, output.ended = [], False
        output.version = version

    def _waived(self, case: _Case | None) -> None:
        if case and case.status == "running" and not case.matrices:
            case.status = "skipped"
        else:
            self.output.cases.append(_Case("", "skipped"))  # most versions name no test case here

    def _table_line(self, case: _Case, text: str) -> None:
        words = text.split()
        cells = [word for word in words[1:] if _CELL.fullmatch(word)]
        if not case.matrices or case.last.total is not None:
            if any(word in text for word in _TITLE_WORDS):
                case.matrices.append(_Matrix(text, name=case.name))
        elif case.last.columns is None and not case.last.rows and words == [str(column) for column in range(len(words))]:
            case.last.columns = len(words)
        elif case.last.total is None and cells:
            # Labels of processes have several words; text of another process between the cells shows as a missing one.
            case.last.rows.append([None if cell == "N/A" else _finite(cell) for cell in cells])


def _finite(cell: str) -> float:
    """A cell as it is; what is no number is one that no run can have."""
    found = number(cell)
    return -1.0 if found is None else found


def _summed(case: _Case | None, name: str, total: float | None) -> None:
    """The line that closes a matrix, and the case if it is its last."""
    if case is None or case.status != "running" or not case.matrices or not (name == case.name or name.startswith(f"{case.name}_")):
        return
    case.last.name, case.last.total = name, total
    if name in (case.name, f"{case.name}_total"):
        case.status = "passed"


# --- JSON ------------------------------------------------------------------------------------------------------


def _from_json(node: t.Any) -> _Output:
    node = node if isinstance(node, dict) else {}
    devices = node.get("GPU Device list")
    listed = [device for device in devices if isinstance(device, str)] if isinstance(devices, list) else []
    output = _Output(text_of(node.get("version")), listed, ended=True)
    if node.get("error"):
        output.errors.append(str(node["error"])[:2000])
    cases = node.get("testcases")
    for entry in cases if isinstance(cases, list) else []:
        if isinstance(entry, dict):
            output.cases.append(_json_case(entry))
            if entry.get("error"):
                output.errors.append(str(entry["error"])[:2000])
    return output


def _json_case(entry: dict[str, t.Any]) -> _Case:
    status = (text_of(entry.get("status")) or "").lower()
    case = _Case(text_of(entry.get("name")) or "", {"passed": "passed", "waived": "skipped", "running": "running"}.get(status, "failed"))
    matrix = entry.get("bandwidth_matrix")
    if not isinstance(matrix, list) or not matrix:
        return case
    rows = [[None if cell == "N/A" else _json_cell(cell) for cell in row] for row in matrix if isinstance(row, list)]
    description, total = text_of(entry.get("bandwidth_description")) or "", number(entry.get("sum"))
    columns = max(map(len, rows), default=0)
    if "bidirectional" in case.name and columns and len(rows) == 3 * columns:
        # The matrices of both directions and of their total stand in one list; description and sum are the last one's.
        for part in (rows[:columns], rows[columns : 2 * columns]):
            case.matrices.append(_Matrix(description, columns, part, _sum_of(part), case.name))
        rows = rows[2 * columns :]
    case.matrices.append(_Matrix(description, columns, rows, total, case.name))
    return case


def _sum_of(rows: list[list[float | None]]) -> float:
    return sum(cell for row in rows for cell in row if cell is not None)


def _json_cell(cell: t.Any) -> float:
    found = number(cell)
    return -1.0 if found is None else found


# --- judgement -------------------------------------------------------------------------------------------------


def _judge(logs: t.Sequence[Log], context: Context) -> Said:
    """One node. context: exit_code, required_tests (names of test cases), expected_gpus."""
    text, document = _Text(), Document()
    for log in logs:
        for line in log:
            document.feed(line)
            if is_short(line):
                text.feed(line)
    root, damaged = json_documents.find_last(document.text, lambda value: isinstance(value, dict) and "nvbandwidth" in value, _FIRST_KEYS)
    output = _from_json(root["nvbandwidth"]) if root is not None and not damaged else _Output() if damaged else text.output
    verdict, reason = _verdict(output, damaged, context)
    values, units = _values(output)
    parsed = {
        "version": output.version,
        "devices": output.devices,
        "testcases": [case.row() for case in output.cases],
        "errors": output.errors,
    }
    findings = [finding("DataCorruption", line, evidence=[line]) for line in output.errors if _WRONG_DATA in line]
    if verdict is None:
        findings += _slow(output, context)
    return Said(verdict, reason, values, parsed, findings, units)


def _slow(output: _Output, context: Context) -> list[MeasurementFinding]:
    """The GPUs whose copies from or to the host are slower than their neighbours'. Whether that is too slow the criteria say."""
    nodes = list(context.get("nodes") or [])
    found = []
    for case in output.cases:
        row = case.last.rows[0] if case.name.startswith(_OF_HOST) and len(case.last.rows) == 1 and case.last.unit == "GB/s" else []
        middle = statistics.median_high([cell for cell in row if cell is not None] or [0.0])
        for gpu, speed in enumerate(row):
            if speed is not None and speed < (1 - _SLOW) * middle:
                text = f"GPU {gpu} is slow in {case.name}: {speed:g} GB/s, the middle of its node's GPUs is {middle:g}"
                found.append(finding("Warning", text, host=nodes[0] if len(nodes) == 1 else None, entity=f"GPU{gpu}"))
    return found


def _values(output: _Output) -> tuple[dict[str, t.Any], dict[str, str]]:
    """Values, and units of those of single test cases."""
    ran = [case for case in output.cases if case.status != "skipped"]
    values: dict[str, t.Any] = {
        "testcases": len(ran),
        "failed": sum(case.status == "failed" for case in output.cases),
        "skipped": len(output.cases) - len(ran),
        "gpus": output.gpus() or None,
    }
    units: dict[str, str] = {}
    done = [case for case in ran if case.status == "passed" and not case.damage()]
    for name, pattern in _GROUPS.items():
        values[name] = min((cell for case in done if pattern.fullmatch(case.name) for cell in case.last.cells()), default=None)
    bandwidths = [case.last.cells() for case in done if case.last.unit == "GB/s"]
    spreads = [(max(cells) - min(cells)) / max(cells) for cells in bandwidths if cells and max(cells) > 0]
    values["spread"] = round(max(spreads), 6) if spreads else None
    host = [case.last.cells() for case in done if case.name.startswith(_OF_HOST) and case.last.unit == "GB/s"]
    apart = [(max(cells) - min(cells)) / max(cells) for cells in host if cells and max(cells) > 0]
    values["host_spread"] = round(max(apart), 6) if apart else None
    for case in done:
        for matrix in (matrix for matrix in case.matrices if matrix.cells()):
            names = {matrix.name, case.name} if matrix is case.last else {matrix.name} - {case.name}
            for name in sorted(found for found in names if _NAME_OF_VALUE.fullmatch(found)):
                _matrix_values(values, units, name, matrix)
    return values, units


def _matrix_values(values: dict[str, t.Any], units: dict[str, str], name: str, matrix: _Matrix) -> None:
    """The worst of a test case that ran several times counts."""
    cells = matrix.cells()
    own = {f"{name}_min": min(cells), f"{name}_sum": matrix.total}
    if matrix.unit == "ns":
        own[f"{name}_max"] = max(cells)
    for key, value in own.items():
        worst = max if matrix.unit == "ns" else min
        values[key] = value if values.get(key) is None or value is None else worst(values[key], value)
        units[key] = matrix.unit


def _verdict(output: _Output, damaged: bool, context: Context) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    corrupt = next((line for line in output.errors if _WRONG_DATA in line), None)
    if corrupt:
        return "DataCorruption", corrupt
    setup = next((line for line in output.errors if is_setup(line) or "invalid arguments" in line.lower()), None)
    if setup:
        return "SetupError", setup
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}{f': {output.errors[0]}' if output.errors else ''}"
    if damaged:
        return "LogIncomplete", "the document is cut or damaged"
    broken = [case.name for case in output.cases if case.status == "failed"]
    if broken or output.errors:
        return "WorkloadFailed", f"failed: {', '.join(broken) or output.errors[0]}"
    return _completeness(output, context)


def _completeness(output: _Output, context: Context) -> tuple[str | None, str]:
    """Whether everything that was asked for was measured, and every number can be what was printed."""
    passed = {case.name for case in output.cases if case.status == "passed" and case.last.cells()}
    if not passed:
        return "NoMeasurement", "no test case ran"
    missing = [name for name in context.get("required_tests") or [] if name not in passed]
    if missing:
        return "LogIncomplete", f"test cases missing: {', '.join(missing)}"
    expected = context.get("expected_gpus")
    if isinstance(expected, int) and output.gpus() < expected:
        return "LogIncomplete", f"{output.gpus()} of {expected} GPUs were tested"
    if not output.ended or output.cut or any(case.status == "running" for case in output.cases):
        return "LogIncomplete", "the output is cut"
    damage = next((f"{case.name}: {why}" for case in output.cases if case.status == "passed" and (why := case.damage())), None)
    if damage:
        return "LogIncomplete", damage
    ran = sum(case.status == "passed" for case in output.cases)
    return None, f"{ran} test cases"


_TOOL = Tool("nvbandwidth", _judge)
measure_files, parse = _TOOL.measure_files, _TOOL.parse
