# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The module as a play calls it: options, environment of the controller, and failures as one readable message."""

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

NODE = {
    "metadata": {"name": "gpu-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H200", "feature.node.kubernetes.io/x": "1"}},
    "spec": {},
    "status": {
        "capacity": {"nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "7"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
ANSWERS: dict[str, t.Any] = {
    "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.1"},
    "/apis": {"groups": []},
    "/api/v1/nodes": {"metadata": {}, "items": [NODE]},
    "/api/v1/services": {"metadata": {}, "items": []},
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        data = json.dumps(ANSWERS[self.path.split("?")[0]]).encode()
        self.send_response(200 if self.headers["Authorization"] == "Bearer s3cr3t-token" else 401)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: t.Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    made.server_close()


def call(
    server: str, tmp_path: Path, arguments: dict[str, t.Any], *flags: str, token: str = "s3cr3t-token"
) -> tuple[dict[str, t.Any], str]:
    """Result and whole output of one ad-hoc task; host and token come from the controller's environment."""
    command = [os.path.join(os.path.dirname(sys.executable), "ansible"), "localhost", "-m", "gpu_cluster.readiness.gpu_cluster_info"]
    environment = {
        **os.environ,
        "K8S_AUTH_HOST": server,
        "K8S_AUTH_API_KEY": token,
        "ANSIBLE_HOME": str(tmp_path),
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        [*command, *(["-a", json.dumps(arguments)] if arguments else []), *flags],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return json.loads(done.stdout[done.stdout.index("=> {") + 3 :]), done.stdout + done.stderr


def test_snapshot_and_summary_also_in_check_mode(server: str, tmp_path: Path) -> None:
    arguments = {"target": {"node_selector": {"feature.node.kubernetes.io/x": "1"}}}
    result, output = call(server, tmp_path, arguments, "--check", "-vvv")
    assert result["changed"] is False and result["summary"]["failed"] == ["gpu-1"]
    (row,) = result["snapshot"]["nodes"]
    assert row["gpu"]["model"] == "h200" and "have 7, need 8" in row["findings"][0]["message"]
    assert "s3cr3t" not in output


def test_refused_login_is_one_message_with_a_remedy(server: str, tmp_path: Path) -> None:
    result, output = call(server, tmp_path, {}, token="wr0ng-token")
    assert "log in again" in result["msg"] and result["error"]["hint"] and "Traceback" not in output and "wr0ng" not in output


def test_token_given_as_an_option_is_not_printed(server: str, tmp_path: Path) -> None:
    result, output = call(server, tmp_path, {"api_key": "s3cr3t-token"}, "-vvv", token="other")
    assert result["summary"]["nodes"] == 1 and "s3cr3t-token" not in output
