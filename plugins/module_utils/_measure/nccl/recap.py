# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The recap that a launcher of ours leaves: the end of a result whose log has lost its head or its table.

It stands at the end of the log, each line behind `gcr|`, and in the container's termination message, at most 4096 bytes. `~` stands for
blanks, so that no reader takes its lines for those of a run. The first line is `gcr1`; the others begin with a letter:

    T, F   a line that nccl-tests printed before, behind its table
    H      ranks of each host, in the order of ranks: `H8~gpu-a1` or, for gpu-a1 to gpu-a4, `H8~gpu-a1~4`
    N      host and text of a line of NCCL: the worst and the usual edges, network, version
    R      a row, the largest size first; the smallest may be left out
    X      exit status of the launcher, number of rows that were left out; the last line
"""

from __future__ import annotations

import re
import typing as t

from ..._common.errors import InputError
from ..._common.shapes import Measurement
from ..held import HeldLog
from ..lines import log_lines
from . import results

MARK = "gcr1"
_PREFIX = "gcr|"
_HOSTS = re.compile(r"(\d{1,6})~(\S{1,300}?)(?:~(\d{1,6}))?")
_END = re.compile(r"(\d{1,3})~(\d{1,6})")
_MOST_LINES = 2000
_MOST_RANKS = 200_000
# What a log that lost a part is judged as.
_LOST = ("LogIncomplete", "NoMeasurement")


class Recap(t.NamedTuple):
    """One recap. log: the same as nccl-tests and NCCL would have printed it. smallest: of the rows it carries, in bytes."""

    log: str
    exit_code: int
    left_out: int
    smallest: int


def measure_files(paths: list[str], context: dict[str, t.Any]) -> Measurement:
    """The measurement of one run: see docs/data_shapes.md. context: `termination_messages`, files with what the containers left.

    What the log proves comes first; the recap is asked when the log lacks a part.
    """
    made = results.measure_files(paths, context)
    if made["verdict"] not in _LOST:
        return made
    for path in (*context.get("termination_messages", ()), *paths):
        recap = read_recap(_lines(path))
        if recap is None:
            continue
        told = results.measure_files([HeldLog(path, recap.log)], _context(context, recap))
        if told["verdict"] not in _LOST:
            return _from_recap(told, recap)
        made = told if made["verdict"] == "NoMeasurement" else made
    return made


def _lines(path: str) -> t.Iterator[str]:
    try:
        for line in log_lines(path, lambda raw: _PREFIX in raw or raw[:1] in "gTFHNRX"):
            yield line.text.removeprefix(_PREFIX)
    except InputError:
        return  # a termination message is one more chance, no evidence that must be there


def read_recap(lines: t.Iterable[str]) -> Recap | None:
    """The last whole recap of these lines; None when there is none."""
    found: Recap | None = None
    kept: list[str] | None = None
    for line in lines:
        text = line.strip()
        if text == MARK:
            kept = []
        elif kept is not None and text[:1] in tuple("TFHNRX") and len(kept) < _MOST_LINES:
            kept.append(text)
            if text[0] == "X":
                found, kept = _expand(kept) or found, None
    return found


def _expand(lines: list[str]) -> Recap | None:
    of = {letter: [line[1:] for line in lines if line[0] == letter] for letter in "TFHNRX"}
    end = _END.fullmatch(of["X"][0])
    rows = [row.replace("~", " ") for row in reversed(of["R"])]
    sizes = [int(size) for row in rows if (size := row.partition(" ")[0]).isdigit() and len(size) < 19]
    if end is None or not sizes or len(sizes) != len(rows):
        return None
    left_out = int(end.group(2))
    head = [text.replace("~", " ") for text in of["T"]]
    if left_out:
        # The sweep as far as it is carried: what was left out was measured, and the footers speak for it.
        head = [re.sub(r"minBytes:? \d{1,18}", f"minBytes {min(sizes)}", text) for text in head]
    titles = next((number for number, text in enumerate(head) if "out-of-place" in text), len(head))
    notes = [_note(text) for text in of["N"]]
    foot = [text.replace("~", " ") for text in of["F"]]
    log = [*head[:titles], *_devices(of["H"]), *notes, *head[titles:], *rows, *foot]
    return Recap("\n".join(log) + "\n", int(end.group(1)), left_out, min(sizes))


def _devices(groups: list[str]) -> t.Iterator[str]:
    """The list of devices. Process and PCI numbers are not carried."""
    rank = 0
    for group in groups:
        match = _HOSTS.fullmatch(group)
        if match is None:
            continue
        for host in _hosts(match.group(2), match.group(3)):
            for device in range(int(match.group(1))):
                if rank >= _MOST_RANKS:
                    return
                yield f"#  Rank {rank} Group 0 Pid 1 on {host} device {device} [0000:00:00] GPU"
                rank += 1


def _hosts(first: str, last: str | None) -> list[str]:
    if last is None:
        return [first]
    stem = first.rstrip("0123456789")
    start = first[len(stem) :]
    count = int(last) - int(start) + 1 if start.isdigit() and len(start) < 10 else 0
    return [f"{stem}{int(start) + offset}" for offset in range(min(count, _MOST_RANKS))]


def _note(text: str) -> str:
    host, _blank, said = text.partition("~")
    return f"{host}:1:1 [0] NCCL INFO {said.replace('~', ' ')}"


def _context(context: dict[str, t.Any], recap: Recap) -> dict[str, t.Any]:
    """The context with what only the recap knows, and without the sizes that it left out."""
    given = dict(context)
    if given.get("exit_code") is None:
        given["exit_code"] = recap.exit_code
    sizes = given.get("expected_sizes")
    if recap.left_out and isinstance(sizes, (list, tuple)):
        given["expected_sizes"] = [size for size in sizes if not isinstance(size, int) or size >= recap.smallest]
    return given


def _from_recap(told: Measurement, recap: Recap) -> Measurement:
    if recap.left_out:
        # Of what was left out nothing is known but that its data was right.
        told["values"].update(dict.fromkeys(("latency_us", "collapse", "avg_bus_bandwidth"), None))
    told["parsed"]["recap"] = {"rows_left_out": recap.left_out}
    told["reason"] = f"{told['reason']} (the log has lost a part; read from the launcher's recap)"
    return told
