# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a program writes, as its launcher passes it on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..hardware.seam import LogLine
from .launcher_recap import is_debug
from .mpirun import Style


class Console:
    """Makes log lines of texts.

    now:        simulated seconds since the container started; the program moves it on.
    tag_output: the launcher marks each line with its rank and stream.
    result:     the lines that belong to the result, which a wrapper would copy to the termination message.
    debug:      the debug output of ranks, when it goes to files; None when it goes to the log.
    """

    def __init__(self, style: Style) -> None:
        self.now = 0.0
        self.tag_output = False
        self.result: list[str] = []
        self.debug: list[str] | None = None
        self._style = style

    def say(self, texts: Iterable[str], stream: str = "stdout", rank: int | None = None) -> Iterator[LogLine]:
        """Lines of one rank; rank None: of the launcher."""
        for text in texts:
            tag = self._style.tag(rank, stream) if rank is not None and self.tag_output else ""
            yield LogLine(self.now, f"{tag}{text}", stream)

    def say_ranks(self, lines: Iterable[tuple[int, str]]) -> Iterator[LogLine]:
        """(rank, text) of several ranks."""
        for rank, text in lines:
            if self.debug is not None and is_debug(text):
                self.debug.append(text)
            else:
                yield from self.say([text], rank=rank)

    def say_result(self, texts: Iterable[str]) -> Iterator[LogLine]:
        """Lines of rank 0 that belong to the result."""
        for text in texts:
            self.result.append(text)
            yield from self.say([text], rank=0)
