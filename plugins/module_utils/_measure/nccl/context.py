# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the caller of a measurement knows; all of it optional."""

from __future__ import annotations

import typing as t

from ..._common.checks import of_type
from ..._common.errors import InputError, unknown_value
from . import collectives, transport


class Context(t.NamedTuple):
    """What the caller knows; all of it optional."""

    exit_code: int | None = None
    expected_sizes: tuple[int, ...] = ()
    judged_size: int | None = None
    expect_transport: str | None = None
    expect_gdr: bool = False
    require_data_check: bool = False
    require_transport_proof: bool = False
    allow_reduced_sizes: bool = False
    cycles: int | None = None
    collective: str | None = None
    expected_gpus: int | None = None
    expected_ranks: int | None = None
    nodes: tuple[str, ...] = ()


def read_context(context: t.Mapping[str, t.Any]) -> Context:
    """Checks the keys we use. Raises InputError naming the key."""
    values: dict[str, t.Any] = {name: context[name] for name in Context._fields if context.get(name) is not None}
    for name in ("exit_code", "judged_size", "cycles", "expected_gpus", "expected_ranks"):
        if name in values:
            values[name] = of_type(values[name], int, f"context.{name}")
    if "expected_sizes" in values:
        if isinstance(values["expected_sizes"], (str, bytes)):
            raise InputError("expected_sizes must be a list of bytes", place="context.expected_sizes")
        values["expected_sizes"] = tuple(of_type(size, int, "context.expected_sizes") for size in values["expected_sizes"])
    if "nodes" in values:
        values["nodes"] = tuple(dict.fromkeys(map(str, values["nodes"]))) if isinstance(values["nodes"], (list, tuple)) else ()
    expected = values.get("expect_transport")
    if expected is not None and expected not in transport.EXPECTATIONS:
        raise unknown_value("transport", expected, transport.EXPECTATIONS, "context.expect_transport")
    if "collective" in values and values["collective"] not in collectives.COLLECTIVES:
        raise unknown_value("collective", values["collective"], collectives.COLLECTIVES, "context.collective")
    return Context(**values)
