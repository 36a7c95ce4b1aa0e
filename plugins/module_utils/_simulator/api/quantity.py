# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities: the numbers of resources, such as 500m, 8 and 1Gi."""

from __future__ import annotations

import decimal
import functools
import re
import typing as t

from .schema import QUANTITY_PATTERN

_SUFFIX = {
    **{name + "i": decimal.Decimal(1024) ** (power + 1) for power, name in enumerate("KMGTPE")},
    **{name: decimal.Decimal(10) ** (3 * power + 3) for power, name in enumerate("kMGTPE")},
    "m": decimal.Decimal("0.001"),
    "u": decimal.Decimal("0.000001"),
    "n": decimal.Decimal("0.000000001"),
}

_NANOS = decimal.Decimal(10) ** 9


def parse(value: t.Any) -> decimal.Decimal | None:
    """The number a quantity means, or None when it is not one."""
    text = str(value)
    if not re.fullmatch(QUANTITY_PATTERN, text):
        return None
    for suffix, factor in _SUFFIX.items():
        if text.endswith(suffix) and not text[: -len(suffix)].endswith(("e", "E")):
            return decimal.Decimal(text[: -len(suffix)]) * factor
    return decimal.Decimal(text)


@functools.lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """A quantity the way the server writes it back: 0.5 as 500m, 1024Mi as 1Gi, 2000 as 2k. Text that is no quantity stays."""
    value = parse(text)
    if value is None:
        return text
    if not value:
        return "0"
    if text.endswith("i") and abs(value) >= 1024:
        return _with_suffix(value.to_integral_value(decimal.ROUND_UP), 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    nanos = (value * _NANOS).to_integral_value(decimal.ROUND_UP)
    if "e" in text or text[:-1].find("E") >= 0:
        plain = _with_suffix(nanos, 1000, tuple(f"e{power}" for power in range(-9, 19, 3)))
        return plain.removesuffix("e0")
    return _with_suffix(nanos, 1000, ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"))


def _with_suffix(value: decimal.Decimal, base: int, suffixes: tuple[str, ...]) -> str:
    """The largest suffix that leaves an integer."""
    number, power = int(value), 0
    while number % base == 0 and power < len(suffixes) - 1:
        number //= base
        power += 1
    return f"{number}{suffixes[power]}"


def as_text(amounts: t.Any) -> t.Any:
    """A map of quantities the way the server stores them."""
    if not isinstance(amounts, dict):
        return amounts
    return {key: canonical(value if isinstance(value, str) else str(value)) for key, value in amounts.items()}


def show(value: decimal.Decimal) -> str:
    """A number as a canonical quantity."""
    return canonical(format(value, "f"))
