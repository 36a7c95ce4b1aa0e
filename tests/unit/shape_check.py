# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Compares data with a TypedDict, all the way down."""

from __future__ import annotations

import types
import typing as t


def violations(value: t.Any, shape: t.Any, place: str = "") -> list[str]:
    """Every place where a value is not of the shape. Shapes named Measurement may carry further keys: kinds add their own."""
    if shape is t.Any:
        return []
    origin, arguments = t.get_origin(shape), t.get_args(shape)
    if origin in (t.NotRequired, t.Required):
        return violations(value, arguments[0], place)
    if origin is t.Literal:
        return [] if value in arguments else [f"{place}: {value!r} is none of {', '.join(map(str, arguments))}"]
    if origin in (t.Union, types.UnionType):
        tried = [violations(value, item, place) for item in arguments]
        if [] in tried:
            return []
        fitting = [found for item, found in zip(arguments, tried, strict=True) if isinstance(value, dict) == t.is_typeddict(item)]
        return fitting[0] if isinstance(value, dict) and fitting else [f"{place}: {value!r} is no {shape}"]
    if t.is_typeddict(shape):
        return _of_keys(value, shape, place) if isinstance(value, dict) else [f"{place}: {value!r} is no {shape.__name__}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{place}: {value!r} is no list"]
        return [found for index, item in enumerate(value) for found in violations(item, arguments[0], f"{place}[{index}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{place}: {value!r} is no mapping"]
        return [found for key, item in value.items() for found in violations(item, arguments[1], f"{place}.{key}")]
    good = isinstance(value, (int, float) if shape is float else shape) and not (shape in (int, float) and isinstance(value, bool))
    return [] if good else [f"{place}: {value!r} is no {getattr(shape, '__name__', shape)}"]


def _of_keys(value: dict[str, t.Any], shape: t.Any, place: str) -> list[str]:
    hints = t.get_type_hints(shape, include_extras=True)
    found = [f"{place}.{key}: missing" for key in hints if key not in value and t.get_origin(hints[key]) is not t.NotRequired]
    for key, item in value.items():
        if key in hints:
            found += violations(item, hints[key], f"{place}.{key}")
        elif shape.__name__ != "Measurement":
            found.append(f"{place}.{key}: not in the shape")
    return found
