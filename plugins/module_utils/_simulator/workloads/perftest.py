# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""perftest (ib_write_bw, ib_read_lat …) as a script runs it that pairs the pods of a group, NIC by NIC: `rail_pairs.sh --program …`.

The pairs are those of a round-robin tournament over the hosts of the hostfile; the pod of higher index prints the table of a pair.
"""

from __future__ import annotations

import math
import typing as t
from collections.abc import Iterator, Sequence

from ..hardware.model import Path
from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context, sees_rdma

_SCRIPT = "rail_pairs.sh"
_HOSTFILE = "/etc/mpi/hostfile"
_RULE = "-" * 87
_TITLES = {"write": "RDMA_Write", "read": "RDMA_Read", "send": "Send"}
_WAIT_S = 300
_LATENCY_US = {"write": 1.9, "read": 3.4, "send": 2.1}


class _Asked(t.NamedTuple):
    """What the command line asks for."""

    verb: str
    latency: bool
    rounds: int
    devices: list[str]
    seconds: int
    size: int
    queue_pairs: int
    both_ways: bool


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that measures its NICs in pairs; None for others."""
    _before, words = shell.find_command(context.text, lambda name: name == _SCRIPT)
    if not words:
        return None
    outcome = Outcome(lines=())
    outcome.lines = _lines(context, outcome, _asked(words))
    return outcome


def _asked(words: Sequence[str]) -> _Asked:
    given = {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("-")}
    _ib, verb, what = given.get("--program", "ib_write_bw").split("_")
    latency = what == "lat"
    return _Asked(
        verb=verb,
        latency=latency,
        rounds=int(given.get("--rounds", "1")),
        devices=[name for name in given.get("--devices", "").split(",") if name],
        seconds=int(given.get("-D", "5")),
        size=int(given.get("-s", "2" if latency else "65536")),
        queue_pairs=int(given.get("-q", "1")),
        both_ways="-b" in given,
    )


def partners(round_number: int, nodes: int) -> dict[int, int]:
    """Who meets whom in a round, both ways; one of an odd number rests."""
    cycle = nodes + nodes % 2 - 1
    met = {}
    for seat in range(cycle):
        other = (round_number - seat) % cycle
        if other == seat:
            met.update({seat: cycle, cycle: seat})
        else:
            met[seat] = other
    return {seat: other for seat, other in met.items() if seat < nodes and other < nodes}


def _lines(context: Context, outcome: Outcome, asked: _Asked) -> Iterator[LogLine]:
    node, me = context.node, context.index or 0
    hosts = [line.split()[0] for line in context.container.files.get(_HOSTFILE, "").splitlines() if line.strip()]
    if node is None or not sees_rdma(context.pod, node):
        yield LogLine(1.0, " Unable to find the Infiniband/RoCE device", "stderr")
        outcome.exit_code = 1
        return
    rails = asked.devices or [f"mlx5_{number}" for number in range(node.gpu.nics)]
    now = 1.0
    for round_number in range(min(asked.rounds, len(hosts) + len(hosts) % 2 - 1)):
        partner = partners(round_number, len(hosts)).get(me)
        if partner is None:
            continue
        for rail, device in enumerate(rails):
            until, serves = now + context.patience_s(_WAIT_S), me < partner
            while not (_was_served(context, hosts[partner], rail) if serves else context.find(hosts[partner])) and now < until:
                now += context.poll_s()
                yield LogLine(now, None)
            if serves:
                continue
            now += 0.5 if asked.latency else asked.seconds + 0.5
            yield LogLine(now, f"pair: {hosts[me].split('.')[0]} {device} - {hosts[partner].split('.')[0]}")
            yield from (LogLine(now, line) for line in _table(context, asked, hosts[partner], rail, device))
            context.said.add(f"perftest {hosts[me].split('.')[0]} {hosts[partner].split('.')[0]} {rail}")
    outcome.duration_s = now


def _was_served(context: Context, client: str, rail: int) -> bool:
    """Whether the client has had its table from this pod; a server ends no sooner. The client may have ended meanwhile."""
    return f"perftest {client.split('.')[0]} {context.pod.host_name} {rail}" in context.said


def _table(context: Context, asked: _Asked, partner: str, rail: int, device: str) -> Iterator[str]:
    """What the client of one pair prints."""
    pod = context.find(partner)
    other = context.hardware.nodes.get(pod.node) if pod else None
    node = context.node
    if node is None or pod is None or other is None or not sees_rdma(pod, other):
        yield f" Couldn't connect to {partner}:18515"
        yield "Unable to init the socket connection"
        return
    names = [node.name, other.name]
    run = context.hardware.next_run(f"perftest {rail}", names)
    exercise = context.hardware.exercise(run, names, Path(node.fabric, mnnvl=False))
    left = min((fault.rail_limit(exercise, rail) for fault in context.hardware.definition.faults), default=1.0)
    left *= math.exp(context.hardware.chance("noise", run, rail).gauss(0, context.hardware.definition.noise / 4))
    yield from _head(context, asked, device)
    if asked.latency:
        yield from _latency_rows(asked, _LATENCY_US[asked.verb] / left)
    else:
        yield from _bandwidth_rows(asked, node.gpu.nic_gb_s * 8 * 0.985 * left * (1.96 if asked.both_ways else 1.0))
    yield _RULE


def _head(context: Context, asked: _Asked, device: str) -> Iterator[str]:
    ethernet = bool(context.node and context.node.fabric == "roce")
    title = f"{_TITLES[asked.verb]}{' Bidirectional' if asked.both_ways else ''} {'Latency' if asked.latency else 'BW'} Test"
    yield from (_RULE, f"                    {title}")
    yield f" Dual-port       : OFF\t\tDevice         : {device}"
    yield f" Number of qps   : {1 if asked.latency else asked.queue_pairs}\t\tTransport type : IB"
    yield " Connection type : RC\t\tUsing SRQ      : OFF"
    yield from (" PCIe relax order: ON", " ibv_wr* API     : ON", " TX depth        : 128", " CQ Moderation   : 1")
    yield " Mtu             : 4096[B]"
    yield f" Link type       : {'Ethernet' if ethernet else 'IB'}"
    if ethernet:
        yield " GID index       : 3"
    yield from (" Max inline data : 0[B]", " rdma_cm QPs\t : OFF", " Data ex. method : Ethernet", _RULE)
    lid = 0 if ethernet else 0x15
    for side in ("local", "remote"):
        yield f" {side} address: LID {lid:#04x} QPN 0x0127 PSN 0x7d4d3f RKey 0x1fff00 VAddr 0x007f6f6a2a0000"
    yield _RULE


def _bandwidth_rows(asked: _Asked, gbit: float) -> Iterator[str]:
    rate = gbit / 8 * 1e3 / asked.size  # messages per microsecond
    yield " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
    yield f" {asked.size:<7d}    {int(rate * 1e6 * asked.seconds):<10d}       0.00               {gbit:.2f}   \t\t     {rate:.6f}"


def _latency_rows(asked: _Asked, typical: float) -> Iterator[str]:
    yield (
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   "
        "99.9% percentile[usec] "
    )
    cells = [typical * share for share in (0.95, 3.5, 1.0, 1.01, 0.05, 1.2, 3.0)]
    yield f" {asked.size:<7d} 5000          " + "           ".join(f"{cell:.2f}" for cell in cells) + "   "
