# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a log to its physical lines, with the labels of launchers and collectors still before them.

What has no place in a line is removed here and nowhere else: the JSON that a collector wraps around it, CRI halves, colours,
progress bars, `b'..'` representations, holes of zeros, undecodable bytes. Reading streams in blocks, so that memory does not
grow with the log. The second step, `labels`, takes the labels off; a reader can look at a raw line cheaply before it pays
for that.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import typing as t
import zlib

from .._common.errors import InputError
from .held import HeldLog
from .labels import ANSI, CRI, REPR_ESCAPE, STAMP, strip_prefix

# Small enough to stay in the processor's cache while a block is looked at.
BLOCK_BYTES = 1 << 15
# A longer line is cut: no format we read has one. Progress bars without a newline are split at their last return.
MAX_LINE_BYTES = 1 << 20

_ZEROS = re.compile(rb"\0+")
_REPR_PLAIN = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


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
        if b"{" in data and b'{"' in data and _may_be_wrapped(text):
            text = _unwrap(text)
        odd = b"\r" in data or (b"'" in data and " b'" in text) or (b'"' in data and ' b"' in text)
        if odd or halves or _has_halves(text):
            text = _rewrite(text, halves, odd)
        if b"\x1b" in data:
            text = ANSI.sub("", text)
        if open_end:
            whole, _newline, torn = text.rpartition("\n")
            yield Block(f"{whole}\n" if whole else "", torn or None)
        else:
            yield Block(text)
    left = [_finish_half(stream, pieces) for stream, pieces in halves.items()]
    if left:
        yield Block("".join(f"{line}\n" for line in left[:-1]), left[-1])


# Where collectors put a line, and what else then stands beside it.
_MESSAGES = ("log", "message", "MESSAGE", "textPayload", "@message", "msg", "line")
_ABOUT = ("stream", "kubernetes", "severity", "labels", "_p", "logtag", "_SYSTEMD_UNIT", "__REALTIME_TIMESTAMP", "container_name", "pod")
_TIMES = ("time", "timestamp", "@timestamp", "ts", "date")
_IS_STAMP = re.compile(rf"{STAMP}\Z")
_IS_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def _may_be_wrapped(text: str) -> bool:
    return any(f'"{key}"' in text for key in _MESSAGES)


def _unwrap(text: str) -> str:
    """The same lines without the JSON that a collector put around each."""
    return "\n".join(piece for line in text.split("\n") for piece in (_unwrapped(line) if '{"' in line else (line,)))


def _unwrapped(line: str) -> list[str]:
    """The lines in a wrapper, with its time and stream as a node's log file would say them; any other line as it is."""
    at = line.find("{")
    ends = line.rstrip()
    if not ends.endswith("}") or (at and strip_prefix(line[:at])["text"].strip()):
        return [line]
    try:
        wrapper = json.loads(ends[at:])
    except (ValueError, RecursionError):
        return [line]
    message = next((wrapper[key] for key in _MESSAGES if isinstance(wrapper.get(key), str)), None)
    stamp = next((wrapper[key] for key in _TIMES if isinstance(wrapper.get(key), str) and _IS_DATE.match(wrapper[key])), None)
    if message is None or not (stamp or any(key in wrapper for key in _ABOUT)):
        return [line]
    head = line[:at]
    if stamp and _IS_STAMP.match(stamp):
        # Docker cuts long lines: only the last piece ends in a newline. Other collectors take the newline away.
        whole = message.endswith("\n") or not set(wrapper) <= {"log", "stream", "time", "attrs"}
        cut = not whole or wrapper.get("logtag", wrapper.get("_p")) == "P"
        stream = wrapper.get("stream")
        head += f"{stamp} {stream} {'P' if cut else 'F'} " if stream in ("stdout", "stderr") else f"{stamp} "
    return [head + piece.rstrip("\r") for piece in message.removesuffix("\n").split("\n")]


def _has_halves(text: str) -> bool:
    """Whether a node's log file shows halves here. Its first or last line tells whose file it is, at little cost."""
    if CRI.match(text) is None and CRI.match(text, text.rfind("\n", 0, -1) + 1) is None:
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


def _open(path: str) -> io.BufferedReader:
    if isinstance(path, HeldLog):
        return io.BufferedReader(t.cast(io.RawIOBase, io.BytesIO(path.data)))
    if path.endswith(".gz"):
        return t.cast(io.BufferedReader, gzip.open(path, "rb"))
    return open(path, "rb")


def _raw_chunks(path: str) -> t.Iterator[bytes]:
    """Chunks of the file. A gzip stream that ends early or is damaged gives what could be read.

    A hole of zeros, as the crash of a machine leaves one, is a cut: what follows it begins a line.
    """
    begun = False
    try:
        with _open(path) as handle:
            while True:
                try:
                    chunk = handle.read1(BLOCK_BYTES)
                except (EOFError, zlib.error):
                    return
                except gzip.BadGzipFile:
                    if not begun:
                        raise
                    return
                if not chunk:
                    return
                begun = True
                yield _ZEROS.sub(b"\n", chunk) if b"\0" in chunk else chunk
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
        yield REPR_ESCAPE.sub(_unescape, data[:cut])
    if held:
        yield REPR_ESCAPE.sub(_unescape, held)


def _chain(first: bytes, others: t.Iterator[bytes]) -> t.Iterator[bytes]:
    yield first
    yield from others


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match.group(1)
    return _REPR_PLAIN[code] if code in _REPR_PLAIN else bytes([int(code[1:], 16)])


def _join_halves(lines: t.Iterable[str], halves: dict[str, list[str]]) -> t.Iterator[str]:
    """CRI: pieces marked P belong to the next piece of the same stream, up to the one marked F."""
    for line in lines:
        match = CRI.match(line)
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
    text = strip_prefix(line)["text"]
    prefix = line[: len(line) - len(text)] if text and line.endswith(text) else ""
    if text[:2] in ("b'", 'b"') and text[-1:] == text[1:2]:
        text = REPR_ESCAPE.sub(_unescape, text[2:-1].encode("utf-8")).decode("utf-8", errors="replace").rstrip("\n")
    for piece in re.split(r"[\r\n]", text):
        if piece.strip():
            yield prefix + piece
