# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the path of a request names."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping

from .errors import no_such_path
from .request_data import is_true
from .resources import Resource, ResourceTable

WRITE_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class Target(t.NamedTuple):
    """A kind, or one object of it. namespace: empty outside of namespaces; in_namespace: whether the path named one."""

    resource: Resource
    namespace: str
    in_namespace: bool
    name: str
    subresource: str


def find_target(table: ResourceTable, path: str) -> Target | None:
    """The kind and object a path names; None for paths outside of the resource API. Raises 404."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    find = table.find
    if rest[0] == "namespaces" and len(rest) > 2 and (resource := find(group, version, rest[2])) is not None and resource.namespaced:
        return _target(resource, rest[1], True, rest[3:])
    found = find(group, version, rest[0])
    if found is None or (found.namespaced and len(rest) > 1):
        raise no_such_path()
    return _target(found, "", False, rest[1:])


def _target(resource: Resource, namespace: str, in_namespace: bool, rest: list[str]) -> Target:
    name = rest[0] if rest else ""
    subresource = rest[1] if len(rest) > 1 else ""
    if len(rest) > 2 or (subresource and subresource not in resource.subresources):
        raise no_such_path()
    return Target(resource, namespace, in_namespace, name, subresource)


def verb_of(method: str, query: Mapping[str, str], target: Target) -> str:
    """The API's word for what a request does, as audit logs and RBAC rules have it."""
    if method in ("GET", "HEAD"):
        if is_true(query.get("watch")):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return WRITE_VERBS.get(method, method.lower())
