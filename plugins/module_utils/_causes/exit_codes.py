# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What exit codes mean: of any container, of the tools, of nccl-tests. DCGM's return values have a table of their own (`dcgm_exits`).

A code answers two questions: why the attempt ended (`reason`), and what that makes of the log it left (`log_reason`): a program
killed half way leaves an incomplete log, whoever killed it.
"""

from __future__ import annotations

import typing as t


class Exit(t.NamedTuple):
    """One exit code: the reason of the attempt, the reason of its log, and words for people."""

    reason: str
    log_reason: str
    text: str


def _killed(text: str, code: int) -> Exit:
    return Exit("WorkloadFailed", "LogIncomplete", f"{text} (exit {code})")


# 128 + n is signal n. Source: POSIX shells, coreutils timeout (124), the OCI runtimes (126 to 128).
EXITS: dict[int, Exit] = {
    124: Exit("TimedOut", "TimedOut", "the program was stopped by its time limit (exit 124)"),
    126: Exit("SetupError", "SetupError", "the program could not be executed (exit 126)"),
    127: Exit("SetupError", "SetupError", "the program was not found in the image (exit 127)"),
    128: Exit("SetupError", "SetupError", "the container could not start its program (exit 128)"),
    129: _killed("the program lost its terminal", 129),
    130: _killed("the program was interrupted", 130),
    131: _killed("the program was told to quit", 131),
    134: Exit("WorkloadFailed", "WorkloadFailed", "the program aborted (exit 134, SIGABRT)"),
    135: Exit("WorkloadFailed", "WorkloadFailed", "the program hit a bus error (exit 135, SIGBUS)"),
    136: Exit("WorkloadFailed", "WorkloadFailed", "the program hit an arithmetic error (exit 136, SIGFPE)"),
    137: _killed("the program was killed by SIGKILL and the API does not say by whom", 137),
    139: Exit("WorkloadFailed", "WorkloadFailed", "the program crashed (exit 139, SIGSEGV)"),
    143: _killed("the program was told to end by SIGTERM", 143),
}
# KILL, TERM: what the other pods of a group show when one of them has failed.
KILLED = (137, 143)

# What nccl-tests itself returns. 4: its own time limit, from version 2.12 on; before, a failed call.
NCCL_TESTS_TIMEOUT = 4
NCCL_TESTS_TIMEOUT_SINCE = (2, 12)
# Asked for what it cannot do, with or without rows before it: no node is at fault.
NCCL_TESTS_REFUSED = frozenset({5, 6})
# What launchers return when they could not start the program; after the first row it is the program's own.
LAUNCHERS_REFUSAL = 255


def exit_of(code: int | None) -> Exit | None:
    """The row of an exit code; None for 0, when it is not known, and for a code that says no more than "failed"."""
    return EXITS.get(code) if code else None


def log_reason_of(code: int | None) -> str | None:
    """What an exit code makes of the log it left; None for 0 and when it is not known."""
    if not code:
        return None
    known = EXITS.get(code)
    return known.log_reason if known else "WorkloadFailed"
