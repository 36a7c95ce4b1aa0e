# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Open MPI's launcher: its command line, its placement of ranks, and the banners it prints when something fails."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun")

_TWO_VALUES = {"mca", "gmca", "omca", "prtemca", "pmixmca"}
_LINE = "-" * 74


@dataclasses.dataclass
class Call:
    """One parsed launcher call.

    per_node, count: -N and -np; None when not given.
    hosts:     host -> slots, in order; empty when no list was given.
    settings:  environment that -x hands to every rank.
    """

    per_node: int | None = None
    count: int | None = None
    hosts: dict[str, int] = dataclasses.field(default_factory=dict)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    tag_output: bool = False
    hostfile: str = ""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Style:
    """Words that differ between Open MPI 4 (ORTE) and 5 (PRRTE)."""

    program: str
    runtime: str
    tag_blank: str

    def tag(self, rank: int, stream: str) -> str:
        """What --tag-output puts before a line."""
        return f"[1,{rank}]<{stream}>:{self.tag_blank}"


STYLES = {"openmpi4": Style("mpirun", "ORTE", ""), "openmpi5": Style("prterun", "PRTE", " ")}


def parse(words: Sequence[str], env: Mapping[str, str], files: Mapping[str, str]) -> Call:
    """The launcher's own options: the words between its name and the program."""
    call = Call(hostfile=env.get("OMPI_MCA_orte_default_hostfile", env.get("PRTE_MCA_prte_default_hostfile", "")))
    host_list = ""
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name = word.lstrip("-")
        if not word.startswith("-"):
            if re.fullmatch(r"NCCL_\w+=.*", word):  # "env NCCL_X=Y program"
                call.settings[word.split("=", 1)[0]] = word.split("=", 1)[1]
            continue
        name, _mark, glued = name.partition("=")
        if name in ("N", "npernode"):
            call.per_node = _number(glued or _next(queue))
        elif name in ("np", "n", "c"):
            call.count = _number(glued or _next(queue))
        elif name in ("hostfile", "machinefile", "default-hostfile"):
            call.hostfile = glued or _next(queue)
        elif name in ("host", "H"):
            host_list = glued or _next(queue)
        elif name == "x":
            setting = glued or _next(queue)
            key, has_value, value = setting.partition("=")
            if has_value or key in env:
                call.settings[key] = value if has_value else env[key]
        elif name == "map-by":
            match = re.match(r"ppr:(\d+):node", glued or _next(queue))
            call.per_node = int(match.group(1)) if match else call.per_node
        elif name == "tag-output" or (name == "output" and "tag" in (glued or _next(queue))):
            call.tag_output = True
        elif name in _TWO_VALUES:
            key, value = _next(queue), _next(queue)
            if key in ("orte_default_hostfile", "prte_default_hostfile"):
                call.hostfile = value
    if host_list:
        call.hosts = _host_list(host_list)
    elif call.hostfile:
        text = files.get(call.hostfile)
        if text is None:
            call.problem = call.hostfile
        else:
            call.hosts = parse_hostfile(text)
    return call


def _next(queue: list[str]) -> str:
    return queue.pop(0) if queue else ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _host_list(text: str) -> dict[str, int]:
    hosts: dict[str, int] = {}
    for item in text.split(","):
        name, _mark, slots = item.partition(":")
        if name:
            hosts[name] = hosts.get(name, 0) + (int(slots) if slots.isdigit() else 1)
    return hosts


def parse_hostfile(text: str) -> dict[str, int]:
    """Host -> slots of `host slots=n`, `host:n` and `host` lines."""
    hosts: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        name, _mark, glued = words[0].partition(":")
        match = re.search(r"\bslots\s*=\s*(\d+)", line)
        hosts[name] = hosts.get(name, 0) + (int(match.group(1)) if match else int(glued) if glued.isdigit() else 1)
    return hosts


def place(call: Call, local_host: str, local_slots: int) -> list[str] | None:
    """The host of each rank, or None when the slots do not suffice."""
    hosts = call.hosts or {local_host: max(1, local_slots)}
    if call.per_node is not None:
        if any(slots < call.per_node for slots in hosts.values()):
            return None
        placed = [host for host in hosts for _index in range(call.per_node)]
    else:
        placed = [host for host, slots in hosts.items() for _index in range(slots)]
    if call.count is None:
        return placed
    return placed[: call.count] if call.count <= len(placed) else None


# --- banners ---------------------------------------------------------------------------------------------------------


def not_enough_slots(wanted: int, program: str) -> list[str]:
    """More ranks are wanted than the hosts have slots."""
    return [
        _LINE,
        f"There are not enough slots available in the system to satisfy the {wanted}",
        "slots that were requested by the application:",
        "",
        f"  {program}",
        "",
        "Either request fewer procs for your application, or make more slots",
        "available for use.",
        _LINE,
    ]


def hostfile_missing(path: str, style: Style) -> list[str]:
    """The hostfile cannot be read."""
    name = "Open RTE" if style.runtime == "ORTE" else "PRRTE"
    return [
        _LINE,
        f"{name} was unable to open the hostfile:",
        f"    {path}",
        "Check to make sure the path and filename are correct.",
        _LINE,
    ]


def permanently_added(host: str) -> str:
    """ssh, at its first contact with a host."""
    return f"Warning: Permanently added '{host}' (ED25519) to the list of known hosts."


def unresolved(host: str) -> str:
    """ssh, for a name that means nothing."""
    return f"ssh: Could not resolve hostname {host}: Name or service not known"


def refused(host: str, port: int) -> str:
    """ssh, where nothing listens."""
    return f"ssh: connect to host {host} port {port}: Connection refused"


def daemons_not_started(style: Style, local: str, remote: str) -> list[str]:
    """The launcher, when ssh has failed."""
    return [
        _LINE,
        f"{style.runtime} was unable to reliably start one or more daemons.",
        "This usually is caused by a remote shell that cannot reach the host.",
        "",
        f"  local host:    {local}",
        f"  remote host:   {remote}",
        _LINE,
    ]


def lost_daemon(style: Style, local: str, remote: str) -> list[str]:
    """The launcher, when a host no longer answers."""
    return [
        _LINE,
        f"{style.runtime} has lost communication with a remote daemon.",
        "",
        f"  HNP daemon   : [{style.program}-{local}-1@0,0] on node {local}",
        f"  Remote daemon: [{style.program}-{local}-1@0,1] on node {remote}",
        "",
        "This is usually due to either a failure of the TCP network",
        "connection to the node, or possibly an internal failure of",
        "the daemon itself.",
        _LINE,
    ]


def nonzero_exit(style: Style, local: str, rank: int, code: int) -> list[str]:
    """The launcher, when a process has failed by itself."""
    if style.runtime == "ORTE":
        name = f"[[{40000 + rank},1],{rank}]"
        head = "mpirun detected that one or more processes exited with non-zero status, thus causing"
        return [
            _LINE,
            head,
            "the job to be terminated. The first process to do so was:",
            "",
            f"  Process name: {name}",
            f"  Exit code:    {code}",
            _LINE,
        ]
    return [
        _LINE,
        "prterun detected that one or more processes exited with non-zero status,",
        "thus causing the job to be terminated. The first process to do so was:",
        "",
        f"   Process name: [prterun-{local}-1@1,{rank}]",
        f"   Exit code:    {code}",
        _LINE,
    ]


_SIGNALS = {
    4: "Illegal instruction",
    6: "Aborted",
    7: "Bus error",
    8: "Floating point exception",
    9: "Killed",
    11: "Segmentation fault",
    15: "Terminated",
}


def killed_by_signal(style: Style, rank: int, pid: int, host: str, number: int) -> list[str]:
    """The launcher, when a signal has ended a process."""
    return [
        _LINE,
        f"{style.program} noticed that process rank {rank} with PID {pid} on node {host} exited on",
        f"signal {number} ({_SIGNALS.get(number, f'Unknown signal {number}')}).",
        _LINE,
    ]
