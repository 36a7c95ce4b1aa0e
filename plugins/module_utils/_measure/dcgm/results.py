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

import re
import typing as t

from ..._common.shapes import Measurement, MeasurementFinding
from ..lines import read_text
from ..measurement import finding, measurement
from ..metrics import units
from . import codes, reading
from .classes import CLASSES, REASONS, Issue
from .documents import FAIL, NOT_RUN, PASS, SKIP, WARN, Document, Result, Test, natural
from .rules import issues_of

# Classes under which an entity is named as failed.
_NAMED = frozenset({"hardware_fail", "hardware_reset", "config_fail"})

_XID = re.compile(r"\bXID\D{0,3}(\d{1,3})\b", re.I)


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one attempt: one file per node, in the order of `context["nodes"]` when both are as many.

    context: exit_code, exit_codes (one per file), required_tests or requested_tests, dcgm_level, expected_gpus,
    iterations, nodes.
    """
    nodes = list(context.get("nodes") or [])
    exit_codes = context.get("exit_codes")
    parts: list[Measurement] = []
    for number, path in enumerate(paths):
        own = {**context, "logs": len(paths)}
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
    document = reading.read(text)
    issues = issues_of(document, context)
    outcome = min(issues, key=lambda issue: issue.rank).outcome if issues else "pass"
    return _measurement(document, issues, outcome, context)


# --- output ------------------------------------------------------------------------------------------------------


def _measurement(document: Document, issues: list[Issue], outcome: str, context: t.Mapping[str, t.Any]) -> Measurement:
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


def _finding(issue: Issue, only: str | None) -> MeasurementFinding:
    entry = finding(str(REASONS[issue.outcome]), issue.message, host=issue.host or only, entity=issue.entity, evidence=issue.evidence)
    name = codes.severity_name(issue.severity) if issue.severity is not None else None
    own: t.Any = {"test": issue.test, "code": issue.code, "severity": name, "advice": issue.advice, "confidence": issue.confidence}
    return {**entry, **own, "class": issue.outcome}


def _distinct(issues: list[Issue]) -> list[Issue]:
    """Worst first, each (test, entity, code, message) once."""
    seen: dict[tuple[t.Any, ...], Issue] = {}
    for issue in sorted(issues, key=lambda item: item.rank):
        seen.setdefault((issue.test, issue.host, issue.entity, issue.code, issue.message), issue)
    return list(seen.values())


def _named_entities(issues: list[Issue], outcome: str, document: Document) -> list[str]:
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
    return natural(names)


def _reason(document: Document, issues: list[Issue], outcome: str) -> str:
    worst = [issue for issue in _distinct(issues) if issue.outcome == outcome]
    if not worst:
        return f"{len(document.tests)} tests passed"
    more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
    return f"{worst[0].message}{more}"


def _parsed(document: Document, issues: list[Issue]) -> dict[str, t.Any]:
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
        "warned_entities": natural({i.entity for i in issues if i.outcome == "warn" and i.entity}),
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
        "failed": natural({_where(r) for r in test.results if r.status == FAIL and r.entity}),
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
    hosts = natural({result.host for result in test.results if result.host})
    if hosts:
        row["hosts"] = hosts
    return row


def _where(result: Result) -> str:
    return f"{result.host}/{result.entity}" if result.host else str(result.entity)


def _values(document: Document, issues: list[Issue], named: list[str], outcome: str) -> dict[str, t.Any]:
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
        "severity": codes.severity_name(max(severities, key=_SEVERITY_ORDER.index)) if severities else None,
        "dcgm_version": document.dcgm,
    }


# Severities from harmless to worst: none, unknown, monitor, config, triage, reset, isolate.
_SEVERITY_ORDER = (0, 3, 1, 5, 4, 6, 2)


def _merge(parts: list[t.Any]) -> Measurement:
    """Several nodes of one group: the worst decides, the findings of all are kept."""
    worst = min(parts, key=lambda part: CLASSES.index(part["class"]))
    merged = dict(worst)
    merged["findings"] = [entry for part in parts for entry in part["findings"]]
    merged["notes"] = [note for part in parts for note in part["notes"]]
    merged["complete"] = all(part["complete"] for part in parts)
    merged["failed_entities"] = natural(
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
