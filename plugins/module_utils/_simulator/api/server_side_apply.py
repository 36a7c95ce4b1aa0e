# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Server-side apply: who owns which field, merging an applied configuration, and conflicts.

A field is a path of elements in the notation of metadata.managedFields: "f:NAME" a field, 'k:{"name":"x"}' an item of a keyed
list, "v:VALUE" an item of a set. A manager owns a set of such paths.
"""

from __future__ import annotations

import json
import typing as t

from . import clock
from .errors import ApiError
from .objects import Object
from .schema import TypeNode

Path = tuple[str, ...]
Paths = set[Path]
# A manager: its name, the operation (Apply or Update) and the subresource it wrote through.
Manager = tuple[str, str, str]

_IDENTITY = frozenset(
    ("f:metadata", "f:" + name)
    for name in (
        "name",
        "generateName",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "generation",
        "resourceVersion",
        "managedFields",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    )
)


def _item_key(item: t.Any, node: TypeNode) -> str:
    keys = node.map_keys
    pairs = {key: item.get(key, node.items.child(key).schema.get("default")) for key in sorted(keys) if isinstance(item, dict)}
    # protocol is a key of ports with a default that the published schemas do not carry
    pairs = {key: "TCP" if value is None and key == "protocol" else value for key, value in pairs.items()}
    return "k:" + json.dumps(pairs, separators=(",", ":"))


def fields(value: t.Any, node: TypeNode, path: Path = ()) -> dict[Path, t.Any]:
    """Every ownable field of an object with its value. Items of keyed lists are fields of their own, beside their content."""
    found: dict[Path, t.Any] = {}
    _collect(value, node, path, found)
    return {where: item for where, item in found.items() if where[:2] not in _IDENTITY and where not in (("f:apiVersion",), ("f:kind",))}


def _collect(value: t.Any, node: TypeNode, path: Path, found: dict[Path, t.Any]) -> None:
    if isinstance(value, dict) and value and not node.atomic:
        for key, item in value.items():
            _collect(item, node.child(key), (*path, "f:" + key), found)
    elif isinstance(value, list) and value and node.list_type == "map":
        for item in value:
            where = (*path, _item_key(item, node))
            found[where] = None
            for key, inner in item.items():
                _collect(inner, node.items.child(key), (*where, "f:" + key), found)
    elif isinstance(value, list) and value and node.list_type == "set":
        for item in value:
            found[(*path, "v:" + json.dumps(item))] = item
    elif path:
        found[path] = value


def merge(live: t.Any, applied: t.Any, node: TypeNode) -> t.Any:
    """The live object with an applied configuration laid over it."""
    if isinstance(live, dict) and isinstance(applied, dict) and not node.atomic:
        result = dict(live)
        for key, value in applied.items():
            result[key] = merge(live[key], value, node.child(key)) if key in live else value
        return result
    if isinstance(live, list) and isinstance(applied, list):
        if node.list_type == "map":
            return _merge_items(live, applied, node)
        if node.list_type == "set":
            return [*live, *(item for item in applied if item not in live)]
    return applied


def _merge_items(live: list[t.Any], applied: list[t.Any], node: TypeNode) -> list[t.Any]:
    new = {_item_key(item, node): item for item in applied}
    result = []
    for item in live:
        over = new.pop(_item_key(item, node), None)
        result.append(item if over is None else merge(item, over, node.items))
    return [*result, *new.values()]


def remove(value: t.Any, gone: Paths, kept: Paths, node: TypeNode, path: Path = ()) -> t.Any:
    """The value without the fields in gone. kept: what other managers own; an item of a list stays while any of it is kept.

    Objects and lists that become empty by it disappear (None is returned for them).
    """
    if isinstance(value, dict) and not node.atomic:
        result: Object = {}
        for key, item in value.items():
            where = (*path, "f:" + key)
            if where in gone and not _within(where, kept):
                continue
            left = remove(item, gone, kept, node.child(key), where)
            if left is not None or item is None:
                result[key] = left
        return result if result or not value else None
    if isinstance(value, list) and node.list_type in ("map", "set") and value:
        return _remove_items(value, gone, kept, node, path)
    return value


def _within(where: Path, kept: Paths) -> bool:
    """Whether a field or anything inside it is kept."""
    return where in kept or any(other[: len(where)] == where for other in kept)


def _remove_items(value: list[t.Any], gone: Paths, kept: Paths, node: TypeNode, path: Path) -> list[t.Any] | None:
    result = []
    for item in value:
        where = (*path, _item_key(item, node) if node.list_type == "map" else "v:" + json.dumps(item))
        if where in gone and not _within(where, kept):
            continue
        result.append(remove(item, gone, kept, node.items, where) if node.list_type == "map" else item)
    return result or None


# --- metadata.managedFields -----------------------------------------------------------------------------------------------


def encode(paths: Paths) -> Object:
    """A set of paths as the fieldsV1 tree."""
    tree: Object = {}
    for path in sorted(paths):
        at = tree
        for part in path:
            at = at.setdefault(part, {})
        at["."] = {}
    return _without_leaf_dots(tree)


def _without_leaf_dots(tree: Object) -> Object:
    if set(tree) == {"."}:
        return {}
    return {key: _without_leaf_dots(value) if key != "." else {} for key, value in tree.items()}


def decode(tree: Object, path: Path = ()) -> Paths:
    """The fieldsV1 tree as a set of paths."""
    paths: Paths = set()
    for key, inner in tree.items():
        if key == ".":
            paths.add(path)
        elif not inner:
            paths.add((*path, key))
        else:
            paths |= decode(inner, (*path, key))
    return paths


class Ownership:
    """metadata.managedFields of one object as sets of paths."""

    def __init__(self, entries: t.Sequence[Object]) -> None:
        self.sets: dict[Manager, Paths] = {}
        self._rest: dict[Manager, Object] = {}
        for entry in entries:
            manager = (entry.get("manager", ""), entry.get("operation", "Update"), entry.get("subresource", ""))
            self.sets[manager] = decode(entry.get("fieldsV1") or {})
            self._rest[manager] = entry

    @classmethod
    def before_apply(cls, obj: Object, node: TypeNode) -> Ownership:
        """That of an object which is applied to. Everything in an object that never was belongs to its past."""
        entries = obj["metadata"].get("managedFields") or ()
        ownership = cls(entries)
        if not entries:
            spoken = {key: value for key, value in obj.items() if key != "status"}
            ownership.sets[("before-first-apply", "Update", "")] = set(fields(spoken, node))
        return ownership

    def entries(self, api_version: str, now: str, changed: Manager) -> list[Object]:
        """Back to metadata.managedFields; only the manager that wrote gets a new time."""
        result = []
        for manager, paths in self.sets.items():
            if not paths:
                continue
            before = self._rest.get(manager, {})
            tree = encode(paths)
            same = manager != changed or (before.get("fieldsV1") == tree)
            entry: Object = {
                "manager": manager[0],
                "operation": manager[1],
                "apiVersion": before.get("apiVersion", api_version) if same else api_version,
                "time": before.get("time", now) if same else now,
                "fieldsType": "FieldsV1",
                "fieldsV1": tree,
            }
            if manager[2]:
                entry["subresource"] = manager[2]
            result.append(entry)
        return result

    def others(self, manager: Manager) -> Paths:
        """Everything that managers other than this one own."""
        return set().union(*(paths for other, paths in self.sets.items() if other != manager))

    def api_version(self, manager: Manager, default: str) -> str:
        """The API version a manager wrote with."""
        version: str = self._rest.get(manager, {}).get("apiVersion", default)
        return version


def apply(
    live: Object, applied: Object, node: TypeNode, ownership: Ownership, manager: Manager, *, force: bool, api_version: str
) -> Object:
    """Apply a configuration. Returns the new object and updates the ownership. Raises 409 with one cause per conflicting field."""
    wanted, current = fields(applied, node), fields(live, node)
    clashes: list[tuple[Manager, Path]] = []
    for other, paths in ownership.sets.items():
        if other == manager:
            continue
        clashes += [(other, path) for path in sorted(paths & wanted.keys()) if wanted[path] != current.get(path)]
    if clashes and not force:
        raise _conflict(clashes, ownership, api_version)
    for other, path in clashes:
        ownership.sets[other].discard(path)
    merged: Object = merge(live, applied, node)
    gone = ownership.sets.get(manager, set()) - wanted.keys()
    if gone:
        merged = remove(merged, gone, ownership.others(manager) | wanted.keys(), node) or {}
    ownership.sets[manager] = set(wanted)
    return merged


def track(old: Object | None, new: Object, node: TypeNode, ownership: Ownership, manager: Manager) -> None:
    """Give the fields that an ordinary write changed to its manager, and forget fields that are gone."""
    before = fields(old, node) if old else {}
    after = fields(new, node)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    for other, paths in ownership.sets.items():
        paths &= after.keys()
        if other != manager:
            paths -= changed
    ownership.sets.setdefault(manager, set()).update(changed)


def carry_on(old: Object, new: Object, node: TypeNode, manager: Manager, api_version: str) -> None:
    """Bring the managedFields of an ordinary write up to date, in place. Fields are tracked from an object's first apply on."""
    metadata = new["metadata"]
    if metadata.get("managedFields") == []:  # how a client asks to forget them
        del metadata["managedFields"]
        return
    entries = old["metadata"].get("managedFields")
    if not entries:
        metadata.pop("managedFields", None)
        return
    ownership = Ownership(entries)
    track(old, new, node, ownership, manager)
    metadata["managedFields"] = ownership.entries(api_version, clock.stamp(clock.now()), manager)


def path_text(path: Path) -> str:
    """A path as conflict messages write it: .spec.containers[name="c"].image."""
    text = ""
    for part in path:
        kind, _colon, rest = part.partition(":")
        if kind == "f":
            text += "." + rest
        elif kind == "k":
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            text += f"[={rest}]"
    return text


def _conflict(clashes: list[tuple[Manager, Path]], ownership: Ownership, api_version: str) -> ApiError:
    causes = []
    for manager, path in clashes:
        through = f' with subresource "{manager[2]}"' if manager[2] else ""
        text = f'conflict with "{manager[0]}"{through} using {ownership.api_version(manager, api_version)}'
        causes.append({"reason": "FieldManagerConflict", "message": text, "field": path_text(path)})
    count = len(causes)
    if count == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines = "\n".join(f"- {cause['message']}: {cause['field']}" for cause in causes)
        message = f"Apply failed with {count} conflicts:\n{lines}"
    return ApiError(409, "Conflict", message, {"causes": causes})
