# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes do not answer, since when, and what that means. Time comes in, no I/O.

One word of a kubelet convicts nobody: a node counts as lost when it has been silent for the grace time, and only while most of the
cluster is in touch; otherwise the control plane or the network is at fault.
"""

from __future__ import annotations

import typing as t

from .._common.shapes import NodeState
from .projections import Facts, lost_reason, node_state

GONE = "the Node object is gone"


class News(t.NamedTuple):
    """What is known of the silent nodes of a group. Texts say why.

    lost: beyond the grace. silent: beyond the grace, even if the workload was heard of since. deleted: their Node objects are gone.
    left: beyond the grace, as an autoscaler, an operator or the cloud had announced. unsettled: silent, but it is too early to say what
    that means.
    """

    lost: t.Mapping[str, str] = {}
    silent: t.Mapping[str, str] = {}
    deleted: t.Mapping[str, str] = {}
    left: t.Mapping[str, str] = {}
    unsettled: t.Collection[str] = ()


class Contact:
    """All nodes of the cluster, as the watch tells of them.

    departure: the mark by which the departure of a node is announced, or None.
    """

    def __init__(self, grace_s: float, departure: t.Callable[[Facts], str | None] = lambda _node: None) -> None:
        self.grace_s, self._departure = grace_s, departure
        self.nodes: dict[str, Facts] = {}
        self._known: set[str] = set()
        self._since: dict[str, tuple[float, str]] = {}  # by silent node: since when, and why

    def see(self, node: Facts, now: float) -> None:
        """What a node says now."""
        name = node["metadata"]["name"]
        self.nodes[name] = node
        self._known.add(name)
        self._note(name, lost_reason(node), now)

    def lose(self, name: str, now: float) -> None:
        """Its Node object is gone, or is looked for in vain."""
        self.nodes.pop(name, None)
        self._known.add(name)
        self._note(name, GONE, now)

    def read(self, names: t.Collection[str], found: t.Iterable[Facts], now: float) -> None:
        """These nodes were read, and these were found."""
        there = list(found)
        for node in there:
            self.see(node, now)
        for name in set(names) - {node["metadata"]["name"] for node in there}:
            self.lose(name, now)

    def expect(self, names: t.Iterable[str], now: float) -> None:
        """Nodes that should be there once all have been listed."""
        for name in names:
            if name not in self.nodes:
                self.lose(name, now)

    def _note(self, name: str, why: str | None, now: float) -> None:
        if why is None:
            self._since.pop(name, None)
        else:
            self._since[name] = (self._since[name][0] if name in self._since else now, why)

    def trouble(self, name: str) -> str | None:
        """Why a node does not answer now; None while it does."""
        return self._since[name][1] if name in self._since else None

    def since(self, name: str) -> float | None:
        """Since when a node does not answer; None while it does."""
        return self._since[name][0] if name in self._since else None

    def departure(self, name: str) -> str | None:
        """The mark by which the departure of a node that is there is announced."""
        node = self.nodes.get(name)
        return self._departure(node) if node else None

    def state(self, name: str) -> NodeState | None:
        """What the node is now; None when it is gone."""
        state = node_state(self.nodes.get(name))
        mark = self.departure(name)
        return {**state, "leaving": mark} if state and mark else state

    def settled(self, name: str, now: float) -> bool:
        """Whether its silence, if any, has lasted for the grace time."""
        return name not in self._since or now - self._since[name][0] >= self.grace_s

    def given_up(self, names: t.Iterable[str], now: float) -> set[str]:
        """Those of them whose kubelets will confirm nothing any more."""
        return {name for name in names if name in self._since and self.settled(name, now)}

    def silent_nodes(self) -> list[str]:
        """All that do not answer."""
        return sorted(self._since)

    def out_of_touch(self) -> bool:
        """Whether most of the cluster is silent. Most machines do not die at once."""
        return len(self._since) > 1 and 2 * len(self._since) > len(self._known)

    def outage(self, now: float) -> str:
        """What to say when contact with most of the cluster has been lost for the grace time; "" when it has not."""
        settled = [name for name in self._since if self.settled(name, now)]
        if not self.out_of_touch() or 2 * len(settled) <= len(self._known):
            return ""
        count = f"{len(self._since)} of {len(self._known)} nodes of the cluster"
        return f"contact with {count} was lost: look at the control plane and the network first"

    def news(self, members: t.Iterable[str], now: float, heard_at: float | None = None) -> News:
        """The silent members of a group. heard_at: when the workload itself gave a sign of life for the last time."""
        lost, silent, deleted, left, unsettled = {}, {}, {}, {}, set()
        for name in members:
            if name not in self._since:
                continue
            since, why = self._since[name]
            if self.out_of_touch() or not self.settled(name, now):
                unsettled.add(name)
            elif why == GONE:
                deleted[name] = why
            elif mark := self.departure(name):
                left[name] = f"{why}; announced by {mark}"
            else:
                silent[name] = why
                if now - max(since, heard_at or since) >= self.grace_s:
                    lost[name] = why
                else:
                    unsettled.add(name)
        return News(lost, silent, deleted, left, unsettled)
