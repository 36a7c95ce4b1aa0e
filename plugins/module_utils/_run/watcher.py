# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One thread per kind that lists, then watches, and hands every change over.

As client-go does: whatever ends a watch early (410, a refusal, an immediate end, a line that cannot be read, silence) is answered by a
pause that grows, with jitter, and by a new list. The pause is forgotten only after a watch that lasted. No thread dies unseen: what
was not foreseen counts as one more failure, and one that goes on for `outage_s` is told as the end of the watch.
"""

from __future__ import annotations

import random
import threading
import time
import typing as t

from .._cluster.client import Client
from .._cluster.sending import Expired
from .._common.errors import ClusterError

WATCH_S = 240.0
SILENCE_S = 90.0
BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
# A watch that lasted this long was a good one: the next trouble starts with the shortest pause again.
GOOD_WATCH_S = 15.0

Facts = dict[str, t.Any]


class Watcher(threading.Thread):
    """deliver(kind, event, facts): ADDED, MODIFIED, DELETED (facts), SYNCED (None), STRANGE (a text), ERROR (a text; the thread ends)."""

    def __init__(
        self,
        client: Client,
        kind: str,
        path: str,
        project: t.Callable[[t.Mapping[str, t.Any]], Facts],
        deliver: t.Callable[[str, str, t.Any], None],
        *,
        label_selector: str | None = None,
        outage_s: float,
        clock: t.Callable[[], float] = time.monotonic,
        pause: t.Callable[[float], t.Any] | None = None,
    ) -> None:
        super().__init__(name=f"watch-{kind}", daemon=True)
        self._client, self._kind, self._path, self._project, self._deliver = client, kind, path, project, deliver
        self._selector, self._outage_s, self._clock = label_selector, outage_s, clock
        # An API server that is away for longer than outage_s counts as gone, and the engine is told.
        self._ended = threading.Event()
        self._pause = pause or self._ended.wait
        self._answered_at = 0.0
        self._known: dict[str, Facts] = {}
        self._strange: set[str] = set()

    def stop(self) -> None:
        """Ends the thread at the next change or timeout; it is a daemon, so nobody waits for it."""
        self._ended.set()

    def run(self) -> None:
        """The thread's body."""
        failures = 0
        trouble_since: float | None = None
        while not self._ended.is_set():
            started = self._clock()
            problem = self._list_and_follow()
            if self._ended.is_set():
                return
            if problem is None and self._clock() - started >= GOOD_WATCH_S:
                failures, trouble_since = 0, None
                continue
            failures += 1
            if problem is None:
                trouble_since = None  # it was answered, only briefly
            else:
                trouble_since = max(started, self._answered_at) if trouble_since is None else trouble_since
                if self._clock() - trouble_since >= self._outage_s:
                    self._deliver(self._kind, "ERROR", problem)
                    return
            self._pause(min(MAX_BACKOFF_S, BACKOFF_S * 2 ** (failures - 1)) * random.uniform(0.5, 1.0))

    def _list_and_follow(self) -> str | None:
        """One list and the watches behind it, until one of them ends early. Returns what went wrong; None when the server answered."""
        try:
            version = self._relist()
            while not self._ended.is_set():
                begun = self._answered_at = self._clock()
                version = self._follow(version)
                if self._clock() - begun < GOOD_WATCH_S:
                    return None  # ended at once: something between us and the server does not let it last
        except Expired:
            return None
        except ClusterError as error:
            return error.render()
        except Exception as error:  # whatever a server or a proxy sends must not end the thread in silence
            return f"an answer about {self._kind}s could not be read: {type(error).__name__}: {error}"
        return None

    def _relist(self) -> str:
        listed = self._client.list_result(self._path, label_selector=self._selector, project=self._facts)
        current: dict[str, Facts] = {_name(facts): facts for facts in listed.items if facts is not None}
        # What exists first: it says why others may be gone, such as workers of a launcher that has ended.
        gone = [name for name in self._known if name not in current]
        for name, facts in current.items():
            if self._known.get(name) != facts:
                self._known[name] = facts
                self._deliver(self._kind, "ADDED", facts)
        for name in gone:
            self._deliver(self._kind, "DELETED", self._known.pop(name))
        self._deliver(self._kind, "SYNCED", None)
        return listed.resource_version

    def _follow(self, version: str) -> str:
        silence_s = min(SILENCE_S, self._outage_s / 2)  # which leaves time for another try
        seen = self._client.watch(
            self._path, resource_version=version, label_selector=self._selector, timeout_s=WATCH_S, silence_s=silence_s
        )
        for event, thing in seen:
            if self._ended.is_set():
                break
            self._answered_at = self._clock()
            version = (thing.get("metadata") or {}).get("resourceVersion") or version
            if event == "BOOKMARK":
                continue
            facts = self._facts(thing)
            if facts is None:
                continue
            if event == "DELETED":
                self._known.pop(_name(facts), None)
            elif self._known.get(_name(facts)) == facts:
                continue  # a heartbeat or another field we do not keep
            else:
                self._known[_name(facts)] = facts
            self._deliver(self._kind, event, facts)
        return version

    def _facts(self, thing: t.Any) -> Facts | None:
        """What we keep of an object; None for one that is not as its kind should be, which is told once and passed over."""
        try:
            return self._project(thing)
        except Exception as error:
            meta = thing.get("metadata") if isinstance(thing, dict) else None
            name = str(meta.get("name")) if isinstance(meta, dict) else "without a name"
            if name not in self._strange:
                self._strange.add(name)
                self._deliver(self._kind, "STRANGE", f"{self._kind} {name} is passed over, it is not as the API describes it: {error!r}")
            return None


def _name(facts: t.Mapping[str, t.Any]) -> str:
    return str(facts["name"] if "name" in facts else facts["metadata"]["name"])
