# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A section: one run of one test program, as its lines or its document tell it. Nothing is judged here."""

from __future__ import annotations

import posixpath
import re
import typing as t

from . import collectives
from .rows import Row, RowReader

# More ranks than any machine has: a list of devices must not fill the memory.
_MAX_RANKS = 200_000


class Section:
    """One run of one test program."""

    def __init__(self) -> None:
        self.collective: str | None = None
        self.versions: dict[str, t.Any] = {}
        self.config: dict[str, t.Any] = {}
        self.devices: list[tuple[int, int, str, int]] = []  # rank, group, host, pid
        self._ranks: dict[int, tuple[int, str, int]] = {}  # rank -> group, host, pid
        self.mixed: str | None = None  # why the lines must be of several runs
        self.shortened = False  # somebody cut rows out and says so
        self._list_cut = False
        self.table_seen = False
        self.started = False
        self.concluded = False
        self.reader = RowReader()
        self.rows: list[Row] = []
        self.rows_dropped = 0
        self.sections_dropped = 0  # runs before this one that were not kept
        self.out_of_bounds: int | None = None
        self.out_of_bounds_word: str | None = None
        self.average_seen = False
        self.average: float | None = None
        self.min_bandwidth: str = "unchecked"
        self.error_text: str | None = None
        self.skipped: str | None = None
        self.failures: list[dict[str, t.Any]] = []
        self.ib_errors: list[dict[str, t.Any]] = []
        self.link_events: dict[tuple[str | None, str], list[str]] = {}  # (host, adapter) -> lines
        self.setup: dict[str, t.Any] = {}
        self.setup_faults: dict[str, str] = {}  # words -> line
        self.version_mismatch: dict[str, int] = {}
        self.watchdog: tuple[str, int] | None = None
        self.unfinished_size: int | None = None
        self.call_chain_host: str | None = None
        self.exit_rank: int | None = None
        self.exit_host: str | None = None
        self.exit_signal: int | None = None
        self.said_exit_code: int | None = None
        self.config_notes: list[str] = []
        self.warnings: list[str] = []
        self.partial_last_line = False
        self.source = "text"
        self.document: dict[str, t.Any] = {}

    @property
    def footer_complete(self) -> bool:
        return self.out_of_bounds_word is not None and self.average_seen

    @property
    def untouched(self) -> bool:
        return not (self.started or self.config or self.devices or self.table_seen or self.rows or self.footer_complete)

    @property
    def only_named(self) -> bool:
        """Whether nothing but the name of the program is known: the same name again was logged twice."""
        return self.started and not (self.config or self.devices or self.table_seen or self.rows or self.footer_complete or self.failures)

    def add_device(self, rank: int, group: int, host: str, pid: int, *, cut: bool = False) -> None:
        """One line of the device list; a line that was logged twice counts once. cut: the list ends here."""
        self._list_cut = self._list_cut or cut
        known = self._ranks.get(rank)
        if known is not None and known != (group, host, pid):
            self.mixed = self.mixed or f"rank {rank} is listed twice, on {known[1]} and on {host}"
        if known is None and len(self._ranks) < _MAX_RANKS:
            self._ranks[rank] = (group, host, pid)
            self.devices.append((rank, group, host, pid))

    @property
    def devices_cut(self) -> bool:
        """Whether ranks are missing from the list: it does not fit its buffer, or lines of the log are lost.

        Every process lists as many devices as it has threads times GPUs.
        """
        if not self._ranks:
            return self._list_cut
        each = self.config.get("gpus", 1) * self.config.get("threads", 1)
        return self._list_cut or max(self._ranks) + 1 != len(self._ranks) or bool(each and len(self._ranks) % each)

    @property
    def elided_ranks(self) -> int | None:
        """Ranks of a list with a gap inside: its last line is there, and it names the highest. None when its end is cut."""
        return None if self._list_cut or not self._ranks else max(self._ranks) + 1

    @property
    def hosts(self) -> dict[str, int]:
        """Listed ranks of every host."""
        found: dict[str, int] = {}
        for _rank, _group, host, _pid in self.devices:
            found[host] = found.get(host, 0) + 1
        return found

    def printed_group(self) -> list[tuple[int, int, str, int]]:
        """The devices of the group whose rows are printed: rank 0's."""
        if not self.devices:
            return []
        group = min(self.devices)[1]
        return [device for device in self.devices if device[1] == group]


def collective_of(program: str) -> str | None:
    """all_reduce for /opt/all_reduce_perf_mpi; None when the name is none of a collective."""
    name = re.sub(r"_perf.*$", "", posixpath.basename(program.replace("\\", "")))
    return name if name in collectives.COLLECTIVES else None
