# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of user input: each failure names the key path, the value, and what is allowed."""

from __future__ import annotations

import re
import typing as t

from .errors import InputError, unknown_value

_T = t.TypeVar("_T")

SIZE = re.compile(r"^(\d+)([KMGT]?)$")
SIZE_FACTOR = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
TYPE_NAMES = {dict: "a mapping", list: "a list", str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def of_type(value: t.Any, wanted: type[_T], place: str, hint: str = "") -> _T:
    """value, when it is of the wanted JSON type; a whole number is also a number, true is never a number."""
    good = isinstance(value, wanted) and not (wanted in (int, float) and isinstance(value, bool))
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return t.cast(_T, float(value))
    if not good:
        raise InputError(f"expected {TYPE_NAMES[wanted]}, got {value!r}", place=place, hint=hint)
    return t.cast(_T, value)


def known_keys(value: t.Any, allowed: t.Iterable[str], place: str) -> dict[str, t.Any]:
    """value as a mapping whose keys are all allowed."""
    mapping: dict[str, t.Any] = of_type(value, dict, place)
    names = list(allowed)
    for key in mapping:
        if key not in names:
            raise unknown_value("key", key, names, place)
    return mapping


def one_of(value: t.Any, allowed: t.Iterable[t.Any], what: str, place: str) -> t.Any:
    """value, when it is in the closed set."""
    names = list(allowed)
    if value not in names:
        raise unknown_value(what, value, names, place)
    return value


def integer(value: t.Any, place: str, *, minimum: int = 0, maximum: int | None = None) -> int:
    """A whole number within bounds; a text of digits (AWX surveys, -e name=value) counts."""
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()):
        value = int(value)
    number = of_type(value, int, place)
    if number < minimum or (maximum is not None and number > maximum):
        upper = f" and at most {maximum}" if maximum is not None else ""
        raise InputError(f"{number} is out of range: at least {minimum}{upper}", place=place)
    return number


def boolean(value: t.Any, place: str) -> bool:
    """true or false; the texts yes/no/true/false count (AWX surveys have no boolean)."""
    if isinstance(value, str) and value.strip().lower() in ("true", "yes", "false", "no"):
        return value.strip().lower() in ("true", "yes")
    return of_type(value, bool, place)


def size_bytes(value: t.Any, place: str) -> int:
    """A message size as nccl-tests takes it: bytes, or a number with K, M, G or T (powers of 1024)."""
    text = str(value).strip().upper() if not isinstance(value, bool) else ""
    match = SIZE.match(text)
    if not match:
        raise InputError(f"{value!r} is not a size", place=place, hint="Use bytes, or a number with K, M, G or T, such as 16G")
    return int(match.group(1)) * SIZE_FACTOR[match.group(2)]


def list_of(value: t.Any, place: str, check: t.Callable[[t.Any, str], t.Any]) -> list[t.Any]:
    """A list whose members all pass the check; a place ends in [index]."""
    return [check(item, f"{place}[{index}]") for index, item in enumerate(of_type(value, list, place))]


def string(value: t.Any, place: str, *, pattern: str = "", hint: str = "") -> str:
    """A non-empty text, matching the pattern when one is given."""
    result = of_type(value, str, place)
    if not result.strip():
        raise InputError("must not be empty", place=place)
    if pattern and not re.fullmatch(pattern, result):
        raise InputError(f"{result!r} is not valid", place=place, hint=hint)
    return result
