# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes are condemned by their own evidence, and what of that is shown by most of them at once, which condemns none.

Hardware does not break everywhere in one moment; an agent that is rolled out, or an expression that fits everybody, does. Time comes
in, no I/O.
"""

from __future__ import annotations

import typing as t
from collections import defaultdict

from .._causes.reasons import mass_event
from .._common.shapes import Illness
from .projections import Facts, lost_reason

# What comes upon most nodes within this time came at once. A burn-in that breaks one node after another takes hours.
AT_ONCE_S = 300.0


class Health:
    """unwell: what condemns a node by its own evidence, or None. among: the nodes of the run; empty: all."""

    def __init__(self, unwell: t.Callable[[Facts], Illness | None], among: t.Collection[str] = ()) -> None:
        self._unwell, self._among = unwell, frozenset(among)
        self._there: set[str] = set()
        self._told: dict[str, Illness] = {}
        self._since: dict[str, dict[str, float]] = {}  # by node and kind of evidence
        self._shared: dict[str, str] = {}  # by kind: the words of the mass event

    def see(self, node: Facts, now: float) -> bool:
        """What a node says now; of one that is silent it would say old news. Whether most nodes show something that most did not before."""
        name = node["metadata"]["name"]
        if self._among and name not in self._among:
            return False
        self.forget(name)
        if lost_reason(node) is None:
            self._there.add(name)
            told = self._unwell(node)
            if told:
                known = self._since.get(name, {})
                self._told[name] = told
                self._since[name] = {kind: known.get(kind, now) for kind in told["kinds"]}
            else:
                self._since.pop(name, None)
        before, self._shared = set(self._shared), self._count()
        return not before.issuperset(self._shared)

    def forget(self, name: str) -> None:
        """A node that says nothing any more."""
        self._there.discard(name)
        self._told.pop(name, None)

    def told(self, name: str) -> Illness | None:
        """What condemns a node, by its own evidence."""
        return self._told.get(name)

    def event(self, name: str) -> str:
        """What most nodes show at once, where that is all that a node shows; "" where something is its own."""
        told = self._told.get(name)
        if told is None or not all(kind in self._shared for kind in told["kinds"]):
            return ""
        return "; ".join(dict.fromkeys(self._shared[kind] for kind in told["kinds"]))

    def under_event(self) -> dict[str, str]:
        """The nodes that show nothing but what most nodes show, and what is said of each."""
        return {name: told["message"] for name, told in sorted(self._told.items()) if self.event(name)}

    def _count(self) -> dict[str, str]:
        times: dict[str, list[float]] = defaultdict(list)
        for name in self._told:
            for kind, since in self._since[name].items():
                times[kind].append(since)
        most = max(2, len(self._there) // 2 + 1)
        return {kind: mass_event(kind, len(found), len(self._there)) for kind, found in times.items() if _at_once(sorted(found), most)}


def _at_once(times: list[float], most: int) -> bool:
    return any(later - first <= AT_ONCE_S for first, later in zip(times, times[most - 1 :], strict=False))
