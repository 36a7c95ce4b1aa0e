# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Who runs a run, and whether that process still lives.

A play is one process; each of its tasks is another, forked from it. A run belongs to the play: it is over when both are. Pids say so
on their own machine alone; seen from elsewhere only the heartbeat does (`lock` for directories, `_run/anchors` for the cluster).
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import secrets
import socket
import subprocess
import time
import typing as t
import uuid

from .._common.shapes import Owner, ProcessId
from .._common.times import utc

HEARTBEAT_S = 15.0
# Somebody on another machine counts as dead when no heartbeat was seen for this long.
STALE_S = 90.0


def this_owner(play: int | None = None) -> Owner:
    """This process as an owner. play: pid of the process that lives as long as the play; None: this one."""
    return {
        "host": socket.gethostname(),
        "machine": machine(),
        "user": _user(),
        "play": _process(os.getpid() if play is None else play),
        "worker": _process(os.getpid()),
        "since": utc(time.time()),
        "token": secrets.token_hex(8),
    }


def same_play(one: Owner | None, other: Owner | None) -> bool:
    """Whether both are tasks of the same play."""
    return one is not None and other is not None and (one["machine"], one["play"]) == (other["machine"], other["play"])


def lives(owner: Owner) -> bool | None:
    """Whether any process of an owner lives; None when this machine cannot tell."""
    if owner["machine"] != machine():
        return None
    told = [process_lives(process) for process in (owner["play"], owner["worker"])]
    return True if True in told else None if None in told else False


def process_lives(process: ProcessId) -> bool | None:
    """Whether a process of this machine lives; None: one of this pid does, but not whether it is this one."""
    pid = process["pid"]
    seen = _look_at(pid)
    if seen is None:
        return None if _exists(pid) else False
    state, started = seen
    if state in "ZX":  # it has ended, and nobody has asked for its exit status yet
        return False
    return started == process.get("started")


def read_owner(raw: t.Any) -> Owner | None:
    """An owner as somebody wrote it down; None when it is none."""
    if not isinstance(raw, dict) or not all(isinstance(raw.get(key), str) for key in ("host", "machine", "user", "since", "token")):
        return None
    processes = [raw.get("play"), raw.get("worker")]
    if not all(isinstance(item, dict) and isinstance(item.get("pid"), int) and item["pid"] > 0 for item in processes):
        return None
    return t.cast(Owner, {key: raw[key] for key in Owner.__annotations__})


def described(owner: Owner) -> str:
    """An owner for people."""
    return f"{owner['user']}@{owner['host']}, process {owner['play']['pid']}, since {owner['since']}"


@functools.cache
def machine() -> str:
    """Where a pid of ours means something: this boot of this kernel, and this pid namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return f"{stream.read().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode():x}"


def _process(pid: int) -> ProcessId:
    seen = _look_at(pid)
    return {"pid": pid, "started": seen[1] if seen else None}


def _look_at(pid: int) -> tuple[str, str] | None:
    """State and start of a process; None when there is none, or it is hidden from us."""
    if os.path.isdir("/proc/self"):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
                fields = stream.read().rpartition(")")[2].split()  # its name may hold spaces and brackets
        except OSError:
            return None
        return (fields[0], fields[19]) if len(fields) > 19 else None
    shown = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.split(None, 1)
    return (shown[0][0], shown[1].strip()) if len(shown) == 2 else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user, whose processes are hidden
        return True
    return True


def _user() -> str:
    with contextlib.suppress(KeyError, OSError, ImportError):  # a container may run as a number without a name
        return getpass.getuser()
    return f"uid {os.getuid()}"
