# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From a document and what was asked for to issues: every result that is not known good, everything that was not proven.

What was asked is counted against what was measured: GPUs, hosts, tests, iterations. A status that no version prints is no pass.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ..._causes import dcgm_exits as exits
from . import codes
from .classes import Issue, class_of_fail, class_of_pass, class_of_warning, issue_of
from .documents import FAIL, NOT_RUN, PASS, SKIP, UNKNOWN, WARN, Document, Error, Result, Test, is_gpu, natural

# Generations whose documents cannot say Warn.
_V3_JSON = frozenset({"v3", "v3_legacy", "v3_iterations", "v3_legacy_iterations"})
# Without a table or document of tests nothing can be counted.
_NO_TESTS = ("unparsable", "unknown", "runtime_error", "text_error")
_MIG = re.compile(r"\bMIG\b")

Context: t.TypeAlias = t.Mapping[str, t.Any]


def issues_of(document: Document, context: Context) -> list[Issue]:
    """Everything that keeps a document from being a plain pass; empty for one that proves what was asked."""
    exit_code = context.get("exit_code")
    if not document.tests or document.generation in _NO_TESTS:
        return _without_document(document, exit_code) + _missing_gpus(document, context)
    issues = _missing_gpus(document, context) + _missing_hosts(document, context)
    for test in document.tests:
        issues.extend(_test_issues(document, test, exit_code))
    issues.extend(_coverage(document, context))
    if document.global_errors and not any(test.results for test in document.tests):
        issues.append(Issue("setup_error", document.global_errors[0], evidence=tuple(document.global_errors)))
    if not document.complete:
        issues.append(Issue("incomplete", document.message or "the document is cut"))
    if document.ret is not None:
        issues.append(_return_issue(document))
    issues.extend(_overall(document, issues))
    issues.extend(_exit_issue(document, issues, exit_code))
    return issues


def required_tests(context: Context) -> list[str]:
    """Tests that must have run: as asked for by the caller, else those of the run level, else none in particular."""
    named = context.get("required_tests") or context.get("requested_tests")
    if isinstance(named, str):
        named = [part for part in re.split(r"[,\s]+", named) if part]
    if named:
        return [str(name) for name in named]
    level = context.get("dcgm_level")
    return list(codes.LEVEL_TESTS.get(min(level, max(codes.LEVEL_TESTS)), ())) if isinstance(level, int) else []


# --- documents without tests, return values, exit status -----------------------------------------------------------


def _without_document(document: Document, exit_code: int | None) -> list[Issue]:
    """No test was read: the error text decides, else the exit status, else nothing is known."""
    if document.ret is not None and document.ret in exits.EXIT_OF_RETURN:
        return [_return_issue(document)]
    status = exits.exit_status(exit_code)
    if status is not None:
        # Without a document "errors were reported" says nothing about the GPUs.
        outcome = "incomplete" if status.ret in (exits.NVVS_ERROR, exits.NVVS_ISOLATE_ERROR) else status.outcome
        return [Issue(outcome, _sentence(document, f"exit {exit_code} ({status.name})"), advice=status.advice)]
    if document.generation == "v4":
        return [Issue("incomplete", "the document holds no test")]
    if document.generation == "runtime_error" or (document.generation == "text_error" and exit_code != 0):
        return [Issue("setup_error", document.message)]
    return [Issue("incomplete", _sentence(document, "nothing was proven"))]


def _return_issue(document: Document) -> Issue:
    status = exits.EXIT_OF_RETURN.get(t.cast(int, document.ret))
    if status is None:
        return Issue("inconclusive", document.message or f"dcgmi returned {document.ret}")
    return Issue(status.outcome, document.message or status.name, advice=status.advice, evidence=(document.message,))


def _bad(issues: t.Iterable[Issue]) -> bool:
    return any(issue.outcome not in ("warn", "pass") for issue in issues)


def _overall(document: Document, issues: list[Issue]) -> list[Issue]:
    """The word over several iterations, where nothing else explains it."""
    if document.overall in (None, PASS) or _bad(issues):
        return []
    return [Issue("inconclusive", f"no iteration shows a failure, but the overall result is {document.overall}")]


def _exit_issue(document: Document, issues: list[Issue], exit_code: int | None) -> list[Issue]:
    """A status other than 0 takes a pass away, even when the document shows nothing."""
    if exit_code in (None, 0) or _bad(issues):
        return []
    status = exits.exit_status(exit_code)
    # It counts error records, also those of warnings; a table of 4.x shows those without their codes.
    explained = any(issue.code for issue in issues) or (document.generation == "v4_text" and issues)
    if status is not None and status.ret == exits.NVVS_ERROR and explained:
        return []
    if status is None:
        return [Issue("inconclusive", f"the document shows no failure, but dcgmi ended with exit {exit_code}")]
    message = f"the document shows no failure, but dcgmi ended with exit {exit_code} ({status.name})"
    return [Issue(status.outcome, message, advice=status.advice)]


def _sentence(document: Document, text: str) -> str:
    return f"{document.message}: {text}" if document.message else text


# --- results -----------------------------------------------------------------------------------------------------


def _test_issues(document: Document, test: Test, exit_code: int | None) -> list[Issue]:
    issues = [issue for result in _explained(test) for issue in _result_issues(document, test, result, exit_code)]
    shown = {result.status for result in test.results}
    for error in test.errors:
        status = test.status if test.status in (FAIL, WARN) and not {FAIL, WARN} & shown else PASS
        issues.extend(_error_issues(document, test, Result(None, status, [error]), exit_code))
    if test.status == UNKNOWN and UNKNOWN not in shown:
        issues.append(_unknown(test, Result(None, UNKNOWN)))
    if test.mpi_error is not None and not test.results:
        issues.append(Issue("setup_error", test.mpi_error, test.name, advice="Check ssh, names and the launcher between the hosts."))
    elif test.status in (FAIL, WARN) and not {FAIL, WARN} & shown and not test.errors:
        issues.extend(_error_issues(document, test, Result(None, test.status), exit_code))
    return issues


def _explained(test: Test) -> list[Result]:
    """The results of a test; one that failed in silence is explained by what its test, or the others that failed there, say.

    Not by hardware: that is said of one device and of no other.
    """
    failed = [error for result in test.results if result.status in (FAIL, WARN) for error in result.errors]
    said = test.errors or failed
    if not said or any(class_of_fail(test, error).startswith("hardware") for error in [*said, *failed]):
        return test.results
    return [
        dataclasses.replace(result, errors=said[:1]) if result.status in (FAIL, WARN) and not result.errors else result
        for result in test.results
    ]


def _result_issues(document: Document, test: Test, result: Result, exit_code: int | None) -> list[Issue]:
    if result.status in (PASS, WARN, FAIL):
        return _error_issues(document, test, result, exit_code)
    if result.status == UNKNOWN:
        return [_unknown(test, result)]
    if result.status == NOT_RUN:
        return [Issue("incomplete", f"{test.name} did not run on {result.entity or 'the node'}", test.name, result.entity, result.host)]
    # Skipped: what it records beside that is no reason to skip.
    grave = [error for error in result.errors if error.code and class_of_fail(test, error).startswith("hardware")]
    return [issue_of("inconclusive", test, result, error) for error in grave]


def _unknown(test: Test, result: Result) -> Issue:
    """A result without a status, or with a word that no version prints, is not known to be good."""
    words = tuple(error.text for error in result.errors if error.text)
    where = " ".join(part for part in (result.host, result.entity) if part) or "the node"
    return Issue("incomplete", f"{test.name} on {where} has no known status", test.name, result.entity, result.host, evidence=words)


def _error_issues(document: Document, test: Test, result: Result, exit_code: int | None) -> list[Issue]:
    """Status and errors of one result decide its class."""
    if result.status == PASS:
        classes = [(class_of_pass(error), error) for error in result.errors]
        return [issue_of(outcome, test, result, error) for outcome, error in classes if outcome]
    errors = result.errors or [Error("")]
    if result.status == WARN or (document.generation in _V3_JSON and exit_code == 0):
        # The JSON of 3.x prints an internal warning as "Fail"; its exit status counts real failures only.
        return [issue_of(class_of_warning(error), test, result, error) for error in errors]
    return [issue_of(class_of_fail(test, error), test, result, error) for error in errors]


# --- what was asked for and not proven ---------------------------------------------------------------------------


def _missing_gpus(document: Document, context: Context) -> list[Issue]:
    """GPUs the node offers that the document does not list: gone, however good the others are."""
    expected = _asked(context.get("expected_gpus"))
    issues: list[Issue] = []
    if not expected or document.generation in _NO_TESTS:
        return issues
    for host, listed in (document.gpus or {None: set()}).items():
        gpus = listed | {r.entity for test in document.tests for r in test.results if is_gpu(r.entity) and host in (None, r.host)}
        if not gpus or (len(gpus) < expected and not document.complete):
            issues.append(Issue("incomplete", f"{expected} GPUs are expected, the document names {len(gpus) or 'none'}", host=host))
        elif len(gpus) < expected:
            message = f"{expected - len(gpus)} of {expected} GPUs missing: the diagnostic lists {', '.join(natural(gpus))}"
            advice = "Look for a GPU that fell off the bus: kernel log, lspci; reboot the node."
            issues.append(Issue("hardware_fail", message, entity=f"missing:{expected - len(gpus)}", host=host, advice=advice))
    return issues


def _missing_hosts(document: Document, context: Context) -> list[Issue]:
    """Nodes of the group that left no log, or that a diagnostic of several hosts does not list."""
    wanted = len(context.get("nodes") or [])
    if document.generation == "mndiag":
        lacks = wanted > len(document.gpus)
        return [Issue("incomplete", f"{len(document.gpus)} of {wanted} hosts are in the document")] if lacks else []
    logs = context.get("logs", wanted)
    return [Issue("incomplete", f"{logs} of {wanted} nodes left a log")] if logs < wanted else []


def _coverage(document: Document, context: Context) -> list[Issue]:
    """Tests absent, skipped, cut short or without a result for a GPU."""
    issues: list[Issue] = []
    required = required_tests(context)
    for name in required:
        wanted = codes.canonical_test(name)
        found = [test for test in document.tests if codes.canonical_test(test.name) == wanted]
        if not found:
            issues.append(Issue("incomplete", f"required test {name} is not in the document", name))
        lacking = set(range(1, (document.iterations or 0) + 1)) - {test.iteration for test in found}
        if found and lacking:
            issues.append(Issue("incomplete", f"required test {name} is not in iteration {min(lacking)}", name))
        for test in found:
            issues.extend(_skipped(document, test, required=True))
    if not required and all(test.status in (SKIP, NOT_RUN) for test in document.tests):
        issues.append(Issue("incomplete", "every test was skipped: nothing was proven"))
        issues.extend(issue for test in document.tests for issue in _skipped(document, test, required=False))
    for test in document.tests:
        if test.status == NOT_RUN and not test.results and test.mpi_error is None:
            issues.append(Issue("incomplete", f"{test.name} did not run", test.name))
        issues.extend(_uncounted(document, test, context))
    asked = _asked(context.get("iterations"))
    if (document.iterations or 1) < asked:
        issues.append(Issue("incomplete", f"{document.iterations or 1} of {asked} iterations ran"))
    return issues


def _uncounted(document: Document, test: Test, context: Context) -> list[Issue]:
    """A test that says something of single GPUs says it of each that the document lists, or that is expected."""
    issues = []
    for host, listed in document.gpus.items():
        tested = {result.entity for result in test.results if is_gpu(result.entity) and (host is None or result.host == host)}
        # A table of 3.x lists nobody for `Pass - All`; its JSON leaves out GPUs that were not asked for.
        known = len(listed) if not document.generation.startswith(("v3_legacy", "v3_iterations")) and document.generation != "v3" else 0
        wanted = max(known, _asked(context.get("expected_gpus")))
        if tested and len(tested) < wanted:
            message = f"{test.name} has results for {len(tested)} of {wanted} GPUs: {', '.join(natural(tested))}"
            issues.append(Issue("incomplete", message, test.name, host=host))
    return issues


def _skipped(document: Document, test: Test, *, required: bool) -> list[Issue]:
    info = [*test.info, *(line for result in test.results for line in result.info), *(e.text for e in test.errors)]
    skipped = {result.entity for result in test.results if result.status == SKIP}
    if test.status == SKIP or skipped:
        if any(_MIG.search(line) for line in info):
            advice = "Switch MIG off, or leave these nodes out: diagnostics need whole GPUs."
            return [Issue("setup_error", f"{test.name} was skipped: MIG is on", test.name, advice=advice, evidence=tuple(info[:3]))]
        if not required:
            return []
        where = "" if test.status == SKIP else f" on {', '.join(natural(name or 'the node' for name in skipped))}"
        return [Issue("incomplete", f"required test {test.name} was skipped{where}", test.name, evidence=tuple(info[:3]))]
    # The deployment checks may speak for the node as a whole; a hardware test must name every GPU.
    tested = {result.entity for result in test.results}
    silent = document.gpus.get(None, set()) - {name for name in tested if name}
    if required and silent and any(name and name.startswith("GPU") for name in tested):
        return [Issue("incomplete", f"required test {test.name} has no result for {', '.join(natural(silent))}", test.name)]
    return []


def _asked(number: t.Any) -> int:
    """How many the caller wants; 0 when nobody said."""
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 0
