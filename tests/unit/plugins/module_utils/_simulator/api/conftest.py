# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A served API server for the tests of this directory, and a plain HTTP client to talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import threading
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.server import ApiServer
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.kubeconfig import write_kubeconfig
from ansible_collections.gpu_cluster.readiness.tests.control_plane import selection

pytest_configure, pytest_collection_modifyitems = selection.pytest_configure, selection.pytest_collection_modifyitems
Object = dict[str, t.Any]
_NUMBERS = itertools.count(1)


@dataclasses.dataclass
class Api:
    """One server and the namespace of one test."""

    url: str
    token: str
    kubeconfig: str
    namespace: str = ""

    def call(self, method: str, path: str, body: t.Any = None, code: int = 0, **headers: str) -> t.Any:
        """Send JSON and return the decoded answer. code: the status that must come back; 0 stands for any success."""
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        answer = requests.request(method, self.url + path, data=None if body is None else json.dumps(body), headers=sent, timeout=20)
        expected = answer.status_code == code if code else answer.status_code < 400
        assert expected, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def get(self, path: str, code: int = 0, **headers: str) -> t.Any:
        return self.call("GET", path, None, code, **headers)

    def post(self, path: str, body: t.Any, code: int = 0, **headers: str) -> t.Any:
        return self.call("POST", path, body, code, **headers)

    def put(self, path: str, body: t.Any, code: int = 0) -> t.Any:
        return self.call("PUT", path, body, code)

    def delete(self, path: str, body: t.Any = None, code: int = 0) -> t.Any:
        return self.call("DELETE", path, body, code)

    def patch(self, path: str, body: t.Any, kind: str = "merge-patch+json", code: int = 0) -> t.Any:
        return self.call("PATCH", path, body, code, Content_Type=f"application/{kind}")

    def at(self, plural: str, name: str = "", api: str = "api/v1") -> str:
        """A path in the namespace of the test."""
        return f"/{api}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def watch(self, path: str) -> list[Object]:
        """All events of a watch until it ends by itself."""
        answer = requests.get(self.url + path, timeout=20)
        return [json.loads(line) for line in answer.text.splitlines()]


class Served:
    """An ApiServer in an event loop of its own thread."""

    def __init__(self, **settings: t.Any) -> None:
        self.server = ApiServer(**settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self.server.start())

    def run(self, coroutine: t.Coroutine[t.Any, t.Any, t.Any]) -> t.Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def stop(self) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def api(self, folder: Path) -> Api:
        path = str(folder / "kubeconfig")
        write_kubeconfig(path, self.server.url, self.server.token)
        return Api(self.server.url, self.server.token, path)


@contextlib.contextmanager
def genuine_api(folder: Path) -> Iterator[Api]:
    """A genuine API server behind "kubectl proxy", so that the same plain requests reach it. Raises build.Unavailable."""
    from ansible_collections.gpu_cluster.readiness.tests.control_plane import backend, children

    log = folder / "proxy.log"
    with backend.open_backend() as opened:
        command = ["kubectl", f"--kubeconfig={opened.kubeconfig}", "proxy", "--port=0", "--disable-filter=true"]
        proxy = children.Child("kubectl proxy", command, log)
        try:
            proxy.await_ready(lambda: "Starting to serve on" in log.read_text(), 30)
            yield Api("http://" + log.read_text().split("Starting to serve on ")[1].split()[0], "", str(opened.kubeconfig))
        finally:
            proxy.stop()


@pytest.fixture(scope="session")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The simulator; with READINESS_BACKEND=control_plane a genuine API server, to which the simulator is held."""
    folder = tmp_path_factory.mktemp("api")
    if selection.GENUINE:
        with genuine_api(folder) as api:
            yield api
        return
    served = Served()
    yield served.api(folder)
    served.stop()


@pytest.fixture
def api(shared_api: Api) -> Api:
    """The shared server with a namespace that only this test uses."""
    namespace = f"test-{next(_NUMBERS)}"
    shared_api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    made = dataclasses.replace(shared_api, namespace=namespace)
    # Controllers of a genuine cluster make these a moment later.
    for path in (made.at("serviceaccounts", "default"), made.at("configmaps", "kube-root-ca.crt")):
        deadline = time.monotonic() + 30
        while requests.get(made.url + path, timeout=10).status_code == 404:
            assert time.monotonic() < deadline, f"{path} was not made"
            time.sleep(0.02)
    return made
