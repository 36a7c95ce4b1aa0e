# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The commands people type. kubectl comes from the test requirements, so its version is pinned with them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import typing as t
from pathlib import Path

import pytest

from .conftest import Api
from .test_contract import definition, job, node, pod, thing

Object = dict[str, t.Any]
KUBECTL = str(Path(sys.executable).parent / "kubectl")


class Kubectl:
    """kubectl against the server of a test, in the namespace of the test."""

    def __init__(self, api: Api) -> None:
        self._base = [KUBECTL, "--kubeconfig", api.kubeconfig, "--namespace", api.namespace]

    def run(self, *arguments: str, stdin: t.Any = None) -> subprocess.CompletedProcess[str]:
        text = None if stdin is None else json.dumps(stdin)
        return subprocess.run([*self._base, *arguments], input=text, capture_output=True, text=True, timeout=30, check=False)

    def __call__(self, *arguments: str, stdin: t.Any = None) -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self._base, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def kubectl(api: Api) -> Kubectl:
    return Kubectl(api)


def typed(api_version: str, kind: str, body: Object) -> Object:
    return {"apiVersion": api_version, "kind": kind, **body}


def test_get_prints_tables(kubectl: Kubectl, api: Api) -> None:
    api.post("/api/v1/nodes", node(f"{api.namespace}-n"))
    api.post(api.at("pods"), pod("a"))
    api.post(api.at("jobs", api="apis/batch/v1"), job("j"))
    assert kubectl("get", "nodes", "-o", "wide").split("\n")[0].split()[:5] == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert kubectl("get", "pods").split("\n")[1].split()[:4] == ["a", "0/1", "Pending", "0"]
    assert kubectl("get", "jobs").split("\n")[1].split()[:3] == ["j", "Running", "0/2"]
    assert "namespace/default" in kubectl("get", "ns", "-o", "name")


def test_create_is_validated_and_apply_is_repeatable(kubectl: Kubectl, api: Api) -> None:
    wrong = kubectl.run("create", "-f", "-", stdin=typed("v1", "Pod", pod("w", bogus=1)))
    assert wrong.returncode != 0 and 'unknown field "spec.bogus"' in wrong.stderr
    kubectl("create", "-f", "-", stdin=typed("v1", "Pod", pod("a")))
    config = typed("v1", "ConfigMap", {"metadata": {"name": "cm"}, "data": {"a": "1"}})
    assert "created" in kubectl("apply", "-f", "-", stdin=config)
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=config)
    config["data"] = {"b": "2"}
    assert "configured" in kubectl("apply", "-f", "-", stdin=config)
    assert api.get(api.at("configmaps", "cm"))["data"] == {"b": "2"}


def test_server_side_apply_reports_conflicts(kubectl: Kubectl, api: Api) -> None:
    config = typed("v1", "ConfigMap", {"metadata": {"name": "cm"}, "data": {"a": "1"}})
    kubectl("apply", "--server-side", "-f", "-", stdin=config)
    config["data"] = {"a": "2"}
    refused = kubectl.run("apply", "--server-side", "--field-manager", "other", "-f", "-", stdin=config)
    assert refused.returncode != 0 and 'conflict with "kubectl"' in refused.stderr
    kubectl("apply", "--server-side", "--force-conflicts", "--field-manager", "other", "-f", "-", stdin=config)
    assert api.get(api.at("configmaps", "cm"))["data"] == {"a": "2"}


def test_nodes_are_labelled_tainted_and_cordoned(kubectl: Kubectl, api: Api) -> None:
    name = f"{api.namespace}-n"
    api.post("/api/v1/nodes", node(name))
    kubectl("label", "node", name, "q=r")
    kubectl("taint", "node", name, "k=v:NoSchedule")
    kubectl("cordon", name)
    found = api.get(f"/api/v1/nodes/{name}")
    assert found["metadata"]["labels"]["q"] == "r"
    assert found["spec"]["unschedulable"] is True
    assert {"key": "k", "value": "v", "effect": "NoSchedule"} in found["spec"]["taints"]
    assert "Taints" in kubectl("describe", "node", name)
    kubectl("taint", "node", name, "k-")
    kubectl("uncordon", name)
    assert "unschedulable" not in api.get(f"/api/v1/nodes/{name}")["spec"]


def test_wait_watch_and_delete_end_when_they_should(kubectl: Kubectl, api: Api) -> None:
    watching = kubectl.start("get", "pods", "--watch-only", "-o", "name")
    time.sleep(1)
    api.post(api.at("pods"), pod("a"))
    assert watching.stdout is not None and watching.stdout.readline() == "pod/a\n"
    watching.terminate()
    watching.wait(10)
    condition = {"type": "Ready", "status": "True"}
    api.patch(api.at("pods", "a") + "/status", {"status": {"conditions": [condition]}})
    kubectl("wait", "--for=condition=Ready", "pod/a", "--timeout=5s")
    assert "deleted" in kubectl("delete", "pod", "a", "--timeout=10s")
    assert "deleted" in kubectl("delete", "namespace", api.namespace, "--timeout=10s")


def test_custom_kinds_can_be_explained_and_printed(kubectl: Kubectl, api: Api) -> None:
    group = f"{api.namespace}.example.com"
    kubectl("apply", "-f", "-", stdin=typed("apiextensions.k8s.io/v1", "CustomResourceDefinition", definition(group)))
    kubectl("wait", "--for=condition=Established", f"crd/things.{group}", "--timeout=5s")
    kubectl("create", "-f", "-", stdin=thing(group, "t"))
    assert kubectl("get", f"things.{group}").split() == ["NAME", "MODE", "t", "A"]
    assert "replicas" in kubectl("explain", "things.spec", "--api-version", f"{group}/v1")
    kubectl("delete", f"crd/things.{group}", "--timeout=10s")


def test_access_questions_are_answered(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "Server Version: v1.36.3" in kubectl("version")


def test_typed_commands_that_send_protobuf(kubectl: Kubectl, api: Api) -> None:
    other = f"{api.namespace}-b"
    kubectl("create", "namespace", other)
    kubectl("create", "configmap", "cm", "--from-literal", "a=ä")
    kubectl("create", "secret", "generic", "s", "--from-literal", "a=b")
    kubectl("create", "quota", "q", "--hard", "pods=2000")
    kubectl("create", "rolebinding", "rb", "--role", "r", "--serviceaccount", f"{api.namespace}:default")
    assert api.get(f"/api/v1/namespaces/{other}")["status"]["phase"] == "Active"
    assert api.get(api.at("configmaps", "cm"))["data"] == {"a": "ä"}
    assert api.get(api.at("secrets", "s"))["data"] == {"a": "Yg=="}
    assert api.get(api.at("resourcequotas", "q"))["spec"]["hard"] == {"pods": "2k"}
    binding = api.get(api.at("rolebindings", "rb", "apis/rbac.authorization.k8s.io/v1"))
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "default", "namespace": api.namespace}]


def test_a_drain_evicts_with_the_grace_it_was_given(kubectl: Kubectl, api: Api) -> None:
    name = f"{api.namespace}-n"
    api.post("/api/v1/nodes", node(name))
    api.post(api.at("pods"), pod("a", nodeName=name))
    kubectl.run("drain", name, "--force", "--grace-period=7", "--timeout=1s")
    assert api.get(api.at("pods", "a"))["metadata"]["deletionGracePeriodSeconds"] == 7
    kubectl("drain", name, "--force", "--disable-eviction", "--grace-period=0", "--timeout=5s")
    api.get(api.at("pods", "a"), 404)


def test_a_deployment_cannot_be_created_from_protobuf(kubectl: Kubectl) -> None:
    refused = kubectl.run("create", "deployment", "d", "--image", "i")
    assert refused.returncode != 0 and "application/vnd.kubernetes.protobuf" in refused.stderr
