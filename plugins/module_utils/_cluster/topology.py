# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Rack and block of each node, from whichever label this cluster uses."""

from __future__ import annotations

import typing as t
from collections.abc import Mapping, Sequence


def label_candidates(catalog: Mapping[str, t.Any], platform: str | None, level: str, first: str | None = None) -> list[str]:
    """Label keys to try for `rack` or `block`: the user's, the platform's, then the general ones."""
    own = catalog["platforms"].get(platform or "", {}).get("topology", {}).get(level, [])
    return list(dict.fromkeys([*([first] if first else []), *own, *catalog["topology"][level]]))


def choose_label(nodes: Sequence[Mapping[str, t.Any]], candidates: Sequence[str]) -> str | None:
    """The first candidate that every node carries, else the one most nodes carry, else None.

    One key for all: values of different keys must not be compared.
    """
    counts = {key: sum(1 for node in nodes if node["labels"].get(key)) for key in candidates}
    best = max(candidates, key=lambda key: (counts[key] == len(nodes), counts[key]), default=None)
    return best if best is not None and counts[best] else None


def set_domains(
    nodes: Sequence[dict[str, t.Any]], catalog: Mapping[str, t.Any], platform: str | None, *, rack_label: str | None = None
) -> dict[str, str | None]:
    """Fills domains.rack and domains.block of every row; returns {rack, block}: the label keys that were used."""
    chosen: dict[str, str | None] = {}
    for level, own in (("rack", rack_label), ("block", None)):
        # A key that the user names is taken as it is, even where some nodes lack it: they are reported, not regrouped.
        key = own or choose_label(nodes, label_candidates(catalog, platform, level))
        chosen[level] = key
        for node in nodes:
            node["domains"][level] = (node["labels"].get(key) or None) if key else None
    return chosen
