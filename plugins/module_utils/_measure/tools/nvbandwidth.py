# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nvbandwidth: copy bandwidth between host and GPUs and between GPUs, text and JSON."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement
from .. import json_documents
from ..lines import read_text
from ..measurement import finding, measurement
from ..metrics import units
from ..outcomes import number, text_of

_FIRST_KEYS = ("nvbandwidth",)
_RUNNING = re.compile(r"Running (\S+?)\.?\s*")
_SUM = re.compile(r"SUM (\S+) ([-+\d.eE]+|nan|inf)\s*")
_ROW = re.compile(r"\s*\d+((?:\s+(?:[\d.]+|N/A))+)\s*")
_COLUMNS = re.compile(r"\s*\d+(?:\s+\d+)*\s*")
_DEVICE = re.compile(r"Device \d+: .*")
_VERSION = re.compile(r"nvbandwidth Version: (\S+)")
_WAIVED = re.compile(r"\bWAIVED\b|Waived", re.I)
_ERROR = re.compile(r"^\s*(?:\[?ERROR\]?|Error|CUDA_ERROR\S*|.*\bCUDA error\b|.*Invalid value when checking the pattern)", re.I)
_END = re.compile(r"NOTE: The reported results may not reflect")

# Value of criteria -> names of the test cases it is the minimum over.
_GROUPS = {
    "host_to_device": re.compile(r"host_to_device_memcpy_(?:ce|sm)"),
    "device_to_host": re.compile(r"device_to_host_memcpy_(?:ce|sm)"),
    "device_to_device": re.compile(r"device_to_device_memcpy_(?:read|write)_(?:ce|sm)"),
}


@dataclasses.dataclass
class _Case:
    """One test case: GB/s by row and column; None where a pair does not apply."""

    name: str
    description: str = ""
    matrix: list[list[float | None]] = dataclasses.field(default_factory=list)
    total: float | None = None
    status: str = "running"

    def cells(self) -> list[float]:
        return [cell for row in self.matrix for cell in row if cell is not None]


@dataclasses.dataclass
class _Output:
    version: str | None = None
    devices: list[str] = dataclasses.field(default_factory=list)
    cases: list[_Case] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    ended: bool = False


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one node. context: exit_code, required_tests (names of test cases), expected_gpus."""
    return parse("\n".join(read_text(path) for path in paths), context)


def parse(text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """Judge the output of nvbandwidth. Never raises for its content."""
    context = context or {}
    root, damaged = json_documents.find_last(text, lambda value: isinstance(value, dict) and "nvbandwidth" in value, _FIRST_KEYS)
    if root is not None and not damaged:
        output = _from_json(root["nvbandwidth"])
    elif damaged:
        output = _Output()
    else:
        output = _from_text(text)
    verdict, reason = _verdict(output, damaged, context)
    values = _values(output)
    findings = [finding("DataCorruption", line, evidence=[line]) for line in output.errors if "checking the pattern" in line]
    return measurement(
        "nvbandwidth",
        verdict,
        reason,
        complete=verdict is None,
        values=values,
        units={**units("nvbandwidth", values), **{name: "GB/s" for name in values if name.endswith(("_min", "_sum"))}},
        parsed={
            "version": output.version,
            "devices": output.devices,
            "testcases": [dataclasses.asdict(case) for case in output.cases],
            "errors": output.errors,
        },
        findings=findings,
    )


def _from_json(node: t.Any) -> _Output:
    node = node if isinstance(node, dict) else {}
    devices = node.get("GPU Device list")
    output = _Output(
        text_of(node.get("version")), [d for d in devices if isinstance(d, str)] if isinstance(devices, list) else [], ended=True
    )
    if text_of(node.get("error")):
        output.errors.append(str(node["error"]))
    cases = node.get("testcases")
    for entry in cases if isinstance(cases, list) else []:
        if not isinstance(entry, dict):
            continue
        matrix = entry.get("bandwidth_matrix")
        rows = [[number(cell) for cell in row] for row in matrix if isinstance(row, list)] if isinstance(matrix, list) else []
        status = (text_of(entry.get("status")) or "").lower()
        case = _Case(text_of(entry.get("name")) or "", text_of(entry.get("bandwidth_description")) or "", rows, number(entry.get("sum")))
        case.status = {"passed": "passed", "waived": "skipped"}.get(status, "failed")
        output.cases.append(case)
    return output


def _from_text(text: str) -> _Output:
    output = _Output()
    lines = text.split("\n")
    for number_of_line, line in enumerate(lines):
        if number_of_line == len(lines) - 1 and line and _END.search(line) is None:
            break  # a line that nothing follows may be cut
        _text_line(output, line)
    return output


def _text_line(output: _Output, line: str) -> None:
    case = output.cases[-1] if output.cases else None
    if match := _VERSION.search(line):
        output.version = match.group(1)
    elif _DEVICE.fullmatch(line.strip()):
        output.devices.append(line.strip())
    elif match := _RUNNING.fullmatch(line):
        output.cases.append(_Case(match.group(1)))
    elif _END.search(line):
        output.ended = True
    elif (match := _SUM.fullmatch(line)) and case and match.group(1) == case.name:
        case.total, case.status = number(match.group(2)), "passed"
    elif _ERROR.match(line):
        output.errors.append(line.strip())
        if case and case.status == "running":
            case.status = "failed"
    elif case and case.status == "running":
        _case_line(case, line)


def _case_line(case: _Case, line: str) -> None:
    if _WAIVED.search(line):
        case.status = "skipped"
    elif not case.description and not _COLUMNS.fullmatch(line):
        case.description = line.strip()
    elif match := _ROW.fullmatch(line):
        # The line of column numbers looks like a row of whole numbers.
        if not case.matrix and _COLUMNS.fullmatch(line):
            return
        case.matrix.append([number(cell) for cell in match.group(1).split()])


def _values(output: _Output) -> dict[str, t.Any]:
    values: dict[str, t.Any] = {
        "testcases": len(output.cases),
        "failed": sum(case.status == "failed" for case in output.cases),
        "skipped": sum(case.status == "skipped" for case in output.cases),
        "gpus": len(output.devices) or None,
    }
    done = [case for case in output.cases if case.status == "passed"]
    for name, pattern in _GROUPS.items():
        cells = [cell for case in done if pattern.fullmatch(case.name) for cell in case.cells()]
        values[name] = min(cells, default=None)
    spreads = [(max(cells) - min(cells)) / max(cells) for case in done if (cells := case.cells()) and max(cells) > 0]
    values["spread"] = round(max(spreads), 6) if spreads else None
    for case in done:
        if re.fullmatch(r"[a-z][a-z0-9_]{0,60}", case.name):
            values[f"{case.name}_min"] = min(case.cells(), default=None)
            values[f"{case.name}_sum"] = case.total
    return values


def _verdict(output: _Output, damaged: bool, context: t.Mapping[str, t.Any]) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    corrupt = next((line for line in output.errors if "checking the pattern" in line), None)
    if corrupt:
        return "DataCorruption", corrupt
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}{f': {output.errors[0]}' if output.errors else ''}"
    if damaged:
        return "LogIncomplete", "the document is cut or damaged"
    broken = [case.name for case in output.cases if case.status == "failed"]
    if broken or output.errors:
        return "WorkloadFailed", f"failed: {', '.join(broken) or output.errors[0]}"
    if not any(case.status == "passed" for case in output.cases):
        return "NoMeasurement", "no test case ran"
    missing = [name for name in context.get("required_tests") or [] if name not in {c.name for c in output.cases if c.status == "passed"}]
    if missing:
        return "LogIncomplete", f"test cases missing: {', '.join(missing)}"
    expected = context.get("expected_gpus")
    if isinstance(expected, int) and output.devices and len(output.devices) < expected:
        return "LogIncomplete", f"{len(output.devices)} of {expected} GPUs listed"
    if not output.ended or output.cases[-1].status == "running":
        return "LogIncomplete", "the output is cut"
    return None, f"{len(output.cases)} test cases"
