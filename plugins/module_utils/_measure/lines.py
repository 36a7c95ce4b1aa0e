# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Cleaned logs for the readers of this room: line by line, or as one text for formats that are one document."""

from __future__ import annotations

import typing as t

from . import prefixes
from .labels import Labels

# A diagnostic document is a few hundred kilobytes at most; what comes after this much is not read.
MAX_TEXT_BYTES = 1 << 26
# A line of the formats that are read line by line is shorter by far; what comes behind this much is not looked at.
MAX_LINE = 1 << 14


class LogLine(t.NamedTuple):
    """One line without prefixes. torn: the file ends inside it, so that its last word may be cut."""

    text: str
    timestamp: str | None = None
    torn: bool = False


def log_lines(path: str, wanted: t.Callable[[str], bool] | None = None, longest: int = MAX_LINE) -> t.Iterator[LogLine]:
    """The lines of a file, without their transport prefixes. Raises InputError when the file cannot be read.

    wanted: a cheap look at a raw line. Lines it refuses are left out, except the first and the last of the file,
    whose times matter: taking prefixes off is most of the work on a log that is full of debug output.
    longest: characters of a line that are kept.
    """
    labels = Labels()
    first = True
    passed_over: str | None = None
    for block in prefixes.read_blocks(path):
        labels.learn(block.text or block.torn or "")
        last = len(block.lines) - 1
        for number, raw in enumerate(block.lines):
            if wanted is not None and not first and not wanted(raw):
                passed_over = raw
                continue
            first, passed_over = False, None
            line = labels.clean(raw[:longest])
            yield LogLine(line.text, line.timestamp, block.open_end and number == last)
    if passed_over is not None:
        line = labels.clean(passed_over[:longest])
        yield LogLine(line.text, line.timestamp)


def lines_of(text: str) -> t.Iterator[LogLine]:
    """The same for a text in memory."""
    ended = text.endswith("\n")
    pieces = [piece for line in text.split("\n") for piece in line.split("\r")]
    last = len(pieces) - 1
    labels = Labels()
    labels.learn(text)
    for number, piece in enumerate(pieces):
        line = labels.clean(piece)
        yield LogLine(line.text, line.timestamp, not ended and number == last)


def read_text(path: str) -> str:
    """A whole file as one cleaned text. Raises InputError when the file cannot be read."""
    kept: list[str] = []
    size = 0
    for line in log_lines(path, longest=prefixes.MAX_LINE_BYTES):
        size += len(line.text) + 1
        if size > MAX_TEXT_BYTES:
            break
        kept.append(line.text)
    return "\n".join(kept)
