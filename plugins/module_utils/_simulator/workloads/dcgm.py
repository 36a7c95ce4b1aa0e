# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""`dcgmi diag … --json` as DCGM 4.x prints it: every test of the level passes, except where a planted fault says otherwise.

A node that corrupts data fails `memory`, a slow node `targeted_power`, both on GPU 5 or the last one. Without `--json`
nothing is simulated.
"""

from __future__ import annotations

import json
import typing as t
from collections.abc import Iterator, Sequence

from ..hardware.nodes import Node
from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context, gpus_of

_VERSION = "4.5.2"
_Test: t.TypeAlias = tuple[int, str, str]
# (lowest level, category, test), in the order of the document
_TESTS: tuple[_Test, ...] = (
    (1, "Deployment", "software"),
    (2, "Hardware", "memory"),
    (3, "Hardware", "diagnostic"),
    (3, "Hardware", "nvbandwidth"),
    (4, "Hardware", "memtest"),
    (4, "Hardware", "pulse_test"),
    (2, "Integration", "pcie"),
    (3, "Stress", "memory_bandwidth"),
    (3, "Stress", "targeted_stress"),
    (3, "Stress", "targeted_power"),
)
_SECONDS_ALONE = {
    "software": 4.0, "memory": 60.0, "pcie": 60.0, "diagnostic": 300.0, "nvbandwidth": 60.0, "memtest": 600.0, "pulse_test": 300.0,
    "memory_bandwidth": 60.0, "targeted_stress": 300.0, "targeted_power": 300.0,
}  # fmt: skip
_SECONDS = {1: 4.0, 2: 120.0, 3: 1200.0, 4: 5400.0}
_LEVELS = {"r1": 1, "short": 1, "medium": 2, "long": 3, "xlong": 4, "production_testing": 3}
_ISOLATE, _ERROR = 205, 226


class _Failure(t.NamedTuple):
    """One failing test: DCGM's error record and the exit code that follows."""

    test: str
    error: dict[str, t.Any]
    exit_code: int


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that runs dcgmi diag with JSON output; None for others."""
    calls = [command for command in shell.commands_of(context.text) if shell.basename(command[0]) == "dcgmi"]
    words = next((command for command in calls if "diag" in command), [])
    if not {"-j", "--json"} & set(words):
        return None
    outcome = Outcome(lines=())
    asked = _asked(words)
    named = [name for name in asked.split(",") if name in _SECONDS_ALONE]
    level = 4 if named else _LEVELS.get(asked, int(asked) if asked.isdigit() and 1 <= int(asked) <= 4 else 1)
    tests = [row for row in _TESTS if (row[2] in named if named else row[0] <= level)]
    seconds = sum(_SECONDS_ALONE[name] for name in named) if named else _SECONDS[level]
    outcome.lines = _lines(context, outcome, tests, seconds)
    return outcome


def _asked(words: Sequence[str]) -> str:
    """What --run names: a level, or tests joined by commas."""
    for index, word in enumerate(words):
        name, _mark, value = word.partition("=")
        if name in ("-r", "--run"):
            return value or (words[index + 1] if index + 1 < len(words) else "")
    return ""


def _lines(context: Context, outcome: Outcome, tests: Sequence[_Test], seconds: float) -> Iterator[LogLine]:
    gpus = gpus_of(context.pod)
    if context.node is None or gpus == 0:
        error = "Error: unable to find any GPU on the host. Return: (-14) : No data is available"
        yield LogLine(1.0, json.dumps({"DCGM Diagnostic": {"runtime_error": error, "version": _VERSION}}, indent=3))
        outcome.exit_code = 242
        return
    names = {test[2] for test in tests}
    failures = [failure for failure in _failures(context.node, min(5, gpus - 1)) if failure.test in names]
    text = json.dumps(_document(context, tests, gpus, failures), indent=3)
    yield from (LogLine(seconds, line) for line in text.splitlines())
    outcome.exit_code = max((failure.exit_code for failure in failures), key=lambda code: code == _ISOLATE, default=0)


def _failures(node: Node, gpu: int) -> list[_Failure]:
    found = []
    if any(fault.corrupts() for fault in node.faults):
        text = f"A memory test detected 4 faulty memory locations on GPU {gpu}"
        found.append(_Failure("memory", {"error_category": 10, "error_id": 52, "error_severity": 2, "warning": text}, _ISOLATE))
    if any(fault.kind == "node_slow" for fault in node.faults):
        text = f"Max power of 412.3 W did not reach the desired 525.0 W on GPU {gpu}"
        found.append(_Failure("targeted_power", {"error_category": 14, "error_id": 63, "error_severity": 4, "warning": text}, _ERROR))
    return found


def _document(context: Context, tests: Sequence[_Test], gpus: int, failures: Sequence[_Failure]) -> dict[str, t.Any]:
    bad = min(5, gpus - 1)
    categories: dict[str, list[dict[str, t.Any]]] = {}
    for test in tests:
        category, name = test[1:]
        errors = [failure.error for failure in failures if failure.test == name]
        results = [_result(gpu, errors if gpu == bad else []) for gpu in range(gpus)]
        summary: dict[str, t.Any] = {"status": "Fail", "warnings": errors} if errors else {"status": "Pass"}
        categories.setdefault(category, []).append({"name": name, "results": results, "test_summary": summary})
    entities = [{"device_id": "2330", "entity_id": gpu, "serial_num": _serial(context, gpu)} for gpu in range(gpus)]
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": name, "tests": tests} for name, tests in categories.items()]},
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": context.hardware.definition.software.driver, "version": _VERSION},
    }


def _result(gpu: int, errors: Sequence[dict[str, t.Any]]) -> dict[str, t.Any]:
    result: dict[str, t.Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": "Fail" if errors else "Pass"}
    return {**result, "warnings": list(errors)} if errors else result


def _serial(context: Context, gpu: int) -> str:
    return f"165{context.hardware.chance('serial', context.pod.node, gpu).randrange(10**10):010d}"
