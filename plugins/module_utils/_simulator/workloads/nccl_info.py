# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What NCCL prints with NCCL_DEBUG: communicator, network choice, channel edges, failures.

Lines are pairs (rank number, text). What is printed follows NCCL_DEBUG and NCCL_DEBUG_SUBSYS; large runs print what
is needed to judge the transport, not every line of every rank.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import typing as t
from collections.abc import Iterator, Mapping, Sequence

from .nccl_tests import Rank

Line: t.TypeAlias = tuple[int, str]

_ALL_LINES_UP_TO = 16  # ranks
_EVERY_RANK_UP_TO = 1024


@dataclasses.dataclass(frozen=True)
class HostNetwork:
    """RDMA devices that NCCL finds on one host.

    hcas:    their names, in order; empty when none is visible.
    link:    IB, RoCE or EFA.
    """

    hcas: tuple[str, ...]
    link: str


@dataclasses.dataclass(frozen=True)
class Communicator:
    """Everything the lines of one run are made from.

    domains: host -> name of its NVLink domain (the host itself without multi-node NVLink).
    network: ib, roce, efa or socket: what the run uses between domains.
    """

    ranks: Sequence[Rank]
    networks: Mapping[str, HostNetwork]
    domains: Mapping[str, str]
    network: str
    nvls: bool
    peer_access: bool
    shared_memory: bool
    mnnvl: bool
    settings: Mapping[str, str]
    nccl: str
    driver_cuda: str
    one_process: bool
    salt: int

    @property
    def level(self) -> str:
        """NCCL_DEBUG in capitals, "" when it is not set."""
        return self.settings.get("NCCL_DEBUG", "").upper()

    @property
    def network_name(self) -> str:
        """As NCCL calls the network."""
        return {"ib": "IB", "roce": "IB", "efa": "Libfabric"}.get(self.network, "Socket")


def _subsystems(settings: Mapping[str, str]) -> frozenset[str]:
    """The subsystems whose INFO lines are printed."""
    everything = frozenset({"INIT", "BOOTSTRAP", "ENV", "NET", "GRAPH", "P2P", "COLL", "TUNING"})
    asked = settings.get("NCCL_DEBUG_SUBSYS", "")
    if not asked:
        return frozenset({"INIT", "BOOTSTRAP", "ENV"})
    names = {name.strip().upper() for name in asked.lstrip("^").split(",")}
    chosen = everything if "ALL" in names else frozenset(names & everything)
    return everything - chosen if asked.startswith("^") else chosen


class Log:
    """Writes the lines of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.info = comm.level in ("INFO", "TRACE")
        self.asked = _subsystems(comm.settings)
        self.full = len(comm.ranks) <= _ALL_LINES_UP_TO

    def _prefix(self, rank: Rank, thread: int = 0) -> str:
        return f"{rank.host}:{rank.pid}:{rank.pid + thread} [{rank.local}]"

    def _line(self, rank: Rank, subsystems: str, text: str, thread: int = 0) -> Iterator[Line]:
        if self.info and not self.asked.isdisjoint(subsystems.split("|")):
            yield rank.number, f"{self._prefix(rank, thread)} NCCL INFO {text}"

    def _speakers(self) -> Sequence[Rank]:
        """The ranks whose set-up lines are written: all, or one per host in very large runs."""
        if len(self.comm.ranks) <= _EVERY_RANK_UP_TO:
            return self.comm.ranks
        return [rank for rank in self.comm.ranks if rank.local == 0]

    # -- set-up

    def version(self) -> Iterator[Line]:
        """The bare version line of the quieter levels."""
        if self.comm.level in ("VERSION", "WARN"):
            yield 0, f"NCCL version {self.comm.nccl}"

    def setup(self) -> Iterator[Line]:
        """From the start to the finished communicator, without edges."""
        for rank in self._speakers():
            yield from self._start(rank)
        for rank in self._speakers():
            yield from self._network(rank)
        for rank in self._speakers():
            yield from self._communicator(rank)
        for rank in self._speakers():
            yield from self._ready(rank)

    def _start(self, rank: Rank) -> Iterator[Line]:
        if self.full:
            yield from self._line(rank, "ENV|INIT", "ENV/Plugin: Could not find: libnccl-env.so")
        if "NCCL_SOCKET_IFNAME" in self.comm.settings:
            yield from self._line(rank, "ENV", f"NCCL_SOCKET_IFNAME set by environment to {self.comm.settings['NCCL_SOCKET_IFNAME']}")
        yield from self._line(rank, "BOOTSTRAP", f"Bootstrap: Using eth0:{rank.ip}<0>")
        if self.full:
            yield from self._line(rank, "INIT", f"cudaDriverVersion {self._cuda_code()}")
        if rank.number == 0 or self.full:
            yield from self._line(rank, "INIT", f"NCCL version {self.comm.nccl}")

    def _cuda_code(self) -> int:
        major, minor = (int(part) for part in self.comm.driver_cuda.split("."))
        return major * 1000 + minor * 10

    def _network(self, rank: Rank) -> Iterator[Line]:
        found = self.comm.networks[rank.host]
        out_of_band = f"OOB eth0:{rank.ip}<0>"
        if found.link == "EFA" and found.hcas:
            yield from self._line(rank, "INIT|NET", "NET/OFI Initializing aws-ofi-nccl 1.17.1")
            yield from self._line(rank, "INIT|NET", "NET/OFI Using transport protocol RDMA (platform set)")
            text = f"NET/OFI Selected provider is efa, fabric is efa-direct (found {len(found.hcas)} nics)"
            yield from self._line(rank, "INIT|NET", text)
        elif found.hcas:
            if self.full:
                yield from self._line(rank, "INIT|NET", "NET/Plugin: Could not find: libnccl-net.so")
            listed = " ".join(f"[{number}]{name}:1/{found.link}" for number, name in enumerate(found.hcas))
            yield from self._line(rank, "INIT|NET", f"NET/IB : Using {listed} [RO]; {out_of_band}")
        else:
            if found.link == "EFA":
                yield from self._line(rank, "INIT|NET", "NET/OFI Initializing aws-ofi-nccl 1.17.1")
                yield from self._line(rank, "INIT|NET", "NET/OFI Failed to initialize rdma protocol")
            yield from self._line(rank, "INIT|NET", "NET/IB : No device found.")
            if self.full:
                yield from self._line(rank, "INIT|NET", f"NET/IB : Using [RO]; {out_of_band}")
                yield from self._line(rank, "INIT|NET", "Failed to initialize NET plugin IB")
        if self.comm.network == "socket":
            yield from self._line(rank, "INIT|NET", f"NET/Socket : Using [0]eth0:{rank.ip}<0>")
        plugin = self.comm.network_name
        if self.full:
            yield from self._line(rank, "INIT|NET", f"Initialized NET plugin {plugin}")
        yield from self._line(rank, "INIT|NET", f"Assigned NET plugin {plugin} to comm")
        yield from self._line(rank, "INIT|NET", f"Using network {plugin}")
        for number, name in enumerate(found.hcas if self.comm.network in ("ib", "roce") and self.full else ()):
            yield from self._line(rank, "NET", f"NET/IB : GPU Direct RDMA Enabled for HCA {number} '{name}'")

    def _communicator(self, rank: Rank) -> Iterator[Line]:
        comm = self.comm
        total = len(comm.ranks)
        nodes = len(set(comm.domains.values()))
        mine = [other for other in comm.ranks if comm.domains[other.host] == comm.domains[rank.host]]
        if comm.mnnvl and self.full:
            yield from self._line(
                rank, "INIT", f"MNNVL busId 0x{_bus_id(rank)} fabric UUID {comm.domains[rank.host]} cliqueId 0x7ffe state 3 healthMask 0x0"
            )
        for name in (
            "NCCL_NVLS_ENABLE",
            "NCCL_ALGO",
            "NCCL_P2P_DISABLE",
            "NCCL_SHM_DISABLE",
            "NCCL_IB_DISABLE",
            "NCCL_NET",
            "NCCL_MNNVL_ENABLE",
        ):
            if name in comm.settings and (self.full or rank.number == 0):
                yield from self._line(rank, "ENV", f"{name} set by environment to {comm.settings[name]}.")
        yield from self._line(
            rank,
            "INIT",
            f"comm {self._handle(rank)} rank {rank.number} nRanks {total} nNodes {nodes} localRanks {len(mine)} "
            f"localRank {mine.index(rank)} MNNVL {int(comm.mnnvl)}",
        )
        if rank.local == 0 or self.full:
            available = "" if comm.nvls else "not "
            count = " (NVLS_NCHANNELS 24)" if comm.nvls else ""
            yield from self._line(rank, "INIT", f"NVLS multicast support is {available}available on dev {rank.local}{count}")
        if self.full:
            yield from self._line(rank, "INIT", "P2P Chunksize set to 524288")

    def _ready(self, rank: Rank) -> Iterator[Line]:
        comm = self.comm
        channels = 24 if len(set(comm.domains.values())) == 1 else 16
        if comm.network == "socket" and len(set(comm.domains.values())) > 1:
            channels = 2
        if rank.local == 0 or self.full:
            nvls = 16 if comm.nvls else 0
            text = f"{channels} coll channels, {channels} collnet channels, {nvls} nvls channels, 32 p2p channels, 2 p2p channels per peer"
            yield from self._line(rank, "INIT", text)
            yield from self._line(
                rank,
                "INIT",
                f"ncclCommInitRankConfig comm {self._handle(rank)} rank {rank.number} nranks {len(comm.ranks)} cudaDev {rank.local} "
                f"nvmlDev {rank.local} busId {_bus_id(rank)} commId 0x{comm.salt:016x} - Init COMPLETE",
            )

    def _handle(self, rank: Rank) -> str:
        return f"0x{0x55D000000000 + (self.comm.salt % 0xFFFF) * 0x100000 + rank.number * 0x1080:x}"

    # -- edges

    def edges(self) -> Iterator[Line]:
        """The edges of the rings, printed when the first operation runs."""
        by_host = [list(group) for _host, group in itertools.groupby(self.comm.ranks, key=lambda rank: rank.host)]
        total = len(self.comm.ranks)
        if total == 1:
            return
        channels = 2 if self.comm.network == "socket" and len(by_host) > 1 else 24 if len(by_host) == 1 else 4 if total <= 64 else 2
        for channel in range(channels):
            # The ring of a channel enters each host at another GPU, next to the NIC which that channel uses.
            ring = [ranks[channel % len(ranks) :] + ranks[: channel % len(ranks)] for ranks in by_host]
            order = [rank for ranks in ring for rank in ranks]
            for sender, receiver in zip(order, [*order[1:], order[0]], strict=True):
                if total <= _EVERY_RANK_UP_TO or sender.host != receiver.host:
                    yield from self._edge(channel, sender, receiver)
        gdr = int(self.comm.network != "socket" or len(by_host) == 1)
        for rank in self._speakers():
            if rank.local == 0 or self.full:
                yield from self._line(rank, "INIT", f"Connected all rings, use ring PXN 0 GDR {gdr}")
        if self.comm.nvls:
            yield from self._line(self.comm.ranks[0], "INIT", "Connected NVLS tree")

    def _edge(self, channel: int, sender: Rank, receiver: Rank) -> Iterator[Line]:
        comm = self.comm
        text = f"Channel {channel:02d}/0 : {sender.number}[{sender.local}] -> {receiver.number}[{receiver.local}]"
        if sender.host == receiver.host and comm.peer_access:
            how = "P2P/direct pointer" if comm.one_process else "P2P/CUMEM"
            yield from self._line(sender, "INIT|P2P", f"{text} via {how}", thread=60)
        elif sender.host == receiver.host and comm.shared_memory:
            yield from self._line(sender, "INIT|P2P", f"{text} via SHM/direct/direct", thread=60)
        elif sender.host != receiver.host and comm.mnnvl and comm.domains[sender.host] == comm.domains[receiver.host]:
            yield from self._line(sender, "INIT|P2P", f"{text} via P2P/MNNVL", thread=60)
        else:
            devices = max(1, min(len(comm.networks[host].hcas) or 1 for host in (sender.host, receiver.host)))
            device = 0 if comm.network == "socket" else channel % devices
            direct = "" if comm.network == "socket" else "/GDRDMA"
            proxy = "" if comm.network == "socket" else f"({sender.number})"
            yield from self._line(receiver, "INIT|NET", f"{text} [receive] via NET/{comm.network_name}/{device}{direct}", thread=60)
            yield from self._line(sender, "INIT|NET", f"{text} [send] via NET/{comm.network_name}/{device}{proxy}{direct}", thread=60)

    # -- the end

    def teardown(self) -> Iterator[Line]:
        """Printed between the last row and the footer, or after it."""
        for rank in self._speakers():
            if rank.local == 0 or self.full:
                yield from self._line(
                    rank,
                    "INIT",
                    f"comm {self._handle(rank)} rank {rank.number} nranks {len(self.comm.ranks)} "
                    f"cudaDev {rank.local} busId {_bus_id(rank)} - Destroy COMPLETE",
                )

    def warning(self, rank: Rank, where: str, text: str) -> Iterator[Line]:
        """A WARN line: an empty line comes first."""
        if self.comm.level in ("WARN", "INFO", "TRACE"):
            yield rank.number, ""
            yield rank.number, f"{self._prefix(rank, 60)} {where} NCCL WARN {text}"

    def trace(self, rank: Rank, where: str, code: int) -> Iterator[Line]:
        """One step of an error's way up; code is NCCL's result code."""
        if self.info:
            yield rank.number, f"{self._prefix(rank, 60)} NCCL INFO {where} -> {code}"


def _bus_id(rank: Rank) -> str:
    domain, bus, device = rank.pci.split(":")
    return f"{int(domain, 16) << 20 | int(bus, 16) << 12 | int(device, 16) << 4:x}"


# --- settings that change the path -----------------------------------------------------------------------------------


def interface_found(settings: Mapping[str, str]) -> bool:
    """NCCL_SOCKET_IFNAME leaves eth0, the interface of every pod."""
    return bool(_matching(settings.get("NCCL_SOCKET_IFNAME", ""), ("eth0",)))


def usable_hcas(settings: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    """The devices that NCCL_IB_HCA leaves."""
    return tuple(_matching(settings.get("NCCL_IB_HCA", ""), names))


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    """NCCL's list syntax: prefixes; `=` in front asks for exact names; `^` in front excludes; `:port` is ignored."""
    if not pattern:
        return list(names)
    exclude = pattern.startswith("^")
    rest = pattern.lstrip("^")
    exact = rest.startswith("=")
    wanted = [item.split(":")[0] for item in rest.lstrip("=").split(",") if item]
    hits = [name for name in names if any(name == item if exact else fnmatch.fnmatchcase(name, f"{item}*") for item in wanted)]
    return [name for name in names if name not in hits] if exclude else hits
