# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""ssh between the pods of a launch: the server of a worker, and how a launcher reaches it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..hardware.seam import LogLine, Outcome, PodView
from . import mpirun, shell
from .context import Context


def serve(context: Context) -> Outcome:
    """The outcome of a container that serves ssh."""
    outcome = Outcome(lines=(), duration_s=None)
    outcome.lines = _serve(context, outcome)
    return outcome


def _serve(context: Context, outcome: Outcome) -> Iterator[LogLine]:
    port = _port(context.text)
    yield LogLine(0.1, f"Server listening on 0.0.0.0 port {port}.", "stderr")
    yield LogLine(0.1, f"Server listening on :: port {port}.", "stderr")
    # Only a pod that may be killed needs to look; the others sleep until they are deleted.
    node = context.node
    if node is None or not any((abort := fault.abort()) is not None and abort.killed for fault in node.faults):
        return
    now = 0.1
    while context.pod.uid not in context.killed:
        now += context.poll_s()
        yield LogLine(now, None)
    outcome.exit_code, outcome.reason, outcome.duration_s = 137, "OOMKilled", now


def _port(text: str) -> int:
    """The port that a script hands to sshd."""
    match = re.search(r"sshd\b[^\n]*?(?:-p\s*|-o\s*\"?Port[= ])(\d+)", text) or re.search(r"(?m)^\s*Port\s+(\d+)", text)
    return int(match.group(1)) if match else 22


def unreachable(context: Context, hosts: Sequence[str]) -> tuple[str, str] | None:
    """The first host that ssh cannot reach from this pod, and ssh's words; None when it reaches all."""
    for host in hosts:
        if context.is_me(host):
            continue
        pod = context.peers(host)
        if pod is None:
            return host, mpirun.unresolved(host)
        if not _serves(pod):
            return host, mpirun.refused(host, 22)
    return None


def _serves(pod: PodView) -> bool:
    return any("sshd" in shell.script_text(item) for item in pod.containers if not item.init)


def added_host(context: Context, host: str) -> str:
    """What the client says when it meets a host for the first time; "" when its options keep it quiet."""
    if re.search(r"LogLevel[= ](?:ERROR|QUIET|FATAL)|-q\b", context.text):
        return ""
    port = _port(context.text)
    return mpirun.permanently_added(host if port == 22 else f"[{host}]:{port}")
