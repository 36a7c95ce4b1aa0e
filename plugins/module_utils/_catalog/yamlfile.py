# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""YAML files with the line of every key, so that each error can say where."""

from __future__ import annotations

import dataclasses
import os
import typing as t

from .._common.errors import InputError, unknown_value

Path: t.TypeAlias = tuple[str | int, ...]
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


@dataclasses.dataclass
class YamlFile:
    """The content of a file, and where its keys and items stand."""

    path: str
    data: t.Any
    lines: dict[Path, int]

    def place(self, at: Path) -> str:
        """`file:line: key.path` of a key; the nearest key above it when it is not there."""
        known = at
        while known and known not in self.lines:
            known = known[:-1]
        text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at).lstrip(".")
        return f"{self.path}:{self.lines.get(known, 1)}" + (f": {text}" if text else "")


def read_yaml(path: str) -> YamlFile:
    """Reads one YAML document. Raises InputError with file and line; a key that stands twice is an error."""
    import yaml

    try:
        with open(path, encoding="utf-8") as stream:
            loader = yaml.SafeLoader(stream.read())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=path) from None
    try:
        root = loader.get_single_node()
        lines: dict[Path, int] = {}
        if root is not None:
            _collect(root, (), lines, path)
        data = loader.construct_document(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else path
        raise InputError(f"is not valid YAML: {error.problem or error}", place=where) from None
    finally:
        loader.dispose()
    return YamlFile(os.fspath(path), data, lines)


def _collect(node: t.Any, at: Path, lines: dict[Path, int], path: str) -> None:
    import yaml

    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect(item, (*at, index), lines, path)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            line = key.start_mark.line + 1
            if here in lines:
                raise InputError(f"the key {key.value!r} stands twice, first in line {lines[here]}", place=f"{path}:{line}")
            lines[here] = line
            _collect(value, here, lines, path)


def existing(stem: str) -> str | None:
    """The file of that name with either ending of YAML, or None."""
    return next((stem + suffix for suffix in (".yml", ".yaml") if os.path.isfile(stem + suffix)), None)


def validate(file: YamlFile, schema: t.Mapping[str, t.Any]) -> None:
    """Checks the content against a schema (see schemas.py). Raises InputError for the first thing that is wrong."""
    _check(file, file.data, schema, ())


def _check(file: YamlFile, value: t.Any, schema: t.Mapping[str, t.Any], at: Path) -> None:
    allowed = schema.get("type")
    names = [allowed] if isinstance(allowed, str) else list(allowed or [])
    if names and not any(_is(value, name) for name in names):
        raise InputError(f"must be {' or '.join(_WORDS[name] for name in names)}, not {value!r}", place=file.place(at))
    if "enum" in schema and value not in schema["enum"]:
        raise unknown_value("value", value, schema["enum"], file.place(at))
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        raise InputError(f"must be at least {schema['minimum']}, not {value}", place=file.place(at))
    if isinstance(value, dict):
        _check_mapping(file, value, schema, at)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            _check(file, item, schema["items"], (*at, index))


def _check_mapping(file: YamlFile, value: dict[t.Any, t.Any], schema: t.Mapping[str, t.Any], at: Path) -> None:
    properties = schema.get("properties", {})
    rest = schema.get("additionalProperties", {})
    for key in schema.get("required", []):
        if key not in value:
            raise InputError(f"the key {key!r} is missing", place=file.place(at))
    for key, item in value.items():
        here = (*at, str(key))
        if key in properties:
            _check(file, item, properties[key], here)
        elif rest is False:
            raise unknown_value("key", key, properties, file.place(here))
        else:
            _check(file, item, rest, here)


def _is(value: t.Any, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, _TYPES[name])
