# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A launch script that sends NCCL's debug output to files, and prints what matters of it and a recap when the test has ended.

The script's awk programs are not run but done again here; a test holds both against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .context import TERMINATION_LIMIT, Context

_MARK = re.compile(r"\bmark=(\w+)")
_STDOUT = ("", "/dev/stdout", "/proc/1/fd/1", "/dev/stderr", "/proc/1/fd/2")
_INFO = " NCCL INFO "
_TELLING = re.compile(
    r"[Nn]etwork|NET|nRanks|NCCL version|NVLS|coll channels|Connected|MNNVL|set by environment|disabled|[Mm]ismatch|GPU Direct"
)
_FACTS = re.compile(r"Using network|nRanks|NCCL version|nvls channels|No device found")
_CARD = re.compile(r"NET/.* Using \[|Selected [Pp]rovider")
_EDGE = re.compile(r" : (\d+)\[\S* -> (\d+)\[.* via ")
_DEVICE = re.compile(r" Rank +\d+ .* on +(\S+) +device ")
_FOOT = re.compile(r"Out of bounds values|Avg bus bandwidth|test concluded:|GPU memory usage|^# error")
_HEAD = re.compile(r"nccl-tests version|test starting:|minBytes|Reducing maxBytes|out-of-place|size +count|\(elements\)")


def is_debug(text: str) -> bool:
    """Whether a line of a rank is NCCL's debug output."""
    return _INFO in text or " NCCL WARN " in text or text.startswith("NCCL version ") or not text


def goes_to_file(settings: dict[str, str]) -> bool:
    """Whether debug output goes to files instead of the log."""
    return settings.get("NCCL_DEBUG_FILE", "") not in _STDOUT


def mark_of(context: Context) -> str:
    """The first line of the recap that the container's script makes; "" when it makes none."""
    match = _MARK.search(context.text)
    return match.group(1) if match else ""


def collected(context: Context, settings: dict[str, str]) -> bool:
    """Whether the script reads the files that debug output goes to."""
    folder = settings.get("NCCL_DEBUG_FILE", "").rpartition("/")[0]
    return bool(folder) and f"{folder}/*" in context.text


def digest(lines: Iterable[str]) -> list[str]:
    """The debug lines that matter, node by node."""
    by_host: dict[str, list[str]] = {}
    for line in lines:
        by_host.setdefault("" if line.startswith("NCCL version ") else line.partition(":")[0], []).append(line)
    return [line for own in by_host.values() for line in digest_of_node(own)]


def digest_of_node(lines: Iterable[str]) -> list[str]:
    """The debug lines of one node that matter: warnings, failures, one of each telling kind, two edges of each kind per rank."""
    seen: dict[str, int] = {}
    kept: list[str] = []
    for line in lines:
        if " NCCL WARN " in line or re.search(r" NCCL INFO .* -> \d+$", line):
            kept.append(line)
        elif _INFO in line or line.startswith("NCCL version "):
            kind = _kind(line.rpartition(_INFO)[2])
            key = kind if " via " not in kind else ":".join(line.split(":", 2)[:2]) + kind
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= (2 if " via " in kind else 1) and (" via " in kind or _TELLING.search(kind)):
                kept.append(line)
    return kept


def _kind(text: str) -> str:
    return re.sub(r"\d+", "n", re.sub(r"0x[0-9a-f]+", "x", text))


def _flat(text: str) -> str:
    return re.sub(r"[ \t]+", "~", text).strip("~")


def recap(mark: str, printed: Sequence[str], debug: Iterable[str], status: int) -> list[str]:
    """The lines of the recap, none without a finished table."""
    hosts: list[tuple[str, int]] = []
    rows: list[tuple[int, str]] = []
    head: list[str] = []
    foot: list[str] = []
    for line in printed:
        words = line.split()
        if match := _DEVICE.search(line):
            name = match.group(1)
            hosts[-1:] = [(name, hosts[-1][1] + 1)] if hosts and hosts[-1][0] == name else [*hosts[-1:], (name, 1)]
        elif len(words) >= 11 and words[0].isdigit() and words[2][:1].islower():
            rows.append((int(words[0]), f"R{_flat(line)}"))
        elif _FOOT.search(line):
            foot.append(f"F{_flat(line)}")
        elif _HEAD.search(line) and len(head) < 12:
            head.append(f"T{_flat(line)}")
    if not rows or len(foot) < 2:
        return []
    made = [mark, *head, *foot, *_folded(hosts), *_notes(debug, [name for name, count in hosts for _rank in range(count)])]
    left = TERMINATION_LIMIT - 24 - sum(len(line) + 1 for line in made)
    carried: list[str] = []
    for _size, row in sorted(rows, key=lambda item: -item[0]):
        if left <= len(row) - 1:
            break
        carried.append(row)
        left -= len(row) + 1
    return [*made, *carried, f"X{status}~{len(rows) - len(carried)}"]


class _Series(NamedTuple):
    """Hosts with the same number of ranks whose names count up. last: number of the last one; -1 when its name has none to count."""

    ranks: int
    first: str
    stem: str
    last: int

    def line(self) -> str:
        counted = "" if self.last == -1 or self.first == f"{self.stem}{self.last}" else f"~{self.last}"
        return f"H{self.ranks}~{self.first}{counted}"


def _folded(hosts: Sequence[tuple[str, int]]) -> list[str]:
    """Hosts whose names count up stand in one line."""
    series: list[_Series] = []
    for name, count in hosts:
        stem = name.rstrip("0123456789")
        number = name[len(stem) :]
        before = series[-1] if series else None
        if before and before.ranks == count and before.last >= 0 and name == f"{before.stem}{before.last + 1}":
            series[-1] = before._replace(last=before.last + 1)
        else:
            series.append(_Series(count, name, stem, int(number) if number and not number.startswith("0") or number == "0" else -1))
    return [item.line() for item in series]


def _notes(debug: Iterable[str], host_of_rank: Sequence[str]) -> list[str]:
    """Edges between hosts first, then facts, some edges inside hosts, network cards; as many as there is room for."""
    seen: dict[str, int] = {}
    kinds: dict[str, list[str]] = {"far": [], "fact": [], "near": [], "card": []}
    for line in debug:
        where, text = line.partition(":")[0], line.rpartition(_INFO)[2]
        if _INFO not in line:
            continue
        kind, most = _kind(text), 1
        if match := _EDGE.search(text):
            ends = [host_of_rank[int(rank)] if int(rank) < len(host_of_rank) else "" for rank in match.groups()]
            sort, most = "far" if ends[0] != ends[1] else "near", 2
            kind += sort
        elif _CARD.search(text):
            sort, kind = "card", kind + where
        elif _FACTS.search(text):
            sort = "fact"
        else:
            continue
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= most:
            kinds[sort].append(f"N{_flat(f'{where} {text}')}")
    kept: list[str] = []
    used = 0
    for note in [*kinds["far"], *kinds["fact"], *kinds["near"][:4], *kinds["card"]]:
        if used + len(note) < 1200:
            kept.append(note)
            used += len(note) + 1
    return kept
