# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What holds in every cell, whatever the API does. Each invariant has a name, by which the tables count."""

from __future__ import annotations

import re
import typing as t

from .cells import LISTS, NODES, SHAPES, SICK, Cell
from .trial import BOUNDS, MARGIN_S

Row = t.Mapping[str, t.Any]

# How a run tells of a fault: in the API's words where it has any.
NOT_ASKED = r"the answer of \S+ is no "
NO_ANSWER = r"no answer|reset by peer|Connection aborted"
WORDS = {
    "reset": NO_ANSWER,
    "hang": rf"{NO_ANSWER}|timed out|not read within|deadline",
    "cut": rf"{NO_ANSWER}|IncompleteRead|Connection broken|broken off",
    **dict.fromkeys(("truncated", "garbage", "emptybody", "list"), NOT_ASKED),
    **dict.fromkeys(SHAPES + LISTS, rf"{NOT_ASKED}|not as the API|no GPU node"),
    **dict.fromkeys(("wclose", "wsilent", "wgarbage", "wnull", "wdrop"), r"watch"),
}
PLANTED = r"\(planted\)"
# No fault of these is a launcher's, or a policy's that looks at pods.
NEVER = {"AdmissionDenied", "LauncherFailed", "DeviceRejected", "NodeLost", "ImagePull"}
DEFECT = r"Traceback \(most recent call last\)|internal error|defect of the collection|Exception in thread|probably a bug"
# Spoilt requests in ten seconds: more is a loop without a pause. A preflight asks for thirty permissions at once.
MANY = 60


def broken(row: Row, cell: Cell) -> list[str]:
    """The names of the invariants that do not hold."""
    return [name for name, holds in INVARIANTS.items() if not holds(row, cell)]


def is_undisturbed(row: Row, world: str) -> bool:
    """Whether a run ended as if nothing had happened. With a sick node that is not searched for, all members of a group are suspect."""
    verdict, status, node = ("passed", 0, "passed") if world == "healthy" else ("failed", 2, "suspect")
    return bool((row["verdict"], row["status"], row["nodes"]) == (verdict, status, dict.fromkeys(NODES, node)))


def _never_passed_unproven(row: Row, cell: Cell) -> bool:
    if cell.world != "healthy" and ("passed" in (row["verdict"], row["nodes"].get(SICK)) or row["status"] == 0):
        return False
    passed = row["verdict"] == "passed"
    return passed == (row["status"] == 0) and (not passed or set(row["nodes"]) == set(NODES))


def _nobody_innocent_accused(row: Row, cell: Cell) -> bool:
    accused = {name for name, verdict in row["nodes"].items() if verdict in ("failed", "suspect")}
    if cell.world == "healthy":
        return not accused
    return {name for name in accused if row["nodes"][name] == "failed"} <= {SICK}


def _survived(row: Row, cell: Cell) -> bool:
    return not row["hits"] or not cell.must_survive or is_undisturbed(row, cell.world)


def _right_reason(row: Row, cell: Cell) -> bool:
    if not row["hits"] or is_undisturbed(row, cell.world):
        return True
    reasons = {reason for found in row["reasons"].values() for reason in found}
    told = row["told"] or row["output"]
    kind = cell.fault.kind.removeprefix("after:")
    return not reasons & NEVER and bool(re.search(WORDS.get(kind, PLANTED), told))


def _bounded(row: Row, cell: Cell) -> bool:
    return row["status"] is not None and row["seconds"] <= BOUNDS["deadline_s"] + MARGIN_S


def _prompt(row: Row, cell: Cell) -> bool:
    """One fault does not hold a run up until its deadline."""
    return cell.fault.forever or "deadline_s) has passed" not in row["told"] + row["output"]


def _no_defect(row: Row, cell: Cell) -> bool:
    return not re.search(DEFECT, row["output"] + row["told"])


def _reported(row: Row, cell: Cell) -> bool:
    return bool(row["runs"] == row["reports"])


def _nothing_left_unsaid(row: Row, cell: Cell) -> bool:
    proven = row["cleanup"]["proven"] if row["cleanup"] else None
    if row["left"]:
        return proven is not True and row["status"] != 0
    return proven is not False or row["status"] != 0


def _only_ours_written(row: Row, cell: Cell) -> bool:
    return not row["foreign_writes"]


def _no_hot_loop(row: Row, cell: Cell) -> bool:
    return bool(row["most_spoilt_in_10_s"] <= MANY)


INVARIANTS: dict[str, t.Callable[[Row, Cell], bool]] = {
    "never passed unproven": _never_passed_unproven,
    "nobody innocent accused": _nobody_innocent_accused,
    "one passing fault survived": _survived,
    "right reason": _right_reason,
    "bounded": _bounded,
    "not held up by one fault": _prompt,
    "no defect shown": _no_defect,
    "reported": _reported,
    "nothing left unsaid": _nothing_left_unsaid,
    "only our objects written": _only_ours_written,
    "no loop without a pause": _no_hot_loop,
}
