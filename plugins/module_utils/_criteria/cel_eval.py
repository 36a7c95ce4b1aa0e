# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a checked expression over plain Python values.

Numbers compare across types; equality of different kinds is false; arithmetic overflows, divisions by zero and
results that are not finite are errors; && and || forgive an error on one side when the other decides, as CEL says.
"""

from __future__ import annotations

import functools
import math
import operator
import typing as t

from .cel import INT_MAX, INT_MIN, CelError, Node

MAX_STEPS = 200_000  # nodes evaluated in one call; a runaway macro ends here
_ORDER: dict[str, t.Callable[[t.Any, t.Any], bool]] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def evaluate(node: Node, variables: t.Mapping[str, t.Any]) -> t.Any:
    """The value of an expression. variables holds None, bool, int, float, str, list and dict only.

    Raises CelError for what cannot be computed: a missing field, mixed types, an overflow, too much work.
    """
    return _Run().value(node, dict(variables))


class _Run:
    """One evaluation: counts its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def value(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _TooMuchWork(f"the expression needs more than {MAX_STEPS} steps", node.column)
        return getattr(self, "_" + node.op)(node, names)

    def _literal(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        return node.value

    def _name(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        if node.value not in names:
            raise CelError(f"unknown variable {node.value}", node.column)
        return names[node.value]

    def _select(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        return _member(self.value(node.args[0], names), node.value, node)

    def _has(self, node: Node, names: dict[str, t.Any]) -> bool:
        owner = self.value(node.args[0].args[0], names)
        if not isinstance(owner, dict):
            raise CelError(f"{_kind(owner)} has no fields", node.column)
        return owner.get(node.args[0].value) is not None

    def _index(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        return _member(self.value(node.args[0], names), self.value(node.args[1], names), node)

    def _list(self, node: Node, names: dict[str, t.Any]) -> list[t.Any]:
        return [self.value(child, names) for child in node.args]

    def _map(self, node: Node, names: dict[str, t.Any]) -> dict[t.Any, t.Any]:
        values = [self.value(child, names) for child in node.args]
        keys = values[::2]
        if any(isinstance(key, (list, dict, float)) or key is None for key in keys):
            raise CelError("the keys of a map are texts, whole numbers or booleans", node.column)
        return dict(zip(keys, values[1::2], strict=True))

    def _not(self, node: Node, names: dict[str, t.Any]) -> bool:
        return not _truth(self.value(node.args[0], names), node)

    def _neg(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        return _number(-_numeric(self.value(node.args[0], names), node), node)

    def _and(self, node: Node, names: dict[str, t.Any]) -> bool:
        return self._decide((functools.partial(self.value, child, names) for child in node.args), False, node)

    def _or(self, node: Node, names: dict[str, t.Any]) -> bool:
        return self._decide((functools.partial(self.value, child, names) for child in node.args), True, node)

    def _decide(self, tests: t.Iterable[t.Callable[[], t.Any]], decisive: bool, node: Node) -> bool:
        """The first test with the decisive value decides; otherwise the first error counts."""
        failure: CelError | None = None
        for test in tests:
            try:
                if _truth(test(), node) is decisive:
                    return decisive
            except _TooMuchWork:
                raise
            except CelError as error:
                failure = failure or error
        if failure:
            raise failure
        return not decisive

    def _cond(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        return self.value(node.args[1] if _truth(self.value(node.args[0], names), node) else node.args[2], names)

    def _binary(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        left, right = self.value(node.args[0], names), self.value(node.args[1], names)
        if node.value in ("==", "!="):
            return equal(left, right) is (node.value == "==")
        if node.value == "in":
            return _contained(left, right, node)
        if node.value in _ORDER:
            return _compare(node.value, left, right, node)
        return _calculate(node.value, left, right, node)

    def _macro(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        items = self.value(node.args[0], names)
        if not isinstance(items, (list, dict)):
            raise CelError(f"{node.value}() goes over a list, not {_kind(items)}", node.column)
        results = [(item, functools.partial(self.value, node.args[1], {**names, node.kind: item})) for item in items]
        if node.value in ("exists", "all"):
            return self._decide((test for _item, test in results), node.value == "exists", node)
        if node.value == "exists_one":
            return sum(_truth(test(), node) for _item, test in results) == 1
        if node.value == "filter":
            return [item for item, test in results if _truth(test(), node)]
        return [test() for _item, test in results]

    def _call(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        value = self.value(node.args[0], names)
        return _size(value, node) if node.value == "size" else _convert(node.value, value, node)

    def _method(self, node: Node, names: dict[str, t.Any]) -> t.Any:
        receiver, *rest = [self.value(child, names) for child in node.args]
        if node.value == "size":
            return _size(receiver, node)
        if not isinstance(receiver, str) or not isinstance(rest[0], str):
            raise CelError(f"{node.value}() works on texts", node.column)
        if node.value == "contains":
            return rest[0] in receiver
        return receiver.startswith(rest[0]) if node.value == "startsWith" else receiver.endswith(rest[0])


class _TooMuchWork(CelError):
    """Not forgiven by && and ||."""


def equal(left: t.Any, right: t.Any) -> bool:
    """CEL equality: numbers by value, other kinds only with their own kind, lists and maps by content."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    if _is_number(left) and _is_number(right):
        return bool(left == right)
    return type(left) is type(right) and left == right


def _member(owner: t.Any, key: t.Any, node: Node) -> t.Any:
    if isinstance(owner, dict):
        if key not in owner:
            raise CelError(f"no such key: {key}", node.column)
        return owner[key]
    if isinstance(owner, list) and _is_number(key) and float(key).is_integer():
        if not 0 <= key < len(owner):
            raise CelError(f"no position {key} in a list of {len(owner)}", node.column)
        return owner[int(key)]
    raise CelError(f"{_kind(owner)} has no member {key}", node.column)


def _contained(item: t.Any, container: t.Any, node: Node) -> bool:
    if isinstance(container, list):
        return any(equal(item, member) for member in container)
    if isinstance(container, dict):
        return any(equal(item, key) for key in container)
    raise CelError(f"in needs a list or a map on its right, not {_kind(container)}", node.column)


def _compare(sign: str, left: t.Any, right: t.Any, node: Node) -> bool:
    same = any(isinstance(left, kind) and isinstance(right, kind) for kind in (str, bool))
    if not same and not (_is_number(left) and _is_number(right)):
        raise CelError(f"cannot compare {_kind(left)} with {_kind(right)}", node.column)
    return bool(_ORDER[sign](left, right))


def _calculate(sign: str, left: t.Any, right: t.Any, node: Node) -> t.Any:
    if sign == "+" and any(isinstance(left, kind) and isinstance(right, kind) for kind in (str, list)):
        return left + right
    if not _is_number(left) or type(left) is not type(right):
        raise CelError(f"{sign} needs the same type on both sides, got {_kind(left)} and {_kind(right)}", node.column)
    if sign in ("/", "%") and right == 0:
        raise CelError("division by zero", node.column)
    if sign == "%" and isinstance(left, float):
        raise CelError("% works on whole numbers", column=node.column)
    try:
        return _number(_apply(sign, left, right), node)
    except OverflowError as error:
        raise CelError("the result is too large", node.column) from error


def _apply(sign: str, left: t.Any, right: t.Any) -> t.Any:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if isinstance(left, float):
        return left / right
    # Whole numbers round towards zero, as in Go, not down as in Python.
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return quotient if sign == "/" else left - quotient * right


def _number(value: t.Any, node: Node) -> t.Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise CelError("the result is not a finite number", node.column)
    if isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        raise CelError("the result does not fit 64 bits", node.column)
    return value


def _convert(name: str, value: t.Any, node: Node) -> t.Any:
    try:
        if name == "string":
            return str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, (bool, list, dict)) or value is None:
            raise ValueError
        number = _number(float(value) if name == "double" else int(value), node)
    except (ValueError, OverflowError) as error:
        raise CelError(f"{name}() cannot convert {value!r}", node.column) from error
    if name == "uint" and number < 0:
        raise CelError(f"uint() cannot convert {value!r}", node.column)
    return number


def _size(value: t.Any, node: Node) -> int:
    if not isinstance(value, (str, list, dict)):
        raise CelError(f"size() takes a text, a list or a map, not {_kind(value)}", node.column)
    return len(value)


def _truth(value: t.Any, node: Node) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"true or false is needed, got {_kind(value)}", node.column)
    return value


def _numeric(value: t.Any, node: Node) -> t.Any:
    if not _is_number(value):
        raise CelError(f"a number is needed, got {_kind(value)}", node.column)
    return value


def _is_number(value: t.Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: t.Any) -> str:
    if value is None:
        return "null"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "a map"}[type(value)]
