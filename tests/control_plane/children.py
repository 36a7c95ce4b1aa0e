# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that never outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t

_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 5.0
_TAIL_LINES = 15
# Somebody asked for the end. Python swallows an exception that a signal raises in a hook of a fork: then this still tells.
INTERRUPTED = threading.Event()


class ChildFailed(Exception):
    """A program ended, or was not ready in time. The text ends with its log."""


class Child:
    """One program with its log file."""

    def __init__(self, name: str, command: t.Sequence[str], log: pathlib.Path, environment: t.Mapping[str, str] | None = None) -> None:
        # Linux kills the program when the *thread* that started it ends: it must be the one that lives longest.
        assert threading.current_thread() is threading.main_thread()
        self.name, self.log = name, log
        with log.open("ab") as handle:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=log.parent,
                process_group=0,  # Ctrl-C is for us: we stop them in order
                preexec_fn=_die_with(os.getpid()) if sys.platform == "linux" else None,  # noqa: PLW1509  no other thread runs yet
            )

    def ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        """Asks it to end, then ends it."""
        for ask in (self.process.terminate, self.process.kill):
            if self.ended():
                return
            ask()
            try:
                self.process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                continue

    def failure(self, what: str) -> ChildFailed:
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return ChildFailed(f"{self.name} {what}. The end of its log:\n" + "\n".join(lines))

    def await_ready(self, ready: t.Callable[[], bool], limit_s: float) -> None:
        """Returns when ready() is true. Raises ChildFailed when the program ends or takes too long."""
        deadline = time.monotonic() + limit_s
        while not ready():
            if INTERRUPTED.is_set():
                raise KeyboardInterrupt
            if self.ended():
                raise self.failure(f"ended with exit status {self.process.returncode}")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready after {limit_s:g} s")
            time.sleep(0.05)


def _die_with(parent: int) -> t.Callable[[], None]:
    library = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return prepare


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _index in range(number)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()
