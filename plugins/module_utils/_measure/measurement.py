# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The one entry of this room: `measure(kind, paths, context)`.

A kind is a module of this package with a function `measure_files(paths, context)` that returns a measurement
(see docs/data_shapes.md). To add one: write the module, add a line to `KINDS`, a table to `metrics.METRICS`.
Modules are imported when first used, so that a play that only reads NCCL logs does not pay for the others.
"""

from __future__ import annotations

import importlib
import typing as t

from .._common.errors import unknown_value

# kind -> module of this package that provides measure_files(paths, context) -> measurement
KINDS: dict[str, str] = {
    "nccl": "nccl.results",
    "dcgm": "dcgm.results",
    "training": "training.results",
    "goodput": "training.goodput",
    "log_profile": "profiles.results",
    "perftest": "tools.perftest",
    "fio": "tools.fio",
    "nvbandwidth": "tools.nvbandwidth",
    "gpu_burn": "tools.gpu_burn",
    "key_value": "tools.key_value",
}


def measure(kind: str, paths: t.Sequence[str], context: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
    """Read the files of one attempt and say what they prove.

    kind:    a key of `KINDS`.
    paths:   files in reading order; names ending in `.gz` are decompressed. An empty list is `no_data`.
    context: what the caller knows, all optional: exit_code, expected_sizes, judged_size, expect_transport,
             require_data_check, expected_gpus, required_tests, log_interval, warmup_steps, nodes, host_of_node ...

    Returns a measurement. Raises InputError for an unknown kind, a wrong context or a file that cannot be read;
    never for what a file contains.
    """
    if kind not in KINDS:
        raise unknown_value("kind of measurement", kind, KINDS)
    module = importlib.import_module(f"{__package__}.{KINDS[kind]}")
    return module.measure_files(list(paths), dict(context or {}))


def measurement(
    kind: str,
    verdict: str,
    reason: str,
    *,
    complete: bool,
    values: dict[str, t.Any] | None = None,
    units: dict[str, str] | None = None,
    parsed: dict[str, t.Any] | None = None,
    transport: dict[str, t.Any] | None = None,
    judged: dict[str, t.Any] | None = None,
    findings: list[dict[str, t.Any]] | None = None,
    **extra: t.Any,
) -> dict[str, t.Any]:
    """A measurement with every key of the contract present. `extra` adds keys of one kind only."""
    return {
        "kind": kind,
        "verdict": verdict,
        "complete": complete,
        "reason": reason,
        "values": values or {},
        "units": units or {},
        "parsed": parsed or {},
        "transport": transport,
        "judged": judged,
        "findings": findings or [],
        **extra,
    }


def finding(
    reason: str, message: str, *, host: str | None = None, entity: str | None = None, evidence: t.Sequence[str] = ()
) -> dict[str, t.Any]:
    """One finding: a reason of the reasons table, what is wrong, where, and the lines that prove it."""
    return {"reason": reason, "host": host, "entity": entity, "message": message, "evidence": list(evidence)}
