# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind with rules of its own beside pods and Jobs."""

from __future__ import annotations

import base64
import binascii
import re
import typing as t

from ..errors import FieldError, duplicate, forbidden_field, invalid_value, required, unsupported
from ..objects import Object
from ..selectors import match_labels
from .fields import Errors, at_least, one_of
from .metadata import check_label_selector, check_labels, key_problem, label_problem, label_value_problem
from .pods import check_template

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_MAX_DATA = 1024 * 1024


def check_selected_template(obj: Object) -> Errors:
    """DaemonSet, Deployment, ReplicaSet, StatefulSet: the selector must be set and match the template."""
    spec = obj["spec"]
    errors: Errors = []
    selector = spec.get("selector") or {}
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(required("spec.selector"))
    else:
        errors += check_label_selector(selector, "spec.selector")
        if not errors and not match_labels(selector, labels):
            errors.append(invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or ()]
    errors += check_template(spec["template"], "spec.template", claims)
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy != "Always":
        errors.append(unsupported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return errors + at_least(spec, "replicas", 0, "spec")


def check_selected_template_update(obj: Object, old: Object) -> Errors:
    """The selector of a workload stays as it is."""
    errors = check_selected_template(obj)
    if obj["spec"].get("selector") != old["spec"].get("selector"):
        errors.append(invalid_value("spec.selector", obj["spec"].get("selector"), "field is immutable"))
    return errors


def _data_keys(obj: Object, names: t.Sequence[str]) -> Errors:
    errors: Errors = []
    size = 0
    for name in names:
        for key, value in (obj.get(name) or {}).items():
            size += len(value)
            if len(key) > 253 or not _DATA_KEY.fullmatch(key) or key in (".", ".."):
                errors.append(
                    invalid_value(f"{name}[{key}]", key, "a valid config key must consist of alphanumeric characters, '-', '_' or '.'")
                )
    if size > _MAX_DATA:
        errors.append(FieldError("data", "FieldValueTooLong", f"may not be more than {_MAX_DATA} bytes"))
    return errors


def check_config_map(obj: Object) -> Errors:
    """Keys and size of a ConfigMap."""
    errors = _data_keys(obj, ("data", "binaryData"))
    for key in (obj.get("data") or {}).keys() & (obj.get("binaryData") or {}).keys():
        errors.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
    return errors


_SECRET_KEYS = {
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}


def check_secret(obj: Object) -> Errors:
    """Keys and size of a Secret, and what its type demands."""
    errors = _data_keys(obj, ("data",))
    for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
        if key not in (obj.get("data") or {}):
            errors.append(required(f"data[{key}]"))
    return errors


def immutable_data_check(check: t.Callable[[Object], Errors]) -> t.Callable[[Object, Object], Errors]:
    """The check of a changed ConfigMap or Secret: `check`, and that data marked immutable stays as it is."""

    def update(obj: Object, old: Object) -> Errors:
        errors = check(obj)
        if old.get("immutable"):
            if not obj.get("immutable"):
                errors.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
            for name in ("data", "binaryData"):
                if (obj.get(name) or {}) != (old.get(name) or {}):
                    errors.append(forbidden_field(name, "field is immutable when `immutable` is set"))
        if obj.get("type") != old.get("type"):
            errors.append(invalid_value("type", obj.get("type"), "field is immutable"))
        return errors

    return update


def secret_data_problem(obj: Object) -> str:
    """Why the data of a Secret cannot be decoded; empty when it can."""
    for key, value in (obj.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return f"illegal base64 data in data[{key}]"
    return ""


def check_service(obj: Object) -> Errors:
    """Ports and selector of a Service."""
    spec = obj["spec"]
    errors = one_of(spec.get("type"), "spec.type", ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"))
    errors += check_labels(spec.get("selector"), "spec.selector")
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        errors.append(required("spec.ports"))
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = f"spec.ports[{index}]"
        if not 1 <= port.get("port", 0) <= 65535:
            errors.append(invalid_value(f"{where}.port", port.get("port", 0), "must be between 1 and 65535, inclusive"))
        errors += one_of(port.get("protocol"), f"{where}.protocol", ("SCTP", "TCP", "UDP"))
        name = port.get("name", "")
        if len(ports) > 1 and not name:
            errors.append(required(f"{where}.name"))
        elif name and (problem := label_problem(name)):
            errors.append(invalid_value(f"{where}.name", name, problem))
        if name and name in names:
            errors.append(duplicate(f"{where}.name", name))
        names.add(name)
    return errors


def check_service_update(obj: Object, old: Object) -> Errors:
    """The address of a Service stays as it is."""
    errors = check_service(obj)
    if obj["spec"].get("clusterIP") != old["spec"].get("clusterIP") and old["spec"].get("type") != "ExternalName":
        errors.append(invalid_value("spec.clusterIP", obj["spec"].get("clusterIP", ""), "may not change once set"))
    return errors


def check_node(obj: Object) -> Errors:
    """The taints of a Node."""
    errors: Errors = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        where = f"spec.taints[{index}]"
        if problem := key_problem(taint.get("key") or ""):
            errors.append(invalid_value(f"{where}.key", taint.get("key") or "", problem))
        if problem := label_value_problem(taint.get("value", "")):
            errors.append(invalid_value(f"{where}.value", taint["value"], problem))
        errors += one_of(taint.get("effect") or "", f"{where}.effect", ("NoExecute", "NoSchedule", "PreferNoSchedule"))
        mark = (taint.get("key", ""), taint.get("effect", ""))
        if mark in seen:
            errors.append(duplicate(where, taint))
        seen.add(mark)
    return errors


def check_event(obj: Object) -> Errors:
    """An Event lives in the namespace of what it is about."""
    involved = obj.get("involvedObject") or {}
    namespace = involved.get("namespace") or "default"
    if namespace != obj["metadata"].get("namespace"):
        return [invalid_value("involvedObject.namespace", involved.get("namespace", ""), "does not match event.namespace")]
    return []


def check_lease(obj: Object) -> Errors:
    """A Lease lasts at least a second."""
    return at_least(obj.get("spec") or {}, "leaseDurationSeconds", 1, "spec")


def check_claim(obj: Object) -> Errors:
    """A PersistentVolumeClaim says how it is used and how large it is."""
    spec = obj["spec"]
    errors: Errors = []
    modes = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
    if not spec.get("accessModes"):
        errors.append(required("spec.accessModes", "at least 1 access mode is required"))
    for mode in spec.get("accessModes") or ():
        errors += one_of(mode, "spec.accessModes", modes)
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        errors.append(required("spec.resources[storage]"))
    return errors


def check_priority_class(obj: Object) -> Errors:
    """High priorities and the names of the system are reserved."""
    name, value = obj["metadata"]["name"], obj.get("value", 0)
    if value > 1000000000 and not name.startswith("system-"):
        return [forbidden_field("value", "maximum allowed value of a user defined priority is 1000000000")]
    if name.startswith("system-") and name not in ("system-node-critical", "system-cluster-critical"):
        return [forbidden_field("metadata.name", "priority class names with 'system-' prefix are reserved for system use only")]
    return []


def check_role_reference(obj: Object) -> Errors:
    """RoleBinding and ClusterRoleBinding: the role and the subjects."""
    reference = obj.get("roleRef") or {}
    allowed = ("ClusterRole", "Role") if obj["metadata"].get("namespace") else ("ClusterRole",)
    errors = one_of(reference.get("kind") or "", "roleRef.kind", allowed)
    if not reference.get("name"):
        errors.append(required("roleRef.name"))
    for index, subject in enumerate(obj.get("subjects") or ()):
        errors += one_of(subject.get("kind") or "", f"subjects[{index}].kind", ("Group", "ServiceAccount", "User"))
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            errors.append(required(f"subjects[{index}].namespace"))
    return errors


def check_role_reference_update(obj: Object, old: Object) -> Errors:
    """The role of a binding stays as it is."""
    errors = check_role_reference(obj)
    if obj.get("roleRef") != old.get("roleRef"):
        errors.append(invalid_value("roleRef", obj.get("roleRef"), "cannot change roleRef"))
    return errors
