# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""OpenAPI v3: how clients learn what the objects of each kind look like."""

from __future__ import annotations

import typing as t

from .deps import orjson
from .objects import Object
from .resources import CustomKind, Resource, ResourceTable
from .schema import OBJECT_META, BuiltInTypes


class OpenApi:
    """OpenAPI v3 documents, made on demand and kept until the set of kinds changes."""

    def __init__(self, table: ResourceTable, types: BuiltInTypes, version: str) -> None:
        self._table = table
        self._types = types
        self._version = version
        self._revision = -1
        self._documents: dict[str, bytes] = {}

    def index(self) -> Object:
        """/openapi/v3."""
        paths = {}
        for name, versions in self._table.groups.items():
            for version in versions:
                path = f"apis/{name}/{version}" if name else f"api/{version}"
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={self._table.revision:08X}"}
        return {"paths": paths}

    def document(self, name: str, version: str) -> bytes | None:
        """/openapi/v3/apis/GROUP/VERSION, or None when there is no such version."""
        if version not in self._table.groups.get(name, ()):
            return None
        if self._revision != self._table.revision:
            self._documents.clear()
            self._revision = self._table.revision
        key = f"{name}/{version}"
        if key not in self._documents:
            self._documents[key] = orjson.dumps(self._build(name, version))
        return self._documents[key]

    def _build(self, name: str, version: str) -> Object:
        schemas: dict[str, Object] = {}
        paths: dict[str, Object] = {}
        for resource in self._table.of_version(name, version):
            schema_name = self._schema(resource, schemas)
            collection, item = _paths(resource)
            gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
            paths[collection] = {
                "get": _operation("list", gvk, schema_name, ()),
                "post": _operation("post", gvk, schema_name, ("dryRun", "fieldManager", "fieldValidation")),
            }
            if not resource.create_only:
                paths[item] = {
                    "get": _operation("get", gvk, schema_name, ()),
                    "put": _operation("put", gvk, schema_name, ("dryRun", "fieldManager", "fieldValidation")),
                    "patch": _operation("patch", gvk, schema_name, ("dryRun", "fieldManager", "fieldValidation", "force")),
                    "delete": _operation("delete", gvk, schema_name, ("dryRun", "gracePeriodSeconds", "propagationPolicy")),
                }
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": self._version},
            "paths": paths,
            "components": {"schemas": schemas},
        }

    def _schema(self, resource: Resource, schemas: dict[str, Object]) -> str:
        if resource.custom is not None:
            return self._custom_schema(resource, resource.custom, schemas)
        name = self._types.names.get((resource.group, resource.version, resource.kind), "")
        self._add(name, schemas)
        return name

    def _add(self, name: str, schemas: dict[str, Object]) -> None:
        """A definition and everything it refers to."""
        waiting = [name]
        while waiting:
            current = waiting.pop()
            if current in schemas or current not in self._types.definitions:
                continue
            references: list[str] = []
            schemas[current] = _openapi_schema(self._types.definitions[current], references)
            waiting += references

    def _custom_schema(self, resource: Resource, custom: CustomKind, schemas: dict[str, Object]) -> str:
        reversed_group = ".".join(reversed(resource.group.split(".")))
        name = f"{reversed_group}.{resource.version}.{resource.kind}"
        self._add(OBJECT_META, schemas)
        schema = dict(custom.schema)
        schema["properties"] = {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            **(schema.get("properties") or {}),
            "metadata": {"allOf": [{"$ref": f"#/components/schemas/{OBJECT_META}"}], "description": "Standard object's metadata."},
        }
        gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        schemas[name] = {**schema, "x-kubernetes-group-version-kind": [gvk]}
        return name


def _openapi_schema(schema: t.Any, references: list[str]) -> t.Any:
    """A JSON schema of the published set as OpenAPI 3.0: one type, local references, no closed objects."""
    if isinstance(schema, list):
        return [_openapi_schema(item, references) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result: Object = {}
    for key, value in schema.items():
        if key == "$ref":
            name = value.rsplit("/", 1)[-1]
            references.append(name)
            result["allOf"] = [{"$ref": f"#/components/schemas/{name}"}]
        elif key == "type" and isinstance(value, list):
            result["type"] = next(item for item in value if item != "null")
        elif key == "additionalProperties" and value is False:
            continue
        elif key == "properties":
            result[key] = {name: _openapi_schema(item, references) for name, item in value.items()}
        elif key in ("items", "additionalProperties", "oneOf", "anyOf", "allOf"):
            result[key] = _openapi_schema(value, references)
        else:
            result[key] = value
    if set(result) == {"allOf"} and len(result["allOf"]) == 1:
        return result["allOf"][0]
    return result


def _paths(resource: Resource) -> tuple[str, str]:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
    space = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"{root}{space}/{resource.plural}"
    return collection, collection + "/{name}"


def _operation(action: str, gvk: Object, schema_name: str, parameters: t.Sequence[str]) -> Object:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema_name}"}}}
    operation: Object = {
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in parameters],
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
    }
    if action in ("post", "put", "patch"):
        operation["requestBody"] = {"content": content}
    return operation
