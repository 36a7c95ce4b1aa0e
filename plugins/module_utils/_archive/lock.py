# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One process at a time in a run directory.

The lock is the file `.lock` with its owner. Who finds none creates it, which succeeds once, on network file systems too. Who finds that
its owner is dead creates a successor that bears the dead taking's token in its name, which again succeeds once, and then becomes `.lock`
in its place: from one owner to the next there is no moment without a lock. The last of the chain holds it.

The heartbeat is the file's time of change, set through the handle of whoever holds it: a process that hung for minutes never touches
the lock of its successor. Only whether it moves counts; clocks of two hosts are never compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
import typing as t

from .._common.errors import InputError
from .._common.shapes import Owner
from .files import LOCK, sweep_half_written
from .manifest import is_sealed
from .owners import HEARTBEAT_S, STALE_S, described, lives, process_lives, read_owner, same_play, this_owner

# The file begins with this, so that its holder can say in place whether a task is under way.
_BUSY, _IDLE = b'{"state": "busy", ', b'{"state": "idle", '
_LOOK_S = 1.0
_TRIES = 20


class Held(t.NamedTuple):
    """A lock as it was read. owner None: half written, by a process that was killed or is about to go on."""

    owner: Owner | None
    busy: bool
    beat: int

    @property
    def token(self) -> str:
        """Of the taking."""
        return self.owner["token"] if self.owner else ""

    def is_of(self, other: Held | None) -> bool:
        """Whether both are the same taking."""
        return other is not None and self.token == other.token


class RunLock:
    """The lock of a run directory for one task of a play; a context manager that keeps the play's claim when the task ends.

    tell: told when another host must be watched. lost: told why, when the run is no longer ours.
    """

    def __init__(
        self,
        run_dir: str,
        owner: Owner | None = None,
        *,
        tell: t.Callable[[str], None] = lambda _text: None,
        lost: t.Callable[[str], None] = lambda _why: None,
        sleep: t.Callable[[float], None] = time.sleep,
        clock: t.Callable[[], float] = time.monotonic,
    ) -> None:
        self.owner = owner or this_owner()
        self.on_lost = lost
        self._run_dir, self._path = run_dir, os.path.join(run_dir, LOCK)
        self._tell, self._sleep, self._clock = tell, sleep, clock
        self._handle: int | None = None
        self._dead: Held | None = None  # whom we have seen to be dead
        self._ended = threading.Event()

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()

    def check(self) -> None:
        """Raises InputError when another process runs this run. Changes nothing; may take STALE_S, when it is on another host."""
        with self._told():
            held = read_lock(self._path)
            if held is not None and not self._is_ours(held):
                self._wait_out(held)

    def acquire(self) -> None:
        """Raises InputError when another process runs this run."""
        with self._told():
            os.makedirs(self._run_dir, exist_ok=True)
            before = self._take()
            if not same_play(before and before.owner, self.owner) and not is_sealed(self._run_dir):
                sweep_half_written(self._run_dir)
            beating = os.dup(t.cast(int, self._handle))  # the number of a closed handle is given away again
        threading.Thread(target=self._beat, args=(beating, self._ended), name="lock", daemon=True).start()

    def _take(self) -> Held | None:
        """Takes the lock; returns whose place it took."""
        for _try in range(_TRIES):
            before = read_lock(self._path)
            if before is None:
                if self._create(self._path):
                    return None
                continue
            if self._is_ours(before):
                self.owner = {**self.owner, "since": t.cast(Owner, before.owner)["since"]}
            else:
                self._wait_out(before)
            if self._succeed(_successor(self._path, before)):
                return before
        raise InputError("its lock is taken and freed all the time", place=self._path, hint="See which processes run this run")

    def _succeed(self, path: str) -> bool:
        """Takes the place of a dead taking by the file that only one can create; False when another was faster."""
        if not self._create(path):
            return False
        # Its place may have been taken, and its name been freed, just before.
        if self._why_lost():
            self._close()
        else:
            self._close()
            fresh = f"{self._path}.{secrets.token_hex(8)}.tmp"
            self._create(fresh)
            os.replace(fresh, self._path)
        with contextlib.suppress(FileNotFoundError):  # the holder may have swept it
            os.unlink(path)
        return self._handle is not None

    def leave(self) -> None:
        """This task is over; the run stays the play's."""
        if self._handle is None:
            return
        with contextlib.suppress(OSError):
            os.pwrite(self._handle, _IDLE, 0)
        self._close()

    def release(self) -> None:
        """The run is over: nobody holds it any more."""
        if self._handle is not None and not self._why_lost():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self.leave()

    def require(self) -> None:
        """Raises InputError when another process has taken up this run meanwhile: what is in its directory is no longer ours."""
        why = self._why_lost()
        if why:
            raise InputError(why, place=self._run_dir, hint="The run goes on there; this play is over")

    @contextlib.contextmanager
    def _told(self) -> t.Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = "Check free space and permissions, or set runs_dir"
            raise InputError(f"cannot be locked: {error.strerror}", place=self._run_dir, hint=hint) from error

    def _is_ours(self, held: Held) -> bool:
        """Whether it is our own play's, and no other task of it is under way (a play may have several hosts)."""
        if held.owner is None or not same_play(held.owner, self.owner):
            return False
        return not held.busy or held.owner["worker"] == self.owner["worker"] or process_lives(held.owner["worker"]) is False

    def _wait_out(self, held: Held) -> None:
        """Returns when the holder is dead. Raises InputError when it lives."""
        if self._dead is not None and held.is_of(self._dead) and held.beat == self._dead.beat:
            return
        told = lives(held.owner) if held.owner else None
        if told is None:
            who = described(held.owner) if held.owner else "somebody"
            self._tell(f"{self._run_dir} is held by {who}; watching whether that still lives, for {STALE_S:.0f} s at most")
            told = self._moves(held)
        if told:
            who = described(held.owner) if held.owner else "another process"
            raise InputError(
                f"this run is still going on: {who}",
                place=self._run_dir,
                hint="Nothing was changed. Let it end, or end it where it runs (Ctrl-C), and resume it then",
            )
        self._dead = held

    def _moves(self, held: Held) -> bool:
        deadline = self._clock() + STALE_S
        while self._clock() < deadline:
            self._sleep(_LOOK_S)
            now = read_lock(self._path)
            if now is None:
                return False
            if not now.is_of(held) or now.beat != held.beat:
                return True
        return False

    def _create(self, path: str) -> bool:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        os.write(handle, _BUSY + json.dumps(self.owner).encode()[1:] + b"\n")
        self._handle, self._ended = handle, threading.Event()
        return True

    def _close(self) -> None:
        if self._handle is not None:
            self._ended.set()
            os.close(self._handle)
            self._handle = None

    def _beat(self, handle: int, ended: threading.Event) -> None:
        why = ""
        while not why and not ended.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):  # a network file system that does not answer now
                os.utime(handle)
                why = self._why_lost()
        os.close(handle)
        if why and not ended.is_set():
            self.on_lost(why)

    def _why_lost(self) -> str:
        """Why the lock is no longer ours; "" when it is."""
        now = read_lock(self._path)
        if now is None:
            return f"the lock of {self._run_dir} was removed"
        if now.is_of(Held(self.owner, True, 0)):
            return ""
        return f"another process has taken up this run: {described(now.owner) if now.owner else 'unknown'}"


def read_lock(path: str) -> Held | None:
    """The lock as it is, of the last owner of the chain; None when nobody holds it."""
    held = _read(path)
    for _link in range(_TRIES):
        following = _read(_successor(path, held)) if held else None
        if following is None:
            break
        held = following
    return held


def _successor(path: str, held: Held) -> str:
    return f"{path}.{held.token or 'torn'}.tmp"


def _read(path: str) -> Held | None:
    try:
        with open(path, "rb") as stream:
            text, beat = stream.read(), os.fstat(stream.fileno()).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return Held(None, True, beat)
    return Held(read_owner(found), isinstance(found, dict) and found.get("state") == "busy", beat)
