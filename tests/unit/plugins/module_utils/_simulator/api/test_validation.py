# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of built-in kinds: what a genuine server refuses must be refused here, or rehearsals pass that real runs do not."""

from __future__ import annotations

import copy
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api import defaults
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.resources import Resource, ResourceTable
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.validation.checks import check_create, check_update

Object = dict[str, t.Any]
TABLE = ResourceTable()


def resource(kind: str, api_version: str = "v1") -> Resource:
    return next(found for found in TABLE.by_path.values() if (found.api_version, found.kind) == (api_version, kind))


def completed(kind: Resource, spec: Object, name: str = "x") -> Object:
    """An object as the server sees it after defaulting."""
    obj: Object = {"metadata": {"name": name, "namespace": "ns", "uid": "u"}, "spec": copy.deepcopy(spec)}
    defaults.BY_KIND[(kind.group, kind.kind)](obj)
    if kind.kind == "Job":
        defaults.job_selector(obj)
    return obj


def fields(kind: Resource, obj: Object) -> set[str]:
    return {error.field for error in check_create(kind, obj)}


def pod_fields(**spec: t.Any) -> set[str]:
    kind = resource("Pod")
    return fields(kind, completed(kind, {"containers": [{"name": "c", "image": "i"}], **spec}))


def container_fields(**container: t.Any) -> set[str]:
    found = pod_fields(containers=[{"name": "c", "image": "i", **container}])
    return {field.removeprefix("spec.containers[0].") for field in found}


def test_a_plain_pod_is_fine() -> None:
    assert pod_fields() == set()


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "c"}]}, "spec.containers[0].image"),
        ({"containers": [{"image": "i"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "C_1", "image": "i"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "c", "image": "i"}] * 2}, "spec.containers[1].name"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"dnsPolicy": "Mine"}, "spec.dnsPolicy"),
        ({"hostname": "a.b"}, "spec.hostname"),
        ({"nodeSelector": {"a b": "c"}}, "spec.nodeSelector"),
        ({"tolerations": [{"operator": "Equal"}]}, "spec.tolerations[0].operator"),
        ({"tolerations": [{"key": "k", "effect": "Never"}]}, "spec.tolerations[0].effect"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, "spec.volumes[1].name"),
        ({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}, "spec.volumes[0]"),
    ],
)
def test_broken_pods(spec: Object, field: str) -> None:
    assert field in pod_fields(**spec)


@pytest.mark.parametrize(
    ("container", "field"),
    [
        ({"resources": {"limits": {"nvidia.com/gpu": "0.5"}}}, "resources.limits[nvidia.com/gpu]"),
        ({"resources": {"requests": {"nvidia.com/gpu": "1"}}}, "resources.limits"),
        ({"resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}}, "resources.requests"),
        ({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, "resources.requests"),
        ({"resources": {"limits": {"gpu": "1"}}}, "resources.limits[gpu]"),
        ({"env": [{"name": ""}]}, "env[0].name"),
        ({"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}, "env[0].valueFrom"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, "volumeMounts[0].name"),
        ({"ports": [{"containerPort": 70000}]}, "ports[0].containerPort"),
        ({"ports": [{"containerPort": 1, "name": "much-too-long-a-name"}]}, "ports[0].name"),
        ({"imagePullPolicy": "Maybe"}, "imagePullPolicy"),
    ],
)
def test_broken_containers(container: Object, field: str) -> None:
    assert field in container_fields(**container)


def affinity(**term: t.Any) -> Object:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def test_a_pod_is_pinned_by_one_name_per_term() -> None:
    where = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    one = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert pod_fields(affinity=affinity(matchFields=[one])) == set()
    assert f"{where}.matchFields[0].values" in pod_fields(affinity=affinity(matchFields=[{**one, "values": ["n1", "n2"]}]))
    assert f"{where}.matchFields[0].values[0]" in pod_fields(affinity=affinity(matchFields=[{**one, "values": [""]}]))
    assert f"{where}.matchFields[0].key" in pod_fields(affinity=affinity(matchFields=[{**one, "key": "spec.x"}]))
    many = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n2"]}
    assert pod_fields(affinity=affinity(matchExpressions=[many])) == set()
    assert f"{where}.matchExpressions[0].values" in pod_fields(affinity=affinity(matchExpressions=[{**many, "values": []}]))


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "Bad_Name"}, "metadata.name"),
        ({"name": "a" * 254}, "metadata.name"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"labels": {"a": "x y"}}, "metadata.labels"),
        ({"labels": {"Not.A.Domain!/a": "x"}}, "metadata.labels"),
        ({"annotations": {"a": "x" * (256 * 1024)}}, "metadata.annotations"),
        ({"finalizers": ["no good"]}, "metadata.finalizers"),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}, "metadata.ownerReferences[0].uid"),
    ],
)
def test_broken_metadata(metadata: Object, field: str) -> None:
    kind = resource("ConfigMap")
    assert fields(kind, {"metadata": {"name": "x", **metadata}}) == {field}


JOB = resource("Job", "batch/v1")


def job(**spec: t.Any) -> Object:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    return completed(JOB, {"completionMode": "Indexed", "completions": 4, "parallelism": 4, "template": template, **spec})


def test_a_plain_job_is_fine() -> None:
    assert fields(JOB, job()) == set()


def rule(**content: t.Any) -> Object:
    return {"rules": [content]}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"completionMode": "Random"}, "spec.completionMode"),
        ({"completions": None}, "spec.completions"),
        ({"parallelism": -1}, "spec.parallelism"),
        ({"maxFailedIndexes": 1}, "spec.backoffLimitPerIndex"),
        ({"completionMode": "NonIndexed", "backoffLimitPerIndex": 1}, "spec.backoffLimitPerIndex"),
        ({"successPolicy": rule(succeededIndexes="0-1,1")}, "spec.successPolicy.rules[0].succeededIndexes"),
        ({"successPolicy": rule(succeededIndexes="4")}, "spec.successPolicy.rules[0].succeededIndexes"),
        ({"successPolicy": rule()}, "spec.successPolicy.rules[0]"),
        ({"successPolicy": {"rules": []}}, "spec.successPolicy.rules"),
        ({"completionMode": "NonIndexed", "successPolicy": rule(succeededCount=1)}, "spec.successPolicy"),
        ({"podFailurePolicy": rule(action="Explode", onPodConditions=[{"type": "X"}])}, "spec.podFailurePolicy.rules[0].action"),
        ({"podFailurePolicy": rule(action="FailIndex", onPodConditions=[{"type": "X"}])}, "spec.podFailurePolicy.rules[0].action"),
        (
            {"podFailurePolicy": rule(action="FailJob", onExitCodes={"operator": "In", "values": [0]})},
            "spec.podFailurePolicy.rules[0].onExitCodes.values",
        ),
        (
            {"podFailurePolicy": rule(action="FailJob", onExitCodes={"operator": "In", "values": [1], "containerName": "z"})},
            "spec.podFailurePolicy.rules[0].onExitCodes.containerName",
        ),
        ({"podFailurePolicy": rule(action="FailJob")}, "spec.podFailurePolicy.rules[0]"),
    ],
)
def test_broken_jobs(spec: Object, field: str) -> None:
    obj = job(**{key: value for key, value in spec.items() if value is not None})
    for key in [key for key, value in spec.items() if value is None]:
        obj["spec"].pop(key)
    assert field in fields(JOB, obj)


def test_jobs_restart_never_or_on_failure() -> None:
    always = {"spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "i"}]}}
    assert "spec.template.spec.restartPolicy" in fields(JOB, job(template=always))
    on_failure = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}}
    policy = rule(action="FailJob", onExitCodes={"operator": "In", "values": [1]})
    assert "spec.template.spec.restartPolicy" in fields(JOB, job(template=on_failure, podFailurePolicy=policy))


def test_indexed_host_names_fit_a_label() -> None:
    for length, completions, fine in ((61, 10, True), (62, 10, False), (61, 11, False), (60, 11, True)):
        obj = completed(JOB, job(completions=completions, parallelism=completions)["spec"], "x" * length)
        assert (fields(JOB, obj) == set()) is fine, (length, completions)


def changed(old: Object, **spec: t.Any) -> set[str]:
    new = copy.deepcopy(old)
    new["spec"].update(spec)
    return {error.field for error in check_update(JOB, new, old)}


def test_what_of_a_job_may_change() -> None:
    old = job()
    assert changed(old, suspend=True, parallelism=2, backoffLimit=1, activeDeadlineSeconds=9) == set()
    assert changed(old, completions=8, parallelism=8) == set()
    assert changed(old, completions=8) == {"spec.completions"}
    assert changed(old, completionMode="NonIndexed") == {"spec.completionMode"}
    template = copy.deepcopy(old["spec"]["template"])
    template["spec"]["nodeSelector"] = {"a": "b"}
    assert changed(old, template=template) == {"spec.template"}
    suspended = copy.deepcopy(old)
    suspended["spec"]["suspend"] = True
    assert changed(suspended, template=template) == set()
    suspended["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    assert changed(suspended, template=template) == {"spec.template"}


def test_what_of_a_pod_may_change() -> None:
    kind = resource("Pod")
    old = completed(kind, {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "g"}]})

    def errors(change: t.Callable[[Object], t.Any]) -> set[str]:
        new = copy.deepcopy(old)
        change(new["spec"])
        return {error.field for error in check_update(kind, new, old)}

    assert errors(lambda spec: spec["containers"][0].update(image="j")) == set()
    assert errors(lambda spec: spec.update(schedulingGates=[], nodeSelector={"a": "b"})) == set()
    assert errors(lambda spec: spec.update(schedulingGates=[{"name": "other"}])) == {"spec.schedulingGates"}
    assert errors(lambda spec: spec["containers"][0].update(args=["x"])) == {"spec"}


def test_other_kinds() -> None:
    service, node = resource("Service"), resource("Node")
    assert fields(service, completed(service, {"clusterIP": "None"})) == set()
    assert fields(service, completed(service, {})) == {"spec.ports"}
    assert fields(service, completed(service, {"clusterIP": "None"}, name="1abc")) == {"metadata.name"}
    taints = [{"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "NoSchedule"}]
    assert fields(node, {"metadata": {"name": "n"}, "spec": {"taints": taints}}) == {"spec.taints[1]"}
    secret = {"metadata": {"name": "s"}, "type": "kubernetes.io/ssh-auth", "data": {}}
    assert fields(resource("Secret"), secret) == {"data[ssh-privatekey]"}
    config_map = {"metadata": {"name": "c"}, "data": {"a b": "x"}}
    assert fields(resource("ConfigMap"), config_map) == {"data[a b]"}
    event = {"metadata": {"name": "e", "namespace": "ns"}, "involvedObject": {"kind": "Node", "name": "n"}}
    assert fields(resource("Event"), event) == {"involvedObject.namespace"}
    binding = {
        "metadata": {"name": "b", "namespace": "ns"},
        "roleRef": {"kind": "Role"},
        "subjects": [{"kind": "ServiceAccount", "name": "a"}],
    }
    assert fields(resource("RoleBinding", "rbac.authorization.k8s.io/v1"), binding) == {"roleRef.name", "subjects[0].namespace"}
