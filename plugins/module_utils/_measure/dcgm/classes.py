# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The class of one thing that a diagnostic said: hardware, a setting, something busy, or nothing proven.

Hardware is convicted by what the table of evidence calls hardware. A code that asks for isolation or a reset decides by itself;
a code that only says which call failed is read together with its words.
"""

from __future__ import annotations

import dataclasses

from ..._catalog.load import shipped_evidence
from ..._causes.evidence import Said
from . import codes
from .documents import Error, Result, Test

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

# What a class of the table of evidence means for a test that failed.
_OF_EVIDENCE = {
    "hardware": "hardware_fail",
    "configuration": "config_fail",
    "setup": "setup_error",
    "monitoring": "setup_error",
    "busy": "busy",
    "inconclusive": "inconclusive",
    "application": "inconclusive",
    "note": "warn",
}
_RESET = "reset"
# Severities by which DCGM itself says that this device is not to be used.
_BY_ITSELF = ("isolate", _RESET)


@dataclasses.dataclass
class Issue:
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
        """The place of its class, worst first."""
        return CLASSES.index(self.outcome)


def class_of_fail(test: Test, error: Error) -> str:
    """Rule 7.5c: code, words and severity of a failure decide its class; a failure that says nothing of itself is hardware."""
    by_code = shipped_evidence().dcgm(error.code, error.severity)
    if by_code and by_code.convicts and severity_name(error) in _BY_ITSELF:
        return "hardware_reset" if severity_name(error) == _RESET else "hardware_fail"
    words = words_of(error)
    if words and not (words.kind == "note" or words.convicts):
        return _OF_EVIDENCE[words.kind]
    said = words if words and words.convicts else shipped_evidence().of_xids(error.text) or by_code
    if said and said.kind in _OF_EVIDENCE:
        return _OF_EVIDENCE[said.kind]
    return "config_fail" if not error.code and _checks_settings(test, error) else "hardware_fail"


def class_of_warning(error: Error) -> str:
    """A warning is a note, unless it says that the test could not be done, or DCGM asks to take the device away."""
    by_code = shipped_evidence().dcgm(error.code, error.severity)
    words = words_of(error)
    if words and words.kind in ("setup", "monitoring", "busy", "inconclusive"):
        return _OF_EVIDENCE[words.kind]
    if (words and words.convicts) or (by_code and by_code.convicts and severity_name(error) in _BY_ITSELF):
        return "inconclusive"
    return "warn"


def class_of_pass(error: Error) -> str | None:
    """A pass with an error record: something disturbed the test. Words without a code are notes, unless they speak of hardware."""
    words = words_of(error)
    if error.code in (None, 0) and error.severity in (None, 0):
        return "inconclusive" if words and words.convicts else None
    return "warn" if severity_name(error) == "monitor" else "inconclusive"


def words_of(error: Error) -> Said | None:
    """What the words of an error say by the table of evidence."""
    return shipped_evidence().words(error.text) if error.text else None


def severity_name(error: Error) -> str | None:
    """The word of an error's severity: as it stands there, else that of its code."""
    own = codes.severity_name(error.severity)
    return own if own not in (None, "unknown") else codes.severity_name(codes.severity_of(error.code))


def _checks_settings(test: Test, error: Error) -> bool:
    """Whether a failure is about settings: 4.x folds these checks into one test and names them before the message."""
    names = (test.name, error.text.partition(":")[0])
    return any(name.strip().lower() in codes.SETTINGS_SUBTESTS for name in names)


def issue_of(outcome: str, test: Test, result: Result, error: Error) -> Issue:
    """The issue of one error of one result."""
    severity = error.severity if codes.severity_name(error.severity) else codes.severity_of(error.code)
    where = " ".join(part for part in (result.host, result.entity) if part) or "the node"
    name = shipped_evidence().dcgm_title(error.code)
    code = f"code {error.code}{f', {name}' if name else ''}" if error.code else "no code"
    text = f": {error.text}" if error.text else ""
    words = words_of(error)
    decided = words is not None and _OF_EVIDENCE.get(words.kind) == outcome and bool(words.advice)
    return Issue(
        outcome,
        f"{test.name} on {where}: {result.status} ({code}){text}",
        test.name,
        result.entity,
        result.host,
        error.code,
        severity,
        words.advice if words and decided else codes.advice(error.code, severity),
        "high" if error.code and error.severity is not None else "low",
        (error.text,) if error.text else (),
    )
