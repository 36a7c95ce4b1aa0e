# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the protobuf bodies of typed clients: kubectl create namespace, kubectl drain and the like send nothing else.

Only the kinds with few fields are known; kinds with a pod template (kubectl create deployment) are not. Answers are always JSON, which
these clients accept.
"""

from __future__ import annotations

import base64
import typing as t

from .objects import Object

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

# message -> field number -> (name, type). A leading * is a repeated field, a leading % a map from strings.
_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "ObjectMeta": {
        1: ("name", "string"),
        2: ("generateName", "string"),
        3: ("namespace", "string"),
        11: ("labels", "%string"),
        12: ("annotations", "%string"),
        13: ("ownerReferences", "*OwnerReference"),
        14: ("finalizers", "*string"),
    },
    "OwnerReference": {
        1: ("kind", "string"),
        3: ("name", "string"),
        4: ("uid", "string"),
        5: ("apiVersion", "string"),
        6: ("controller", "bool"),
        7: ("blockOwnerDeletion", "bool"),
    },
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "int"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "bool"),
        4: ("propagationPolicy", "string"),
        5: ("dryRun", "*string"),
    },
    "Preconditions": {1: ("uid", "string"), 2: ("resourceVersion", "string")},
    "Namespace": {1: ("metadata", "ObjectMeta")},
    "ConfigMap": {1: ("metadata", "ObjectMeta"), 2: ("data", "%string"), 3: ("binaryData", "%bytes"), 4: ("immutable", "bool")},
    "Secret": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "%bytes"),
        3: ("type", "string"),
        4: ("stringData", "%string"),
        5: ("immutable", "bool"),
    },
    "ServiceAccount": {
        1: ("metadata", "ObjectMeta"),
        3: ("imagePullSecrets", "*LocalObjectReference"),
        4: ("automountServiceAccountToken", "bool"),
    },
    "LocalObjectReference": {1: ("name", "string")},
    "ResourceQuota": {1: ("metadata", "ObjectMeta"), 2: ("spec", "ResourceQuotaSpec")},
    "ResourceQuotaSpec": {1: ("hard", "%Quantity"), 2: ("scopes", "*string")},
    "Quantity": {1: ("string", "string")},
    "PriorityClass": {
        1: ("metadata", "ObjectMeta"),
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "string"),
        5: ("preemptionPolicy", "string"),
    },
    "Role": {1: ("metadata", "ObjectMeta"), 2: ("rules", "*PolicyRule")},
    "ClusterRole": {1: ("metadata", "ObjectMeta"), 2: ("rules", "*PolicyRule")},
    "PolicyRule": {
        1: ("verbs", "*string"),
        2: ("apiGroups", "*string"),
        3: ("resources", "*string"),
        4: ("resourceNames", "*string"),
        5: ("nonResourceURLs", "*string"),
    },
    "RoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "*Subject"), 3: ("roleRef", "RoleRef")},
    "ClusterRoleBinding": {1: ("metadata", "ObjectMeta"), 2: ("subjects", "*Subject"), 3: ("roleRef", "RoleRef")},
    "Subject": {1: ("kind", "string"), 2: ("apiGroup", "string"), 3: ("name", "string"), 4: ("namespace", "string")},
    "RoleRef": {1: ("apiGroup", "string"), 2: ("kind", "string"), 3: ("name", "string")},
    "Eviction": {1: ("metadata", "ObjectMeta"), 2: ("deleteOptions", "DeleteOptions")},
    "TokenRequest": {1: ("metadata", "ObjectMeta"), 2: ("spec", "TokenRequestSpec")},
    "TokenRequestSpec": {1: ("audiences", "*string"), 4: ("expirationSeconds", "int")},
    # The envelope of every body.
    "Unknown": {1: ("typeMeta", "TypeMeta"), 2: ("raw", "raw")},
    "TypeMeta": {1: ("apiVersion", "string"), 2: ("kind", "string")},
}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> t.Iterator[tuple[int, int | bytes]]:
    """The fields of a message as (number, value), in the order sent. Raises ValueError or IndexError for broken data."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("truncated")
        yield tag >> 3, data[at : at + size]
        at += size


def _value(raw: int | bytes, kind: str) -> t.Any:
    if isinstance(raw, int):
        if kind == "bool":
            return bool(raw)
        # Negative numbers travel as their 64-bit complement.
        return raw - (1 << 64) if raw >> 63 else raw
    if kind == "raw":
        return raw
    if kind == "string":
        return raw.decode()
    if kind == "bytes":
        return base64.b64encode(raw).decode()
    return _message(raw, kind).get("string", "0") if kind == "Quantity" else _message(raw, kind)


def _message(data: bytes, kind: str) -> Object:
    known = _MESSAGES[kind]
    result: Object = {}
    for number, raw in _fields(data):
        name, type_name = known.get(number, ("", ""))
        if not name:
            continue
        if type_name.startswith("*"):
            result.setdefault(name, []).append(_value(raw, type_name[1:]))
        elif type_name.startswith("%"):
            entry = dict(_fields(t.cast(bytes, raw)))
            result.setdefault(name, {})[_value(entry.get(1, b""), "string")] = _value(entry.get(2, b""), type_name[1:])
        elif raw != b"" or type_name not in ("string", "bytes"):
            # An unset text is sent as an empty one.
            result[name] = _value(raw, type_name)
    return result


def decode(data: bytes) -> Object | None:
    """A body as an object, or None when it is not one of the known kinds. Raises ValueError when it is broken."""
    if not data.startswith(_MAGIC):
        raise ValueError("the body does not start as Kubernetes protobuf does")
    try:
        envelope = _message(data[len(_MAGIC) :], "Unknown")
        meta = envelope.get("typeMeta") or {}
        kind = meta.get("kind", "")
        if kind not in _MESSAGES:
            return None
        return {"apiVersion": meta.get("apiVersion", ""), "kind": kind, **_message(envelope.get("raw", b""), kind)}
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
