# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Patches: JSON patch, merge patch and strategic merge patch. All return new structures and leave their input alone."""

from __future__ import annotations

import typing as t

from .errors import ApiError, bad_request
from .objects import Object
from .schema import TypeNode


def merge_patch(target: t.Any, patch: t.Any) -> t.Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


# --- JSON patch -----------------------------------------------------------------------------------------------------------


def _unprocessable(message: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {message}", {})


def _tokens(pointer: t.Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise bad_request(f"invalid JSON pointer: {pointer!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _index(sequence: list[t.Any], token: str, *, adding: bool = False) -> int:
    if token == "-" and adding:
        return len(sequence)
    if not token.isdigit() or int(token) >= len(sequence) + adding:
        raise _unprocessable(f"no index {token!r} in a list of {len(sequence)}")
    return int(token)


def _look(document: t.Any, tokens: list[str]) -> t.Any:
    for token in tokens:
        if isinstance(document, list):
            document = document[_index(document, token)]
        elif isinstance(document, dict) and token in document:
            document = document[token]
        else:
            raise _unprocessable(f"no value at {'/'.join(tokens)!r}")
    return document


def _edit(document: t.Any, tokens: list[str], change: t.Callable[[t.Any, str], t.Any]) -> t.Any:
    """Copy the path down to the parent of the last token and let change produce the new parent."""
    if len(tokens) == 1:
        return change(document, tokens[0])
    head, rest = tokens[0], tokens[1:]
    if isinstance(document, list):
        index = _index(document, head)
        return [*document[:index], _edit(document[index], rest, change), *document[index + 1 :]]
    if isinstance(document, dict) and head in document:
        return {**document, head: _edit(document[head], rest, change)}
    raise _unprocessable(f"missing path: no value at {head!r}")


def _put(value: t.Any, *, replace: bool) -> t.Callable[[t.Any, str], t.Any]:
    def change(parent: t.Any, token: str) -> t.Any:
        if isinstance(parent, list):
            index = _index(parent, token, adding=not replace)
            return [*parent[:index], value, *parent[index + replace :]]
        if not isinstance(parent, dict):
            raise _unprocessable(f"cannot set {token!r} in a plain value")
        if replace and token not in parent:
            raise _unprocessable(f"replace operation does not apply: no value at {token!r}")
        return {**parent, token: value}

    return change


def _drop(parent: t.Any, token: str) -> t.Any:
    if isinstance(parent, list):
        index = _index(parent, token)
        return [*parent[:index], *parent[index + 1 :]]
    if not isinstance(parent, dict) or token not in parent:
        raise _unprocessable(f"remove operation does not apply: no value at {token!r}")
    return {key: value for key, value in parent.items() if key != token}


def _operation(document: t.Any, operation: t.Any) -> t.Any:
    if not isinstance(operation, dict) or "op" not in operation:
        raise bad_request("a JSON patch is a list of operations")
    name, tokens = operation["op"], _tokens(operation.get("path", ""))
    if name == "test":
        if _look(document, tokens) != operation.get("value"):
            raise _unprocessable(f"testing value {operation.get('path')} failed")
        return document
    if name in ("move", "copy"):
        source = _tokens(operation.get("from"))
        value = _look(document, source)
        if name == "move":
            document = _edit(document, source, _drop)
        return _edit(document, tokens, _put(value, replace=False))
    if name not in ("add", "replace", "remove"):
        raise bad_request(f"unexpected JSON patch operation {name!r}")
    if not tokens:
        return operation.get("value")
    change = _drop if name == "remove" else _put(operation.get("value"), replace=name == "replace")
    return _edit(document, tokens, change)


def json_patch(document: t.Any, operations: t.Any) -> t.Any:
    """RFC 6902. Raises 422 when an operation does not apply and 400 when it is not one."""
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    for operation in operations:
        document = _operation(document, operation)
    return document


# --- strategic merge patch ------------------------------------------------------------------------------------------------


def strategic_patch(target: t.Any, patch: t.Any, node: TypeNode) -> t.Any:
    """Merge a patch, joining the lists that the schema gives a merge key by that key. Understands the $patch directives."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        result = {key: value for key, value in result.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(result, key, value, node.child(key))
    _apply_list_directives(result, patch, node)
    return result


def _merge_field(result: Object, key: str, value: t.Any, node: TypeNode) -> None:
    if value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
        result.pop(key, None)
    elif isinstance(value, dict):
        if node.schema.get("x-kubernetes-patch-strategy") == "replace":
            result[key] = value
        else:
            result[key] = strategic_patch(result.get(key), value, node)
    elif isinstance(value, list) and node.merges:
        result[key] = _merge_list(result.get(key) or [], value, node)
    else:
        result[key] = value


def _merge_list(current: list[t.Any], patch: list[t.Any], node: TypeNode) -> list[t.Any]:
    key = node.merge_key
    if key is None:
        return [*current, *(item for item in patch if item not in current)]
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    result = list(current)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item!r} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if isinstance(old, dict) and old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != item[key]]
        elif at is None:
            result.append(strategic_patch({}, item, node.items))
        else:
            result[at] = strategic_patch(result[at], item, node.items)
    return result


def _apply_list_directives(result: Object, patch: Object, node: TypeNode) -> None:
    for directive, value in patch.items():
        name, _slash, key = directive.partition("/")
        if name == "$deleteFromPrimitiveList":
            result[key] = [item for item in result.get(key) or [] if item not in value]
        elif name == "$setElementOrder" and isinstance(result.get(key), list):
            result[key] = _reorder(result[key], value, node.child(key).merge_key)


def _reorder(items: list[t.Any], order: list[t.Any], key: str | None) -> list[t.Any]:
    """Put the named items in the given order; items the patch does not name keep their place after the one before them."""

    def identity(item: t.Any) -> t.Any:
        return item.get(key) if key is not None and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    named = iter(sorted((item for item in items if identity(item) in wanted), key=lambda item: wanted.index(identity(item))))
    return [next(named) if identity(item) in wanted else item for item in items]
