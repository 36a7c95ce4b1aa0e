# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""No pattern that meets a line of a log takes time that grows with the square of the line's length.

A hole of zeros that a crash left in a file, a base64 blob, a progress bar without an end: one such line kept a judge busy
for hours.
The patterns are found, not listed: every compiled pattern of the room's modules, and every literal one of a call of `re`. For each,
lines are made that go along with it as far as one of its repetitions and then repeat that; also words, digits, blanks and zeros alone.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import time
import types
import typing as t
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils import _measure

SHORT, LONG = 20_000, 80_000
# Four times the length may take four times as long; sixteen times is the square. Below the floor no square hides: it would take a second.
MOST = 8.0
FLOOR_S = 0.02
FILLS = ("x", "1", " ", "\0", "x ", "1 ", ".", "/", "[", "#")
SAMPLES = "x1 \0-.:/=_[]#(){}|,;'\"<>@+%*?~Z\t"


class Found(t.NamedTuple):
    """A pattern, the place where it stands, and whether it is only asked at the beginning of a text."""

    place: str
    pattern: re.Pattern[str]
    anchored: bool


def modules() -> list[types.ModuleType]:
    names = [item.name for item in pkgutil.walk_packages(_measure.__path__, f"{_measure.__name__}.") if not item.ispkg]
    return [importlib.import_module(name) for name in names]


def compiled(value: t.Any, depth: int = 0) -> t.Iterator[re.Pattern[str]]:
    """Patterns in a value, in whatever it is wrapped."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif isinstance(value, dict) and depth < 4:
        for item in (*value.keys(), *value.values()):
            yield from compiled(item, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)) and depth < 4:
        for item in value:
            yield from compiled(item, depth + 1)
    elif isinstance(value, type) and value.__module__.startswith(_measure.__name__) and depth < 2:
        for item in vars(value).values():
            yield from compiled(item, depth + 1)


LOOKING = {"search", "findall", "finditer", "sub", "subn", "split"}


def patterns() -> list[Found]:
    found: dict[tuple[str, int], Found] = {}
    for module in modules():
        short = module.__name__.partition("_measure.")[2]
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        used = [(node.value, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        searched = {value.id for value, method in used if isinstance(value, ast.Name) and method in LOOKING}
        asked = {value.id for value, method in used if isinstance(value, ast.Name) and method in ("match", "fullmatch")}
        for name, value in vars(module).items():
            for pattern in compiled(value):
                anchored = isinstance(value, re.Pattern) and name in asked and name not in searched
                found.setdefault((pattern.pattern, pattern.flags), Found(f"{short}.{name}", pattern, anchored))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            of_re = isinstance(call.func.value, ast.Name) and call.func.value.id == "re"
            text = call.args[0].value if of_re and call.args and isinstance(call.args[0], ast.Constant) else None
            if isinstance(text, str) and call.func.attr in LOOKING | {"match", "fullmatch"}:
                anchored = call.func.attr in ("match", "fullmatch")
                found.setdefault((text, 0), Found(f"{short}:{call.lineno}", re.compile(text), anchored))
    return sorted(found.values(), key=lambda item: item.place)


def sample(tree: t.Any, letter: str) -> str:
    """A text that the parsed pattern matches, with `letter` wherever it may stand."""
    return "".join(piece for code, argument in tree for piece in [_piece(code, argument, letter)])


def _piece(code: t.Any, argument: t.Any, letter: str) -> str:
    if code is codes.LITERAL:
        return chr(argument)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        return sample(argument[2], letter) * max(argument[0], 1)
    if code is codes.SUBPATTERN:
        return sample(argument[-1], letter)
    if code is codes.BRANCH:
        return sample(argument[1][0], letter)
    if code in (codes.IN, codes.NOT_LITERAL, codes.ANY):
        return _one_of(code, argument, letter)
    return ""


def _one_of(code: t.Any, argument: t.Any, letter: str) -> str:
    if code is codes.ANY:
        return letter
    tested = re.compile(_class_text(code, argument))
    return next((char for char in letter + SAMPLES if tested.fullmatch(char)), "x")


@functools.cache
def _category(code: t.Any) -> str:
    return {"DIGIT": r"\d", "NOT_DIGIT": r"\D", "SPACE": r"\s", "NOT_SPACE": r"\S", "WORD": r"\w", "NOT_WORD": r"\W"}[
        str(code).removeprefix("CATEGORY_")
    ]


def _class_text(code: t.Any, argument: t.Any) -> str:
    if code is codes.NOT_LITERAL:
        return f"[^{re.escape(chr(argument))}]"
    parts = ""
    for kind, value in argument:
        if kind is codes.NEGATE:
            parts += "^"
        elif kind is codes.LITERAL:
            parts += re.escape(chr(value))
        elif kind is codes.RANGE:
            parts += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        elif kind is codes.CATEGORY:
            parts += _category(value)
    return f"[{parts}]"


def pumped(tree: t.Any, before: str, letter: str) -> t.Iterator[tuple[str, str]]:
    """(text that leads to a repetition without an end, one round of it) for each repetition of a parsed pattern."""
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            if argument[1] is codes.MAXREPEAT:
                yield before, sample(argument[2], letter)
            yield from pumped(argument[2], before, letter)
        elif code is codes.SUBPATTERN:
            yield from pumped(argument[-1], before, letter)
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield from pumped(branch, before, letter)
        before += _piece(code, argument, letter)


def attacks(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """(beginning, what is repeated) of the lines that are tried."""
    found: dict[tuple[str, str], None] = {("", fill): None for fill in FILLS}
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    for letter in "x1 ":
        for before, round_ in pumped(tree, "", letter):
            if round_:
                found.setdefault((before, round_))
    return list(found)


def seconds(look: t.Callable[[str], t.Any], line: str, repeats: int) -> float:
    best = float("inf")
    for _number in range(repeats):
        begun = time.process_time()
        look(line)
        best = min(best, time.process_time() - begun)
    return best


def is_linear(look: t.Callable[[str], t.Any], before: str, fill: str) -> bool:
    """Whether the time grows with the length of the line; noise is answered by looking again."""

    def line(length: int) -> str:
        return before + fill * (length // len(fill)) + "\x01"

    first = seconds(look, line(SHORT // 4), 1)
    if first < FLOOR_S / 40 or (first < FLOOR_S / 4 and seconds(look, line(SHORT), 1) < FLOOR_S):
        return True
    if first > FLOOR_S and seconds(look, line(SHORT), 1) > MOST * seconds(look, line(SHORT // 4), 2):
        return False
    return any(seconds(look, line(LONG), 2) <= MOST * seconds(look, line(SHORT), 3) for _again in range(3))


@pytest.mark.parametrize("found", patterns(), ids=lambda found: found.place)
def test_time_grows_with_the_length_of_a_line(found: Found) -> None:
    """One long line must not keep the judge of a whole cluster busy for hours."""
    look = found.pattern.match if found.anchored else found.pattern.search
    slow = next(((before[-40:], fill) for before, fill in attacks(found.pattern) if not is_linear(look, before, fill)), None)
    assert slow is None, f"{found.place}: {found.pattern.pattern}"


@pytest.mark.parametrize("bad", [r"\S+: Test", r"a.*?[^\s:]+:\d", r"(\d+),(\d+) of"])
def test_the_scan_finds_squares(bad: str) -> None:
    """A scan that calls every pattern good would prove nothing."""
    pattern = re.compile(bad)
    assert not all(is_linear(pattern.search, before, fill) for before, fill in attacks(pattern))


def test_the_scan_sees_every_wing() -> None:
    places = {found.place.partition(".")[0] for found in patterns()}
    assert {"nccl", "dcgm", "training", "tools", "profiles", "prefixes", "detect"} <= places
    assert len(patterns()) > 100
