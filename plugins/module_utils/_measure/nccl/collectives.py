# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Bandwidth arithmetic of the collectives: bus bandwidth = algorithm bandwidth x factor(n)."""

from __future__ import annotations

import typing as t

from ..._common.errors import unknown_value

# Factor as a function of the number of ranks. With one rank nothing crosses a link: the first five give 0.
_FACTORS: dict[str, t.Callable[[int], float]] = {
    "all_reduce": lambda n: 2.0 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "alltoallv": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
    # The algorithm bandwidth of hypercube is already based on count x type size x (n - 1).
    "hypercube": lambda n: 1.0,
}

COLLECTIVES: frozenset[str] = frozenset(_FACTORS)


def factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth. Raises InputError for an unknown collective or ranks < 1."""
    if collective not in _FACTORS:
        raise unknown_value("collective", collective, _FACTORS)
    if ranks < 1:
        raise unknown_value("number of ranks", ranks, ["1 or more"])
    return _FACTORS[collective](ranks)


def algorithm_bandwidth(size_bytes: int, time_us: float) -> float:
    """GB/s (10^9 B/s) of a message of `size_bytes` in `time_us` microseconds."""
    return size_bytes / time_us / 1000.0


def infer_collective(redop: str | None, root: int | None, ratio: float | None, ranks: int, checked_in_place: bool) -> str | None:
    """The collective of a table that does not name it: from its columns and busbw / algbw.

    redop, root:      of a row; root None or -1 means not rooted.
    ratio:            busbw / algbw of the largest row, None when unknown.
    checked_in_place: whether the in-place group has a count of wrong elements.
    Returns None when the columns fit several collectives.
    """
    rooted = root is not None and root >= 0
    reduces = redop not in (None, "none")
    if rooted:
        candidates = ["reduce"] if reduces else ["broadcast", "gather", "scatter"]
    elif reduces:
        candidates = ["all_reduce", "reduce_scatter"]
    elif checked_in_place:
        candidates = ["all_gather"]
    else:
        candidates = ["all_gather", "alltoall", "sendrecv"]
        candidates = candidates[1:] if redop == "none" else [candidates[0], candidates[2]]
    if ratio is not None:
        candidates = [name for name in candidates if abs(factor(name, ranks) - ratio) < 0.05]
    return candidates[0] if len(candidates) == 1 else None
