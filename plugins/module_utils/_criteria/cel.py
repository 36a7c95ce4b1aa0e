# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""CEL text to a small tree.

The grammar is cel-python's; types and evaluation are ours (`cel_types`, `cel_eval`). The engine of cel-python
refuses `value == 900` for a double, accepts `value * 2` where cel-go refuses it, and has no limit on work, and
each of these can turn a failed node into a passed one.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from .._common.errors import ReadinessError

MAX_LENGTH = 2048  # characters of an expression
MAX_DEPTH = 48  # nested operators; chains of && and || count once
MACROS = ("all", "exists", "exists_one", "filter", "map")
LEFT_OPERATORS = {
    "relation_lt": "<",
    "relation_le": "<=",
    "relation_gt": ">",
    "relation_ge": ">=",
    "relation_eq": "==",
    "relation_ne": "!=",
    "relation_in": "in",
    "addition_add": "+",
    "addition_sub": "-",
    "multiplication_mul": "*",
    "multiplication_div": "/",
    "multiplication_mod": "%",
}
INT_MIN, INT_MAX, UINT_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1


class CelError(Exception):
    """An expression that cannot be used. column counts from 1; 0 when unknown."""

    def __init__(self, message: str, column: int = 0, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.column = column
        self.hint = hint


@dataclasses.dataclass(frozen=True)
class Node:
    """One node of an expression.

    op:    literal, name, select, index, call, method, has, macro, list, map, not, neg, binary, and, or, cond.
    args:  child nodes, in reading order (a method's receiver and a macro's range come first).
    value: of a literal its Python value; else the name, field, function or operator.
    kind:  of a literal its CEL type; of a macro the name of its variable.
    """

    op: str
    args: tuple[Node, ...] = ()
    value: t.Any = None
    kind: str = ""
    column: int = 0

    def walk(self) -> t.Iterator[Node]:
        """This node and everything below it."""
        yield self
        for child in self.args:
            yield from child.walk()


def parse(text: str) -> Node:
    """The tree of an expression. Raises CelError for bad syntax and for anything over the limits."""
    if len(text) > MAX_LENGTH:
        raise CelError(f"the expression has {len(text)} characters, at most {MAX_LENGTH} are allowed")
    if not text.strip():
        raise CelError("the expression is empty")
    try:
        from celpy.celparser import CELParseError, CELParser
    except ImportError as error:
        raise ReadinessError(
            "the Python package cel-python is missing, criteria cannot be read", hint="Install cel-python for the Python that runs Ansible"
        ) from error
    try:
        tree = CELParser().parse(text)
    except CELParseError as error:
        column = error.column or 0
        raise CelError(_syntax_message(text, column), column, _syntax_hint(text)) from error
    return _lower(tree, 0, 1)


def quote(text: str, column: int) -> str:
    """The expression on one line, with a caret line below it when the place is known."""
    flat = re.sub(r"\s", " ", text)
    if not 1 <= column <= len(flat) + 1 or "\n" in text.strip():
        return flat
    return f"{flat}\n{' ' * (column - 1)}^"


def _syntax_message(text: str, column: int) -> str:
    if re.search(r"(?:[=<>&|+\-*/%(\[,!?:.]|\bin)\s*$", text):
        return "the expression is not complete"
    if text.count("(") > text.count(")") or text.count("[") > text.count("]"):
        return "a bracket is not closed"
    return f"unexpected {text[column - 1 :].strip()[:12]!r}" if column else "the syntax is wrong"


def _syntax_hint(text: str) -> str:
    if "=>" in text or "=<" in text:
        return "Write >= and <="
    if re.search(r"(?<![=!<>])=(?!=)", text):
        return "Compare with =="
    if re.search(r"\b(and|or|not)\b", text):
        return "Write && for and, || for or, ! for not"
    if ".?" in text or "?." in text or "[?" in text:
        return "Optional access is not supported: test with has() first"
    return ""


def _lower(tree: t.Any, depth: int, column: int) -> Node:
    """One grammar tree to one node; layers with a single child are skipped without recursion."""
    if depth > MAX_DEPTH:
        raise CelError(f"the expression is nested deeper than {MAX_DEPTH} levels", column)
    while True:
        column = getattr(tree.meta, "column", column) or column
        rule, children = str(tree.data), tree.children
        if rule == "paren_expr" or (len(children) == 1 and rule in _LAYERS):
            tree = children[0]
            continue
        break
    below = depth + 1
    if rule == "literal":
        return _literal(children[0], column)
    if rule in ("conditionalor", "conditionaland"):
        return Node("or" if rule == "conditionalor" else "and", tuple(_lower(part, below, column) for part in _chain(tree)), column=column)
    if rule == "expr":
        return Node("cond", tuple(_lower(child, below, column) for child in children), column=column)
    if rule in ("relation", "addition", "multiplication"):
        left, right = children
        operands = (_lower(left.children[0], below, column), _lower(right, below, column))
        return Node("binary", operands, LEFT_OPERATORS[str(left.data)], column=column)
    if rule == "unary":
        return Node("not" if children[0].data == "unary_not" else "neg", (_lower(children[1], below, column),), column=column)
    return _lower_member(rule, children, below, column)


_LAYERS = frozenset(("expr", "conditionalor", "conditionaland", "relation", "addition", "multiplication", "unary", "member", "primary"))


def _chain(tree: t.Any) -> list[t.Any]:
    """The operands of a left-recursive chain of && or ||, in reading order."""
    operands = []
    rule = tree.data
    while tree.data == rule and len(tree.children) == 2:
        operands.append(tree.children[1])
        tree = tree.children[0]
    operands.append(tree)
    return operands[::-1]


def _lower_member(rule: str, children: list[t.Any], depth: int, column: int) -> Node:
    """Names, fields, indexes, calls, lists and maps."""
    if rule in ("ident", "dot_ident"):
        return Node("name", value=str(children[0]), column=column)
    if rule == "member_dot":
        return Node("select", (_lower(children[0], depth, column),), str(children[1]), column=column)
    if rule == "member_index":
        return Node("index", tuple(_lower(child, depth, column) for child in children), column=column)
    if rule == "list_lit":
        return Node("list", _items(children, depth, column), column=column)
    if rule == "map_lit":
        return Node("map", _items(children, depth, column), column=column)
    if rule in ("ident_arg", "dot_ident_arg"):
        return _call(str(children[0]), _items(children[1:], depth, column), column)
    if rule == "member_dot_arg":
        receiver = _lower(children[0], depth, column)
        return _method(receiver, str(children[1]), _items(children[2:], depth, column), column)
    raise CelError("this form is not supported here", column)


def _items(lists: list[t.Any], depth: int, column: int) -> tuple[Node, ...]:
    """The members of an argument list, a list or a map, if there are any."""
    return tuple(_lower(item, depth, column) for item in lists[0].children) if lists else ()


def _call(name: str, args: tuple[Node, ...], column: int) -> Node:
    if name == "has":
        if len(args) != 1 or args[0].op != "select":
            raise CelError("has() takes one field, such as has(node.metadata.labels.zone)", column)
        return Node("has", args, "has", column=column)
    return Node("call", args, name, column=column)


def _method(receiver: Node, name: str, args: tuple[Node, ...], column: int) -> Node:
    if name not in MACROS:
        return Node("method", (receiver, *args), name, column=column)
    if len(args) != 2 or args[0].op != "name":
        raise CelError(f"{name}() takes a variable and an expression, such as {name}(c, c.type == 'Ready')", column)
    return Node("macro", (receiver, args[1]), name, kind=args[0].value, column=column)


def _literal(token: t.Any, column: int) -> Node:
    kind, text = str(token.type), str(token)
    if kind == "BOOL_LIT":
        return Node("literal", value=text == "true", kind="bool", column=column)
    if kind == "NULL_LIT":
        return Node("literal", kind="null", column=column)
    if kind == "FLOAT_LIT":
        return _float(text, column)
    if kind in ("INT_LIT", "UINT_LIT"):
        return _whole(text, column)
    if kind in ("STRING_LIT", "MLSTRING_LIT"):
        return Node("literal", value=unescape(text, column), kind="string", column=column)
    raise CelError("bytes are not supported here", column)


def _float(text: str, column: int) -> Node:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise CelError(f"{text} is too large for a number", column)
    return Node("literal", value=value, kind="double", column=column)


def _whole(text: str, column: int) -> Node:
    unsigned = text[-1] in "uU" and not text.lower().endswith("0x")
    digits = text[:-1] if unsigned else text
    value = int(digits, 16) if "x" in digits.lower() else int(digits)
    if not (0 if unsigned else INT_MIN) <= value <= (UINT_MAX if unsigned else INT_MAX):
        raise CelError(f"{text} does not fit 64 bits", column)
    return Node("literal", value=value, kind="uint" if unsigned else "int", column=column)


_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)


def unescape(text: str, column: int = 0) -> str:
    """The value of a CEL string literal with its quotes, raw or not."""
    raw = text[0] in "rR"
    body = text[1:] if raw else text
    width = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
    body = body[width:-width]
    return body if raw else _ESCAPE.sub(lambda match: _escape(match.group(1), column), body)


def _escape(code: str, column: int) -> str:
    if code[0] in "xXuU" and len(code) > 1:
        point = int(code[1:], 16)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise CelError(f"\\{code} is not a character", column)
        return chr(point)
    if len(code) == 3:
        return chr(int(code, 8))
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code in "\\'\"`?":
        return code
    raise CelError(f"unknown escape \\{code} in a text", column)
