# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Container logs as a kubelet keeps and serves them: `GET /containerLogs/NAMESPACE/POD/CONTAINER`."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import ssl
import time
import typing as t
from collections.abc import Callable, Iterable

from .api import parse_time

if t.TYPE_CHECKING:
    from aiohttp import web

# What the runtime writes before each line of a log file: a timestamp, the stream and a tag.
_LINE_OVERHEAD = len("2026-03-02T08:00:00.000000000Z stdout F \n")
_MESSAGE_BYTES, _MESSAGE_LINES = 2048, 80
_CHUNK_BYTES = 1 << 16


class Line(t.NamedTuple):
    """A written line: nanoseconds since the epoch, text without newline."""

    at_ns: int
    text: str


class ContainerLog:
    """The log of one run of a container. `max_bytes`: size at which the file is rotated away."""

    def __init__(self, max_bytes: int, unavailable: str = "") -> None:
        self.unavailable = unavailable
        self.closed = False
        self.broken = False
        self._max_bytes = max_bytes
        self._file: list[Line] = []
        self._rotated: list[Line] = []  # followers may still be in the file before the current one
        self._start_ns = time.time_ns()
        self._first = 0  # number of the current file's first line, counted from the start of the container
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []

    def append(self, at_s: float, text: str) -> None:
        """Adds a line stamped `at_s` seconds after the container's start."""
        size = _LINE_OVERHEAD + len(text.encode("utf-8", errors="replace"))
        if self._bytes + size > self._max_bytes and self._file:
            self._first += len(self._file)
            self._rotated, self._file, self._bytes = self._file, [], 0
        self._file.append(Line(self._start_ns + int(at_s * 1e9), text))
        self._bytes += size
        self._wake()

    def close(self, broken: bool = False) -> None:
        """No more lines will come. `broken`: readers lose their connection, as when the node dies."""
        self.closed, self.broken = True, broken
        self._wake()

    def current(self) -> tuple[list[Line], int]:
        """A copy of the current file's lines and the position after them, for `since`."""
        return self._file[:], self._first + len(self._file)

    def since(self, position: int) -> tuple[list[Line], int]:
        """Lines from a position on, as far as they still exist, and the new position."""
        missing = self._first - position
        head = self._rotated[-missing:] if missing > 0 else []
        return head + self._file[max(-missing, 0) :], self._first + len(self._file)

    async def changed(self) -> None:
        """Waits for the next line or the end."""
        if not self.closed:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def tail_message(self) -> str:
        """The end of the log, as FallbackToLogsOnError puts it into the termination message."""
        text = "".join(f"{line.text}\n" for line in self._file[-_MESSAGE_LINES:])
        return text.encode("utf-8", errors="replace")[-_MESSAGE_BYTES:].decode("utf-8", errors="ignore")

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


@dataclasses.dataclass(frozen=True, slots=True)
class LogProblem:
    """Why a log cannot be served: HTTP status and text. Status 0: the node does not answer at all."""

    status: int
    text: str


Finder: t.TypeAlias = Callable[[str, str, str, bool], "ContainerLog | LogProblem"]
"""(namespace, pod, container, previous run?) -> its log."""


@dataclasses.dataclass(frozen=True, slots=True)
class LogOptions:
    """The query of a log request. `since_ns`: nanoseconds since the epoch."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since_ns: int | None = None

    @classmethod
    def parse(cls, query: t.Mapping[str, str]) -> LogOptions:
        """From query parameters as the API server passes them on. ValueError on bad values."""

        def flag(name: str) -> bool:
            return query.get(name, "").lower() in ("true", "1")

        def number(name: str, least: int) -> int | None:
            if not query.get(name):
                return None
            value = int(query[name])
            if value < least:
                raise ValueError(f"{name} must be at least {least}")
            return value

        since_ns: int | None = None
        seconds = number("sinceSeconds", 1)
        if seconds is not None:
            since_ns = time.time_ns() - seconds * 10**9
        elif query.get("sinceTime"):
            since_ns = _time_ns(query["sinceTime"])
        return cls(flag("follow"), flag("previous"), flag("timestamps"), number("tailLines", 0), number("limitBytes", 1), since_ns)


class LogServer:
    """One listener for all nodes. Without `tls` it speaks plain http."""

    def __init__(self, find: Finder, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._find = find
        self._host = host
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listens; `port` is known afterwards."""
        from aiohttp import web

        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._serve)
        app.router.add_get("/healthz", self._healthy)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, 0, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Closes the listener and ends all answers."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthy(self, _request: web.Request) -> web.Response:
        from aiohttp import web

        return web.Response(text="ok")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        try:
            options = LogOptions.parse(request.query)
        except ValueError as exc:
            return web.Response(status=400, text=f"invalid log options: {exc}\n")
        where = request.match_info
        found = self._find(where["namespace"], where["pod"], where["container"], options.previous)
        if isinstance(found, LogProblem):
            if not found.status and request.transport is not None:
                request.transport.abort()
            return web.Response(status=found.status or 500, text=found.text)
        if found.unavailable:
            return web.Response(text=found.unavailable)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        try:
            await _stream(found, options, response)
        except ConnectionError:
            return response  # the reader has gone
        if found.broken and request.transport is not None:
            request.transport.abort()
        else:
            await response.write_eof()
        return response


async def _stream(source: ContainerLog, options: LogOptions, response: web.StreamResponse) -> None:
    lines, position = source.current()
    if options.since_ns is not None:
        lines = [line for line in lines if line.at_ns >= options.since_ns]
    if options.tail_lines is not None:
        lines = lines[len(lines) - options.tail_lines :] if 0 < options.tail_lines < len(lines) else lines if options.tail_lines else []
    left = options.limit_bytes
    while True:
        for chunk in _chunks(lines, options.timestamps):
            if left is not None:
                chunk = chunk[:left]
                left -= len(chunk)
            await response.write(chunk)
            if left == 0:
                return
        if not options.follow:
            return
        lines, position = source.since(position)
        if not lines:
            if source.closed:
                return
            await source.changed()
            lines, position = source.since(position)


def _chunks(lines: Iterable[Line], timestamps: bool) -> t.Iterator[bytes]:
    buffer = bytearray()
    for line in lines:
        text = f"{stamp(line.at_ns)} {line.text}\n" if timestamps else f"{line.text}\n"
        buffer += text.encode("utf-8", errors="replace")
        if len(buffer) >= _CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def stamp(at_ns: int) -> str:
    """RFC 3339 with nine digits, as a kubelet prints it."""
    seconds, nanos = divmod(at_ns, 10**9)
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def _time_ns(text: str) -> int:
    """An RFC 3339 time in nanoseconds, exact to the last digit."""
    whole, _dot, fraction = text.partition(".")
    digits = "".join(c for c in fraction if c.isdigit()) if "+" not in fraction and "-" not in fraction else ""
    if digits:
        return int(parse_time(whole + "Z").timestamp()) * 10**9 + int(digits[:9].ljust(9, "0"))
    return int(parse_time(text).timestamp() * 1e6) * 1000
