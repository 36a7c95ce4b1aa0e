# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Types of the built-in kinds: the JSON schemas of a Kubernetes release, for checking objects and for merging lists."""

from __future__ import annotations

import functools
import os
import re
import typing as t

from ..._common.errors import InputError
from .deps import jsonschema_rs, orjson
from .objects import Object

_BASE = "https://kubernetes.io/api/_definitions.json"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
QUANTITY_PATTERN = r"^[+-]?(\d+|\d+\.\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?$"


class TypeNode:
    """A place in a schema, with references followed. Unknown places are untyped nodes, never None."""

    __slots__ = ("_children", "_definitions", "_items", "schema")

    def __init__(self, schema: Object, definitions: t.Mapping[str, Object]) -> None:
        reference = schema.get("$ref")
        if reference:
            target = definitions.get(reference.rsplit("/", 1)[-1], {})
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        self.schema = schema
        self._definitions = definitions
        self._children: dict[str, TypeNode] = {}
        self._items: TypeNode | None = None

    def child(self, name: str) -> TypeNode:
        """The node of a property or of a map value."""
        found = self._children.get(name)
        if found is None:
            schema = (self.schema.get("properties") or {}).get(name)
            if schema is None:
                extra = self.schema.get("additionalProperties")
                schema = extra if isinstance(extra, dict) else {}
            found = self._children[name] = TypeNode(schema, self._definitions)
        return found

    @property
    def items(self) -> TypeNode:
        """The node of a list's items."""
        if self._items is None:
            self._items = TypeNode(self.schema.get("items") or {}, self._definitions)
        return self._items

    @property
    def merges(self) -> bool:
        """Whether a strategic patch merges this list rather than replacing it."""
        return "merge" in (self.schema.get("x-kubernetes-patch-strategy") or "").split(",")

    @property
    def merge_key(self) -> str | None:
        """The key that tells the items of a merged list apart; None for a list of plain values."""
        return self.schema.get("x-kubernetes-patch-merge-key")

    @property
    def list_type(self) -> str:
        """atomic, set or map: how server-side apply treats this list."""
        return self.schema.get("x-kubernetes-list-type") or "atomic"

    @property
    def map_keys(self) -> tuple[str, ...]:
        """The keys of a list of type map."""
        return tuple(self.schema.get("x-kubernetes-list-map-keys") or ())

    @property
    def atomic(self) -> bool:
        """Whether this object is owned as a whole by server-side apply."""
        return self.schema.get("x-kubernetes-map-type") == "atomic"


UNTYPED = TypeNode({}, {})


class Findings(t.NamedTuple):
    """What is wrong with an object: unknown fields (paths), values of a wrong type and missing fields (path, message)."""

    unknown: list[tuple[t.Any, ...]]
    types: list[tuple[str, str]]
    missing: list[tuple[str, str]]


NOTHING_FOUND = Findings([], [], [])


def path_text(path: t.Iterable[t.Any]) -> str:
    """A path as API messages write it: spec.containers[0].name."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def drop_path(obj: t.Any, path: t.Sequence[t.Any]) -> None:
    """Remove the value at a path, in place."""
    for part in path[:-1]:
        obj = obj[part]
    del obj[path[-1]]


def drop_nulls(value: t.Any) -> t.Any:
    """Remove keys whose value is null, in place: a typed decoder reads null as absent."""
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None]:
            del value[key]
        for item in value.values():
            if isinstance(item, (dict, list)):
                drop_nulls(item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)):
                drop_nulls(item)
    return value


def _schema_directory(version: str) -> str:
    """The installed schema release nearest to, and not above, the wanted minor version (else the oldest)."""
    try:
        import kubernetes_validate
    except ImportError as error:
        raise InputError(
            "the schemas of the Kubernetes kinds are not installed", hint="Install the package kubernetes-validate."
        ) from error
    root = os.path.join(os.path.dirname(kubernetes_validate.__file__), "kubernetes-json-schema")
    releases = {}
    for name in os.listdir(root):
        match = re.fullmatch(r"v1\.(\d+)\.\d+-local-strict", name)
        if match:
            releases[int(match[1])] = os.path.join(root, name)
    match = re.match(r"v?1\.(\d+)", version)
    if not match or not releases:
        raise InputError(f"no schemas for Kubernetes version {version!r}", hint="Versions look like v1.36.3.")
    fitting = [minor for minor in releases if minor <= int(match[1])]
    return releases[max(fitting) if fitting else min(releases)]


class BuiltInTypes:
    """The schemas of one Kubernetes release. names: (group, version, kind) -> definition name."""

    def __init__(self, version: str) -> None:
        path = os.path.join(_schema_directory(version), "_definitions.json")
        with open(path, "rb") as handle:
            document = orjson.loads(handle.read())
        self.definitions: dict[str, Object] = document["$defs"]
        # The published schema accepts any text as a quantity; the server's decoder does not.
        self.definitions[_QUANTITY] = {"oneOf": [{"type": "string", "pattern": QUANTITY_PATTERN}, {"type": "number"}]}
        self.names = self._index()
        self._registry = jsonschema_rs.Registry([(_BASE, document)])
        self._validators: dict[str, t.Any] = {}
        self._nodes: dict[str, TypeNode] = {}

    def _index(self) -> dict[tuple[str, str, str], str]:
        names = {}
        for name, schema in self.definitions.items():
            for item in schema.get("x-kubernetes-group-version-kind") or ():
                names[(item["group"], item["version"], item["kind"])] = name
        return names

    def node(self, name: str | None) -> TypeNode:
        """The type of a definition; untyped when the release does not have it."""
        if name is None:
            return UNTYPED
        found = self._nodes.get(name)
        if found is None:
            found = self._nodes[name] = TypeNode({"$ref": name}, self.definitions)
        return found

    def _validator(self, name: str) -> t.Any:
        validator = self._validators.get(name)
        if validator is None:
            schema = {"$ref": f"{_BASE}#/$defs/{name}"}
            validator = jsonschema_rs.validator_for(schema, registry=self._registry, validate_formats=True)
            self._validators[name] = validator
        return validator

    def check(self, name: str, obj: Object) -> Findings:
        """Compare an object with a definition."""
        validator = self._validator(name)
        if validator.is_valid(obj):
            return NOTHING_FOUND
        findings = Findings([], [], [])
        for error in validator.iter_errors(obj):
            path = list(error.instance_path)
            unexpected = getattr(error.kind, "unexpected", None)
            if unexpected is not None:
                findings.unknown.extend((*path, field) for field in unexpected)
            elif getattr(error.kind, "property", None) is not None:
                findings.missing.append((path_text([*path, error.kind.property]), ""))
            else:
                findings.types.append((path_text(path), error.message))
        return findings


@functools.lru_cache(maxsize=4)
def built_in_types(version: str) -> BuiltInTypes:
    """The schemas of a version, loaded once per process."""
    return BuiltInTypes(version)
