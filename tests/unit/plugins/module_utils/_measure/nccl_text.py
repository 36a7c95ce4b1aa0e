# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Writes small nccl-tests logs for tests, in every layout."""

from __future__ import annotations

import typing as t

WIDE_TITLES = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
OLD_TITLES = WIDE_TITLES.replace("busbw  #wrong", "busbw #wrong")
DELTA_TITLES = """#
#                                                     out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
# Where the identity of a row ends, and where its out-of-place group does.
IDENTITY = 52
OUT_OF_PLACE = 85
CELLS = "{time:>7}  {alg:>6}  {bus:>6}  {wrong:>6}"


def devices(hosts: t.Sequence[str], gpus: int = 1, group_of: t.Callable[[int], int] = lambda rank: 0) -> str:
    lines = []
    for rank in range(len(hosts) * gpus):
        place = f"{hosts[rank // gpus]:>10} device {rank % gpus:2d}"
        lines.append(f"#  Rank {rank:2d} Group {group_of(rank):2d} Pid {4100 + rank:6d} on {place} [0000:18:00] NVIDIA H100\n")
    return "".join(lines)


WIDTHS = {"half": 2, "bfloat16": 2, "double": 8}  # bytes of an element, where not 4


def row(
    size: int,
    bus: float,
    *,
    ranks: int = 2,
    collective_factor: float | None = None,
    redop: str = "sum",
    root: int | None = -1,
    wrong: t.Any = 0,
    ip_wrong: t.Any = 0,
    kind: str = "float",
) -> str:
    """A row whose numbers agree with each other (all_reduce unless a factor is given)."""
    factor = 2 * (ranks - 1) / ranks if collective_factor is None else collective_factor
    alg = bus / factor if factor else bus
    time = size / alg / 1000
    out = CELLS.format(time=f"{time:.2f}", alg=f"{alg:.2f}", bus=f"{bus:.2f}", wrong=wrong)
    into = CELLS.format(time=f"{time:.2f}", alg=f"{alg:.2f}", bus=f"{bus:.2f}", wrong=ip_wrong)
    return f"{size:12d}  {size // WIDTHS.get(kind, 4):12d}  {kind:>8}  {redop:>6}  {'' if root is None else root:>6}  {out}  {into}\n"


def head(
    program: str = "all_reduce_perf",
    *,
    smallest: int = 1 << 30,
    largest: int = 1 << 31,
    step: int = 2,
    hosts: t.Sequence[str] = ("gpu-a1", "gpu-a2"),
    gpus: int = 1,
    version: str = "2.19.6",
    validation: int = 1,
    device_text: str | None = None,
) -> str:
    return (
        f"# nccl-tests version {version} nccl-headers=22809 nccl-library=22809\n"
        f"# Collective test starting: {program}\n"
        f"# nThread 1 nGpus 1 minBytes {smallest} maxBytes {largest} step: {step}(factor) warmup iters: 1 iters: 20 agg iters: 1"
        f" validation: {validation} graph: 0 unalign: 0\n"
        "#\n# Using devices\n" + (devices(hosts, gpus) if device_text is None else device_text)
    )


def foot(program: str = "all_reduce_perf", average: str = "380.5", bounds: str = "0 OK", extra: str = "") -> str:
    return f"# Out of bounds values : {bounds}\n# Avg bus bandwidth    : {average} {extra}\n#\n# Collective test concluded: {program}\n#\n"


def log(rows: t.Sequence[str], debug: str = "", **more: t.Any) -> str:
    """A complete log of two ranks on two hosts."""
    return head(**more) + debug + WIDE_TITLES + "".join(rows) + foot(more.get("program", "all_reduce_perf"))


HEALTHY = (row(1 << 30, 377.05), row(1 << 31, 379.37))


def info(host: str, message: str, rank: int = 0) -> str:
    return f"{host}:{4100 + rank}:{4188 + rank} [0] NCCL INFO {message}\n"
