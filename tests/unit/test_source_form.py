# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What `ansible-test sanity` refuses after two minutes is seen here in a second, before anybody merges it."""

from __future__ import annotations

import ast
import collections.abc
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Names that pylint, as ansible-test sets it up, takes for names of nothing.
PLACEHOLDERS = {"_", "foo", "bar", "baz", "toto", "tutu", "tata"}
TYPES = {"str", "int", "float", "bool", "bytes", "dict", "list", "set", "tuple", "type"}


def at_import(node: ast.AST) -> collections.abc.Iterator[ast.AST]:
    """Everything that is evaluated when the module is imported, without annotations: those stay texts."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.AnnAssign):
            continue
        yield child
        yield from at_import(child)


def is_union(node: ast.AST) -> bool:
    """Whether this is `X | None` or `str | X`."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitOr):
        return False
    sides = (node.left, node.right)
    return any(isinstance(side, ast.Constant) and side.value is None or isinstance(side, ast.Name) and side.id in TYPES for side in sides)


def bare_unions(tree: ast.Module) -> list[int]:
    return [node.lineno for node in at_import(tree) if is_union(node) and isinstance(node, ast.BinOp)]


def assertions(tree: ast.Module) -> list[int]:
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def placeholders(tree: ast.Module) -> list[int]:
    """Lines that give one of these names to something."""
    lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in PLACEHOLDERS]
    lines += [
        node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PLACEHOLDERS
    ]
    return lines + [node.lineno for node in ast.walk(tree) if isinstance(node, ast.arg) and node.arg in PLACEHOLDERS]


def found(search: collections.abc.Callable[[ast.Module], list[int]]) -> list[str]:
    paths = sorted((ROOT / "plugins").rglob("*.py"))
    assert len(paths) > 100
    return [f"{path.relative_to(ROOT)}:{line}" for path in paths for line in search(ast.parse(path.read_text(encoding="utf-8")))]


def test_a_type_that_is_computed_at_import_is_declared_as_one() -> None:
    """`Name: t.TypeAlias = X | None`, or a text; pylint takes a bare one for arithmetic that old Pythons do not know."""
    assert found(bare_unions) == []


def test_no_plugin_relies_on_assert() -> None:
    """It vanishes with `python -O`, and its user sees a traceback without a place."""
    assert found(assertions) == []


def test_nothing_is_called_by_a_name_of_nothing() -> None:
    assert found(placeholders) == []


def test_all_are_seen_where_they_are() -> None:
    bare, alias, flags = "Bare = dict[str, int | None]\n", "Alias: t.TypeAlias = str | None\n", "FLAGS = A | B\n"
    code = ast.parse(f"{bare}{alias}{flags}def f(x: int | None) -> None:\n    assert x or 1 | x\n")
    assert bare_unions(code) == [1]
    assert assertions(code) == [5]
    assert placeholders(ast.parse("def bar(foo: int) -> None:\n    baz = foo\nbars = bar\n")) == [1, 2, 1]
