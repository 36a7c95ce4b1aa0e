# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of one field. Every check here and beside it returns the causes of a 422 answer."""

from __future__ import annotations

import typing as t

from ..errors import FieldError, invalid_value, unsupported
from ..objects import Object

Errors = list[FieldError]


def one_of(value: t.Any, field: str, allowed: t.Iterable[str]) -> Errors:
    """A value of an enumeration; None is fine."""
    return [] if value is None or value in allowed else [unsupported(field, value, allowed)]


def at_least(spec: Object, name: str, least: int, field: str) -> Errors:
    """The least a number of a spec may be, when it is given."""
    value = spec.get(name)
    if value is None or value >= least:
        return []
    text = "must be greater than or equal to 0" if least == 0 else f"must be greater than or equal to {least}"
    return [invalid_value(f"{field}.{name}", value, text)]
