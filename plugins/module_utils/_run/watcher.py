# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One thread per kind that lists, then watches, and hands every change over; a lost or expired watch starts again with a list."""

from __future__ import annotations

import random
import threading
import typing as t

from .._cluster.client import Client
from .._cluster.sending import Expired
from .._common.errors import ClusterError

WATCH_S = 240.0
# After this many failures in a row the API server counts as gone and the engine is told.
MAX_FAILURES = 8


class Watcher(threading.Thread):
    """deliver(kind, event, facts) is called with ADDED, MODIFIED, DELETED, SYNCED (facts None) or ERROR (facts: the message)."""

    def __init__(
        self,
        client: Client,
        kind: str,
        path: str,
        project: t.Callable[[t.Mapping[str, t.Any]], dict[str, t.Any]],
        deliver: t.Callable[[str, str, t.Any], None],
        *,
        label_selector: str | None = None,
    ) -> None:
        super().__init__(name=f"watch-{kind}", daemon=True)
        self._client, self._kind, self._path, self._project, self._deliver = client, kind, path, project, deliver
        self._selector = label_selector
        self._ended = threading.Event()
        self._known: dict[str, dict[str, t.Any]] = {}

    def stop(self) -> None:
        """Ends the thread at the next change or timeout; it is a daemon, so nobody waits for it."""
        self._ended.set()

    def run(self) -> None:
        """The thread's body."""
        failures = 0
        version: str | None = None
        while not self._ended.is_set():
            try:
                if version is None:
                    version = self._relist()
                failures = 0
                version = self._follow(version)
            except Expired:
                version = None
            except ClusterError as error:
                failures += 1
                version = None
                if failures >= MAX_FAILURES or error.status in (401, 403):
                    self._deliver(self._kind, "ERROR", error.render())
                    return
                self._ended.wait(min(30.0, 0.5 * 2**failures) * random.uniform(0.5, 1.0))

    def _relist(self) -> str:
        listed = self._client.list_result(self._path, label_selector=self._selector, project=self._project)
        current = {_name(item): item for item in listed.items}
        # What exists first: it says why others may be gone, such as workers of a launcher that has ended.
        gone = [name for name in self._known if name not in current]
        for name, item in current.items():
            if self._known.get(name) != item:
                self._known[name] = item
                self._deliver(self._kind, "ADDED", item)
        for name in gone:
            self._deliver(self._kind, "DELETED", self._known.pop(name))
        self._deliver(self._kind, "SYNCED", None)
        return listed.resource_version

    def _follow(self, version: str) -> str:
        for event, thing in self._client.watch(self._path, resource_version=version, label_selector=self._selector, timeout_s=WATCH_S):
            if self._ended.is_set():
                break
            version = (thing.get("metadata") or {}).get("resourceVersion") or version
            if event == "BOOKMARK":
                continue
            facts = self._project(thing)
            if event == "DELETED":
                self._known.pop(_name(facts), None)
            elif self._known.get(_name(facts)) == facts:
                continue  # a heartbeat or another field we do not keep
            else:
                self._known[_name(facts)] = facts
            self._deliver(self._kind, event, facts)
        return version


def _name(facts: t.Mapping[str, t.Any]) -> str:
    return str(facts["name"] if "name" in facts else facts["metadata"]["name"])
