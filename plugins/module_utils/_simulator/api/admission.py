# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Admission: what the server checks and fills in by looking at other objects. It may refuse with 403."""

from __future__ import annotations

import decimal
import ipaddress
import secrets
import typing as t

from . import names, pod_security, quantity
from .errors import forbidden, not_found
from .objects import Object
from .resources import Resource
from .store import Store, Stored

_SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}
_SERVICE_NETWORK = ipaddress.ip_network("10.96.0.0/12")
_DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_FINISHED = ("Succeeded", "Failed")
_TOKEN_VOLUME, _TOKEN_PATH = "kube-api-access-", "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_SOURCES: tuple[Object, ...] = (
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
)


def _namespace(store: Store, resource: Resource, obj: Object) -> Object:
    """The labels of the namespace of a new object. Raises 404 when it is missing and 403 when it is going."""
    metadata = obj["metadata"]
    space = store.collection(("", "namespaces")).get("", metadata["namespace"])
    if space is None:
        raise not_found("", "namespaces", metadata["namespace"])
    if space.obj["status"]["phase"] == "Terminating":
        why = f"unable to create new content in namespace {metadata['namespace']} because it is being terminated"
        error = forbidden(resource.group, resource.plural, metadata["name"], why)
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {metadata['namespace']} is being terminated",
            "field": "metadata.namespace",
        }
        error.details = {**(error.details or {}), "causes": [cause]}
        raise error
    return space.obj["metadata"].get("labels") or {}


def _security(resource: Resource, obj: Object, labels: Object, warnings: list[str]) -> None:
    """Pod security by the labels of the namespace."""
    spec = obj.get("spec") or {}
    if (resource.group, resource.kind) == ("", "Pod"):
        if problem := pod_security.problem(labels, "enforce", spec):
            raise forbidden("", "pods", obj["metadata"]["name"], problem)
    elif resource.custom is None and isinstance(spec.get("template"), dict):
        spec = spec["template"].get("spec") or {}
    else:
        return
    if problem := pod_security.problem(labels, "warn", spec):
        warnings.append(f"would {problem}")


def _service_account(store: Store, obj: Object) -> None:
    spec, metadata = obj["spec"], obj["metadata"]
    name = spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = name
    account = store.collection(("", "serviceaccounts")).get(metadata["namespace"], name)
    if account is None:
        why = f'error looking up service account {metadata["namespace"]}/{name}: serviceaccount "{name}" not found'
        raise forbidden("", "pods", metadata["name"], why)
    if spec.get("automountServiceAccountToken", account.obj.get("automountServiceAccountToken", True)):
        _mount_token(spec)


def _mount_token(spec: Object) -> None:
    """The token of the service account in every container that has nothing else in its place."""
    volumes = spec.setdefault("volumes", [])
    name = next((item["name"] for item in volumes if item["name"].startswith(_TOKEN_VOLUME)), "")
    mounted = False
    volume = name or _TOKEN_VOLUME + names.random_suffix()
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        mounts = container.setdefault("volumeMounts", [])
        if not any(mount["mountPath"] == _TOKEN_PATH for mount in mounts):
            mounts.append({"name": volume, "readOnly": True, "mountPath": _TOKEN_PATH})
            mounted = True
    if mounted and not name:
        volumes.append({"name": volume, "projected": {"sources": [dict(item) for item in _TOKEN_SOURCES], "defaultMode": 420}})
    elif not volumes:
        del spec["volumes"]


def _default_priority_class(store: Store) -> Object | None:
    """The priority class with globalDefault, if any."""
    for item in store.collection(("scheduling.k8s.io", "priorityclasses")).ordered(None):
        if item.obj.get("globalDefault"):
            return item.obj
    return None


def _priority(store: Store, obj: Object) -> None:
    spec = obj["spec"]
    name = spec.get("priorityClassName")
    if not name:
        default = _default_priority_class(store)
        spec["priority"] = default.get("value", 0) if default else 0
        if default:
            spec["priorityClassName"] = default["metadata"]["name"]
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return
    found = store.collection(("scheduling.k8s.io", "priorityclasses")).get("", name)
    if found is None:
        raise forbidden("", "pods", obj["metadata"]["name"], f"no PriorityClass with name {name} was found")
    spec["priority"] = found.obj.get("value", 0)
    spec.setdefault("preemptionPolicy", found.obj.get("preemptionPolicy", "PreemptLowerPriority"))


def _tolerate_lost_nodes(spec: Object) -> None:
    tolerations = spec.setdefault("tolerations", [])
    for key in _DEFAULT_TOLERATIONS:
        if not any(item.get("key") in (key, None, "") and item.get("effect") in ("NoExecute", None, "") for item in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})


def pod_amounts(spec: Object, side: str) -> dict[str, decimal.Decimal]:
    """The requests or limits of a pod: the sum of its containers, or the largest init container where that is more."""
    total: dict[str, decimal.Decimal] = {}
    for container in spec.get("containers") or ():
        for name, amount in ((container.get("resources") or {}).get(side) or {}).items():
            total[name] = total.get(name, decimal.Decimal(0)) + (quantity.parse(amount) or 0)
    for container in spec.get("initContainers") or ():
        for name, amount in ((container.get("resources") or {}).get(side) or {}).items():
            total[name] = max(total.get(name, decimal.Decimal(0)), quantity.parse(amount) or decimal.Decimal(0))
    return total


def quota_use(spec: Object) -> dict[str, decimal.Decimal]:
    """What one pod uses of a quota, by the names a quota can limit."""
    use = {"pods": decimal.Decimal(1), "count/pods": decimal.Decimal(1)}
    for name, amount in pod_amounts(spec, "limits").items():
        use[f"limits.{name}"] = amount
    for name, amount in pod_amounts(spec, "requests").items():
        use[f"requests.{name}"] = amount
        if name in ("cpu", "memory", "ephemeral-storage"):
            use[name] = amount
    return use


def _quotas(store: Store, obj: Object) -> None:
    namespace = obj["metadata"]["namespace"]
    quotas = store.collection(("", "resourcequotas")).ordered(namespace)
    if not quotas:
        return
    asked = quota_use(obj["spec"])
    _must_specify(quotas, obj)
    used = used_in(store, namespace)
    for quota in quotas:
        hard = (quota.obj.get("spec") or {}).get("hard") or {}
        over = {
            name for name in hard if name in asked and used.get(name, decimal.Decimal(0)) + asked[name] > (quantity.parse(hard[name]) or 0)
        }
        if over:

            def listed(amounts: t.Mapping[str, t.Any], names: set[str] = over) -> str:
                return ",".join(f"{name}={quantity.show(amounts.get(name, decimal.Decimal(0)))}" for name in sorted(names))

            limits = {name: quantity.parse(hard[name]) or decimal.Decimal(0) for name in over}
            why = f"exceeded quota: {quota.name}, requested: {listed(asked)}, used: {listed(used)}, limited: {listed(limits)}"
            raise forbidden("", "pods", obj["metadata"]["name"], why)


def _must_specify(quotas: list[Stored], obj: Object) -> None:
    """A quota of cpu or memory refuses pods with a container that does not say how much it wants."""
    for quota in quotas:
        for name in (quota.obj.get("spec") or {}).get("hard") or {}:
            side, _dot, compute = name.rpartition(".")
            if compute not in ("cpu", "memory") or side not in ("", "requests", "limits"):
                continue
            lacking = [
                item["name"]
                for item in obj["spec"]["containers"]
                if compute not in ((item.get("resources") or {}).get(side or "requests") or {})
            ]
            if lacking:
                why = f"failed quota: {quota.name}: must specify {name} for: {','.join(lacking)}"
                raise forbidden("", "pods", obj["metadata"]["name"], why)


def used_in(store: Store, namespace: str) -> dict[str, decimal.Decimal]:
    """The use of all unfinished pods of a namespace."""
    used: dict[str, decimal.Decimal] = {}
    for pod in store.collection(("", "pods")).ordered(namespace):
        if (pod.obj.get("status") or {}).get("phase") in _FINISHED:
            continue
        for name, amount in quota_use(pod.obj["spec"]).items():
            used[name] = used.get(name, decimal.Decimal(0)) + amount
    return used


def _pod(store: Store, obj: Object) -> None:
    _service_account(store, obj)
    _priority(store, obj)
    _tolerate_lost_nodes(obj["spec"])
    _quotas(store, obj)


def _service(obj: Object) -> None:
    spec = obj["spec"]
    if spec.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = str(_SERVICE_NETWORK[1 + secrets.randbelow(_SERVICE_NETWORK.num_addresses - 2)])
    spec.setdefault("clusterIPs", [spec["clusterIP"]])


def admit(store: Store, resource: Resource, obj: Object, warnings: list[str]) -> None:
    """Complete or refuse a new object."""
    labels = _namespace(store, resource, obj) if resource.namespaced else {}
    kind = (resource.group, resource.kind)
    if kind == ("", "Pod"):
        _pod(store, obj)
    elif kind == ("", "Service"):
        _service(obj)
    if labels:
        _security(resource, obj, labels, warnings)


def guard_delete(resource: Resource, stored: Stored) -> None:
    """Refuse deletes that no server allows. Raises 403."""
    if resource.kind == "Namespace" and stored.name in ("default", "kube-system", "kube-public"):
        raise forbidden("", "namespaces", stored.name, "this namespace may not be deleted")


def system_priority_classes() -> list[Object]:
    """The priority classes every cluster has."""
    return [
        {"metadata": {"name": name}, "value": value, "description": "Used for system critical pods."}
        for name, value in _SYSTEM_PRIORITIES.items()
    ]
