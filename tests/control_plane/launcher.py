# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, and stops them in every case."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import tempfile
import time
import typing as t

import requests

from . import build
from .certificates import Authority, Pair, write_kubeconfig
from .children import Child, ChildFailed, free_ports

READY_S = 120.0
_ATTEMPTS = 3

# Creations with what came of them, so that a test knows name and labels of each object; changes with what was asked; reads by name alone.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "resources": [{"group": "coordination.k8s.io"}]},
        {"level": "RequestResponse", "verbs": ["create"], "resources": [{"group": ""}, {"group": "batch"}]},
        {"level": "Request", "verbs": ["update", "patch", "delete", "deletecollection"], "resources": [{"group": ""}, {"group": "batch"}]},
        {"level": "Metadata"},
    ],
}


class ControlPlane:
    """Use as a context manager, from the main thread. node_grace_s: seconds of silence after which a node is lost."""

    def __init__(self, *, node_grace_s: float = 10, folder: pathlib.Path | None = None) -> None:
        self.programs = build.Programs()
        self.node_grace_s = node_grace_s
        self._kept = folder
        self.folder = pathlib.Path()
        self.start_s = 0.0
        self.url = ""
        self._children: list[Child] = []

    # -- what others use

    @property
    def kubeconfig(self) -> pathlib.Path:
        """Of a user who may do everything."""
        return self.folder / "admin.kubeconfig"

    @property
    def audit(self) -> pathlib.Path:
        """One audit.k8s.io/v1 Event per line."""
        return self.folder / "audit.jsonl"

    def session(self) -> requests.Session:
        """HTTP as the user who may do everything."""
        session = requests.Session()
        session.trust_env = False
        session.verify = str(self.authority.certificate)
        session.cert = (str(self.admin.certificate), str(self.admin.key))
        return session

    def spawn(self, name: str, command: t.Sequence[str], environment: t.Mapping[str, str] | None = None) -> Child:
        """Starts a program that is stopped with the control plane, before those that were started earlier."""
        child = Child(name, command, self.folder / f"{name}.log", environment)
        self._children.append(child)
        return child

    def memory_mb(self) -> dict[str, int]:
        """Resident memory of each program."""
        found = {}
        for child in self._children:
            with contextlib.suppress(OSError):
                status = pathlib.Path(f"/proc/{child.process.pid}/status").read_text()
                found[child.name] = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024
        return found

    # -- starting and stopping

    def __enter__(self) -> ControlPlane:
        started = time.monotonic()
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    self._start()
                    break
                except ChildFailed as failure:
                    # Somebody else may take a free port before we do.
                    if "address already in use" not in str(failure) or attempt == _ATTEMPTS - 1:
                        raise
                    self.stop()
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - started
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Clients first, the store last. Safe to call twice."""
        while self._children:
            self._children.pop().stop()
        if self.folder != pathlib.Path() and self._kept is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        if self._kept is not None:
            self._kept.mkdir(parents=True, exist_ok=True)
        self.folder = self._kept or pathlib.Path(tempfile.mkdtemp(prefix="control-plane-"))
        self._sign()
        ports = free_ports(3)
        self.url = f"https://127.0.0.1:{ports[2]}"
        self._start_store(ports[0], ports[1])
        self._start_server(ports[0], ports[2])
        controllers = self._start_controllers()
        self._start_scheduler()
        with self.session() as session:
            # Made by a controller, and no pod is admitted without it.
            account = f"{self.url}/api/v1/namespaces/default/serviceaccounts/default"
            controllers.await_ready(lambda: _answers(session, account), READY_S)

    def _sign(self) -> None:
        self.authority = Authority(self.folder / "pki")
        self.admin = self.authority.issue("admin", "admin", ["system:masters"])
        self.serving = self.authority.issue("serving", "control-plane")
        self.kubelet_client = self.authority.issue("kubelet-client", "kube-apiserver", ["system:masters"])
        self.token_key = self.authority.signing_key("tokens")
        for name, user in (("kube-controller-manager", "system:kube-controller-manager"), ("kube-scheduler", "system:kube-scheduler")):
            self.authority.issue(name, user)

    def _config_of(self, name: str) -> str:
        pair = Pair(self.authority.folder / f"{name}.crt", self.authority.folder / f"{name}.key")
        return str(write_kubeconfig(self.folder / f"{name}.kubeconfig", self.url, self.authority.certificate, pair))

    def _start_store(self, client_port: int, peer_port: int) -> None:
        client, peer = f"https://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        command = [
            self.programs.path("etcd"),
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            f"--cert-file={self.serving.certificate}",
            f"--key-file={self.serving.key}",
            f"--trusted-ca-file={self.authority.certificate}",
            "--client-cert-auth",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        self.spawn("etcd", command)

    def _start_server(self, store_port: int, port: int) -> None:
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        command = [
            self.programs.path("kube-apiserver"),
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--etcd-servers=https://127.0.0.1:{store_port}",
            f"--etcd-cafile={self.authority.certificate}",
            f"--etcd-certfile={self.admin.certificate}",
            f"--etcd-keyfile={self.admin.key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={self.serving.certificate}",
            f"--tls-private-key-file={self.serving.key}",
            f"--service-account-key-file={self.token_key}",
            f"--service-account-signing-key-file={self.token_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--kubelet-certificate-authority={self.authority.certificate}",
            f"--kubelet-client-certificate={self.kubelet_client.certificate}",
            f"--kubelet-client-key={self.kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit}",
            "--profiling=false",
        ]
        self.server = self.spawn("kube-apiserver", command)
        write_kubeconfig(self.kubeconfig, self.url, self.authority.certificate, self.admin)
        with self.session() as session:
            self.server.await_ready(lambda: _answers(session, f"{self.url}/readyz"), READY_S)

    def _start_controllers(self) -> Child:
        config = self._config_of("kube-controller-manager")
        command = [
            self.programs.path("kube-controller-manager"),
            f"--kubeconfig={config}",
            "--use-service-account-credentials=true",  # without it the controllers are refused and silently do nothing
            f"--service-account-private-key-file={self.token_key}",
            f"--root-ca-file={self.authority.certificate}",
            "--leader-elect=false",
            "--allocate-node-cidrs=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            f"--node-monitor-grace-period={self.node_grace_s:g}s",
            "--node-monitor-period=1s",
            "--profiling=false",
        ]
        return self.spawn("kube-controller-manager", command)

    def _start_scheduler(self) -> None:
        config = self._config_of("kube-scheduler")
        options = ["--leader-elect=false", "--secure-port=0", "--kube-api-qps=500", "--kube-api-burst=1000", "--profiling=false"]
        self.spawn("kube-scheduler", [self.programs.path("kube-scheduler"), f"--kubeconfig={config}", *options])


def _answers(session: requests.Session, url: str) -> bool:
    try:
        return session.get(url, timeout=5).status_code == 200
    except requests.exceptions.SSLError:
        raise  # will not become better
    except requests.RequestException:
        return False
