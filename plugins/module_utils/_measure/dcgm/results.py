# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""DCGM diagnostics: from what dcgmi printed and its exit status to a class per entity and a verdict.

The exit status alone is no verdict: it is 226 for a wrong setting as for a broken GPU, and 0 when a switch failed
or when everything was skipped. The document decides; the exit status decides only where there is no document, and
it can take a pass away.

Classes, worst first: hardware_fail (also for codes that ask for isolation), hardware_reset, config_fail,
setup_error, busy, inconclusive, timed_out, incomplete, warn, pass. Contention and set-up faults are never hardware.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ..._causes import dcgm_exits as exits
from ..._common.shapes import Measurement, MeasurementFinding
from ..lines import read_text
from ..measurement import finding, measurement
from ..metrics import units
from . import codes, documents
from .documents import FAIL, NOT_RUN, PASS, SKIP, WARN, Document, Error, Result, Test

CLASSES = (
    "hardware_fail",
    "hardware_reset",
    "config_fail",
    "setup_error",
    "busy",
    "inconclusive",
    "timed_out",
    "incomplete",
    "warn",
    "pass",
)

# What each class is in the table of reasons; a warning is a note, a pass nothing.
REASONS: dict[str, str | None] = {
    "hardware_fail": "HardwareFailureDetected",
    "hardware_reset": "HardwareFailureDetected",
    "config_fail": "SetupError",
    "setup_error": "SetupError",
    "busy": "NoMeasurement",
    "inconclusive": "NoMeasurement",
    "timed_out": "TimedOut",
    "incomplete": "LogIncomplete",
    "warn": None,
    "pass": None,
}

# Classes under which an entity is named as failed.
_NAMED = frozenset({"hardware_fail", "hardware_reset", "config_fail"})

# Generations whose documents cannot say Warn.
_V3_JSON = frozenset({"v3", "v3_legacy", "v3_iterations", "v3_legacy_iterations"})

_XID = re.compile(r"\bXID\D{0,3}(\d{1,3})\b", re.I)
_MIG = re.compile(r"\bMIG\b")
_CLOCKS_BUSY = re.compile(r"MCUTIL|memory controller util", re.I)


@dataclasses.dataclass
class _Issue:
    """One thing that keeps a document from being a plain pass."""

    outcome: str
    message: str
    test: str | None = None
    entity: str | None = None
    host: str | None = None
    code: int | None = None
    severity: int | None = None
    advice: str = ""
    confidence: str = "high"
    evidence: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        return CLASSES.index(self.outcome)


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one attempt: one file per node, in the order of `context["nodes"]` when both are as many.

    context: exit_code, exit_codes (one per file), required_tests or requested_tests, dcgm_level, expected_gpus,
    iterations, nodes.
    """
    nodes = list(context.get("nodes") or [])
    exit_codes = context.get("exit_codes")
    parts: list[Measurement] = []
    for number, path in enumerate(paths):
        own = dict(context)
        own["nodes"] = [nodes[number]] if len(nodes) == len(paths) else nodes
        if isinstance(exit_codes, list) and number < len(exit_codes):
            own["exit_code"] = exit_codes[number]
        parts.append(parse(read_text(path), own))
    if not parts:
        return parse("", context)
    return parts[0] if len(parts) == 1 else _merge(parts)


def parse(text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """Judge the output of one dcgmi run. text: cleaned output, banners included. Never raises for its content.

    Returns a measurement with `class`, `verdict`, `failed_entities` and `parsed`.
    """
    context = context or {}
    document = documents.read(text)
    issues = _issues(document, context)
    outcome = min(issues, key=lambda issue: issue.rank).outcome if issues else "pass"
    return _measurement(document, issues, outcome, context)


# --- rules -------------------------------------------------------------------------------------------------------


def _issues(document: Document, context: t.Mapping[str, t.Any]) -> list[_Issue]:
    exit_code = context.get("exit_code")
    if not _has_tests(document):
        return _without_document(document, exit_code) + _missing_gpus(document, context)
    issues = _missing_gpus(document, context)
    for test in document.tests:
        issues.extend(_test_issues(document, test, exit_code))
    issues.extend(_coverage(document, context))
    if document.global_errors and not any(test.results for test in document.tests):
        issues.append(_Issue("setup_error", document.global_errors[0], evidence=tuple(document.global_errors)))
    if not document.complete:
        issues.append(_Issue("incomplete", document.message or "the document is cut"))
    if document.ret is not None:
        issues.append(_return_issue(document))
    issues.extend(_exit_issue(document, issues, exit_code))
    return issues


def _has_tests(document: Document) -> bool:
    return bool(document.tests) and document.generation not in ("unparsable", "unknown")


def _without_document(document: Document, exit_code: int | None) -> list[_Issue]:
    """No test was read: the error text decides, else the exit status, else nothing is known."""
    if document.ret is not None and document.ret in exits.EXIT_OF_RETURN:
        return [_return_issue(document)]
    status = exits.exit_status(exit_code)
    if status is not None:
        # Without a document "errors were reported" says nothing about the GPUs.
        outcome = "incomplete" if status.ret in (exits.NVVS_ERROR, exits.NVVS_ISOLATE_ERROR) else status.outcome
        return [_Issue(outcome, _sentence(document, f"exit {exit_code} ({status.name})"), advice=status.advice)]
    if document.generation == "v4":
        return [_Issue("incomplete", "the document holds no test")]
    if document.generation == "runtime_error" or (document.generation == "text_error" and exit_code != 0):
        return [_Issue("setup_error", document.message)]
    return [_Issue("incomplete", _sentence(document, "nothing was proven"))]


def _return_issue(document: Document) -> _Issue:
    status = exits.EXIT_OF_RETURN.get(t.cast(int, document.ret))
    if status is None:
        return _Issue("inconclusive", document.message or f"dcgmi returned {document.ret}")
    return _Issue(status.outcome, document.message or status.name, advice=status.advice, evidence=(document.message,))


def _exit_issue(document: Document, issues: list[_Issue], exit_code: int | None) -> list[_Issue]:
    """A status other than 0 takes a pass away, even when the document shows nothing."""
    if exit_code in (None, 0) or any(issue.outcome not in ("warn", "pass") for issue in issues):
        return []
    status = exits.exit_status(exit_code)
    # It counts error records, also those of warnings; a table of 4.x shows those without their codes.
    explained = any(issue.code for issue in issues) or (document.generation == "v4_text" and issues)
    if status is not None and status.ret == exits.NVVS_ERROR and explained:
        return []
    if status is None:
        return [_Issue("inconclusive", f"the document shows no failure, but dcgmi ended with exit {exit_code}")]
    message = f"the document shows no failure, but dcgmi ended with exit {exit_code} ({status.name})"
    return [_Issue(status.outcome, message, advice=status.advice)]


def _missing_gpus(document: Document, context: t.Mapping[str, t.Any]) -> list[_Issue]:
    """GPUs the node offers that the document does not list: gone, however good the others are."""
    expected = context.get("expected_gpus")
    issues: list[_Issue] = []
    if not isinstance(expected, int) or document.generation in ("unparsable", "unknown", "runtime_error", "text_error"):
        return issues
    for host, gpus in document.gpus.items():
        if gpus and len(gpus) < expected:
            message = f"{expected - len(gpus)} of {expected} GPUs missing: the diagnostic lists {', '.join(_sorted(gpus))}"
            advice = "Look for a GPU that fell off the bus: kernel log, lspci; reboot the node."
            issues.append(_Issue("hardware_fail", message, entity=f"missing:{expected - len(gpus)}", host=host, advice=advice))
    return issues


def _test_issues(document: Document, test: Test, exit_code: int | None) -> list[_Issue]:
    issues = [issue for result in test.results for issue in _result_issues(document, test, result, exit_code)]
    shown = {result.status for result in test.results}
    for error in test.errors:
        status = test.status if test.status in (FAIL, WARN) and not {FAIL, WARN} & shown else PASS
        issues.extend(_error_issues(document, test, Result(None, status, [error]), exit_code))
    if test.mpi_error is not None and not test.results:
        issues.append(_Issue("setup_error", test.mpi_error, test.name, advice="Check ssh, names and the launcher between the hosts."))
    elif test.status in (FAIL, WARN) and not {FAIL, WARN} & shown and not test.errors:
        issues.extend(_error_issues(document, test, Result(None, test.status), exit_code))
    return issues


def _result_issues(document: Document, test: Test, result: Result, exit_code: int | None) -> list[_Issue]:
    return [] if result.status in (SKIP, NOT_RUN) else _error_issues(document, test, result, exit_code)


def _error_issues(document: Document, test: Test, result: Result, exit_code: int | None) -> list[_Issue]:
    """Rule 7.5c: status and severity of one result decide its class."""
    if result.status == PASS:
        # A pass with an error record: something disturbed the test. Words without a code are notes.
        return [
            _issue(_class_of_pass(error), test, result, error)
            for error in result.errors
            if error.code not in (None, 0) or error.severity not in (None, 0)
        ]
    if result.status == WARN or (document.generation in _V3_JSON and exit_code == 0):
        # The JSON of 3.x prints an internal warning as "Fail"; its exit status counts real failures only.
        return [_issue("warn", test, result, error) for error in result.errors or [Error("")]]
    return [_issue(_class_of_fail(test, error), test, result, error) for error in result.errors or [Error("")]]


def _class_of_pass(error: Error) -> str:
    severity = error.severity if error.severity is not None else codes.SEVERITY_OF_CODE.get(error.code or 0)
    return "warn" if severity == codes.MONITOR else "inconclusive"


def _class_of_fail(test: Test, error: Error) -> str:
    severity = error.severity if error.severity is not None else codes.SEVERITY_OF_CODE.get(error.code or 0)
    if codes.canonical_test(test.name) == "nvbandwidth" and _CLOCKS_BUSY.search(error.text):
        return "inconclusive"  # the test before it still held the memory clocks
    if severity == codes.RESET:
        return "hardware_reset"
    if severity == codes.TRIAGE:
        return "inconclusive" if error.code in codes.INCONCLUSIVE_CODES else "hardware_fail"
    if severity == codes.CONFIG:
        return "config_fail"
    if severity == codes.MONITOR:
        return "warn"
    if severity is None and _checks_settings(test, error):
        return "config_fail"
    return "hardware_fail"


def _checks_settings(test: Test, error: Error) -> bool:
    """Whether a failure is about settings: 4.x folds these checks into one test and names them before the message."""
    names = (test.name, error.text.partition(":")[0])
    return any(name.strip().lower() in codes.SETTINGS_SUBTESTS for name in names)


def _issue(outcome: str, test: Test, result: Result, error: Error) -> _Issue:
    severity = error.severity if error.severity is not None else codes.SEVERITY_OF_CODE.get(error.code or 0)
    where = " ".join(part for part in (result.host, result.entity) if part) or "the node"
    name = codes.CODE_NAMES.get(error.code or 0)
    code = f"code {error.code}{f', {name}' if name else ''}" if error.code else "no code"
    text = f": {error.text}" if error.text else ""
    word = f"{test.name} on {where}: {result.status} ({code}){text}"
    confidence = "high" if error.code and error.severity is not None else "low"
    advice = codes.advice(error.code, severity)
    if outcome == "inconclusive" and _CLOCKS_BUSY.search(error.text):
        advice = "Run nvbandwidth alone: another test still held the memory clocks."
    evidence = (error.text,) if error.text else ()
    return _Issue(outcome, word, test.name, result.entity, result.host, error.code, severity, advice, confidence, evidence)


def required_tests(context: t.Mapping[str, t.Any]) -> list[str]:
    """Tests that must have run: as asked for by the caller, else those of the run level, else none in particular."""
    named = context.get("required_tests") or context.get("requested_tests")
    if isinstance(named, str):
        named = [part for part in re.split(r"[,\s]+", named) if part]
    if named:
        return [str(name) for name in named]
    level = context.get("dcgm_level")
    return list(codes.LEVEL_TESTS.get(level, ())) if isinstance(level, int) else []


def _coverage(document: Document, context: t.Mapping[str, t.Any]) -> list[_Issue]:
    """What was asked for and not proven: tests absent, skipped, cut short or without a result for a GPU."""
    issues: list[_Issue] = []
    for name in required_tests(context):
        wanted = codes.canonical_test(name)
        found = [test for test in document.tests if codes.canonical_test(test.name) == wanted]
        if not found:
            issues.append(_Issue("incomplete", f"required test {name} is not in the document", name))
        for test in found:
            issues.extend(_skipped(document, test, required=True))
    if not required_tests(context) and all(test.status in (SKIP, NOT_RUN) for test in document.tests):
        issues.append(_Issue("incomplete", "every test was skipped: nothing was proven"))
        issues.extend(issue for test in document.tests for issue in _skipped(document, test, required=False))
    for test in document.tests:
        if test.status == NOT_RUN and not test.results and test.mpi_error is None:
            issues.append(_Issue("incomplete", f"{test.name} did not run", test.name))
    asked = context.get("iterations")
    ran = document.iterations
    if isinstance(asked, int) and ran is not None and ran < asked:
        issues.append(_Issue("incomplete", f"{ran} of {asked} iterations ran"))
    return issues


def _skipped(document: Document, test: Test, *, required: bool) -> list[_Issue]:
    info = [*test.info, *(line for result in test.results for line in result.info), *(e.text for e in test.errors)]
    skipped = {result.entity for result in test.results if result.status == SKIP}
    if test.status == SKIP or skipped:
        if any(_MIG.search(line) for line in info):
            advice = "Switch MIG off, or leave these nodes out: diagnostics need whole GPUs."
            return [_Issue("setup_error", f"{test.name} was skipped: MIG is on", test.name, advice=advice, evidence=tuple(info[:3]))]
        if not required:
            return []
        where = "" if test.status == SKIP else f" on {', '.join(_sorted({name or 'the node' for name in skipped}))}"
        return [_Issue("incomplete", f"required test {test.name} was skipped{where}", test.name, evidence=tuple(info[:3]))]
    # The deployment checks may speak for the node as a whole; a hardware test must name every GPU.
    tested = {result.entity for result in test.results}
    listed = document.gpus.get(None, set())
    silent = listed - {name for name in tested if name}
    if required and silent and any(name and name.startswith("GPU") for name in tested):
        names = ", ".join(_sorted(silent))
        return [_Issue("incomplete", f"required test {test.name} has no result for {names}", test.name)]
    return []


# --- output ------------------------------------------------------------------------------------------------------


def _measurement(document: Document, issues: list[_Issue], outcome: str, context: t.Mapping[str, t.Any]) -> Measurement:
    named = _named_entities(issues, outcome, document)
    nodes = list(context.get("nodes") or [])
    only = nodes[0] if len(nodes) == 1 else None
    findings = [_finding(issue, only) for issue in _distinct(issues) if issue.outcome not in ("warn", "pass")]
    notes = [issue.message for issue in _distinct(issues) if issue.outcome == "warn"]
    if outcome == "warn":
        findings = [finding("Warning", notes[0] if notes else "passed with a warning", host=only)]
    values = _values(document, issues, named, outcome)
    return measurement(
        "dcgm",
        REASONS[outcome],
        _reason(document, issues, outcome),
        complete=outcome not in ("incomplete", "timed_out", "busy", "setup_error", "inconclusive"),
        values=values,
        units=units("dcgm", values),
        parsed=_parsed(document, issues),
        findings=findings,
        failed_entities=named,
        notes=notes,
        **t.cast(dict[str, t.Any], {"class": outcome}),
    )


def _finding(issue: _Issue, only: str | None) -> MeasurementFinding:
    entry = finding(str(REASONS[issue.outcome]), issue.message, host=issue.host or only, entity=issue.entity, evidence=issue.evidence)
    name = codes.SEVERITY_NAMES.get(issue.severity) if issue.severity is not None else None
    own: t.Any = {"test": issue.test, "code": issue.code, "severity": name, "advice": issue.advice, "confidence": issue.confidence}
    return {**entry, **own, "class": issue.outcome}


def _distinct(issues: list[_Issue]) -> list[_Issue]:
    """Worst first, each (test, entity, code, message) once."""
    seen: dict[tuple[t.Any, ...], _Issue] = {}
    for issue in sorted(issues, key=lambda item: item.rank):
        seen.setdefault((issue.test, issue.host, issue.entity, issue.code, issue.message), issue)
    return list(seen.values())


def _named_entities(issues: list[_Issue], outcome: str, document: Document) -> list[str]:
    """Entities to blame for the verdict: those of a worse-than-configuration class, or of the configuration class."""
    if outcome not in _NAMED:
        return []
    blamed = {"hardware_fail", "hardware_reset"} if outcome != "config_fail" else {"config_fail"}
    many = document.generation == "mndiag"
    names = {
        f"{issue.host}/{issue.entity}" if many and issue.host else issue.entity
        for issue in issues
        if issue.outcome in blamed and issue.entity
    }
    return _sorted(names)


def _reason(document: Document, issues: list[_Issue], outcome: str) -> str:
    worst = [issue for issue in _distinct(issues) if issue.outcome == outcome]
    if not worst:
        return f"{len(document.tests)} tests passed"
    more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
    return f"{worst[0].message}{more}"


def _parsed(document: Document, issues: list[_Issue]) -> dict[str, t.Any]:
    errors = [e for test in document.tests for e in [*test.errors, *(x for r in test.results for x in r.errors)]]
    severities = [e.severity for e in errors if e.severity is not None]
    xids = [int(match.group(1)) for e in errors for match in [_XID.search(e.text)] if match]
    counts = [len(gpus) for gpus in document.gpus.values()]
    parsed: dict[str, t.Any] = {
        "generation": document.generation,
        "dcgm": document.dcgm,
        "driver": document.driver,
        "gpus": sum(counts) if any(counts) else None,
        "severity_max": max(severities, default=None),
        "xid": xids[0] if xids else None,
        "return": document.ret if document.ret is not None else None,
        "message": document.message,
        "iterations": document.iterations,
        "overall": document.overall,
        "warned_entities": _sorted({i.entity for i in issues if i.outcome == "warn" and i.entity}),
        "tests": [_test_row(test) for test in document.tests],
    }
    if document.generation == "mndiag":
        parsed["hosts"] = [host for host in document.gpus if host]
        parsed["global_errors"] = document.global_errors
    if document.generation == "unknown":
        parsed["seen"] = document.seen
    return parsed


def _test_row(test: Test) -> dict[str, t.Any]:
    errors = {error: None for error in [*test.errors, *(e for result in test.results for e in result.errors)]}
    row: dict[str, t.Any] = {
        "category": test.category,
        "name": test.name,
        "result": test.status,
        "entities": len({(result.host, result.entity) for result in test.results}),
        "failed": _sorted({_where(r) for r in test.results if r.status == FAIL and r.entity}),
        "codes": sorted({error.code for error in errors if error.code}),
        "warnings": [error.text for error in errors],
    }
    if test.string_warning:
        row["text"] = "warning is a string"
    if test.entity_shows:
        row["entity_shows"] = test.entity_shows
    if test.iteration is not None:
        row["iteration"] = test.iteration
    if test.mpi_error is not None:
        row["mpi_error"] = True
    hosts = _sorted({result.host for result in test.results if result.host})
    if hosts:
        row["hosts"] = hosts
    return row


def _where(result: Result) -> str:
    return f"{result.host}/{result.entity}" if result.host else str(result.entity)


def _values(document: Document, issues: list[_Issue], named: list[str], outcome: str) -> dict[str, t.Any]:
    words = [test.status for test in document.tests]
    severities = [issue.severity for issue in issues if issue.severity]
    counts = [len(gpus) for gpus in document.gpus.values()]
    return {
        "result": outcome,
        "gpus": sum(counts) if any(counts) else None,
        "failed_gpus": len([name for name in named if "GPU" in name]) if outcome in _NAMED else 0,
        "tests": len(words),
        "tests_passed": words.count(PASS),
        "tests_failed": words.count(FAIL),
        "tests_warned": words.count(WARN),
        "tests_skipped": words.count(SKIP) + words.count(NOT_RUN),
        "severity": codes.SEVERITY_NAMES.get(max(severities, key=_SEVERITY_ORDER.index)) if severities else None,
        "dcgm_version": document.dcgm,
    }


# From harmless to worst.
_SEVERITY_ORDER = (codes.NONE, codes.UNKNOWN, codes.MONITOR, codes.CONFIG, codes.TRIAGE, codes.RESET, codes.ISOLATE)


def _sentence(document: Document, text: str) -> str:
    return f"{document.message}: {text}" if document.message else text


def _sorted(names: t.Iterable[str | None]) -> list[str]:
    """GPU2 before GPU10."""
    return sorted((name for name in names if name), key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def _merge(parts: list[t.Any]) -> Measurement:
    """Several nodes of one group: the worst decides, the findings of all are kept."""
    worst = min(parts, key=lambda part: CLASSES.index(part["class"]))
    merged = dict(worst)
    merged["findings"] = [entry for part in parts for entry in part["findings"]]
    merged["notes"] = [note for part in parts for note in part["notes"]]
    merged["complete"] = all(part["complete"] for part in parts)
    merged["failed_entities"] = _sorted(
        {
            f"{entry['host']}/{entry['entity']}" if entry["host"] else entry["entity"]
            for entry in merged["findings"]
            if entry["entity"] and entry.get("class") in _NAMED
        }
    )
    merged["parsed"] = {"documents": [part["parsed"] for part in parts]}
    values = dict(worst["values"])
    for name in ("gpus", "failed_gpus", "tests", "tests_passed", "tests_failed", "tests_warned", "tests_skipped"):
        counts = [part["values"][name] for part in parts]
        values[name] = None if any(count is None for count in counts) else sum(counts)
    merged["values"] = values
    return t.cast(Measurement, merged)
