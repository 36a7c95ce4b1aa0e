# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Why a training failed, as its log tells: torchrun's summary, PyTorch's NCCL watchdog, Python tracebacks, CUDA and NCCL errors.

One failure makes many: the rank that crashed, those that waited for it in vain, those that were told to end. Each line is
read for what it is (a cause, a hang, an end, a consequence), and the first of the most telling kind is the root.
torchrun names rank and host of the process that failed first; that is where the root is placed.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
import signal
import typing as t

from ..._catalog.load import shipped_evidence
from ..._causes.wordings import reason_of_wording
from .events import parse_time


class Kind(enum.IntEnum):
    """How much a line explains; the smallest explains the others."""

    CAUSE = 0  # it says what went wrong
    ERROR = 1  # an uncaught exception, or a hang: the first of them is the root
    END = 2  # how a process ended, without a word why
    CONSEQUENCE = 3  # what others suffer: told to end, peer gone


@dataclasses.dataclass(frozen=True)
class Failure:
    """One failure that a log tells of. reason: of the table of reasons. rank, host: None when the line names none."""

    kind: Kind
    reason: str
    message: str
    rank: int | None = None
    host: str | None = None
    time: datetime.datetime | None = None
    summary: bool = False  # of torchrun's summary
    evidence: tuple[str, ...] = ()


# What an error's words mean to a training, tried in order: (reason, kind, words). What speaks against hardware, and what drivers and
# devices say that is no fault of theirs, stands in the table of evidence of the catalog.
_TABLE = (
    ("DataCorruption", Kind.CAUSE, r"Unexpected result -?(nan|inf)\b|found (NaN|Inf) in (local|global|the) "),
    ("OOMKilled", Kind.CAUSE, r"killed by signal: Killed|Out of memory: Killed|oom[_-]kill|can(no|')t allocate memory|\bMemoryError\b"),
    # Memory, devices, packages and files that the test was not given: nobody's hardware is broken.
    ("SetupError", Kind.CAUSE, r"CUDA (error: |failure (\d{1,4} )?')?out of memory|shared memory|No space left on device|quota exceeded"),
    ("SetupError", Kind.CAUSE, r"No CUDA GPUs are available|no NVIDIA driver|Address already in use|is not divisible by"),
    ("SetupError", Kind.CAUSE, r"ModuleNotFoundError|ImportError|No module named|FileNotFoundError|No such file or directory"),
    ("SetupError", Kind.CAUSE, r"PermissionError|unrecognized arguments|arguments are required|invalid choice:"),
    ("TimedOut", Kind.ERROR, r"collective operation timeout|watchdog got stuck|Heartbeat monitor timed out|monitoredBarrier"),
    ("TimedOut", Kind.ERROR, r"Timed out waiting \d{1,12} ?ms for (recv|send)"),
    ("LauncherFailed", Kind.END, r"Rendezvous\w{1,40}Error|clients joined|client socket has (timed out|failed to connect)"),
    ("LauncherFailed", Kind.END, r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution"),
    ("WorkloadFailed", Kind.CONSEQUENCE, r"remote process exited|ncclRemoteError|Connection (closed|reset|refused)|Broken pipe"),
    ("WorkloadFailed", Kind.CONSEQUENCE, r"communicator was aborted|got signal: (15|2)\b|KeyboardInterrupt|SIGTERM"),
    ("WorkloadFailed", Kind.CONSEQUENCE, r"Dist(Network|Store)Error"),
    ("WorkloadFailed", Kind.END, r"NCCL error|ncclSystemError|ncclInternalError|ncclUnhandledCudaError"),
)  # fmt: skip
WORDINGS = tuple((reason, kind, re.compile(pattern, re.IGNORECASE)) for reason, kind, pattern in _TABLE)

# Words without which a line tells of no failure.
_HINTS = (
    *("rror", "Traceback (", "      :", "exitcode", "traceback :", "atchdog", "xception", "Root Cause", "what():", "Interrupt"),
    *("failure '", "oom", "Killed"),
)
_SUMMARY = re.compile(r"\A\s{0,8}(time|host|rank|exitcode|error_file|traceback) {0,8}: (.{0,300})")
_AGENT = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,9})")
_EXCEPTION = re.compile(
    r"\A ?((?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80}(?:Error|Exception|Interrupt|Exit|Failure|Fault))(?::\s{1,4}(.{0,2000})|\s{0,4}$)"
)
_USAGE = re.compile(r"\A ?\S{1,200}\.py: error: ")
_WHAT = re.compile(r"\A\s{0,8}what\(\):\s{1,4}")
_FATAL = re.compile(
    r"Fatal Python error: |python\S{0,40}: can't open file |CUDA error: |(?:CUDA|Cuda) failure |oom[_-]kill|Out of memory: Killed"
)
_RANK = re.compile(r"\b[Rr]ank (\d{1,7})\b")
_NODE = re.compile(r"\b[Rr]ank \d{1,7}, node ([\w.-]{1,253}),")
_OPERATION = re.compile(r"OpType=(\w{1,40})")
_WAITED = re.compile(r"ran for (\d{1,12}) milliseconds")
_CODE = re.compile(r"(-?\d{1,9})")
# torchrun's own exception stands above its summary and says nothing that the summary does not.
_TORCHRUN = "ChildFailedError"
_LINE = 500
_MAX_KEPT = 100


def may_tell(text: str) -> bool:
    """A cheap look at a line: whether it can tell of a failure."""
    for hint in _HINTS:  # noqa: SIM110 - a loop is faster than any()
        if hint in text:
            return True
    return False


class Reader:
    """Reads the lines of one file for failures. A traceback and a summary are several lines."""

    def __init__(self) -> None:
        self._traceback = False
        self._item: dict[str, str] = {}
        self._root = False

    def see(self, text: str, when: datetime.datetime | None) -> Failure | None:
        """The failure that this line tells of, or completes."""
        if not may_tell(text):
            return None
        text = text[: 4 * _LINE]
        if (entry := _SUMMARY.match(text)) is not None:
            return self._entry(entry.group(1), entry.group(2).strip(), text)
        if "Root Cause" in text:
            self._root, self._item = True, {}
            return None
        if "Traceback (most recent call last)" in text:
            self._traceback = True
            return None
        return self._error(text, when)

    def _entry(self, key: str, value: str, text: str) -> Failure | None:
        """A line `  rank      : 5 (local_rank: 5)` of torchrun's summary; its last key but one tells how the process ended."""
        if key == "time" or key in self._item:
            self._item = {}
        self._item[key] = value
        if key != "traceback" or "exitcode" not in self._item:
            return None
        item, self._item = self._item, {}
        root, self._root = self._root, False
        return _of_summary(item, root)

    def _error(self, text: str, when: datetime.datetime | None) -> Failure | None:
        if agent := _AGENT.search(text):
            return _ended(int(agent.group(1)), None, None, when, text)
        if "ollective operation timeout" in text or "watchdog got stuck" in text or "Heartbeat monitor timed out" in text:
            return _hang(text, when)
        raised = _EXCEPTION.match(text)
        if raised is not None and self._traceback:
            self._traceback = False
            return None if raised.group(1).endswith(_TORCHRUN) else _worded(text, when)
        if _WHAT.match(text) or _FATAL.search(text) or _USAGE.match(text):
            return _worded(text, when)
        return None


def _of_summary(item: dict[str, str], root: bool) -> Failure | None:
    code, rank = _CODE.match(item["exitcode"]), _CODE.match(item.get("rank", ""))
    if code is None:
        return None
    host = item.get("host") or None
    time = parse_time(item.get("time", "").replace("_", " "))
    lines = "; ".join(f"{key}: {item[key]}" for key in ("time", "host", "rank", "exitcode", "traceback") if key in item)
    made = _ended(int(code.group(1)), int(rank.group(1)) if rank else None, host, time, f"torchrun: {lines}")
    # Those below "Failures:" failed after the root.
    kind = made.kind if root else Kind.CONSEQUENCE
    return dataclasses.replace(made, summary=True, kind=kind)


def _ended(code: int, rank: int | None, host: str | None, time: datetime.datetime | None, line: str) -> Failure:
    """A process that ended with a code; a negative one is a signal."""
    if code >= 0:
        message = f"ended with exit code {code}"
    else:
        try:
            message = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        except ValueError:
            message = f"was killed by signal {-code}"
    kind = Kind.CONSEQUENCE if code in (-signal.SIGTERM, -signal.SIGINT) else Kind.END
    return Failure(kind, "WorkloadFailed", message, rank, host, time, evidence=(line.strip()[:_LINE],))


def _hang(text: str, when: datetime.datetime | None) -> Failure:
    operation, waited = _OPERATION.search(text), _WAITED.search(text)
    what = f"a collective ({operation.group(1)})" if operation else "a collective"
    after = f" in {int(waited.group(1)) / 1000:g} s" if waited else ""
    return Failure(Kind.ERROR, "TimedOut", f"{what} did not end{after}", _rank(text), _node(text), when, evidence=(text.strip()[:_LINE],))


def _worded(text: str, when: datetime.datetime | None) -> Failure:
    said = text.strip()
    reason, kind = _meaning(said)
    return Failure(kind, reason, said[: _LINE // 2], _rank(said), _node(said), when, evidence=(said[:_LINE],))


def _meaning(said: str) -> tuple[str, Kind]:
    """The reason that words stand for, and how much they explain."""
    evidence = shipped_evidence().words(said)
    if evidence is not None and evidence.convicts:
        return "HardwareFailureDetected", Kind.CAUSE
    known = next(((reason, kind) for reason, kind, words in WORDINGS if words.search(said)), None)
    if known is not None:
        return known
    worded = reason_of_wording(said)
    if not worded and evidence is not None and evidence.kind in ("setup", "configuration", "busy"):
        return "SetupError", Kind.CAUSE
    return worded or "WorkloadFailed", Kind.ERROR


def _rank(text: str) -> int | None:
    match = _RANK.search(text)
    return int(match.group(1)) if match else None


def _node(text: str) -> str | None:
    match = _NODE.search(text)
    return match.group(1) if match else None


def keep(failures: list[Failure], failure: Failure) -> None:
    """Add a failure; a thousand ranks that say the same are not all kept."""
    alike = sum(1 for known in failures if (known.kind, known.reason, known.summary) == (failure.kind, failure.reason, failure.summary))
    if alike < _MAX_KEPT:
        failures.append(failure)


def root_cause(failures: t.Sequence[Failure]) -> Failure | None:
    """The failure that explains the others, with the rank and the host that torchrun names; None without any."""
    if not failures:
        return None
    root = min(failures, key=lambda failure: (failure.kind, failure.reason != "HardwareFailureDetected"))
    place = _place_of(root, [failure for failure in failures if failure.summary])
    if place is None:
        return root
    rank, host = (place.rank if place.rank is not None else root.rank), place.host or root.host
    evidence = tuple(dict.fromkeys((*root.evidence, *place.evidence)))
    return dataclasses.replace(root, rank=rank, host=host, evidence=evidence)


def _place_of(root: Failure, summaries: list[Failure]) -> Failure | None:
    """The entry of a summary about the process that failed; who was told to end is not at fault."""
    if root.rank is not None:
        own = next((entry for entry in summaries if entry.rank == root.rank), None)
        if own is not None or root.reason != "TimedOut":
            return own
    firsts = [entry for entry in summaries if entry.kind is not Kind.CONSEQUENCE]
    # Every node prints a summary of its own; the clocks of nodes may differ, but by less than a timeout.
    return min(firsts, key=lambda entry: entry.time or datetime.datetime.max, default=None)


def in_words(failure: Failure) -> str:
    """One sentence part: who, where, what."""
    who = f"rank {failure.rank}" if failure.rank is not None else "a process" if failure.kind is Kind.END else ""
    where = f" on {failure.host}" if failure.host else ""
    place = f"{who}{where}".strip()
    glue = " " if failure.message.startswith(("was ", "ended ")) else ": "
    return f"{place}{glue}{failure.message}" if place else failure.message
