# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Values of a JSON document whose types vary by version; whatever is not what it should be becomes None or empty."""

from __future__ import annotations

import re
import typing as t

from .documents import MAX_ENTITY, Error

# What no version of DCGM uses; such a number is no code.
_MAX_CODE = 9999


def mapping(value: t.Any) -> dict[str, t.Any]:
    """The object, or an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: t.Any, lacks: t.Callable[[str], None], what: str, *, holes: bool = False) -> list[dict[str, t.Any]]:
    """The objects of a list; anything else in it, or in its place, is reported as a part that is lacking.

    holes: null stands for "no result", as 3.3 leaves it where a GPU was not tested.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        lacks(f"{what} cannot be read")
        return []
    found = [item for item in value if isinstance(item, dict)]
    if len(found) < sum(1 for item in value if item is not None or not holes):
        lacks(f"a part of {what} cannot be read")
    return found


def text(value: t.Any) -> str | None:
    """A text or a number as text."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def integer(value: t.Any) -> int | None:
    """A whole number, also from a text; None for everything else and for what is absurdly large."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)) and abs(value) < 1e9:
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s{0,9}-?\d{1,9}\s{0,9}", value):
        return int(value)
    return None


def strings(value: t.Any) -> list[str]:
    """The texts of a list, or a text alone."""
    if isinstance(value, list):
        return [item for item in value if isinstance(item, str)]
    return [value] if isinstance(value, str) and value else []


def entity_number(value: t.Any) -> int | None:
    """The number of an entity; None for one that no machine has."""
    number = integer(value)
    return number if number is not None and 0 <= number <= MAX_ENTITY else None


def entity_numbers(value: t.Any) -> list[int]:
    """`gpu_ids` of 3.x: a text such as "0,1,2", or a number. Empty when one of them is no entity."""
    if isinstance(value, str):
        numbers = [entity_number(part) for part in value.split(",")]
        return [] if None in numbers else [number for number in numbers if number is not None]
    one = entity_number(value)
    return [] if one is None else [one]


def codes_of(node: t.Mapping[str, t.Any]) -> tuple[int | None, int | None, int | None]:
    """Code, severity and category of an error record; None for what is missing or cannot be one."""
    code, severity, category = (integer(node.get(name)) for name in ("error_id", "error_severity", "error_category"))
    return (
        code if code is not None and 0 <= code <= _MAX_CODE else None,
        severity if severity is not None and 0 <= severity <= 6 else None,
        category,
    )


def errors(value: t.Any) -> list[Error]:
    """The warnings of a result, each once: from 4.5 on a summary repeats those of the entities."""
    found: dict[Error, None] = {}
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item.strip():
            found[Error(item)] = None
        elif isinstance(item, dict):
            # Deployment errors of 3.3 carry their text under "warnings".
            found[Error(text(item.get("warning", item.get("warnings"))) or "", *codes_of(item))] = None
        elif item is not None and not isinstance(item, str):
            found[Error(str(item)[:200])] = None
    return list(found)
