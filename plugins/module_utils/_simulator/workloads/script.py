# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Plain shell scripts: echo, sleep, true, false, exit, joined by ; && and ||. Every other command succeeds at once.

Bodies of if, for, while, case and functions are skipped, for their conditions cannot be known; `while true` and `tail -f` run for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context

_OPENING = ("if", "for", "while", "until", "case", "{")
_CLOSING = ("fi", "done", "esac", "}")
_JOINTS = (";", "&&", "||", "|", "&", ";;")


def run(context: Context) -> Outcome:
    """The outcome of a script in which no simulated program was found."""
    outcome = Outcome(lines=())
    outcome.lines = _lines(context, outcome)
    return outcome


def _steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """(operator before it, words) of each simple command."""
    for line in text.splitlines():
        joint = ";"
        words: list[str] = []
        for word in shell.tokens(line):
            if word in _JOINTS:
                yield joint, words
                joint, words = word, []
            else:
                words.append(word)
        yield joint, words


def _lines(context: Context, outcome: Outcome) -> Iterator[LogLine]:
    now, status, depth = 0.0, 0, 0
    for joint, words in _steps(context.text):
        if not words:
            continue
        head = words[0]
        depth += sum(1 for word in words if word in _OPENING) - sum(1 for word in words if word in _CLOSING)
        if head == "while" and words[1:2] in (["true"], [":"]):
            outcome.duration_s = None
            return
        if depth > 0 or head in (*_OPENING, *_CLOSING) or (joint == "&&" and status) or (joint == "||" and not status) or joint == "|":
            continue
        command, arguments = _plain(words)
        if command == "echo":
            shown = [word for word in arguments if word not in ("-n", "-e")]
            if ">" not in "".join(shown):
                yield LogLine(now, " ".join(shown))
            status = 0
        elif command == "sleep":
            seconds = _seconds(arguments)
            if math.isinf(seconds):
                outcome.duration_s = None
                return
            now += seconds
            yield LogLine(now, None)
            status = 0
        elif command == "tail" and "-f" in arguments:
            outcome.duration_s = None
            return
        elif command == "exit":
            status = int(arguments[0]) if arguments and arguments[0].isdigit() else status
            break
        else:
            status = 1 if command == "false" else 0
    outcome.exit_code, outcome.duration_s = status % 256, now


def _plain(words: list[str]) -> tuple[str, list[str]]:
    """Command and arguments without `exec`, `command` and variable settings in front."""
    while words and (words[0] in ("exec", "command", "then", "do", "!") or ("=" in words[0] and words[0].split("=")[0].isidentifier())):
        words = words[1:]
    return (shell.basename(words[0]), words[1:]) if words else ("", [])


def _seconds(arguments: list[str]) -> float:
    if arguments[:1] == ["infinity"] or arguments[:1] == ["inf"]:
        return math.inf
    return sum(shell.duration(word) or 0.0 for word in arguments)
