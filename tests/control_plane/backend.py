# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A genuine control plane as the backend of tests: one for a whole session, whose nodes and objects change with every test.

READINESS_TEST_KUBECONFIG names a disposable cluster of yours to use instead; KUBEBUILDER_ASSETS a folder of programs to take first.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time
import typing as t

import requests

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.api import read_kubeconfig
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.definition import load

from .certificates import Authority, Pair
from .children import Child
from .launcher import ControlPlane

Object = dict[str, t.Any]
NAMESPACE = "default"
_AGENTS = "ansible_collections.gpu_cluster.readiness.tests.control_plane.agents"
_READY_S = 90.0
_EMPTY_S = 60.0
_WORK = ("apis/batch/v1", "jobs"), ("api/v1", "pods"), ("api/v1", "services"), ("api/v1", "configmaps"), ("api/v1", "secrets")
_KEPT = {"kubernetes", "kube-root-ca.crt"}  # in every default namespace


class Server:
    """An API server as the user of a kubeconfig reaches it."""

    def __init__(self, kubeconfig: pathlib.Path) -> None:
        self.url, self.http = _session(kubeconfig)


class Backend(Server):
    """A server that answers, and simulated nodes that come and go."""

    def __init__(self, kubeconfig: pathlib.Path, pair: Pair, authority: str = "", plane: ControlPlane | None = None) -> None:
        self.kubeconfig, self.plane = kubeconfig, plane
        self.audit = plane.audit if plane else None
        self._pair, self._authority = pair, authority
        self._agents: list[Child] = []
        self._nodes: list[str] = []
        super().__init__(kubeconfig)

    def attach(self, definition: pathlib.Path, work: pathlib.Path) -> None:
        """Adds the nodes of a definition; returns when they can take pods."""
        log = work / "agents.log"
        command = [
            sys.executable,
            "-m",
            _AGENTS,
            f"--kubeconfig={self.kubeconfig}",
            f"--definition={definition}",
            f"--certificate={self._pair.certificate}",
            f"--key={self._pair.key}",
            f"--authority={self._authority}",
        ]
        agents = Child("agents", command, log)
        self._agents.append(agents)
        self._nodes += _node_names(definition)
        agents.await_ready(lambda: "READY" in log.read_text(), _READY_S)

    def reset(self) -> None:
        """Takes away the nodes and all work, as if no test had been."""
        while self._agents:
            self._agents.pop().stop()
        for api, plural in _WORK:
            for name in self._names(f"{api}/namespaces/{NAMESPACE}/{plural}"):
                body: Object = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
                self.http.delete(f"{self.url}/{api}/namespaces/{NAMESPACE}/{plural}/{name}", json=body, timeout=30)
        for name in self._nodes:
            self.http.delete(f"{self.url}/api/v1/nodes/{name}", timeout=30)
        self._await_empty()
        self._nodes.clear()

    def _names(self, path: str) -> set[str]:
        answer = self.http.get(f"{self.url}/{path}", timeout=30)
        answer.raise_for_status()
        return {item["metadata"]["name"] for item in answer.json()["items"]} - _KEPT

    def _await_empty(self) -> None:
        deadline = time.monotonic() + _EMPTY_S
        while True:
            left = {f"{plural}/{name}" for api, plural in _WORK for name in self._names(f"{api}/namespaces/{NAMESPACE}/{plural}")}
            left |= {f"nodes/{name}" for name in self._names("api/v1/nodes") & set(self._nodes)}
            if not left:
                return
            assert time.monotonic() < deadline, f"left after a test: {sorted(left)[:8]}"
            time.sleep(0.2)


def audit_rows(path: pathlib.Path, start: int = 0) -> list[Object]:
    """Events of an audit log from a byte position on. The server may still be writing the last one."""
    with path.open("rb") as file:
        file.seek(start)
        return [json.loads(line) for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]


def plain_rows(events: t.Iterable[Object]) -> t.Iterator[Object]:
    """The same in the form of the simulator's audit log: verb, resource with subresource, namespace, name, user_agent, status."""
    for event in events:
        target = event.get("objectRef") or {}
        resource = "/".join(filter(None, (target.get("resource", ""), target.get("subresource", ""))))
        yield {
            "verb": event["verb"],
            "resource": resource,
            "namespace": target.get("namespace", ""),
            "name": target.get("name", ""),
            "user_agent": event.get("userAgent", ""),
            "status": (event.get("responseStatus") or {}).get("code", 0),
        }


@contextlib.contextmanager
def open_backend(plane: ControlPlane | None = None) -> t.Iterator[Backend]:
    """The cluster of READINESS_TEST_KUBECONFIG, or a control plane that ends with the block. Raises build.Unavailable."""
    with contextlib.ExitStack() as ends:
        yield _opened(plane, ends)


def _opened(plane: ControlPlane | None, ends: contextlib.ExitStack) -> Backend:
    given = os.environ.get("READINESS_TEST_KUBECONFIG", "")
    if not given:
        started = ends.enter_context(plane or ControlPlane(node_grace_s=_node_grace_s()))
        return Backend(started.kubeconfig, started.serving, str(started.authority.certificate), started)
    folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="control-plane-"))
    return Backend(pathlib.Path(given), Authority(pathlib.Path(folder)).issue("kubelet", "kubelet"))


def _node_grace_s() -> float:
    """Short, so that a scenario can lose a node; not where one process renews the leases of hundreds of nodes on a busy machine."""
    return 10 if int(os.environ.get("READINESS_TEST_NODES", "64")) <= 64 else 300


def _node_names(definition: pathlib.Path) -> list[str]:
    found = load(definition)
    return [*found.node_names(), *(f"cpu-n{number:02d}" for number in range(found.cpu_nodes))]


def _session(kubeconfig: pathlib.Path) -> tuple[str, requests.Session]:
    """(URL, session) as the user of a kubeconfig."""
    url, token, tls = read_kubeconfig(str(kubeconfig))
    session = requests.Session()
    session.trust_env = False
    if token:
        session.headers["Authorization"] = f"Bearer {token}"
    if tls is not None:
        session.mount("https://", _Adapter(tls))
    return url, session


class _Adapter(requests.adapters.HTTPAdapter):
    """Speaks TLS with a context of ours."""

    def __init__(self, context: t.Any) -> None:
        self._context = context
        super().__init__()

    def init_poolmanager(self, *arguments: t.Any, **options: t.Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=self._context, **options)

    def cert_verify(self, *_arguments: t.Any) -> None:
        """The context holds what is trusted, and our certificate."""
