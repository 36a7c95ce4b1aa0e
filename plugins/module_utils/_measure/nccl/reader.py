# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the text of one or several nccl-tests logs into sections."""

from __future__ import annotations

import itertools
import math
import operator
import re
import typing as t

from .. import prefixes
from ..labels import Labels
from . import failures, transport
from .debug_lines import INTERESTING
from .rows import is_titles, read_titles
from .sections import Section, collective_of

# Rows kept of one section; an endless repetition (-N 0) must not fill the memory.
MAX_ROWS = 50_000
MAX_SECTIONS = 1_000
# NCCL cuts its lines at 1 KiB and a row is shorter still: what comes behind this much is no text of either.
_LONGEST = 4096
_VERSION = re.compile(r"nccl-tests version (\S+)(?: \(([^)]*)\))?(?: nccl-headers=(\d{1,18}))?(?: nccl-library=(\d{1,18}))?")
_PROGRAM = re.compile(r"Collective test (starting|concluded): (\S+)")
_DEVICE = re.compile(r"Rank +(\d{1,18})(?: +Group +(\d{1,18}))? +Pid +(\d{1,18}) +on +(\S+) +device +(\d{1,18}) +\[([^\]]*)\] *(.*)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d{1,18})(?!\d)")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values *: *(\d{1,18}) +(OK|FAILED)")
_AVERAGE = re.compile(r"Avg bus bandwidth *: *(-?(?:nan|inf|\d{1,20}(?:\.\d{0,20})?(?:e[+-]?\d{1,3})?))(?![\d.]) *(OK|FAILED)?")
_CONFIG = {
    "threads": re.compile(r"\bnThread:? (\d{1,18})(?!\d)"),
    "gpus": re.compile(r"\bnGpus:? (\d{1,18})(?!\d)"),
    "min_bytes": re.compile(r"\bminBytes:? (\d{1,18})(?!\d)"),
    "max_bytes": re.compile(r"\bmaxBytes:? (\d{1,18})(?!\d)"),
    "step": re.compile(r"\bstep: (\d{1,18})(?!\d)"),
    "step_mode": re.compile(r"\bstep: \d+\((\w+)\)"),
    "warmup": re.compile(r"\bwarmup iters: (\d{1,18})(?!\d)"),
    "iters": re.compile(r"(?<!warmup )(?<!agg )\biters: (\d{1,18})(?!\d)"),
    "agg_iters": re.compile(r"\bagg iters: (\d{1,18})(?!\d)"),
    "validation": re.compile(r"\bvalidation: (\d{1,18})(?!\d)"),
    "graph": re.compile(r"\bgraph: (\d{1,18})(?!\d)"),
    "unalign": re.compile(r"\bunalign: (\d{1,18})(?!\d)"),
}
_JSON_PATH = re.compile(r"Writing JSON output to (\S+)")

# Marks of a person or a tool that left rows out.
_SHORTENED = re.compile(r"\W{0,8}(?:\.{3}|\u2026|truncated\b|snip\b|omitted\b|lines? (?:omitted|skipped|removed)\b)", re.IGNORECASE)
_UNAVAILABLE = "unable to retrieve container logs for"

# A first look at every debug line, without a call in Python: the third letter tells most noise from what matters.
_THIRD = operator.itemgetter(slice(2, 3))
_MAY_MATTER = frozenset(beginning[2] for beginning in INTERESTING).__contains__


class TextReader:
    """Reads the text of one or several files into sections."""

    def __init__(self) -> None:
        self.transport = transport.Collector()
        self.sections: list[Section] = [Section()]
        self.unavailable = False
        self.empty = True
        self.json_path: str | None = None
        self._hosts: set[str] = set()
        self._config_line = ""
        self._labels = Labels()

    @property
    def section(self) -> Section:
        return self.sections[-1]

    def read(self, path: str) -> None:
        """One file. The last line of a file that does not end in a newline may be torn: its numbers are not used."""
        self._labels = Labels()
        for block in prefixes.read_blocks(path):
            self._labels.learn(block.text or block.torn or "")
            if block.text:
                self.empty = False
                self._block(block.text)
            if block.torn is not None and block.torn.strip():
                self.empty = False
                self._torn_line(block.torn)

    def _block(self, text: str) -> None:
        """Whole lines. Cutting at the mark of debug lines gives `message newline [other lines] head of the next`."""
        pieces = text.split(" NCCL INFO ")
        mixed = text.count("\n") != len(pieces) - 1
        # Inside a table a debug line may be glued to a row; the heads are looked at there only.
        if len(pieces) == 1 or self.section.table_seen or (mixed and "algbw" in text):
            for raw in text.split("\n"):
                self._raw_line(raw)
            return
        known, tail = self.transport.known_tails, transport.TAIL
        flags = map(_MAY_MATTER, map(_THIRD, pieces))
        wanted = [n for n in itertools.compress(range(len(pieces)), flags) if pieces[n][tail : pieces[n].find("\n")] not in known]
        if mixed:
            first, _newline, _head = pieces[0].rpartition("\n")
            for raw in first.split("\n"):
                self._line(raw)
            wanted = sorted({*wanted, *(n for n, piece in enumerate(pieces) if piece.count("\n") > 1)})
        for number in wanted:
            if number:
                self._piece(pieces[number - 1], pieces[number])

    def _piece(self, before: str, piece: str) -> None:
        """A debug message with what follows it; its head ends the piece `before`."""
        message, _newline, rest = piece.partition("\n")
        if message[transport.TAIL :] in self.transport.known_tails:
            pass
        elif message[:8] == "Channel ":
            self.transport.add_channel(before.rpartition("\n")[2][-_LONGEST:], message[:_LONGEST])
        elif message[:5] in INTERESTING:
            self._info(before.rpartition("\n")[2], message)
        if "\n" in rest:
            for raw in rest.split("\n")[:-1]:
                self._line(raw)

    def _raw_line(self, raw: str) -> None:
        """One line inside a table, or of a block without debug lines."""
        head, mark, message = raw.partition(" NCCL INFO ")
        if not mark or "  " in head:
            self._line(raw)
        elif message[:5] in INTERESTING and message[transport.TAIL :] not in self.transport.known_tails:
            self._info(head, message)

    def finish(self) -> list[Section]:
        for section in self.sections:
            section.unfinished_size = section.reader.pending_size
            section.reader.drop_pending()
        sections = [section for section in self.sections if not section.untouched] or self.sections[-1:]
        # Failures printed before the first section belong to it; so does a library version.
        first = self.sections[0]
        if first is not sections[0]:
            sections[0].failures = first.failures + sections[0].failures
            sections[0].setup_faults = first.setup_faults | sections[0].setup_faults
            sections[0].versions = first.versions | sections[0].versions
        return sections

    def _begin_section(self) -> None:
        """A new run begins. Of an endless repetition the last run is kept, and how many were not."""
        if len(self.sections) < MAX_SECTIONS:
            self.sections.append(Section())
        else:
            dropped = self.sections[-1].sections_dropped + 1
            self.sections[-1] = Section()
            self.sections[-1].sections_dropped = dropped

    # --- lines ---

    def _line(self, raw: str) -> None:
        self._text(self._labels.clean(raw[:_LONGEST]).text)

    def _text(self, text: str, *, maybe_row: bool = True) -> None:
        body = text.strip()
        if not body:
            return
        first = body[0]
        if first == "#":
            if not self._comment(body.lstrip("# "), text) and self.section.table_seen and _SHORTENED.match(body):
                self.section.shortened = True
        elif maybe_row and (first.isdigit() or body.startswith("N/A")) and self._row(text):
            return
        elif " NCCL INFO " in text:
            head, _mark, message = text.partition(" NCCL INFO ")
            self._info(head, message)
        elif " NCCL WARN " in text:
            failures.read_warning(self.section, text)
        elif not self._comment(body, text):
            self._other(text, body)

    def _torn_line(self, raw: str) -> None:
        """The unfinished last line: its texts are read, numbers and paths in it are not trusted."""
        section = self.section
        text = self._labels.clean(raw[:_LONGEST]).text
        body = text.strip().lstrip("# ")
        if section.table_seen and not section.footer_complete:
            section.partial_last_line = True
        if body[:1].isdigit():
            _row, foreign = section.reader.feed(text, self._hosts) if "Test timeout" in text else (None, None)
            text = foreign or ""
        # NET/IB/0 may have been NET/IB/0/GDRDMA, and 47 an average of 473.
        if " NCCL INFO " not in text and not body.startswith(("Out of bounds", "Avg bus")):
            self._text(text, maybe_row=False)

    def _row(self, text: str) -> bool:
        """Takes a row, a piece of one, or says no."""
        section = self.section
        before = section.reader.pending_size
        row, foreign = section.reader.feed(text, self._hosts)
        if row is not None:
            if len(section.rows) < MAX_ROWS:
                section.rows.append(row)
            else:
                section.rows_dropped += 1
        if foreign is not None:
            self._text(foreign, maybe_row=False)
        return row is not None or foreign is not None or section.reader.pending_size != before

    def _comment(self, body: str, text: str) -> bool:
        """A line of the program itself; forks leave the # out. False when it is none."""
        reader = self._COMMENTS.get(body.split(" ", 1)[0])
        if reader is None:
            return False
        reader(self, body, text)
        return True

    def _version(self, body: str, text: str) -> None:
        match = _VERSION.match(body)
        if not match:
            return
        if not self.section.untouched:
            self._begin_section()
        number, commit, headers, library = match.groups()
        versions = self.section.versions
        versions["nccl_tests"] = number
        if commit:
            versions["nccl_tests_hash"] = commit
        if headers:
            versions["nccl_headers"] = int(headers)
        if library:
            versions["nccl_library"] = int(library)

    def _program(self, body: str, text: str) -> None:
        match = _PROGRAM.match(body)
        if not match:
            return
        if match.group(1) == "starting":
            if not self.section.untouched and not self.section.only_named:
                self._begin_section()
            self.section.started = True
        else:
            self.section.concluded = True
        named = collective_of(match.group(2))
        if named and self.section.collective not in (None, named):
            self.section.mixed = self.section.mixed or f"{self.section.collective} began, {named} ended"
        self.section.collective = self.section.collective or named

    def _config(self, body: str, text: str) -> None:
        if "minBytes" not in body:
            return
        if body == self._config_line and self.section.config and not (self.section.devices or self.section.table_seen or self.section.rows):
            return  # the line was logged twice
        self._config_line = body
        if self.section.config or self.section.table_seen or self.section.rows:
            self._begin_section()
        for key, pattern in _CONFIG.items():
            match = pattern.search(body)
            if match:
                self.section.config[key] = match.group(1) if key == "step_mode" else int(match.group(1))

    def _device(self, body: str, text: str) -> None:
        match = _DEVICE.match(body)
        if not match:
            return
        rank, group, pid, host = int(match.group(1)), int(match.group(2) or 0), int(match.group(3)), match.group(4)
        self.section.add_device(rank, group, host, pid, cut=match.group(7).endswith("..."))
        self._hosts.add(host)

    def _titles(self, body: str, text: str) -> None:
        if is_titles(body):
            if self.section.rows or self.section.reader.pending_size is not None:
                self.section.mixed = self.section.mixed or "a second table begins before the first has ended"
            self.section.table_seen = True
            self.section.reader.titles = read_titles(text)

    def _memory_limit(self, body: str, text: str) -> None:
        match = _REDUCED.match(body)
        if match:
            self.section.config["effective_max_bytes"] = int(match.group(1))

    def _footer_bounds(self, body: str, text: str) -> None:
        match = _OUT_OF_BOUNDS.match(body)
        if match:
            self.section.reader.drop_pending()
            said = (int(match.group(1)), match.group(2))
            self._second_footer((self.section.out_of_bounds, self.section.out_of_bounds_word), said)
            if self.section.out_of_bounds_word != "FAILED":
                self.section.out_of_bounds, self.section.out_of_bounds_word = said

    def _footer_average(self, body: str, text: str) -> None:
        match = _AVERAGE.match(body)
        if match:
            value = float(match.group(1))
            average = value if math.isfinite(value) and value >= 0 else None
            if self.section.average_seen:
                self._second_footer(self.section.average, average)
            self.section.average_seen = True
            self.section.average = average
            self.section.min_bandwidth = match.group(2) or "unchecked"

    def _second_footer(self, known: t.Any, said: t.Any) -> None:
        """One run has one footer; the same line twice was logged twice."""
        if known not in (None, (None, None), said):
            self.section.mixed = self.section.mixed or "the log has two footers of one table"

    def _error(self, body: str, text: str) -> None:
        self.section.error_text = body.partition(":")[2].strip() or self.section.error_text

    def _json(self, body: str, text: str) -> None:
        match = _JSON_PATH.match(body)
        if match:
            self.json_path = match.group(1)

    def _ignore(self, body: str, text: str) -> None:
        """A line of the program that tells nothing we keep."""

    # First word of a line of the program -> its reader.
    _COMMENTS: t.ClassVar[dict[str, t.Callable[[TextReader, str, str], None]]] = {
        "nccl-tests": _version,
        "Collective": _program,
        "nThread": _config,
        "nThread:": _config,
        "minBytes": _config,
        "Rank": _device,
        "size": _titles,
        "Reducing": _memory_limit,
        "Out": _footer_bounds,
        "Avg": _footer_average,
        "error:": _error,
        "Writing": _json,
        "Using": _ignore,
        "out-of-place": _ignore,
        "(B)": _ignore,
        "GPU": _ignore,
        "": _ignore,
    }

    # --- debug lines and failures ---

    def _info(self, head: str, message: str) -> None:
        head, message = head[-_LONGEST:], message[:_LONGEST]
        if message.startswith("NCCL version "):
            failures.read_library_version(self.section, message)
        self.transport.add(head, message)

    def _other(self, text: str, body: str) -> None:
        if _UNAVAILABLE in body:
            self.unavailable = True
        else:
            if self.section.table_seen and _SHORTENED.match(body):
                self.section.shortened = True
            failures.read_other(self.section, text, body)
