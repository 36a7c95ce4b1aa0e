# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A proxy before an API server that answers one kind of request wrongly, and hands everything else through, watches and logs as they come.

It listens on the loopback interface. One request a connection, so that a fault spoils nothing but the request that it is about.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import socket
import struct
import threading
import time
import typing as t

import aiohttp

from .faults import Asked, Fault, asked_by

# A watch that falls silent is cut by whatever stands between after this; nobody cuts one that hangs.
SILENCE_S = 8.0
# A watch is spoilt after its first event, or after this if there is none.
FIRST_EVENT_S = 1.0

GARBAGE = b"<html><body>upstream connect error or disconnect/reset before headers</body></html>"
# Right JSON, wrong shape.
SHAPES: dict[str, t.Any] = {
    "list": [],
    "emptyobj": {},
    "strange": {"kind": 7, "metadata": "text", "items": {"a": 1}, "status": [1], "groups": "text", "spec": 3},
    "strangeitems": {"kind": "List", "metadata": {}, "items": [None, 1, "text", {"metadata": None}, {"metadata": {"name": 5}}]},
    "emptylist": {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []},
}
REASONS = {
    401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests",
    500: "InternalError", 503: "ServiceUnavailable",
}  # fmt: skip
MESSAGES = {
    401: "Unauthorized",
    404: "the server could not find the requested resource (planted)",
    409: "Operation cannot be fulfilled: the object has been modified (planted)",
    410: "The provided resource version is too old (planted)",
    429: "Too many requests, please try again later (planted)",
    500: "etcdserver: request timed out (planted)",
    503: "the server is currently unable to handle the request (planted)",
}


@dataclasses.dataclass
class Passed:
    """One request that came by: when, what it asked for, whether it was spoilt."""

    at: float
    asked: Asked
    spoilt: bool


class _Gone(Exception):
    """The connection is to end without a word."""


class FaultyProxy:
    """Between a client and the API server of a kubeconfig, in a thread of its own for the body of a `with`."""

    def __init__(self, kubeconfig: pathlib.Path, fault: Fault | None) -> None:
        self._config = json.loads(kubeconfig.read_text())  # the simulator writes JSON
        self._upstream = self._config["clusters"][0]["cluster"]["server"]
        self._fault, self._met = fault, 0
        self.passed: list[Passed] = []
        self.url = ""
        self._ready, self._stopping = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="faulty-proxy", daemon=True)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the proxy did not start")
        return self

    def __exit__(self, *_error: object) -> None:
        if self._loop:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def write_kubeconfig(self, path: pathlib.Path) -> None:
        """A kubeconfig that leads through the proxy."""
        config = json.loads(json.dumps(self._config))
        config["clusters"][0]["cluster"] = {"server": self.url}
        path.write_text(json.dumps(config))
        path.chmod(0o600)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)) as session:
            server = await asyncio.start_server(lambda *ends: self._answer(session, *ends), "127.0.0.1", 0, limit=2**20)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._stopping.wait()
            server.close()
            mine = asyncio.current_task()
            open_requests = [task for task in asyncio.all_tasks() if task is not mine]
            for task in open_requests:
                task.cancel()
            await asyncio.gather(*open_requests, return_exceptions=True)

    async def _answer(self, session: aiohttp.ClientSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._take(session, reader, writer)
        except _Gone:
            _reset(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, aiohttp.ClientError):
            writer.transport.abort()
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _take(self, session: aiohttp.ClientSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _version = head[0].split(" ", 2)
        headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        sizes = [int(value) for name, value in headers.items() if name.lower() == "content-length"]
        body = await reader.readexactly(sizes[0]) if sizes and sizes[0] else b""
        asked = asked_by(method, target)
        kind = self._kind_for(asked)
        self.passed.append(Passed(time.monotonic(), asked, kind is not None))
        kept = {name: value for name, value in headers.items() if name.lower() in ("authorization", "content-type", "accept")}
        if kind and not kind.startswith(("after:", "w", "cut", "truncated")):
            await _spoil(kind, method, asked, reader, writer)
            return
        async with session.request(method, self._upstream + target, data=body or None, headers=kept) as answer:
            if kind and kind.startswith("w"):
                await _spoil_watch(kind[1:], answer, reader, writer)
            elif kind:
                await _spoil_answer(kind.removeprefix("after:"), method, asked, await answer.read(), reader, writer)
            elif asked.verb == "watch" or asked.resource == "pods/log":
                await _stream(answer, writer)
            else:
                await _send(writer, answer.status, await answer.read(), dict(answer.headers))

    def _kind_for(self, asked: Asked) -> str | None:
        """How this request is spoilt; None when it is handed through."""
        if self._fault is None or not self._fault.is_about(asked):
            return None
        self._met += 1
        due = self._met > self._fault.skip if self._fault.forever else self._met == self._fault.skip + 1
        return self._fault.kind if due else None


async def _spoil(kind: str, method: str, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer of our own making."""
    if kind.isdigit():
        await _send_status(writer, int(kind), asked)
    elif kind == "reset":
        raise _Gone
    elif kind == "hang":
        await reader.read()  # until the client gives up
        raise _Gone
    elif kind == "garbage":
        await _send(writer, 200, GARBAGE, {"Content-Type": "text/html"})
    elif kind == "emptybody":
        await _send(writer, 200, b"", {})
    else:
        await _send(writer, 201 if method == "POST" else 200, json.dumps(SHAPES[kind]).encode(), {"Content-Type": "application/json"})


async def _spoil_answer(
    kind: str, method: str, asked: Asked, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """The request was carried out; its answer is cut (less than was promised), truncated (half of it, as if it were all), or replaced."""
    if kind == "truncated":
        await _send(writer, 200, body[: len(body) // 2], {"Content-Type": "application/json"})
    elif kind == "cut":
        writer.write(_head(200, {"Content-Type": "application/json"}, len(body)) + body[: len(body) // 2])
        await writer.drain()
    else:
        await _spoil(kind, method, asked, reader, writer)


async def _spoil_watch(kind: str, answer: aiohttp.ClientResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A watch that begins well: `close` and `silent` before its first event, the others after it."""
    writer.write(_head(answer.status, {"Content-Type": "application/json"}, None))
    if kind == "close":
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return
    if kind == "silent":
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), SILENCE_S)
        raise _Gone
    with contextlib.suppress(TimeoutError):
        _chunk(writer, await asyncio.wait_for(answer.content.readline(), FIRST_EVENT_S))
    if kind == "drop":
        await writer.drain()
        raise _Gone
    if kind in ("410", "500"):
        _chunk(writer, json.dumps({"type": "ERROR", "object": status_object(int(kind), Asked("watch", ""))}).encode() + b"\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return
    line = GARBAGE if kind == "garbage" else json.dumps({"type": "MODIFIED", "object": None}).encode()
    _chunk(writer, line + b"\n")
    await _rest(answer, writer)


async def _stream(answer: aiohttp.ClientResponse, writer: asyncio.StreamWriter) -> None:
    """An answer as it comes."""
    writer.write(_head(answer.status, {"Content-Type": answer.headers.get("Content-Type", "text/plain")}, None))
    await writer.drain()
    await _rest(answer, writer)


async def _rest(answer: aiohttp.ClientResponse, writer: asyncio.StreamWriter) -> None:
    async for data in answer.content.iter_any():
        _chunk(writer, data)
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def status_object(code: int, asked: Asked) -> dict[str, t.Any]:
    """The Status that an API server sends with an error; that of 403 in RBAC's own words."""
    verb = "create" if asked.verb == "dryrun" else asked.verb
    message = MESSAGES.get(code) or (
        f'{asked.resource} is forbidden: User "readiness" cannot {verb} resource "{asked.resource}" in API group "" (planted)'
    )
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": REASONS[code], "message": message}


async def _send_status(writer: asyncio.StreamWriter, code: int, asked: Asked) -> None:
    headers = {"Content-Type": "application/json", **({"Retry-After": "1"} if code == 429 else {})}
    await _send(writer, code, json.dumps(status_object(code, asked)).encode(), headers)


async def _send(writer: asyncio.StreamWriter, code: int, body: bytes, headers: t.Mapping[str, str]) -> None:
    kept = {name: headers[name] for name in ("Content-Type", "Content-Encoding", "Retry-After", "Warning") if name in headers}
    writer.write(_head(code, kept, len(body)) + body)
    await writer.drain()


def _head(code: int, headers: t.Mapping[str, str], length: int | None) -> bytes:
    size = {"Transfer-Encoding": "chunked"} if length is None else {"Content-Length": str(length)}
    lines = [f"HTTP/1.1 {code} {REASONS.get(code, 'OK')}", *(f"{name}: {value}" for name, value in {**headers, **size}.items())]
    return ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN: the client sees a connection that was reset by its peer."""
    transport_socket = writer.get_extra_info("socket")
    if transport_socket is not None:
        transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
