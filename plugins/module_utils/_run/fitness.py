# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a node can be tested now. What discovery would have excluded is excluded here too, however late it shows."""

from __future__ import annotations

import typing as t

from .._common.shapes import Illness, NodeState, Untested
from .contact import Contact
from .illness import Health
from .projections import Facts

CORDON = "node.kubernetes.io/unschedulable"


class Eyes(t.NamedTuple):
    """How a Node object is read; the engine knows no table of evidence.

    unwell: what condemns it by its own evidence, or None. departure: the mark by which it is announced to be taken away, or None.
    """

    unwell: t.Callable[[Facts], Illness | None] = lambda _node: None
    departure: t.Callable[[Facts], str | None] = lambda _node: None


class Fitness:
    """Looks at nodes before their tests, and after them. planned: by node, what it was when the run was planned."""

    def __init__(
        self,
        contact: Contact,
        health: Health,
        planned: t.Mapping[str, NodeState],
        tolerations: t.Sequence[t.Mapping[str, t.Any]],
    ) -> None:
        self._contact, self._health, self._planned = contact, health, planned
        self._may_be_cordoned = any(item.get("key") in (None, "", CORDON) for item in tolerations)
        self._short_since: dict[str, float] = {}  # by node that offers fewer GPUs than it did

    def excluded(self, members: t.Sequence[str], now: float) -> list[Untested] | None:
        """The members that cannot be tested, with reasons; None while it is too early to say of one of them."""
        found: list[Untested] = []
        for name in members:
            planned = self._planned.get(name)
            if self._contact.trouble(name) and self._contact.out_of_touch():
                return None
            if not self.settled(name, [planned] if planned else [], now):
                return None
            told = self._obstacle(name, planned)
            if told:
                found.append({"node": name, "reason": told[0], "message": told[1]})
        return found

    def settled(self, name: str, before: t.Sequence[NodeState], now: float) -> bool:
        """Whether what is wrong with a node, if anything, has been so for the grace time.

        A device plugin that restarts offers no GPU for a while, as a kubelet that restarts is not Ready.
        """
        state = self._contact.state(name)
        most = max((item["gpus"] for item in before if item["gpus"] is not None), default=None)
        if state is None or state["gpus"] is None or most is None or state["gpus"] >= most:
            self._short_since.pop(name, None)
            return self._contact.settled(name, now)
        since = self._short_since.setdefault(name, now)
        return self._contact.settled(name, now) and now - since >= self._contact.grace_s

    def _is_short(self, name: str, planned: NodeState) -> bool:
        """Whether a node that is there offers fewer GPUs than it did."""
        state = self._contact.state(name)
        return bool(state and planned["gpus"] and state["gpus"] is not None and state["gpus"] < planned["gpus"])

    def _most_are_short(self) -> bool:
        """What most nodes have in common is not their hardware."""
        there = [name for name in self._planned if name in self._contact.nodes]
        return len(there) > 1 and 2 * sum(self._is_short(name, self._planned[name]) for name in there) > len(there)

    def _obstacle(self, name: str, planned: NodeState | None) -> tuple[str, str] | None:
        """Reason and message."""
        trouble, node, state = self._contact.trouble(name), self._contact.nodes.get(name), self._contact.state(name)
        mark = self._contact.departure(name)
        if mark:
            return "NodeUnavailable", f"not tested: it is about to be taken away: {mark}"
        if trouble or node is None or state is None:
            return "NodeUnavailable", f"not tested: it was not Ready before its test began ({trouble})"
        if node["metadata"]["deletionTimestamp"]:
            return "NodeUnavailable", "not tested: the node is being deleted"
        if planned and planned["uid"] and state["uid"] and planned["uid"] != state["uid"]:
            return (
                "NodeUnavailable",
                f"not tested: another machine has its name now (Node UID {planned['uid']} when planned, {state['uid']} now)",
            )
        if node["spec"]["unschedulable"] and not self._may_be_cordoned:
            return "NodeUnavailable", "not tested: it was cordoned before its test began"
        if planned and self._is_short(name, planned):
            if self._most_are_short():
                return (
                    "NodeUnavailable",
                    "not tested: most nodes offer fewer GPUs than when the run was planned; look at the device plugin first",
                )
            return "HardwareFailureDetected", f"{name} offers {state['gpus']} GPUs, it offered {planned['gpus']} when the run was planned"
        event = self._health.event(name)
        if event:
            return "NodeUnavailable", f"not tested: {event}"
        told = self._health.told(name)
        return ("HardwareFailureDetected", told["message"]) if told else None
