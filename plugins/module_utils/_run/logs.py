# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pod logs into files: read while the pod runs, and once whole when it has ended.

The kubelet keeps a limited log and drops its head, so the final read alone may have lost the result table; the parts read
before are put in front of it. Lines carry the kubelet's time stamps (the parsers strip them).
"""

from __future__ import annotations

import datetime
import os
import threading
import typing as t

from .._cluster.client import Client
from .._common.errors import ClusterError
from .._workload.names import CONTAINER

# What a kubelet answers, with status 200, when the container is gone.
PLACEHOLDER = b"unable to retrieve container logs for"


class PodLog:
    """The log of one container, collected in path; path + ".part" holds what was read while it ran."""

    def __init__(self, client: Client, namespace: str, pod: str, path: str) -> None:
        self._client, self._namespace, self._pod, self.path = client, namespace, pod, path
        self._part = path + ".part"
        self._since: str | None = None
        self._lock = threading.Lock()  # a poll may still be under way when the container ends
        os.makedirs(os.path.dirname(path), exist_ok=True)

    def poll(self) -> bool:
        """Adds what was printed since the last poll; whether that was anything. A failure is left to the final read."""
        with self._lock:
            return self._poll()

    def _poll(self) -> bool:
        fresh = self._part + ".new"
        try:
            with open(fresh, "w+b") as handle:
                client = self._client.hurried()
                client.read_log(self._namespace, self._pod, container=CONTAINER, into=handle, since_time=self._since, timestamps=True)
            with open(fresh, "rb") as source, open(self._part, "ab") as target:
                last = _append_newer(source, target, self._since)
            if last:
                self._since = last
            return bool(last)
        except ClusterError:
            return False
        finally:
            if os.path.exists(fresh):
                os.unlink(fresh)

    def finish(self, *, answers: bool = True) -> tuple[bool, str]:
        """The final read. Returns whether the log is whole, and why it could not be read (with the parts read before kept in path).

        One that was read and may lack lines in its middle is not whole; what it proves is for its parser to say.

        answers: whether its kubelet does; one that is silent is not waited for.
        """
        with self._lock:
            return self._finish(self._client if answers else self._client.hurried())

    def _finish(self, client: Client) -> tuple[bool, str]:
        final = self.path + ".new"
        problem = ""
        try:
            with open(final, "w+b") as handle:
                client.read_log(self._namespace, self._pod, container=CONTAINER, into=handle, timestamps=True)
            with open(final, "rb") as handle:
                if PLACEHOLDER in handle.read(len(PLACEHOLDER) + 40):  # with or without a time stamp before it
                    problem = "the kubelet no longer has the log of this container"
        except ClusterError as error:
            problem = error.render()
        if not problem and not os.path.getsize(final) and self._has_parts():
            problem = "the last read found it empty, although there were lines before: it was just rotated away"
        if problem:
            self._keep_parts(final)
            return False, problem
        return self._join(final), ""

    def _has_parts(self) -> bool:
        return os.path.exists(self._part) and os.path.getsize(self._part) > 0

    def _keep_parts(self, final: str) -> None:
        if self._has_parts():
            os.replace(self._part, self.path)
            if os.path.exists(final):
                os.unlink(final)
        elif os.path.exists(final):
            os.replace(final, self.path)

    def _join(self, final: str) -> bool:
        """Parts before the final read, and that. Returns whether they meet: else lines between them may have been rotated away unread."""
        first, meets = _first_stamp(final), True
        if os.path.exists(self._part):
            head = _first_stamp(self._part)
            if first and head and head < first:
                meets = _stamp((self._since or "").encode()) >= first
                with open(self.path, "wb") as target:
                    with open(self._part, "rb") as source:
                        target.writelines(line for line in source if _stamp(line) < first)
                    with open(final, "rb") as source:
                        target.writelines(source)
                os.unlink(final)
                os.unlink(self._part)
                return meets
            os.unlink(self._part)
        os.replace(final, self.path)
        return meets


def _stamp(line: bytes) -> bytes:
    """The kubelet's time stamp in UTC, padded so that bytes compare as times (its fraction has a varying length)."""
    stamp = line.split(b" ", 1)[0].strip()
    if len(stamp) < 20 or stamp[10:11] != b"T":
        return b""
    if stamp.endswith(b"Z"):
        whole, _dot, fraction = stamp[:-1].partition(b".")
        return whole + b"." + fraction.ljust(9, b"0")
    try:  # a node that stamps with its own offset
        moment = datetime.datetime.fromisoformat(stamp.decode()).astimezone(datetime.UTC)
    except ValueError:
        return b""
    fraction = stamp[20:].split(b"+")[0].split(b"-")[0] if stamp[19:20] == b"." else b""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").encode() + fraction.ljust(9, b"0")


def _first_stamp(path: str) -> bytes:
    with open(path, "rb") as handle:
        return _stamp(handle.readline(200))


def _append_newer(source: t.BinaryIO, target: t.BinaryIO, since: str | None) -> str:
    """Copies lines later than since; sinceTime has whole seconds on some servers, so a read overlaps the one before."""
    limit = _stamp(since.encode() + b" ") if since else b""
    last = ""
    for line in source:
        stamp = _stamp(line)
        if stamp and limit and stamp <= limit:
            continue
        target.write(line)
        if stamp:
            last = line.split(b" ", 1)[0].strip().decode()
    return last
