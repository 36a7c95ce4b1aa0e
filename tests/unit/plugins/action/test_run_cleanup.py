# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The exit status of the cleanup is what a script believes: 0 only when a last look found nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import typing as t
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

JOBS = "/apis/batch/v1/namespaces/default/jobs"
LISTED = (JOBS, *(f"/api/v1/namespaces/default/{plural}" for plural in ("pods", "configmaps", "secrets", "services")))


class Cluster(ThreadingHTTPServer):
    """Jobs of a dead run, and a server that falls ill where it is told to. ill: once the first deletion has come."""

    daemon_threads = True

    def __init__(self, jobs: int, ill: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs = {f"readiness-dead-c01-g{index:03}-1" for index in range(jobs)}
        self.ill, self.is_ill = ill, False


class Handler(BaseHTTPRequestHandler):
    server: Cluster

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if self.server.is_ill and self.server.ill == "lists":
            self._answer(500, {"message": "etcdserver: request timed out"})
        elif path in LISTED:
            names = sorted(self.server.jobs) if path == JOBS else []
            self._answer(200, {"metadata": {}, "items": [{"metadata": {"name": name, "uid": name}} for name in names]})
        else:
            self._answer(404, {"message": f"{path} not found"})

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.is_ill = True
        if self.server.ill == "deletions":
            self._answer(403, {"message": 'jobs.batch is forbidden: User "bob" cannot delete resource "jobs"'})
            return
        if not self.server.ill:
            self.server.jobs.discard(self.path.split("?")[0].rpartition("/")[2])
        self._answer(200, {"kind": "Status", "status": "Success"})

    def _answer(self, status: int, body: dict[str, t.Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def clean_up(tmp_path: Path) -> Iterator[t.Callable[..., tuple[int, str]]]:
    """clean_up(cluster, *flags) → exit status and output of the task on this cluster."""
    started: list[Cluster] = []

    def run(cluster: Cluster, *flags: str) -> tuple[int, str]:
        started.append(cluster)
        threading.Thread(target=cluster.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        command = [os.path.join(os.path.dirname(sys.executable), "ansible"), "localhost", "-m", "gpu_cluster.readiness.run_cleanup"]
        environment = {
            **os.environ,
            "K8S_AUTH_HOST": f"http://127.0.0.1:{cluster.server_address[1]}",
            "K8S_AUTH_API_KEY": "s3cr3t-token",
            "ANSIBLE_HOME": str(tmp_path),
            "ANSIBLE_LOCALHOST_WARNING": "False",
            "ANSIBLE_NOCOLOR": "1",
        }
        arguments = json.dumps({"run_id": "dead", "wait_timeout": 2})
        done = subprocess.run(
            [*command, "-a", arguments, *flags], env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        return done.returncode, done.stdout + done.stderr

    yield run
    for cluster in started:
        cluster.shutdown()
        cluster.server_close()


@pytest.mark.parametrize("jobs, said", [(1, "1 object\n")])
def test_what_a_dead_run_left_is_counted_removed_and_proven_gone(clean_up: t.Any, jobs: int, said: str) -> None:
    cluster = Cluster(jobs)
    status, output = clean_up(cluster)
    assert status == 0 and not cluster.jobs and f"Run dead: {said}" in output, output


def test_a_look_alone_removes_nothing(clean_up: t.Any) -> None:
    cluster = Cluster(2)
    status, output = clean_up(cluster, "--check")
    assert status == 0 and len(cluster.jobs) == 2 and "2 objects would be removed" in output, output


@pytest.mark.parametrize("ill, words", [("lists", "etcdserver: request timed out"), ("deletions", "cannot delete resource")])
def test_it_fails_when_it_cannot_be_seen_that_nothing_is_left(clean_up: t.Any, ill: str, words: str) -> None:
    """With all 13 objects still there it said "proven", and exit status 0, because the last list had failed."""
    status, output = clean_up(Cluster(3, ill))
    assert status != 0 and "the removal is not proven" in output and words in output, output
    assert '"proven": true' not in output
