# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reads nccl-tests output: text logs and `-J` documents become sections.

A section is one run of one test program: its configuration, devices, rows, footer and failures. A log may hold
several (two tests in one script, a second try). Nothing is judged here.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import posixpath
import re
import typing as t

from .. import prefixes
from . import collectives, transport
from .rows import Row, RowReader, is_titles, parse_cell, read_titles

# Rows kept of one section; an endless repetition (-N 0) must not fill the memory.
MAX_ROWS = 100_000
_MAX_EVIDENCE = 5
_MAX_JSON_BYTES = 1 << 28

_VERSION = re.compile(r"nccl-tests version (\S+)(?: \(([^)]*)\))?(?: nccl-headers=(\d+))?(?: nccl-library=(\d+))?")
_RUNTIME = re.compile(r"NCCL version (\d\S*)")
_PROGRAM = re.compile(r"Collective test (starting|concluded): (\S+)")
_DEVICE = re.compile(r"Rank +(\d+)(?: +Group +(\d+))? +Pid +(\d+) +on +(\S+) +device +(\d+) +\[([^\]]*)\] *(.*)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d+)")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values *: *(\d+) +(OK|FAILED)")
_AVERAGE = re.compile(r"Avg bus bandwidth *: *(-?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?)) *(OK|FAILED)?")
_CONFIG = {
    "threads": re.compile(r"\bnThread:? (\d+)"),
    "gpus": re.compile(r"\bnGpus:? (\d+)"),
    "min_bytes": re.compile(r"\bminBytes:? (\d+)"),
    "max_bytes": re.compile(r"\bmaxBytes:? (\d+)"),
    "step": re.compile(r"\bstep: (\d+)"),
    "step_mode": re.compile(r"\bstep: \d+\((\w+)\)"),
    "warmup": re.compile(r"\bwarmup iters: (\d+)"),
    "iters": re.compile(r"(?<!warmup )(?<!agg )\biters: (\d+)"),
    "agg_iters": re.compile(r"\bagg iters: (\d+)"),
    "validation": re.compile(r"\bvalidation: (\d+)"),
    "graph": re.compile(r"\bgraph: (\d+)"),
    "unalign": re.compile(r"\bunalign: (\d+)"),
}
_FAILURE = re.compile(r"(?:^|\s)(\S+): Test (\w+) failure \S+ '(.*?)'?$")
_CALL_CHAIN = re.compile(r"^ *\.\. (\S+) pid \d+: Test failure")
_WATCHDOG = re.compile(r"(\S+): Test timeout \((\d+)s\)")
_GPU_COUNT = re.compile(r"Invalid number of GPUs: (\d+) requested but only (\d+) were found")
_COMPLETION = re.compile(r"Got completion from peer ([^<\s]+)(?:<\d+>)? with status=(\w+)\((\d+)\)(?:.*\bhca (\S+))?")
_MISMATCH = re.compile(r"Mismatched NCCL version detected : rank (\d+) version (\d+) rank (\d+) version (\d+)")
_PROCESS_NAME = re.compile(r"Process name: \[.*,(\d+)\]")
_EXIT_CODE = re.compile(r"Exit code: +(\d+)")
_SIGNALLED = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited")
_SIGNAL = re.compile(r"exited\s+on signal (\d+)|^signal (\d+) ")
_FALLBACK = re.compile(r"invalid (?:type|op|option|datatype|redop)\b.*default|unsupported|not supported.*ignor", re.IGNORECASE)
_JSON_PATH = re.compile(r"Writing JSON output to (\S+)")
_UNAVAILABLE = "unable to retrieve container logs for"
# Texts that name a wrong set-up rather than a broken node, with the words a person needs.
_SETUP_TEXTS: tuple[tuple[str, str], ...] = (
    ("Mismatched NCCL version detected", "NCCL versions differ between ranks"),
    ("Duplicate GPU detected", "two ranks were given the same GPU"),
    ("no socket interface found", "NCCL_SOCKET_IFNAME names no interface"),
    ("Failed to initialize any NET plugin", "no network plugin could be initialized"),
    ("is available but not working", "MNNVL is present but IMEX is not configured"),
    ("There are not enough slots", "mpirun has fewer slots than ranks"),
    ("PRTE was unable", "the launcher could not start the processes"),
    ("ORTE was unable", "the launcher could not start the processes"),
    ("prterun was unable", "the launcher could not start the processes"),
    ("mpirun was unable", "the launcher could not start the processes"),
    ("Permission denied (publickey", "ssh refused the launcher's key"),
    ("Could not resolve hostname", "a worker's host name cannot be resolved"),
    ("error while loading shared libraries", "a library is missing in the image"),
)
_MALIGN_WARNINGS: tuple[str, ...] = (
    "Got async fatal event",
    "P2P is disabled between NVLINK connected GPUs",
    "cuMulticast",
    "ibv_modify_qp failed",
    "Net device count differs",
)


# A first look at every debug line, without a call in Python: the third letter tells most noise from what matters.
_THIRD = operator.itemgetter(slice(2, 3))
_MAY_MATTER = frozenset(beginning[2] for beginning in transport.INTERESTING).__contains__


class Section:
    """One run of one test program."""

    def __init__(self) -> None:
        self.collective: str | None = None
        self.versions: dict[str, t.Any] = {}
        self.config: dict[str, t.Any] = {}
        self.devices: list[tuple[int, int, str, int]] = []  # rank, group, host, pid
        self._ranks: set[int] = set()
        self._list_cut = False
        self.table_seen = False
        self.started = False
        self.concluded = False
        self.reader = RowReader()
        self.rows: list[Row] = []
        self.rows_dropped = 0
        self.out_of_bounds: int | None = None
        self.out_of_bounds_word: str | None = None
        self.average_seen = False
        self.average: float | None = None
        self.min_bandwidth: str = "unchecked"
        self.error_text: str | None = None
        self.skipped: str | None = None
        self.failures: list[dict[str, t.Any]] = []
        self.ib_errors: list[dict[str, t.Any]] = []
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

    def add_device(self, rank: int, group: int, host: str, pid: int, *, cut: bool = False) -> None:
        """One line of the device list; a line that was logged twice counts once. cut: the list ends here."""
        self._list_cut = self._list_cut or cut
        if rank not in self._ranks:
            self._ranks.add(rank)
            self.devices.append((rank, group, host, pid))

    @property
    def devices_cut(self) -> bool:
        """Whether ranks are missing from the list: it does not fit its buffer, or lines of the log are lost."""
        return self._list_cut or bool(self._ranks) and max(self._ranks) + 1 != len(self._ranks)

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


class Log(t.NamedTuple):
    """Everything read from the files of one attempt."""

    sections: list[Section]
    transport: transport.Collector
    unavailable: bool
    empty: bool
    unparsable_json: str | None
    json_path: str | None


def read_log(paths: t.Sequence[str]) -> Log:
    """Reads text logs and JSON documents. A JSON document that parses is preferred to the text of the same run."""
    text = TextReader()
    documents: list[Section] = []
    broken: str | None = None
    for path in paths:
        if _looks_like_json(path):
            section = read_document(path)
            if section is not None:
                documents.append(section)
                continue
            broken = path
        text.read(path)
    sections = text.finish()
    for section in documents:
        _take_from_text(section, sections)
    if documents:
        sections = documents
    return Log(sections, text.transport, text.unavailable, text.empty and not documents and broken is None, broken, text.json_path)


def _take_from_text(document: Section, sections: list[Section]) -> None:
    """What only the text of the same run tells: failures and the end of the run."""
    for section in sections:
        if section.collective in (None, document.collective):
            document.failures += section.failures
            document.ib_errors += section.ib_errors
            document.setup_faults.update(section.setup_faults)
            document.watchdog = document.watchdog or section.watchdog


class TextReader:
    """Reads the text of one or several files into sections."""

    def __init__(self) -> None:
        self.transport = transport.Collector()
        self.sections: list[Section] = [Section()]
        self.unavailable = False
        self.empty = True
        self.json_path: str | None = None
        self._hosts: set[str] = set()
        self._srun_labels = False

    @property
    def section(self) -> Section:
        return self.sections[-1]

    def read(self, path: str) -> None:
        """One file. The last line of a file that does not end in a newline may be torn: its numbers are not used."""
        for block in prefixes.read_blocks(path):
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
            self.transport.add_channel(before.rpartition("\n")[2], message)
        elif message[:5] in transport.INTERESTING:
            self._info(before.rpartition("\n")[2], message)
        if "\n" in rest:
            for raw in rest.split("\n")[:-1]:
                self._line(raw)

    def _raw_line(self, raw: str) -> None:
        """One line inside a table, or of a block without debug lines."""
        head, mark, message = raw.partition(" NCCL INFO ")
        if not mark or "  " in head:
            self._line(raw)
        elif message[:5] in transport.INTERESTING and message[transport.TAIL :] not in self.transport.known_tails:
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

    # --- lines ---

    def _line(self, raw: str) -> None:
        line = prefixes.clean(raw, srun_labels=self._srun_labels)
        if not self._srun_labels and raw[:1].isdigit() and prefixes.has_srun_label(raw):
            self._srun_labels = True
        self._text(line.text)

    def _text(self, text: str, *, maybe_row: bool = True) -> None:
        body = text.strip()
        if not body:
            return
        first = body[0]
        if first == "#":
            self._comment(body.lstrip("# "), text)
        elif maybe_row and (first.isdigit() or body.startswith("N/A")) and self._row(text):
            return
        elif " NCCL INFO " in text:
            head, _mark, message = text.partition(" NCCL INFO ")
            self._info(head, message)
        elif " NCCL WARN " in text:
            self._warning(text)
        elif not self._comment(body, text):
            self._other(text, body)

    def _torn_line(self, raw: str) -> None:
        """The unfinished last line: its texts are read, numbers and paths in it are not trusted."""
        section = self.section
        text = prefixes.clean_text(raw, srun_labels=self._srun_labels)
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
            self.sections.append(Section())
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
            if not self.section.untouched:
                self.sections.append(Section())
            self.section.started = True
        else:
            self.section.concluded = True
        self.section.collective = collective_of(match.group(2)) or self.section.collective

    def _config(self, body: str, text: str) -> None:
        if "minBytes" not in body:
            return
        if self.section.config or self.section.table_seen or self.section.rows:
            self.sections.append(Section())
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
            self.section.out_of_bounds, self.section.out_of_bounds_word = int(match.group(1)), match.group(2)

    def _footer_average(self, body: str, text: str) -> None:
        match = _AVERAGE.match(body)
        if match:
            value = float(match.group(1))
            self.section.average_seen = True
            self.section.average = value if math.isfinite(value) else None
            self.section.min_bandwidth = match.group(2) or "unchecked"

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
        if message.startswith("NCCL version "):
            self._runtime(message)
        self.transport.add(head, message)

    def _runtime(self, text: str) -> None:
        match = _RUNTIME.match(text)
        if match:
            self.section.versions.setdefault("nccl_runtime", match.group(1))

    def _warning(self, text: str) -> None:
        head, _mark, message = text.partition(" NCCL WARN ")
        match = re.search(r"([^\s:>\[\]]+):\d+:\d+ \[", head)
        host = match.group(1) if match else None
        self._setup_text(text)
        match = _COMPLETION.search(message)
        if match:
            peer, status, code, hca = match.groups()
            error = {"host": host, "peer": peer, "status": status, "code": int(code), "hca": hca}
            if error not in self.section.ib_errors and len(self.section.ib_errors) < 1000:
                self.section.ib_errors.append(error)
        elif any(words in message for words in _MALIGN_WARNINGS) and len(self.section.warnings) < _MAX_EVIDENCE:
            self.section.warnings.append(text.strip())

    def _setup_text(self, text: str) -> None:
        for words, meaning in _SETUP_TEXTS:
            if words in text:
                self.section.setup_faults.setdefault(meaning, text.strip())
        match = _MISMATCH.search(text)
        if match:
            self.section.version_mismatch[match.group(1)] = int(match.group(2))
            self.section.version_mismatch[match.group(3)] = int(match.group(4))

    def _other(self, text: str, body: str) -> None:
        section = self.section
        if _UNAVAILABLE in body:
            self.unavailable = True
        elif body.startswith("NCCL version "):
            self._runtime(body)
        elif " is not a power of 2, skipping" in body:
            section.skipped = body
        elif "Test timeout" in body:
            match = _WATCHDOG.search(body)
            if match:
                section.watchdog = section.watchdog or (match.group(1), int(match.group(2)))
        elif " failure " in body:
            self._failure(text, body)
        elif "Invalid number of GPUs" in body:
            match = _GPU_COUNT.search(body)
            if match:
                section.setup = {"requested_gpus": int(match.group(1)), "found_gpus": int(match.group(2)), "host": section.call_chain_host}
        elif _FALLBACK.search(body):
            if len(section.config_notes) < _MAX_EVIDENCE:
                section.config_notes.append(body)
        else:
            self._launcher(body)

    def _failure(self, text: str, body: str) -> None:
        section = self.section
        match = _FAILURE.search(body)
        if match:
            words = re.split(r" \(run with NCCL_DEBUG| / ", match.group(3))[0].strip()
            failure = {"kind": f"{match.group(2)} failure", "host": match.group(1), "text": words}
            if failure not in section.failures and len(section.failures) < 1000:
                section.failures.append(failure)
            self._setup_text(body)
            return
        match = _CALL_CHAIN.match(text)
        if match:
            section.call_chain_host = section.call_chain_host or match.group(1)
            if section.setup and not section.setup.get("host"):
                section.setup["host"] = match.group(1)

    def _launcher(self, body: str) -> None:
        section = self.section
        self._setup_text(body)
        match = _PROCESS_NAME.search(body)
        if match and section.exit_rank is None:
            section.exit_rank = int(match.group(1))
        match = _EXIT_CODE.match(body)
        if match and section.said_exit_code is None:
            section.said_exit_code = int(match.group(1))
        match = _SIGNALLED.search(body)
        if match and section.exit_rank is None:
            section.exit_rank, section.exit_host = int(match.group(1)), match.group(2)
        match = _SIGNAL.search(body)
        if match and section.exit_rank is not None and section.exit_signal is None:
            section.exit_signal = int(match.group(1) or match.group(2))


def collective_of(program: str) -> str | None:
    """all_reduce for /opt/all_reduce_perf_mpi; None when the name is none of a collective."""
    name = re.sub(r"_perf.*$", "", posixpath.basename(program.replace("\\", "")))
    return name if name in collectives.COLLECTIVES else None


# --- JSON ------------------------------------------------------------------------------------------------------


def _looks_like_json(path: str) -> bool:
    """Whether the file begins with a brace."""
    for block in prefixes.read_blocks(path):
        for line in block.lines:
            if line.strip():
                return line.lstrip()[0] == "{"
    return False


def read_document(path: str) -> Section | None:
    """The `-J` document of a run, or None when it does not parse or is none. The environment is dropped."""
    pieces: list[str] = []
    size = 0
    for block in prefixes.read_blocks(path):
        pieces += block.lines
        size += sum(map(len, block.lines))
        if size > _MAX_JSON_BYTES:
            return None
    try:
        document = json.loads("\n".join(pieces))
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("results"), list) or "version" not in document:
        return None
    try:
        return _section_of(document)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None


def _section_of(document: dict[str, t.Any]) -> Section:
    section = Section()
    section.source = "json"
    section.started = section.table_seen = True
    arguments = document.get("args") or []
    section.collective = collective_of(str(arguments[0])) if arguments else None
    section.config = _document_config(document.get("config") or {})
    for device in (document.get("config") or {}).get("devices") or []:
        section.add_device(int(device["rank"]), int(device.get("group") or 0), str(device["hostname"]), int(device.get("pid") or 0))
    section.rows = [_document_row(item) for item in document["results"]]
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, dict):
        section.out_of_bounds = int(bounds["count"])
        section.out_of_bounds_word = "OK" if _truth(bounds.get("okay")) else "FAILED"
    # Misspelt in 2.17.3 to 2.17.8.
    average = document.get("average_bus_bandwidth") or document.get("average_bus_bandwidith")
    if isinstance(average, dict):
        section.average_seen = True
        section.average = _number(average.get("bandwidth", average.get("bandwidith")))
        okay = _truth(average.get("okay"))
        section.min_bandwidth = "unchecked" if okay is None else "OK" if okay else "FAILED"
    section.concluded = "end_time" in document
    if document.get("nccl_version"):
        section.versions["nccl_library"] = int(document["nccl_version"])
        section.versions["nccl_runtime"] = _version_text(int(document["nccl_version"]))
    section.document = {
        "json_version": document["version"],
        "collective_from": "args[0] basename",
        "per_iter": _truth((document.get("config") or {}).get("per_iter_timing")) or False,
        "errors": [str(error) for error in document.get("errors") or [] if str(error).strip()],
        "secrets_dropped": ["env"] if "env" in document else [],
    }
    return section


def _document_config(config: dict[str, t.Any]) -> dict[str, t.Any]:
    names = {
        "nthreads": "threads",
        "ngpus": "gpus",
        "minimum_bytes": "min_bytes",
        "maximum_bytes": "max_bytes",
        "warmup_iters": "warmup",
        "iterations": "iters",
        "aggregated_iterations": "agg_iters",
        "validation": "validation",
        "graph": "graph",
    }
    said: dict[str, t.Any] = {ours: int(config[theirs]) for theirs, ours in names.items() if config.get(theirs) is not None}
    for mode in ("factor", "bytes"):
        if config.get(f"step_{mode}") is not None:
            said["step"], said["step_mode"] = int(config[f"step_{mode}"]), mode
    return said


def _document_row(item: dict[str, t.Any]) -> Row:
    groups = [_document_cells(item.get(name)) for name in ("out_of_place", "in_place")]
    redop = item.get("redop")
    return Row(
        size=int(item["size"]),
        elements=int(item["count"]),
        type=str(item["type"]),
        redop=str(redop) if redop else None,
        root=int(item["root"]) if item.get("root") is not None else None,
        out_of_place=groups[0],
        in_place=groups[1] or (None, None, None, None),
    )


def _document_cells(group: t.Any) -> tuple[float | None, ...] | None:
    if not isinstance(group, dict):
        return None
    time = group.get("time", group.get("cpu_time"))
    return tuple(_raw_number(value) for value in (time, group.get("alg_bw"), group.get("bus_bw"), group.get("nwrong")))


def _raw_number(value: t.Any) -> float | None:
    """A number that may be written as a word ("nan"); None for null."""
    return parse_cell(str(value)) if value is not None else None


def _number(value: t.Any) -> float | None:
    number = _raw_number(value)
    return number if number is not None and math.isfinite(number) else None


def _truth(value: t.Any) -> bool | None:
    """Booleans are the strings "true" and "false"; "unchecked" and null are None."""
    return {"true": True, "false": False}.get(str(value).lower())


def _version_text(code: int) -> str:
    """22809 -> 2.28.9; before 2.9 the code was major x 1000 + minor x 100 + patch."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"
