# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Every document outside of the resource API: health, version, discovery and OpenAPI."""

from __future__ import annotations

import typing as t

from .objects import Object
from .openapi import OpenApi
from .resources import Resource, ResourceTable
from .schema import BuiltInTypes

_SUBRESOURCE_KINDS = {
    "binding": ("", "v1", "Binding", ["create"]),
    "eviction": ("policy", "v1", "Eviction", ["create"]),
    "log": ("", "", "Pod", ["get"]),
    "finalize": ("", "", "Namespace", ["update"]),
    "token": ("authentication.k8s.io", "v1", "TokenRequest", ["create"]),
}


class Documents:
    """The documents of one server. version: what it says of itself."""

    def __init__(self, table: ResourceTable, types: BuiltInTypes, version: str) -> None:
        self._table = table
        self._version = version
        self._openapi = OpenApi(table, types, version)

    def find(self, parts: t.Sequence[str]) -> Object | bytes | None:
        """The document at a path (its parts), or None."""
        table = self._table
        match parts:
            case ["version"]:
                return _version(self._version)
            case ["api"]:
                return _core_versions()
            case ["apis"]:
                return _groups(table)
            case ["api", "v1"]:
                return _resources(table, "", "v1")
            case ["apis", group] if group in table.groups and group:
                return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, table.groups[group])}
            case ["apis", group, version] if version in table.groups.get(group, ()):
                return _resources(table, group, version)
            case ["openapi", "v3"]:
                return self._openapi.index()
            case ["openapi", "v3", "api", version]:
                return self._openapi.document("", version)
            case ["openapi", "v3", "apis", group, version]:
                return self._openapi.document(group, version)
            case [""]:
                return {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
        return None


def _core_versions() -> Object:
    """/api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _group(name: str, versions: t.Sequence[str]) -> Object:
    """/apis/GROUP."""
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _groups(table: ResourceTable) -> Object:
    """/apis."""
    listed = [_group(name, versions) for name, versions in table.groups.items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}


def _resources(table: ResourceTable, name: str, version: str) -> Object:
    """/api/v1 and /apis/GROUP/VERSION."""
    listed: list[Object] = []
    for resource in table.of_version(name, version):
        listed.append(_entry(resource))
        for subresource in sorted(resource.subresources):
            listed.append(_subresource(resource, subresource))
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}" if name else version,
        "resources": listed,
    }


def _entry(resource: Resource) -> Object:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry


def _subresource(resource: Resource, name: str) -> Object:
    entry: Object = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced, "kind": resource.kind}
    group_name, version, kind, verbs = _SUBRESOURCE_KINDS.get(name, ("", "", resource.kind, ["get", "patch", "update"]))
    entry["kind"], entry["verbs"] = kind, list(verbs)
    if version:
        entry["group"], entry["version"] = group_name, version
    return entry


def _version(version: str) -> Object:
    major, minor = version.lstrip("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }
