# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Container logs through the API server: what kubectl logs and the product read."""

from __future__ import annotations

import http.server
import threading
import typing as t
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests

from .conftest import Api
from .test_contract import bind, pod

Object = dict[str, t.Any]


class _Agent(http.server.BaseHTTPRequestHandler):
    """A node agent that prints what it was asked."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = ",".join(f"{key}={value}" for key, value in sorted(parse_qsl(parts.query)))
        self.send_response(404 if parts.path.endswith("/gone") else 200)
        self.end_headers()
        self.wfile.write(f"{parts.path} {query}\n".encode())

    def log_message(self, *arguments: t.Any) -> None:
        """Quiet."""


@pytest.fixture
def agent_node(api: Api) -> Iterator[str]:
    """A node whose agent listens."""
    agent = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Agent)
    thread = threading.Thread(target=agent.serve_forever, daemon=True)
    thread.start()
    name = f"{api.namespace}-agent"
    endpoints = {"kubeletEndpoint": {"Port": agent.server_address[1]}}
    status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": endpoints}
    api.post("/api/v1/nodes", {"metadata": {"name": name}, "status": status})
    yield name
    agent.shutdown()
    agent.server_close()
    thread.join(5)


def text(api: Api, name: str, query: str = "") -> str:
    answer = requests.get(f"{api.url}{api.at('pods', name)}/log{query}", timeout=10)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_logs_come_from_the_node_with_every_option(api: Api, agent_node: str) -> None:
    api.post(api.at("pods"), pod("a"))
    bind(api, "a", agent_node)
    assert text(api, "a") == f"/containerLogs/{api.namespace}/a/c \n"
    asked = text(api, "a", "?container=c&follow=True&timestamps=true&tailLines=5&sinceSeconds=3&limitBytes=9&previous=false")
    assert asked.split()[1] == "follow=true,limitBytes=9,previous=false,sinceSeconds=3,tailLines=5,timestamps=true"


def test_logs_need_a_node_and_a_container(api: Api, agent_node: str) -> None:
    body = pod("a")
    body["spec"]["containers"] = [{"name": name, "image": "i:1"} for name in ("c", "gone")]
    api.post(api.at("pods"), body)
    path = api.at("pods", "a") + "/log"
    assert "does not have a host assigned" in api.get(path + "?container=c", 400)["message"]
    bind(api, "a", agent_node)
    assert "choose one of: [c gone]" in api.get(path, 400)["message"]
    assert api.get(path + "?container=x", 400)["message"] == "container x is not valid for pod a"
    assert api.get(path + "?container=gone", 404)["reason"] == "NotFound"
    api.get(path + "?container=c&tailLines=-1", 422)
    api.get(api.at("pods", "b") + "/log", 404)


def test_an_unreachable_agent_is_an_internal_error(api: Api) -> None:
    status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}
    api.post("/api/v1/nodes", {"metadata": {"name": f"{api.namespace}-dead"}, "status": status})
    api.post(api.at("pods"), pod("a"))
    bind(api, "a", f"{api.namespace}-dead")
    assert "127.0.0.1:1/containerLogs" in api.get(api.at("pods", "a") + "/log", 500)["message"]
