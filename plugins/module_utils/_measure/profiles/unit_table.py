# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Units of measured values: which are known, and how to turn one into another of the same kind."""

from __future__ import annotations

# unit -> (kind, factor to the base of the kind)
UNITS: dict[str, tuple[str, float]] = {
    "": ("plain", 1.0),
    "%": ("percent", 1.0),
    "ns": ("time", 1e-9),
    "us": ("time", 1e-6),
    "ms": ("time", 1e-3),
    "s": ("time", 1.0),
    "min": ("time", 60.0),
    "h": ("time", 3600.0),
    **{f"{prefix}B": ("size", factor) for prefix, factor in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))},
    **{f"{prefix}iB": ("size", factor) for prefix, factor in (("K", 2.0**10), ("M", 2.0**20), ("G", 2.0**30), ("T", 2.0**40))},
    **{f"{prefix}B/s": ("data rate", factor) for prefix, factor in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))},
    **{f"{prefix}iB/s": ("data rate", factor) for prefix, factor in (("K", 2.0**10), ("M", 2.0**20), ("G", 2.0**30), ("T", 2.0**40))},
    **{f"{prefix}b/s": ("data rate", factor / 8) for prefix, factor in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))},
    **{f"{prefix}FLOP/s": ("compute rate", factor) for prefix, factor in (("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))},
    "Hz": ("frequency", 1.0),
    "MHz": ("frequency", 1e6),
    "GHz": ("frequency", 1e9),
    "C": ("temperature", 1.0),
    "W": ("power", 1.0),
    "kW": ("power", 1e3),
    "J": ("energy", 1.0),
    "1/s": ("rate", 1.0),
    "it/s": ("rate", 1.0),
    "steps/s": ("rate", 1.0),
    "samples/s": ("rate", 1.0),
    "tokens/s": ("rate", 1.0),
    "requests/s": ("rate", 1.0),
    "images/s": ("rate", 1.0),
    "IOPS": ("rate", 1.0),
    "Mpps": ("rate", 1e6),
}


def converter(source: str, target: str) -> float | None:
    """The factor from one unit to another, or None when they measure different things."""
    one, other = UNITS.get(source), UNITS.get(target)
    if one is None or other is None or one[0] != other[0]:
        return None
    return one[1] / other[1]
