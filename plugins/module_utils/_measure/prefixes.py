# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a log to the lines a program printed.

Everything that stands between a program and us is removed here and nowhere else: CRI halves, timestamps, pod and
rank labels, colours, progress bars, `b'..'` representations, undecodable bytes. Reading streams in blocks, so
that memory does not grow with the log.

Two steps, so that a reader can look at a raw line cheaply before it pays for the second one:

1. `read_blocks(path)` gives physical lines with their prefixes; halves are joined, carriage returns split.
2. `clean(line)` takes the prefixes off one line and says what they told.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import typing as t
import zlib

from .._common.errors import InputError
from .held import HeldLog

# Small enough to stay in the processor's cache while a block is looked at.
BLOCK_BYTES = 1 << 15
# A longer line is cut: no format we read has one. Progress bars without a newline are split at their last return.
MAX_LINE_BYTES = 1 << 20

_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_TIMESTAMP = re.compile(rf"({_STAMP})(?: |$)")
_CRI = re.compile(rf"({_STAMP}) (stdout|stderr) ([FP])(?::\S*)?(?: |$)")
_POD = re.compile(r"\[pod/([^/\]\s]+)/([^\]\s]+)\] ?")
_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# mpirun: [1,0]<stdout>:  [JOB@1,3]<stderr>:  [1,0][host:pid]<stdout>:
_MPIRUN = re.compile(r"\[(?:[^\]\s]*@)?\d+,(\d+)[^\]\s]*\](?:\[[^\]\s]*\])?<(std(?:out|err|diag))>:")
_TORCH = re.compile(r"\[(?:default|rank)(\d+)\]:")
_BARE_RANK = re.compile(r"\[(\d{1,6})\](?= |$|#)")
_SRUN = re.compile(r"(\d{1,6}):(?: |$)")
# What may follow "3: " for it to be a label and not a text of its own.
_AFTER_SRUN = re.compile(r"[ #]|$|\[\d{4}-|\[rank|NCCL version |\S+:\d+:\d+ \[|\S+: Test | \.\. ")
# A label that a launcher put into a row at a flush.
_INNER_LABEL = re.compile(r"\[\d{1,6}\](?=\s|$)")
_REPR_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])")
_REPR_PLAIN = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


class Line(t.NamedTuple):
    """A line as the program printed it, and what its prefixes said; None where they said nothing."""

    text: str
    rank: int | None = None
    pod: str | None = None
    container: str | None = None
    timestamp: str | None = None
    stream: str | None = None
    partial: bool = False


class Block(t.NamedTuple):
    """Some physical lines in order.

    text: whole lines, each ended by a newline. torn: what follows the last newline of the file, it may be a cut line.
    """

    text: str
    torn: str | None = None

    @property
    def lines(self) -> list[str]:
        """All lines without their newlines, the torn one last."""
        whole = self.text.split("\n")
        whole.pop()
        return whole if self.torn is None else [*whole, self.torn]

    @property
    def open_end(self) -> bool:
        return self.torn is not None


# --- step 1: bytes to physical lines ---------------------------------------------------------------------------


def read_blocks(path: str) -> t.Iterator[Block]:
    """The physical lines of a file, block by block; `.gz` files are decompressed.

    Raises InputError when the file cannot be read. Bytes that are not UTF-8 become U+FFFD.
    """
    halves: dict[str, list[str]] = {}
    for data, open_end in _whole_lines(path):
        # The searches are for single characters, so that a log without oddities costs next to nothing.
        if b"\r" in data and data.count(b"\r\n") == data.count(b"\n"):
            data = data.replace(b"\r\n", b"\n")  # a file of another system: also its CRI halves end so
        text = data.decode("utf-8", errors="replace")
        odd = b"\r" in data or (b"'" in data and " b'" in text) or (b'"' in data and ' b"' in text)
        if odd or halves or _has_halves(text):
            text = _rewrite(text, halves, odd)
        if b"\x1b" in data:
            text = _ANSI.sub("", text)
        if open_end:
            whole, _newline, torn = text.rpartition("\n")
            yield Block(f"{whole}\n" if whole else "", torn or None)
        else:
            yield Block(text)
    left = [_finish_half(stream, pieces) for stream, pieces in halves.items()]
    if left:
        yield Block("".join(f"{line}\n" for line in left[:-1]), left[-1])


def _has_halves(text: str) -> bool:
    """Whether a node's log file shows halves here. Its first or last line tells whose file it is, at little cost."""
    if _CRI.match(text) is None and _CRI.match(text, text.rfind("\n", 0, -1) + 1) is None:
        return False
    return " stdout P" in text or " stderr P" in text


def _rewrite(text: str, halves: dict[str, list[str]], odd: bool) -> str:
    """The same lines with CRI halves joined and, if asked, progress bars and byte representations expanded."""
    ended = text.endswith("\n")
    lines: t.Iterable[str] = text[:-1].split("\n") if ended else text.split("\n")
    lines = _join_halves(lines, halves)
    if odd:
        lines = (piece for line in lines for piece in _expand(line))
    joined = "\n".join(lines)
    return f"{joined}\n" if ended and joined else joined


def _open(path: str) -> t.BinaryIO:
    if isinstance(path, HeldLog):
        return io.BytesIO(path.data)
    if path.endswith(".gz"):
        return t.cast(t.BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def _raw_chunks(path: str) -> t.Iterator[bytes]:
    """Chunks of the file. A gzip stream that ends early gives what could be read."""
    try:
        with _open(path) as handle:
            while True:
                try:
                    chunk = handle.read(BLOCK_BYTES)
                except (EOFError, zlib.error):
                    return
                if not chunk:
                    return
                yield chunk
    except (OSError, gzip.BadGzipFile) as error:
        raise InputError(
            f"the log cannot be read: {error.strerror if isinstance(error, OSError) and error.strerror else error}",
            place=os.fspath(path),
            hint="Name a readable log file",
        ) from error


def _whole_lines(path: str) -> t.Iterator[tuple[bytes, bool]]:
    """(bytes ending at a newline, False), at last (the rest, True)."""
    rest = b""
    skipping = False
    for chunk in _plain_bytes(path):
        if skipping:
            cut = chunk.find(b"\n")
            if cut < 0:
                continue
            chunk, skipping = chunk[cut + 1 :], False
        data = rest + chunk if rest else chunk
        cut = data.rfind(b"\n")
        if cut >= 0:
            yield data[: cut + 1], False
            rest = data[cut + 1 :]
        else:
            rest = data
        if len(rest) > MAX_LINE_BYTES:
            cut = rest.rfind(b"\r")
            piece, rest = (rest[: cut + 1], rest[cut + 1 :]) if cut >= 0 else (rest[:MAX_LINE_BYTES], b"")
            skipping = not rest and cut < 0
            yield piece + b"\n", False
    if rest:
        yield rest, True


def _plain_bytes(path: str) -> t.Iterator[bytes]:
    """The chunks of a file; a file that is one Python bytes representation is turned back into the bytes it shows."""
    chunks = _raw_chunks(path)
    first = next(chunks, b"")
    if first.startswith(b"\xef\xbb\xbf"):
        first = first[3:]
    if first[:2] not in (b"b'", b'b"'):
        yield first
        yield from chunks
        return
    held = b""
    for chunk in _chain(first, chunks):
        data = held + chunk
        # An escape may be cut by the end of the chunk: keep the end from its last backslashes on for the next round.
        cut = len(data)
        while cut > 0 and len(data) - cut < 4096 and b"\\" in data[max(cut - 4, 0) : cut]:
            cut -= 1
        held = data[cut:]
        yield _REPR_ESCAPE.sub(_unescape, data[:cut])
    if held:
        yield _REPR_ESCAPE.sub(_unescape, held)


def _chain(first: bytes, others: t.Iterator[bytes]) -> t.Iterator[bytes]:
    yield first
    yield from others


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    return _REPR_PLAIN[code] if code in _REPR_PLAIN else bytes([int(code[1:], 16)])


def _join_halves(lines: t.Iterable[str], halves: dict[str, list[str]]) -> t.Iterator[str]:
    """CRI: pieces marked P belong to the next piece of the same stream, up to the one marked F."""
    for line in lines:
        match = _CRI.match(line)
        if match is None:
            yield line
            continue
        stream, text = match.group(2), line[match.end() :]
        if match.group(3) == "P":
            pieces = halves.setdefault(stream, [match.group(1)])
            if sum(map(len, pieces)) < MAX_LINE_BYTES:
                pieces.append(text)
        elif stream in halves:
            yield _finish_half(stream, [*halves.pop(stream), text])
        else:
            yield line


def _finish_half(stream: str, pieces: list[str]) -> str:
    return f"{pieces[0]} {stream} F {''.join(pieces[1:])}"


def _expand(line: str) -> t.Iterator[str]:
    """Pieces between carriage returns, and the lines inside `b'..'`; each keeps the prefix of the whole line."""
    if line.endswith("\r"):
        line = line.rstrip("\r")
    if "\r" not in line and " b'" not in line and ' b"' not in line:
        yield line
        return
    text = _strip(line).text
    prefix = line[: len(line) - len(text)] if text and line.endswith(text) else ""
    if text[:2] in ("b'", 'b"') and text[-1:] == text[1:2]:
        text = _REPR_ESCAPE.sub(_unescape, text[2:-1].encode("utf-8")).decode("utf-8", errors="replace").rstrip("\n")
    for piece in re.split(r"[\r\n]", text):
        if piece.strip():
            yield prefix + piece


# --- step 2: prefixes ------------------------------------------------------------------------------------------


def clean(line: str, *, srun_labels: bool = False) -> Line:
    """One physical line without its transport prefixes.

    srun_labels: the caller has seen that this log carries `N:` labels; then a label before any text is one.
    """
    head = line[:1]
    # Most lines of most logs begin with a blank, a # or a host name: nothing to do.
    if head != "[" and not head.isdigit() and "\x1b" not in line and line[-1:] != "\r" and line[:2] not in ("b'", 'b"') and line != "'":
        return Line(line)
    return _strip(line, srun_labels)


def clean_text(line: str, *, srun_labels: bool = False) -> str:
    """The text of clean(line)."""
    return clean(line, srun_labels=srun_labels).text


def has_srun_label(line: str) -> bool:
    """Whether the line shows beyond doubt that labels of the form `N:` are used."""
    return re.match(r"\d{1,6}: (?:#|\S+:\d+:\d+ \[)", line) is not None


def strip_prefix(line: str) -> dict[str, t.Any]:
    """clean(line) as a dict: text and partial always, rank, pod, container, timestamp, stream (null if unknown)."""
    return _strip(line)._asdict()


def without_inner_labels(text: str) -> str:
    """A table row without the rank labels that a launcher put between its cells."""
    return _INNER_LABEL.sub("", text)


def _strip(line: str, srun_labels: bool = False) -> Line:
    text = line.rstrip("\r")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    rank = pod = container = timestamp = stream = None
    partial = False
    match = _POD.match(text) if text.startswith("[pod/") else None
    if match:
        pod, container = match.groups()
        text = text[match.end() :]
    if text[4:5] == "-" and text[10:11] == "T":
        match = _CRI.match(text)
        if match:
            timestamp, stream, partial = match.group(1), match.group(2), match.group(3) == "P"
            text = text[match.end() :]
        else:
            match = _TIMESTAMP.match(text)
            if match:
                timestamp = match.group(1)
                text = text[match.end() :]
    # Launchers stack: torchrun's label before PyTorch's own, a container's before mpirun's.
    for _label in range(3):
        found = _launcher_label(text, srun_labels)
        if found is None:
            break
        text, label_rank, label_stream = found
        rank = label_rank if rank is None else rank
        stream = stream or label_stream
    if text[:2] in ("b'", 'b"') or text == "'":
        text = text[2:] if text[:1] == "b" else ""
        text = text[:-1] if text[-1:] in ("'", '"') else text
    return Line(text, rank, pod, container, timestamp, stream, partial)


def _launcher_label(text: str, srun_labels: bool) -> tuple[str, int, str | None] | None:
    """(text after the label, rank, stream), or None when the text carries no label."""
    head = text[:1]
    if head == "[":
        match = _MPIRUN.match(text)
        if match:
            return text[match.end() :], int(match.group(1)), match.group(2)
        match = _TORCH.match(text)
        if match:
            return text[match.end() :], int(match.group(1)), None
        match = _BARE_RANK.match(text)
        if match and not text.startswith((" NCCL INFO ", " NCCL WARN "), match.end()):
            return text[match.end() :], int(match.group(1)), None
    elif head.isdigit():
        match = _SRUN.match(text)
        if match and (srun_labels or _AFTER_SRUN.match(text, match.end())):
            return text[match.end() :], int(match.group(1)), None
    return None
