# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The JobSet and the Kubeflow Trainer manager, run beside the control plane instead of in it."""

from __future__ import annotations

import base64
import functools
import json
import pathlib
import shutil
import typing as t

import requests
import yaml

from .certificates import write_kubeconfig
from .children import Child, free_ports
from .launcher import READY_S, ControlPlane

Object = dict[str, t.Any]
_DEFINITIONS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "apis/admissionregistration.k8s.io/v1"
_KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


class Manager(t.NamedTuple):
    """A program of the build, its API groups, and where its manifests are."""

    program: str
    manifests: str
    definitions: str
    webhooks: str
    group_version: str
    config: Object


JOBSET = Manager(
    "jobset",
    "jobset-manifests",
    "crd/bases",
    "webhook/manifests.yaml",
    "jobset.x-k8s.io/v1alpha2",
    {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "internalCertManagement": {"enable": False}},
)
TRAINER = Manager(
    "trainer-controller-manager",
    "trainer-manifests",
    "crds",
    "webhook/manifests.yaml",
    "trainer.kubeflow.org/v1alpha1",
    {"apiVersion": "config.trainer.kubeflow.org/v1alpha1", "certManagement": {"enable": False}},
)


def start(plane: ControlPlane) -> None:
    """Serves both groups, starts both managers, then their webhooks. The managers end before the control plane does."""
    with plane.session() as session:
        for manager in (JOBSET, TRAINER):
            _serve_group(plane, session, manager)
        _post(session, f"{plane.url}/api/v1/namespaces", {"metadata": {"name": "kubeflow-system"}})
        for manager in (JOBSET, TRAINER):
            port = _start_one(plane, manager)
            _add_webhooks(plane, session, manager, port)
        _add_runtimes(plane, session)


def _documents(path: pathlib.Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _manifests(plane: ControlPlane, manager: Manager) -> pathlib.Path:
    return pathlib.Path(plane.programs.path(manager.manifests))


def _post(session: requests.Session, url: str, body: Object) -> None:
    answer = session.post(url, json=body, timeout=30)
    assert answer.status_code in (201, 409), f"{url}: {answer.status_code} {answer.text[:500]}"


def _serve_group(plane: ControlPlane, session: requests.Session, manager: Manager) -> None:
    """A manager that is started before discovery serves its kinds ends with 'no matches for kind'."""
    kinds = set()
    for path in sorted((_manifests(plane, manager) / manager.definitions).glob("*_*.yaml")):
        for definition in _documents(path):
            kinds.add(definition["spec"]["names"]["plural"])
            _post(session, f"{plane.url}/{_DEFINITIONS}", definition)

    def served() -> bool:
        answer = session.get(f"{plane.url}/apis/{manager.group_version}", timeout=10)
        return answer.status_code == 200 and kinds <= {row["name"] for row in answer.json()["resources"]}

    plane.server.await_ready(served, READY_S)


def _start_one(plane: ControlPlane, manager: Manager) -> int:
    """Starts it, returns the port of its webhooks. Both look for certificates in the same place under TMPDIR, so each gets its own."""
    home = plane.folder / f"{manager.program}-home"
    certificates = home / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    shutil.copy(plane.serving.certificate, certificates / "tls.crt")
    shutil.copy(plane.serving.key, certificates / "tls.key")
    webhook, health = free_ports(2)
    config = {
        "kind": "Configuration",
        **manager.config,
        "webhook": {"port": webhook, "host": "127.0.0.1"},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 500, "burst": 1000},
    }
    path = home / "config.yaml"
    path.write_text(json.dumps(config))
    user = plane.authority.issue(manager.program, manager.program, ["system:masters"])
    kubeconfig = write_kubeconfig(home / "kubeconfig", plane.url, plane.authority.certificate, user)
    environment = {"TMPDIR": str(home), "KUBECONFIG": str(kubeconfig), "NO_PROXY": "127.0.0.1"}
    child = plane.spawn(manager.program, [plane.programs.path(manager.program), f"--config={path}"], environment)
    _await_health(child, f"http://127.0.0.1:{health}/readyz")
    return webhook


def _await_health(child: Child, url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False

        def ready() -> bool:
            try:
                return session.get(url, timeout=5).status_code == 200
            except requests.RequestException:
                return False

        child.await_ready(ready, READY_S)


def _add_webhooks(plane: ControlPlane, session: requests.Session, manager: Manager, port: int) -> None:
    """The manager's own webhooks, at its address. Both managers use the same names for them, so they are told apart here."""
    bundle = base64.b64encode(plane.authority.certificate.read_bytes()).decode()
    for configuration in _documents(_manifests(plane, manager) / manager.webhooks):
        configuration["metadata"] = {"name": f"{manager.program}-{configuration['metadata']['name']}"}
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
            if "pods" in webhook["rules"][0]["resources"]:
                # As the project's own installation does: else every pod of the cluster depends on this manager.
                webhook["objectSelector"] = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
        _post(session, f"{plane.url}/{_WEBHOOKS}/{_KINDS[configuration['kind']]}", configuration)


def _add_runtimes(plane: ControlPlane, session: requests.Session) -> None:
    """The runtimes that Trainer ships. A webhook may take a moment to answer."""
    url = f"{plane.url}/apis/{TRAINER.group_version}/clustertrainingruntimes"
    for path in sorted((_manifests(plane, TRAINER) / "runtimes").glob("*_distributed.yaml")):
        for runtime in _documents(path):
            plane.server.await_ready(functools.partial(_created, session, url, runtime), READY_S)


def _created(session: requests.Session, url: str, body: Object) -> bool:
    return session.post(url, json=body, timeout=30).status_code in (201, 409)


__all__ = ["JOBSET", "TRAINER", "start"]
