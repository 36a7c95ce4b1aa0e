# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A scripted API server: each request takes the next prepared answer, so that a test can inject any failure."""

from __future__ import annotations

import json
import socket
import struct
import threading
import typing as t
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.retry import RetryPolicy


class Api:
    """answers: a list of (status, body[, headers]); body may be dict, bytes, "reset", or a list of watch chunks.

    The last answer is repeated. requests: what came in, as (method, path with query, headers, decoded body).
    """

    def __init__(self) -> None:
        self.answers: list[t.Any] = []
        self.by_path: dict[str, t.Any] = {}
        self.requests: list[tuple[str, str, t.Any, t.Any]] = []
        self.pauses: list[float] = []
        self.url = ""

    def next_answer(self, method: str, path: str) -> t.Any:
        plain = path.split("?")[0]
        if plain in self.by_path:
            return self.by_path[plain]
        if self.answers:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return 404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": f"{plain} not found"}

    def client(self, **options: t.Any) -> Client:
        retry = RetryPolicy(attempts=options.pop("attempts", 4), base_s=0.01, sleep=self.pauses.append, random=lambda: 1.0)
        read_timeout_s = options.pop("read_timeout_s", 5.0)
        settings = {"host": self.url, "api_key": "s3cr3t-token", **options}
        return Client.from_options(settings, retry=retry, read_timeout_s=read_timeout_s)


def _handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002
            pass

        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            api.requests.append((self.command, self.path, self.headers, json.loads(raw) if raw else None))
            status, body, *rest = api.next_answer(self.command, self.path)
            headers = rest[0] if rest else {}
            if body == "reset":
                # RST instead of FIN: the client sees "connection reset by peer".
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            (self.send_response_only if "Date" in headers else self.send_response)(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if isinstance(body, list):
                self.send_chunks(body)
                return
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            else:
                self.close_connection = True  # a promise of more than is sent
            self.end_headers()
            self.wfile.write(data)

        def send_chunks(self, chunks: list[t.Any]) -> None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in chunks:
                if chunk == "cut":
                    self.close_connection = True
                    return
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    return Handler


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    for name in ("K8S_AUTH_KUBECONFIG", "K8S_AUTH_HOST", "K8S_AUTH_API_KEY", "KUBECONFIG", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    scripted = Api()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted))
    server.daemon_threads = True
    server.handle_error = lambda *args: None  # type: ignore[method-assign]
    scripted.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield scripted
    server.shutdown()
    server.server_close()
