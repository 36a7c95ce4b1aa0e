# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""Quantities: the numbers of resources, such as 500m, 8 and 1Gi."""

from __future__ import annotations

import decimal
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


def parse(value: t.Any) -> t.Optional[decimal.Decimal]:
    """The number a quantity means, or None when it is not one."""
    text = str(value)
    if not re.fullmatch(QUANTITY_PATTERN, text):
        return None
    for suffix, factor in _SUFFIX.items():
        if text.endswith(suffix) and not text[: -len(suffix)].endswith(("e", "E")):
            return decimal.Decimal(text[: -len(suffix)]) * factor
    return decimal.Decimal(text)


def as_text(amounts: t.Any) -> t.Any:
    """A map of quantities with numbers written as text, the way the server stores them."""
    if not isinstance(amounts, dict):
        return amounts
    return {key: value if isinstance(value, str) else str(value) for key, value in amounts.items()}


def show(value: decimal.Decimal) -> str:
    """A plain number: integers without a point, thousandths with the suffix m."""
    if value == value.to_integral_value():
        return str(int(value))
    return f"{int((value * 1000).to_integral_value(decimal.ROUND_CEILING))}m"
