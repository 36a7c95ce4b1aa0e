# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The proxy does what a cell says, to the requests that it says, and to no other. A proxy that spoils nothing would prove everything."""

from __future__ import annotations

import http.client
import http.server
import json
import pathlib
import threading
import typing as t

import pytest

from .faults import Asked, Fault, asked_by
from .proxy import FaultyProxy

LIST = {"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "p"}}]}
EVENTS = [json.dumps({"type": "ADDED", "object": {"metadata": {"name": name}}}).encode() + b"\n" for name in "ab"]
PODS = "/api/v1/namespaces/x/pods"


class Upstream(http.server.BaseHTTPRequestHandler):
    """Answers a watch with two events, everything else with a list."""

    seen: t.ClassVar[list[str]] = []

    def log_message(self, *_arguments: t.Any) -> None:
        """Says nothing."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(self.command)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"".join(EVENTS) if "watch=true" in self.path else json.dumps(LIST).encode())

    do_GET = do_POST = do_PATCH = do_DELETE = answer


@pytest.fixture
def kubeconfig(tmp_path: pathlib.Path) -> t.Iterator[pathlib.Path]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    Upstream.seen.clear()
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"clusters": [{"cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}]}))
    yield path
    server.shutdown()
    server.server_close()


def ask(proxy: FaultyProxy, method: str = "GET", path: str = PODS, timeout_s: float = 5) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=timeout_s)
    connection.request(method, path, body=b"{}" if method != "GET" else None)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize(
    ("method", "target", "asked"),
    [
        ("GET", "/version", ("get", "version")),
        ("GET", "/apis", ("get", "apis")),
        ("GET", "/api/v1/nodes?limit=500", ("list", "nodes")),
        ("GET", "/api/v1/nodes/n0", ("get", "nodes")),
        ("GET", "/api/v1/namespaces/kube-system", ("get", "namespaces")),
        ("GET", f"{PODS}?watch=true&resourceVersion=7", ("watch", "pods")),
        ("GET", f"{PODS}/p/log?container=node", ("get", "pods/log")),
        ("POST", "/apis/batch/v1/namespaces/x/jobs?dryRun=All", ("dryrun", "jobs")),
        ("POST", "/apis/batch/v1/namespaces/x/jobs", ("create", "jobs")),
        ("PATCH", "/apis/batch/v1/namespaces/x/jobs/j", ("patch", "jobs")),
        ("DELETE", f"{PODS}/p", ("delete", "pods")),
        ("PATCH", "/api/v1/nodes/n0/status", ("patch", "nodes/status")),
    ],
)
def test_a_request_is_known_by_its_verb_and_resource(method: str, target: str, asked: tuple[str, str]) -> None:
    assert asked_by(method, target) == Asked(*asked)


def test_what_the_fault_is_not_about_is_handed_through(kubeconfig: pathlib.Path) -> None:
    with FaultyProxy(kubeconfig, Fault("list", "jobs", "500", forever=True)) as proxy:
        assert json.loads(ask(proxy)[1]) == LIST
        assert ask(proxy, path=f"{PODS}?watch=true")[1] == b"".join(EVENTS)
        assert [item.spoilt for item in proxy.passed] == [False, False]


@pytest.mark.parametrize(("forever", "skip", "spoilt"), [(False, 0, "x..."), (False, 1, ".x.."), (True, 0, "xxxx"), (True, 2, "..xx")])
def test_a_fault_comes_when_the_cell_says(kubeconfig: pathlib.Path, forever: bool, skip: int, spoilt: str) -> None:
    with FaultyProxy(kubeconfig, Fault("list", "pods", "503", forever, skip)) as proxy:
        assert "".join("x" if ask(proxy)[0] == 503 else "." for _try in range(4)) == spoilt


@pytest.mark.parametrize("kind", ["403", "404", "409", "410", "429", "500", "503"])
def test_a_refusal_has_the_shape_of_the_api_servers(kubeconfig: pathlib.Path, kind: str) -> None:
    with FaultyProxy(kubeconfig, Fault("list", "pods", kind)) as proxy:
        code, body = ask(proxy)
    status = json.loads(body)
    assert code == status["code"] == int(kind) and status["reason"] and "planted" in status["message"]


def test_a_lost_answer_is_lost_after_the_request_was_carried_out(kubeconfig: pathlib.Path) -> None:
    for kind, carried_out in (("reset", []), ("after:reset", ["POST"])):
        Upstream.seen.clear()
        with FaultyProxy(kubeconfig, Fault("create", "pods", kind)) as proxy, pytest.raises(ConnectionResetError):
            ask(proxy, "POST")
        assert Upstream.seen == carried_out


def test_half_an_answer_is_cut_or_looks_whole(kubeconfig: pathlib.Path) -> None:
    whole = len(json.dumps(LIST))
    with FaultyProxy(kubeconfig, Fault("list", "pods", "cut")) as proxy, pytest.raises(http.client.IncompleteRead):
        ask(proxy)
    with FaultyProxy(kubeconfig, Fault("list", "pods", "truncated")) as proxy:
        assert len(ask(proxy)[1]) == whole // 2


def test_what_hangs_does_not_answer(kubeconfig: pathlib.Path) -> None:
    for kind in ("hang", "after:hang"):
        with FaultyProxy(kubeconfig, Fault("list", "pods", kind)) as proxy, pytest.raises(TimeoutError):
            ask(proxy, timeout_s=0.3)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("garbage", b"<html>"),
        ("list", b"[]"),
        ("emptyobj", b"{}"),
        ("emptybody", b""),
        ("emptylist", b'{"kind": "List"'),
        ("strange", b'{"kind": 7'),
    ],
)
def test_an_answer_of_another_shape_comes_with_status_200(kubeconfig: pathlib.Path, kind: str, body: bytes) -> None:
    with FaultyProxy(kubeconfig, Fault("list", "pods", kind)) as proxy:
        code, found = ask(proxy)
    assert code == 200 and found.startswith(body) and found != json.dumps(LIST).encode()


@pytest.mark.parametrize(
    ("kind", "lines"),
    [("wclose", []), ("w410", [EVENTS[0], b"Expired"]), ("w500", [EVENTS[0], b"InternalError"]),
     ("wgarbage", [EVENTS[0], b"html", EVENTS[1]]), ("wnull", [EVENTS[0], b'"object": null', EVENTS[1]])],
)  # fmt: skip
def test_a_watch_begins_well_and_is_then_spoilt(kubeconfig: pathlib.Path, kind: str, lines: list[bytes]) -> None:
    with FaultyProxy(kubeconfig, Fault("watch", "pods", kind)) as proxy:
        found = ask(proxy, path=f"{PODS}?watch=true")[1].splitlines(keepends=True)
    assert len(found) == len(lines) and all(part in line for part, line in zip(lines, found, strict=True))


def test_a_watch_that_is_dropped_has_lost_its_end(kubeconfig: pathlib.Path) -> None:
    with (
        FaultyProxy(kubeconfig, Fault("watch", "pods", "wdrop")) as proxy,
        pytest.raises((ConnectionResetError, http.client.IncompleteRead)),
    ):
        ask(proxy, path=f"{PODS}?watch=true")


def test_a_silent_watch_says_nothing(kubeconfig: pathlib.Path) -> None:
    with FaultyProxy(kubeconfig, Fault("watch", "pods", "wsilent")) as proxy, pytest.raises(TimeoutError):
        ask(proxy, path=f"{PODS}?watch=true", timeout_s=0.5)
