# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Each invariant breaks when it should, and on nothing else: a matrix that cannot fail proves nothing."""

from __future__ import annotations

import typing as t

import pytest

from .cells import NODES, SICK, Cell
from .faults import Fault
from .invariants import INVARIANTS, broken

HEALTHY_ONCE = Cell("healthy", Fault("list", "pods", "503"))
SICK_EVER = Cell("sick", Fault("list", "pods", "403", forever=True))
GOOD: dict[str, t.Any] = {
    "hits": 1, "most_spoilt_in_10_s": 1, "foreign_writes": [], "status": 0, "seconds": 9.0, "left": [], "runs": 1, "reports": 1,
    "verdict": "passed", "nodes": dict.fromkeys(NODES, "passed"), "reasons": {}, "cleanup": {"proven": True, "left": []},
    "told": "", "output": "",
}  # fmt: skip
FAILED = {**GOOD, "status": 2, "verdict": "failed", "nodes": dict.fromkeys(NODES, "suspect")}
REFUSED = {
    **GOOD, "status": 2, "verdict": "error", "nodes": dict.fromkeys(NODES, "untested"), "reasons": {SICK: ["Forbidden"]},
    "told": 'pods is forbidden: User "readiness" cannot list resource "pods" (planted)',
}  # fmt: skip
UNPROVEN = {"cleanup": {"proven": False, "left": ["job/x"]}}

# invariant, cell, a row that keeps all of them, and what about it breaks this one
CASES: list[tuple[str, Cell, dict[str, t.Any], dict[str, t.Any]]] = [
    ("never passed unproven", SICK_EVER, FAILED, {"nodes": {**FAILED["nodes"], SICK: "passed"}, "told": "(planted)"}),
    ("never passed unproven", SICK_EVER, REFUSED, {"verdict": "passed", "status": 0}),
    ("never passed unproven", HEALTHY_ONCE, GOOD, {"nodes": {}, "hits": 0}),
    ("nobody innocent accused", HEALTHY_ONCE, GOOD, {"nodes": {**GOOD["nodes"], NODES[0]: "suspect"}, "hits": 0}),
    ("nobody innocent accused", SICK_EVER, REFUSED, {"nodes": {**REFUSED["nodes"], NODES[0]: "failed"}}),
    ("one passing fault survived", HEALTHY_ONCE, GOOD, {**REFUSED, "told": "the server is currently unable (planted)"}),
    ("right reason", SICK_EVER, REFUSED, {"reasons": {SICK: ["AdmissionDenied"]}}),
    ("right reason", SICK_EVER, REFUSED, {"told": "the log is empty"}),
    ("bounded", SICK_EVER, REFUSED, {"status": None}),
    ("bounded", SICK_EVER, REFUSED, {"seconds": 700.0}),
    ("not held up by one fault", HEALTHY_ONCE, GOOD, {"output": "the deadline of the run (bounds.deadline_s) has passed"}),
    ("no defect shown", SICK_EVER, REFUSED, {"output": "internal error at x.py:1"}),
    ("no defect shown", SICK_EVER, REFUSED, {"output": "Traceback (most recent call last)"}),
    ("reported", SICK_EVER, REFUSED, {"reports": 0}),
    ("nothing left unsaid", SICK_EVER, REFUSED, {"left": ["jobs/x"]}),
    ("nothing left unsaid", HEALTHY_ONCE, GOOD, UNPROVEN),
    ("only our objects written", SICK_EVER, REFUSED, {"foreign_writes": ["patch nodes"]}),
    ("no loop without a pause", SICK_EVER, REFUSED, {"most_spoilt_in_10_s": 900}),
]


@pytest.mark.parametrize(("name", "cell", "row", "change"), CASES, ids=[f"{case[0]} {index}" for index, case in enumerate(CASES)])
def test_an_invariant_breaks_on_what_it_forbids_and_on_nothing_else(
    name: str, cell: Cell, row: dict[str, t.Any], change: dict[str, t.Any]
) -> None:
    assert broken(row, cell) == []
    assert broken({**row, **change}, cell) == [name]


def test_every_invariant_is_tried() -> None:
    assert {case[0] for case in CASES} == set(INVARIANTS)


def test_objects_that_are_left_and_said_break_nothing() -> None:
    assert broken({**REFUSED, **UNPROVEN, "left": ["jobs/x"]}, SICK_EVER) == []
