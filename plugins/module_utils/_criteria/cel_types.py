# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The type check of an expression, before anything runs.

Types are words: int, uint, double, string, bool, null, dyn (only known when it runs), map; a list is `list` or
`list:<type>`. As in cel-go, numbers of different types compare with each other, but arithmetic needs one type.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing as t

from .cel import CelError, Node

NUMBERS = ("int", "uint", "double")
WORDS = {"int": "a whole number", "uint": "an unsigned number", "double": "a number", "string": "a text", "bool": "true or false"}
CONVERSIONS = {"double": "double", "int": "int", "uint": "uint", "string": "string"}
TEXT_TESTS = ("contains", "startsWith", "endsWith")
FUNCTIONS = ("double", "has", "int", "size", "string", "uint")


@dataclasses.dataclass(frozen=True)
class Record:
    """The type of a variable with declared fields, such as `measured`.

    open: fields that are not declared are allowed and only known when the expression runs.
    """

    name: str
    fields: t.Mapping[str, str]
    open: bool = False


Type: t.TypeAlias = str | Record


def check(node: Node, variables: t.Mapping[str, Type]) -> str:
    """The type of an expression; raises CelError at the first place that cannot work."""
    result = _check(node, variables)
    if isinstance(result, Record):
        raise CelError(f"{result.name} is not a value by itself: name one of its fields", node.column)
    return result


def _check(node: Node, variables: t.Mapping[str, Type]) -> Type:
    if node.op == "literal":
        return node.kind
    if node.op == "name":
        return _name(node, variables)
    if node.op in ("select", "has"):
        return _select(node, variables) if node.op == "select" else _has(node, variables)
    if node.op == "index":
        return _index(node, variables)
    if node.op == "macro":
        return _macro(node, variables)
    types = [check(child, variables) for child in node.args]
    if node.op in ("and", "or", "not"):
        return _logic(node, types)
    if node.op == "cond":
        return _conditional(node, types)
    if node.op == "neg":
        return _negative(node, types[0])
    if node.op == "binary":
        return _binary(node, types[0], types[1])
    if node.op == "list":
        return "list:" + _common(types) if types else "list"
    if node.op == "map":
        return "map"
    return _function(node, types)


def near(name: str, allowed: t.Iterable[str]) -> str:
    """A hint with the nearest allowed name and the whole list."""
    names = sorted(allowed)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    text = f"Did you mean {match[0]}? " if match else ""
    return f"{text}Known: {', '.join(names)}"


def _name(node: Node, variables: t.Mapping[str, Type]) -> Type:
    if node.value in variables:
        return variables[node.value]
    fields = next((kind.fields for kind in variables.values() if isinstance(kind, Record)), None)
    if fields is not None and node.value in fields:
        raise CelError(f"unknown variable {node.value}", node.column, f"Write measured.{node.value}")
    raise CelError(f"unknown variable {node.value}", node.column, near(node.value, variables))


def _select(node: Node, variables: t.Mapping[str, Type]) -> Type:
    owner = _check(node.args[0], variables)
    if isinstance(owner, Record):
        return _field(owner, node.value, node.column)
    if owner not in ("map", "dyn"):
        raise CelError(f"{_word(owner)} has no field {node.value}", node.column)
    return "dyn"


def _field(owner: Record, name: str, column: int) -> str:
    if name in owner.fields:
        return owner.fields[name]
    if owner.open:
        return "dyn"
    raise CelError(f"unknown metric {owner.name}.{name}", column, near(name, owner.fields))


def _has(node: Node, variables: t.Mapping[str, Type]) -> Type:
    _select(node.args[0], variables)
    return "bool"


def _index(node: Node, variables: t.Mapping[str, Type]) -> Type:
    owner, key = _check(node.args[0], variables), check(node.args[1], variables)
    if isinstance(owner, Record):
        if node.args[1].op != "literal" or key != "string":
            raise CelError(f"a metric is named by a text: {owner.name}['name']", node.column)
        return _field(owner, node.args[1].value, node.column)
    if owner.startswith("list"):
        _need(key, NUMBERS, "a position in a list", node.args[1])
        return owner.partition(":")[2] or "dyn"
    if owner not in ("map", "dyn"):
        raise CelError(f"{_word(owner)} cannot be indexed", node.column)
    return "dyn"


def _macro(node: Node, variables: t.Mapping[str, Type]) -> Type:
    over = check(node.args[0], variables)
    if not over.startswith("list") and over not in ("map", "dyn"):
        raise CelError(f"{node.value}() goes over a list, not {_word(over)}", node.column)
    item = over.partition(":")[2] or "dyn"
    result = check(node.args[1], {**variables, node.kind: item})
    if node.value == "map":
        return "list:" + result
    _need(result, ("bool",), f"the test of {node.value}()", node.args[1])
    return (over if over.startswith("list") else "list") if node.value == "filter" else "bool"


def _logic(node: Node, types: list[str]) -> str:
    for kind, child in zip(types, node.args, strict=True):
        _need(kind, ("bool",), {"and": "each side of &&", "or": "each side of ||", "not": "what follows !"}[node.op], child)
    return "bool"


def _conditional(node: Node, types: list[str]) -> str:
    _need(types[0], ("bool",), "what stands before ?", node.args[0])
    if "dyn" not in types[1:] and types[1] != types[2]:
        raise CelError(f"the two results of ?: differ: {_word(types[1])} and {_word(types[2])}", node.column)
    return "dyn" if "dyn" in types[1:] else types[1]


def _negative(node: Node, kind: str) -> str:
    _need(kind, ("int", "double"), "what follows -", node.args[0])
    return kind


def _binary(node: Node, left: str, right: str) -> str:
    if node.value == "in":
        return _membership(node, left, right)
    if node.value in ("==", "!="):
        if not _comparable(left, right):
            raise CelError(f"{_word(left)} is never equal to {_word(right)}", node.column, _compare_hint(left, right))
        return "bool"
    if node.value in ("<", "<=", ">", ">="):
        if not _comparable(left, right) or not {left, right} <= {*NUMBERS, "string", "bool", "dyn"}:
            raise CelError(f"cannot compare {_word(left)} with {_word(right)}", node.column, _compare_hint(left, right))
        return "bool"
    return _arithmetic(node, left, right)


def _membership(node: Node, left: str, right: str) -> str:
    if right in ("map", "dyn", "list"):
        return "bool"
    if not right.startswith("list:"):
        raise CelError(f"in needs a list on its right, not {_word(right)}", node.column)
    if not _comparable(left, right[5:]):
        raise CelError(f"{_word(left)} is never in a list of {right[5:]}", node.column)
    return "bool"


def _arithmetic(node: Node, left: str, right: str) -> str:
    allowed = {"+": (*NUMBERS, "string"), "%": ("int", "uint")}.get(node.value, NUMBERS)
    for kind, child in ((left, node.args[0]), (right, node.args[1])):
        if not (node.value == "+" and kind.startswith("list")):
            _need(kind, allowed, f"each side of {node.value}", child)
    if "dyn" in (left, right):
        return "dyn"
    if left != right and not (left.startswith("list") and right.startswith("list")):
        hint = "Write the whole number with a decimal point, such as 2.0, or use double()" if "double" in (left, right) else ""
        raise CelError(f"{node.value} needs the same type on both sides, got {left} and {right}", node.column, hint)
    return left


def _function(node: Node, types: list[str]) -> str:
    name, receiver = node.value, node.op == "method"
    if name == "size" and len(types) == 1:
        if types[0] not in ("string", "map", "dyn") and not types[0].startswith("list"):
            raise CelError(f"size() takes a text, a list or a map, not {_word(types[0])}", node.column)
        return "int"
    if receiver and name in TEXT_TESTS and len(types) == 2:
        for kind, child in zip(types, node.args, strict=True):
            _need(kind, ("string",), f"{name}()", child)
        return "bool"
    if not receiver and name in CONVERSIONS and len(types) == 1:
        _need(types[0], (*NUMBERS, "string", *(["bool"] if name == "string" else [])), f"{name}()", node.args[0])
        return CONVERSIONS[name]
    if name == "matches":
        raise CelError("matches() is not supported", node.column, "Use startsWith(), endsWith() or contains()")
    if name in FUNCTIONS or name in TEXT_TESTS:
        raise CelError(f"wrong use of {name}()", node.column)
    raise CelError(
        f"unknown function {name}()", node.column, near(name, (*FUNCTIONS, *TEXT_TESTS, "all", "exists", "exists_one", "filter", "map"))
    )


def _need(kind: str, allowed: t.Sequence[str], what: str, node: Node) -> None:
    if kind != "dyn" and kind not in allowed:
        wanted = "a number" if set(NUMBERS) >= set(allowed) else " or ".join(WORDS.get(item, item) for item in allowed if item != "uint")
        raise CelError(f"{what} must be {wanted}, not {_word(kind)}", node.column)


def _comparable(left: str, right: str) -> bool:
    if "dyn" in (left, right) or left == right:
        return True
    if left.startswith("list") and right.startswith("list"):
        return True
    return left in NUMBERS and right in NUMBERS


def _compare_hint(left: str, right: str) -> str:
    if "string" in (left, right) and (left in NUMBERS or right in NUMBERS):
        return "Write the number without quotes"
    if "null" in (left, right):
        return "A metric that was not measured fails its criterion by itself: no test for null is needed"
    return ""


def _common(types: list[str]) -> str:
    return types[0] if len(set(types)) == 1 else "dyn" if not set(types) <= set(NUMBERS) else "double"


def _word(kind: str) -> str:
    return WORDS.get(kind, "a list" if kind.startswith("list") else "nothing (null)" if kind == "null" else f"a {kind}")
