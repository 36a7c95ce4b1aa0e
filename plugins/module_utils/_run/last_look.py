# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The last look at the nodes of a batch: what they are once all tests are over, before anything is said of them."""

from __future__ import annotations

import concurrent.futures
import time
import typing as t

from .._common.errors import ClusterError
from .._common.shapes import NodeState
from .._common.times import utc
from .contact import Contact
from .fitness import Fitness
from .illness import Health
from .pool import Pool
from .projections import Facts
from .records import words_of

# A read of the nodes is waited for no longer than this.
LOOK_S = 60.0
LOOK_EVERY_S = 2.0


class LastLook:
    """read: the nodes of these names as the API server has them now; may raise ClusterError. It is called in a thread of the pool.

    outage_s: how long the API server may be away.
    """

    def __init__(
        self,
        pool: Pool,
        read: t.Callable[[t.Sequence[str]], t.Sequence[Facts]],
        contact: Contact,
        health: Health,
        fitness: Fitness,
        tell: t.Callable[[str], None],
        outage_s: float,
    ) -> None:
        self._pool, self._read, self._tell, self._outage_s = pool, read, tell, outage_s
        self._contact, self._health, self._fitness = contact, health, fitness

    def take(
        self, before: t.Mapping[str, list[NodeState]], listen: t.Callable[[], None] | None, going: t.Callable[[], bool]
    ) -> dict[str, NodeState | None] | None:
        """By node, its state, None if it is gone; None altogether when nobody can tell.

        before: by node, what it was when its tests began. listen: lets the watch speak; None where none runs. going: whether there is time.
        A trouble that may pass gets the grace time to do so; where no watch runs, an API server that is away gets outage_s.
        """
        known = (going() and self._look(list(before))) or (listen is not None and bool(self._contact.nodes))
        gives_up = time.monotonic() + self._outage_s
        while not known and listen is None and going() and time.monotonic() < gives_up:
            time.sleep(LOOK_EVERY_S)
            known = self._look(list(before))
        ends = time.monotonic() + self._contact.grace_s
        while known and going() and time.monotonic() < ends:
            if all(self._fitness.settled(name, states, time.monotonic()) for name, states in before.items()):
                break
            if listen is not None:
                listen()
            else:
                time.sleep(LOOK_EVERY_S)
                self._look(list(before))
        if not known or self._contact.out_of_touch():
            return None
        return {name: self._state(name) for name in before}

    def _state(self, name: str) -> NodeState | None:
        """The node with what is judged at the end alone: since when it is silent, and what condemns it by its own evidence."""
        state, since, told = self._contact.state(name), self._contact.since(name), self._health.told(name)
        if state and since is not None:
            state = {**state, "since": utc(time.time() - time.monotonic() + since)}
        return {**state, "illness": told} if state and told else state

    def _look(self, members: t.Sequence[str]) -> bool:
        """Reads the nodes; whether that was possible."""
        try:
            found = self._pool.submit(lambda: self._read(members)).result(timeout=LOOK_S)
        except (ClusterError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError) as error:
            self._tell(f"the nodes could not be looked at again: {words_of(error)}")
            return False
        now = time.monotonic()
        self._contact.read(members, found, now)
        for node in found:
            self._health.see(node, now)
        return True
