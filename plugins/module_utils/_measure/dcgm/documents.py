# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reading what dcgmi prints: JSON documents of every generation, text tables, error messages.

Every generation becomes one `Document`; `dcgm.py` judges it. Nothing here raises for what a text contains.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .. import json_documents
from . import codes

PASS, FAIL, WARN, SKIP, NOT_RUN = "Pass", "Fail", "Warn", "Skip", "NotRun"
_STATUS = {"pass": PASS, "fail": FAIL, "warn": WARN, "skip": SKIP, "notrun": NOT_RUN, "not run": NOT_RUN}


@dataclasses.dataclass(frozen=True)
class Error:
    """One warning of a document. code and severity are None where the generation does not print them."""

    text: str
    code: int | None = None
    severity: int | None = None
    category: int | None = None


@dataclasses.dataclass
class Result:
    """What one test said about one entity. entity is None for a result about the whole node."""

    entity: str | None
    status: str
    errors: list[Error] = dataclasses.field(default_factory=list)
    info: list[str] = dataclasses.field(default_factory=list)
    host: str | None = None


@dataclasses.dataclass
class Test:
    """One test of a document: its own word, its results per entity and errors about no entity in particular."""

    category: str | None
    name: str
    status: str
    results: list[Result] = dataclasses.field(default_factory=list)
    errors: list[Error] = dataclasses.field(default_factory=list)
    info: list[str] = dataclasses.field(default_factory=list)
    iteration: int | None = None
    mpi_error: str | None = None
    string_warning: bool = False
    entity_shows: str | None = None


@dataclasses.dataclass
class Document:
    """What was printed, in one shape. complete is False when the text ends too early to be believed."""

    generation: str
    dcgm: str | None = None
    driver: str | None = None
    tests: list[Test] = dataclasses.field(default_factory=list)
    gpus: dict[str | None, set[str]] = dataclasses.field(default_factory=dict)  # by host; None: the only host
    iterations: int | None = None
    overall: str | None = None
    ret: int | None = None
    message: str = ""
    global_errors: list[str] = dataclasses.field(default_factory=list)
    complete: bool = True
    seen: list[str] = dataclasses.field(default_factory=list)


def read(text: str) -> Document:
    """The last document of a text; a later document that is damaged makes the whole incomplete."""
    root, damaged = json_documents.find_last(text, _is_root, _FIRST_KEYS)
    if root is not None and not damaged:
        return _from_root(root)
    if damaged:
        return Document("unparsable", complete=False, message="the document is cut or damaged")
    return _from_table(text) or _from_error(text) or Document("unparsable", complete=False, message="no diagnostic document")


# --- finding the document ----------------------------------------------------------------------------------------

# Keys a document can begin with: dcgmi sorts them.
_FIRST_KEYS = ('DCGM[^"\n]{0,40}', "Overall Result", "iterations", "entity_groups", "Driver Version Detected")


def _is_root(value: t.Any) -> bool:
    """Whether an object is one of ours; other programs print JSON to the same stream."""
    if not isinstance(value, dict):
        return False
    if any(key.startswith("DCGM") for key in value) or ("entity_groups" in value and "metadata" in value):
        return True
    runs = value.get("iterations")
    return isinstance(runs, list) and ("Overall Result" in value or any(_is_root(run) for run in runs))


# --- JSON generations --------------------------------------------------------------------------------------------


def _from_root(root: dict[str, t.Any]) -> Document:
    if isinstance(root.get("iterations"), list):
        return _from_iterations(root)
    v4 = root.get("DCGM Diagnostic")
    if isinstance(v4, str):
        return _from_mndiag(root)
    if isinstance(v4, dict):
        return _from_runtime_error(v4) if "runtime_error" in v4 else _from_v4(root, v4)
    v3 = root.get("DCGM GPU Diagnostic")
    if isinstance(v3, dict):
        return _from_runtime_error(v3) if "runtime_error" in v3 else _from_v3(root, v3)
    if "metadata" in root and "entity_groups" in root and v4 is None and v3 is None:
        return _from_v4(root, {})
    return Document("unknown", complete=False, seen=sorted(map(str, root))[:20], message="a document of an unknown generation")


def _from_iterations(root: dict[str, t.Any]) -> Document:
    parts = [_from_root(part) for part in root["iterations"] if isinstance(part, dict)]
    for number, part in enumerate(parts, start=1):
        for test in part.tests:
            test.iteration = number
    generation = parts[0].generation if parts else "unknown"
    whole = Document(f"{generation}_iterations" if parts else "unknown", iterations=len(parts), overall=_text(root.get("Overall Result")))
    whole.dcgm = next((part.dcgm for part in parts if part.dcgm), None)
    whole.driver = next((part.driver for part in parts if part.driver), None)
    whole.tests = [test for part in parts for test in part.tests]
    # A GPU that disappears between two iterations is missing: keep the smallest set.
    sets = [part.gpus[None] for part in parts if part.gpus.get(None)]
    if sets:
        whole.gpus = {None: min(sets, key=len)}
    whole.complete = bool(parts) and all(part.complete for part in parts) and len(parts) == len(root["iterations"])
    whole.ret = next((part.ret for part in parts if part.ret is not None), None)
    whole.message = _text(root.get("Warning")) or next((part.message for part in parts if part.message), "")
    return whole


def _from_runtime_error(node: dict[str, t.Any]) -> Document:
    message = _text(node.get("runtime_error")) or ""
    return Document("runtime_error", dcgm=_text(node.get("version")), message=message, ret=_return_of(message))


def _from_v4(root: dict[str, t.Any], node: dict[str, t.Any]) -> Document:
    metadata = _dict(root.get("metadata"))
    document = Document("v4", dcgm=_text(metadata.get("version")), driver=_text(metadata.get("Driver Version Detected")))
    document.tests = [
        _v4_test(category, test) for category in _dicts(node.get("test_categories")) for test in _dicts(category.get("tests"))
    ]
    document.gpus = {None: _listed_gpus(root.get("entity_groups")) or _tested_gpus(document.tests)}
    return document


def _v4_test(category: dict[str, t.Any], node: dict[str, t.Any], hosts: dict[str | None, str] | None = None) -> Test:
    results = [
        Result(
            _entity_name(result.get("entity_group"), result.get("entity_group_id"), result.get("entity_id")),
            _status(result.get("status")),
            _errors(result.get("warnings")),
            _strings(result.get("info")),
            _host(hosts, result.get("host_id")),
        )
        for result in _dicts(node.get("results"))
    ]
    summary = _dict(node.get("test_summary"))
    known = {error for result in results for error in result.errors}
    own = [error for error in _errors(summary.get("warnings")) if error not in known]
    mpi = node.get("mpi_error")
    status = summary.get("status", node.get("status"))
    return Test(
        _text(category.get("category")),
        _text(node.get("name")) or "",
        _status(status) if status is not None else _worst_status(results),
        results,
        own,
        _strings(summary.get("info")),
        mpi_error=None if mpi is None else _text(_dict(mpi).get("warning")) or _text(mpi) or "MPI error",
    )


def _from_mndiag(root: dict[str, t.Any]) -> Document:
    hosts = {_text(entry.get("host_id")): _text(entry.get("hostname")) or "" for entry in _dicts(root.get("hosts"))}
    document = Document("mndiag")
    for entry in _dicts(root.get("hosts")):
        document.dcgm = document.dcgm or _text(entry.get("dcgm_version"))
        document.driver = document.driver or _text(entry.get("driver_version"))
        document.gpus[_text(entry.get("hostname"))] = _gpu_names(entry.get("entities"))
    document.tests = [
        _v4_test(category, test, hosts) for category in _dicts(root.get("test_categories")) for test in _dicts(category.get("tests"))
    ]
    document.global_errors = [error.text for error in _errors(root.get("global_errors"))]
    return document


def _from_v3(root: dict[str, t.Any], node: dict[str, t.Any]) -> Document:
    legacy = False
    tests: list[Test] = []
    for category in _dicts(node.get("test_categories")):
        for entry in _dicts(category.get("tests")):
            results: list[Result] = []
            string_warning = False
            for result in _dicts(entry.get("results")):
                legacy = legacy or "gpu_ids" in result or isinstance(result.get("warnings"), str)
                string_warning = string_warning or isinstance(result.get("warnings"), str)
                results.extend(_v3_results(result))
            tests.append(
                Test(
                    _text(category.get("category")),
                    _text(entry.get("name")) or "",
                    _worst_status(results),
                    results,
                    string_warning=string_warning,
                )
            )
    version = _text(node.get("version")) or _text(root.get("version"))
    driver = _text(node.get("Driver Version Detected")) or _text(root.get("Driver Version Detected"))
    ids = node.get("GPU Device IDs", root.get("GPU Device IDs"))
    document = Document("v3_legacy" if legacy else "v3", dcgm=version, driver=driver, tests=tests)
    listed = {f"GPU{number}" for number in range(len(ids))} if isinstance(ids, list) else set()
    tested = _tested_gpus(tests)
    document.gpus = {None: listed if len(listed) >= len(tested) else tested}
    return document


def _v3_results(node: dict[str, t.Any]) -> list[Result]:
    """One result line of 3.x, which may stand for several GPUs: `gpu_ids` is text such as "0,1,2"."""
    raw = node.get("warnings")
    errors = [Error(raw, *_codes_of(node))] if isinstance(raw, str) and raw.strip() else _errors(raw)
    if not errors and _int(node.get("error_id")):
        errors = [Error(_text(node.get("info")) or "", *_codes_of(node))]
    info = _strings(node.get("info"))
    names = [f"GPU{number}" for number in _gpu_numbers(node.get("gpu_ids", node.get("gpu_id")))]
    if not names and _int(node.get("cpu_id")) is not None:
        names = [f"CPU{_int(node.get('cpu_id'))}"]
    status = _status(node.get("status"))
    return [Result(name, status, list(errors), info) for name in names] or [Result(None, status, errors, info)]


# --- text --------------------------------------------------------------------------------------------------------

_TABLE_HEADER = re.compile(r"\|\s*Diagnostic\s*\|\s*Result\s*\|")
_BORDER = re.compile(r"\+-{10,}\+-{10,}\+")
_HEADER_RULE = re.compile(r"\+={10,}\+={10,}\+")
_SECTION = re.compile(r"[|+]-{3,}\s+(\S.*?)\s+-+\+-*[|+]")
_ROW = re.compile(r"\|(.{20,40}?)\|(.*)\|")
_ENTITY_CELL = re.compile(r"([A-Za-z_]+?)\s?(\d+):\s*(Pass|Fail|Warn|Skip)\b")
_STATUS_CELL = re.compile(r"(Pass|Fail|Warn|Skip)(?:\s*-\s*(All|GPUs?:\s*[\d,\s]+))?")
_RETURN = re.compile(r"Return:\s*\((-?\d{1,3})\)")


def _from_table(text: str) -> Document | None:
    """The table of `dcgmi diag` without --json: lossy (no codes), good enough to name the GPUs."""
    lines = [line.strip() for line in text.split("\n")]
    # A container that ran twice printed two tables: the last one counts.
    start = max((number for number, line in enumerate(lines) if _TABLE_HEADER.fullmatch(line)), default=None)
    if start is None:
        return None
    border = next((line for line in reversed(lines[:start]) if _BORDER.fullmatch(line)), None)
    table = _Table(border)
    for line in lines[start + 1 :]:
        table.feed(line)
        if table.closed:
            break
    return table.document()


class _Table:
    """Reads the rows of one text table in order."""

    def __init__(self, border: str | None) -> None:
        self.border = border
        self.closed = False
        self._section: str | None = None
        self._tests: list[Test] = []
        self._metadata: dict[str, str] = {}
        self._per_entity = False
        # The message being read, its entity and what it is: continuation rows have an empty first cell.
        self._message: list[str] | None = None
        self._messages: list[tuple[Test, str | None, bool, list[str]]] = []

    def feed(self, line: str) -> None:
        if _HEADER_RULE.fullmatch(line):
            return
        if _BORDER.fullmatch(line):
            self.closed = bool(self._tests) and (self.border is None or line == self.border)
            return
        section = _SECTION.fullmatch(line)
        if section:
            self._section = section.group(1)
            self._message = None
            return
        row = _ROW.fullmatch(line)
        if row:
            self._row(row.group(1).strip(), row.group(2).strip())

    def _row(self, name: str, cell: str) -> None:
        if self._section == "Metadata" or (not self._tests and _STATUS_CELL.fullmatch(cell) is None):
            self._metadata[name] = cell
            return
        if not name:
            self._continuation(cell)
            return
        self._message = None
        label, _mark, owner = name.partition(":")
        if label in ("Warning", "Error", "Info") and self._tests:
            self._message = [cell]
            self._messages.append((self._tests[-1], owner.strip().replace(" ", "") or None, label != "Info", self._message))
            return
        status = _STATUS_CELL.fullmatch(cell)
        if status:
            self._tests.append(self._test(name, status.group(1), status.group(2)))

    def _test(self, name: str, word: str, scope: str | None) -> Test:
        numbers: t.Iterable[int] = [] if scope is None or scope == "All" else [int(n) for n in re.findall(r"\d+", scope)]
        if scope == "All" and word in (FAIL, WARN):
            numbers = range(len(self._device_ids()))
        results = [Result(f"GPU{number}", word) for number in numbers]
        return Test(self._section, name, word, results)

    def _continuation(self, cell: str) -> None:
        entity = _ENTITY_CELL.fullmatch(cell)
        if entity and self._tests:
            self._per_entity = True
            self._message = None
            self._tests[-1].results.append(Result(f"{entity.group(1)}{entity.group(2)}", entity.group(3)))
        elif self._message is not None and cell:
            self._message.append(cell)

    def document(self) -> Document:
        for test, owner, is_warning, parts in self._messages:
            text = " ".join(parts)
            target = next((result for result in test.results if result.entity == owner), None)
            if not is_warning:
                (target.info if target else test.info).append(text)
            else:
                (target.errors if target else test.errors).append(Error(text))
        for test in self._tests:
            if test.status == WARN and any(result.status == FAIL for result in test.results):
                # Only the line of the test can say Warn; the lines of its entities print Fail for it.
                test.entity_shows = FAIL
                for result in test.results:
                    result.status = WARN if result.status == FAIL else result.status
        document = Document(
            "v4_text" if self._per_entity or not self._old_names() else "v3_text",
            dcgm=self._metadata.get("DCGM Version"),
            driver=self._metadata.get("Driver Version Detected"),
            tests=self._tests,
            complete=self.closed,
        )
        ids = self._device_ids()
        tested = _tested_gpus(self._tests)
        document.gpus = {None: tested if len(tested) >= len(ids) else {f"GPU{number}" for number in range(len(ids))}}
        if not self.closed:
            document.message = "the table is cut"
        return document

    def _device_ids(self) -> list[str]:
        return [part for part in self._metadata.get("GPU Device IDs Detected", "").split(",") if part.strip()]

    def _old_names(self) -> bool:
        return any(test.name.lower() in codes.SOFTWARE_SUBTESTS or " " in test.name for test in self._tests)


# Texts of dcgmi that carry no return value, and the value they stand for.
_ERROR_TEXTS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"homogen[e]?ous group|group is incompatible|incompatible GPUs", re.I), -23),
    (re.compile(r"already running", re.I), -39),
    (re.compile(r"in use by another|currently in use", re.I), -34),
    (re.compile(r"unable to (?:establish a connection|connect) to|host engine (?:connection )?(?:is )?(?:lost|invalid)", re.I), -21),
    (re.compile(r"requires? root|must be run as root", re.I), -29),
    (re.compile(r"version mismatch", re.I), -12),
)


def _from_error(text: str) -> Document | None:
    """Plain error text instead of a document."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    for line in lines:
        value = _return_of(line)
        if value is not None:
            return Document("text_error", ret=value, message=line)
    for line in lines:
        for pattern, value in _ERROR_TEXTS:
            if pattern.search(line):
                return Document("text_error", ret=value, message=line)
    for line in lines:
        if line.startswith("Error:"):
            return Document("text_error", message=line)
    return None


def _return_of(text: str) -> int | None:
    match = _RETURN.search(text)
    if match:
        return int(match.group(1))
    return next((value for pattern, value in _ERROR_TEXTS if pattern.search(text)), None) if text.startswith("Error") else None


# --- small readers -----------------------------------------------------------------------------------------------


def _dict(value: t.Any) -> dict[str, t.Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: t.Any) -> list[dict[str, t.Any]]:
    """The objects of a list; 3.3 leaves null holes where a GPU had no result."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: t.Any) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _int(value: t.Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and abs(value) < 1e9:
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,9}\s*", value):
        return int(value)
    return None


def _strings(value: t.Any) -> list[str]:
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    return [value] if isinstance(value, str) and value else []


def _status(value: t.Any) -> str:
    word = _text(value) or ""
    return _STATUS.get(word.strip().lower(), NOT_RUN)


def _worst_status(results: list[Result]) -> str:
    words = {result.status for result in results}
    return next((word for word in (FAIL, WARN, PASS, SKIP) if word in words), NOT_RUN)


def _codes_of(node: dict[str, t.Any]) -> tuple[int | None, int | None, int | None]:
    return _int(node.get("error_id")), _int(node.get("error_severity")), _int(node.get("error_category"))


def _errors(value: t.Any) -> list[Error]:
    """The warnings of a result, each once: from 4.5 on a summary repeats those of the entities."""
    found: dict[Error, None] = {}
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item.strip():
            found[Error(item)] = None
        elif isinstance(item, dict):
            # Deployment errors of 3.3 carry their text under "warnings".
            text = _text(item.get("warning", item.get("warnings"))) or ""
            found[Error(text, *_codes_of(item))] = None
    return list(found)


def _entity_name(group: t.Any, group_id: t.Any, entity_id: t.Any) -> str | None:
    name = _text(group) or codes.ENTITY_GROUPS.get(t.cast(int, _int(group_id)), "")
    number = _int(entity_id)
    if not name or name == "None":
        return None
    return name if number is None else f"{name}{number}"


def _host(hosts: dict[str | None, str] | None, host_id: t.Any) -> str | None:
    number = _text(host_id)
    if hosts is None or number is None:
        return None
    return hosts.get(number) or f"host {number}"


def _gpu_numbers(value: t.Any) -> list[int]:
    if isinstance(value, str):
        return [int(part) for part in re.findall(r"\d{1,4}", value)]
    number = _int(value)
    return [] if number is None else [number]


def _listed_gpus(groups: t.Any) -> set[str]:
    names: set[str] = set()
    for group in _dicts(groups):
        if group.get("entity_group") == "GPU" or group.get("entity_group_id") == 1:
            names |= {f"GPU{_int(entry.get('entity_id'))}" for entry in _dicts(group.get("entities"))}
    return names


def _gpu_names(entities: t.Any) -> set[str]:
    named = (_entity_name(e.get("entity_group"), e.get("entity_group_id"), e.get("entity_id")) for e in _dicts(entities))
    return {name for name in named if name and re.fullmatch(r"GPU\d+", name)}


def _tested_gpus(tests: list[Test]) -> set[str]:
    return {r.entity for test in tests for r in test.results if r.entity and re.fullmatch(r"GPU\d+", r.entity)}
