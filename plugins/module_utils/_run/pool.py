# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Threads for calls that may hang. They are daemons: a call that never returns keeps neither a batch nor the process from ending."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import typing as t

_End: t.Final = None


class Pool:
    """At most `size` threads, started as they are needed."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._work: queue.SimpleQueue[tuple[concurrent.futures.Future[t.Any], t.Callable[[], t.Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._stopped = False

    def submit(self, work: t.Callable[[], t.Any]) -> concurrent.futures.Future[t.Any]:
        """Calls work in a thread; the future has what it returns or raises. After `stop` nothing is called any more."""
        future: concurrent.futures.Future[t.Any] = concurrent.futures.Future()
        with self._lock:
            if self._stopped:
                future.cancel()
                return future
            self._work.put((future, work))
            if self._idle:
                self._idle -= 1
            elif self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._serve, name=f"readiness-{self._name}-{self._threads}", daemon=True).start()
        return future

    def stop(self) -> None:
        """Threads end after what they are doing; what waits is not begun. Does not wait."""
        with self._lock:
            self._stopped = True
            for _thread in range(self._threads):
                self._work.put(_End)

    def _serve(self) -> None:
        while (task := self._work.get()) is not _End:
            future, work = task
            if self._stopped:
                future.cancel()
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # it is the caller's, whatever it is
                    future.set_exception(error)
            with self._lock:
                self._idle += 1
