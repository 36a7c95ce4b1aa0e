# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which path the data took: NCCL's debug lines, read one by one and summed up for a run.

`Using network X` says what was loaded; only the `via ..` of an edge between ranks on different hosts says what
was used. Without such edges the network names of a run over several hosts are a guess, marked `inferred`.
"""

from __future__ import annotations

import re
import typing as t

from .debug_lines import HEAD, classify_message, family, ofi_class

# Worst last: the worst edge between hosts names the class of the run.
_INTER_ORDER: tuple[str, ...] = ("mnnvl", "ib", "roce", "efa", "vendor", "ofi", "tcp")
_INTRA_ORDER: tuple[str, ...] = ("nvlink", "pcie", "shm", "mnnvl", "ib", "roce", "efa", "vendor", "ofi", "tcp")
# What an expectation accepts; a name that is not here accepts itself only.
_ACCEPTS: dict[str, frozenset[str]] = {
    # The plugins of Spectrum-X and UCX drive the same adapters as NCCL's own IB module.
    "rdma": frozenset({"ib", "roce", "efa", "mnnvl", "spcx", "ucx"}),
    "ib": frozenset({"ib", "mnnvl", "ucx"}),
    "roce": frozenset({"roce", "mnnvl", "spcx", "ucx"}),
    "efa": frozenset({"efa", "mnnvl"}),
    "tcpxo": frozenset({"gcp_tcpxo", "mnnvl"}),  # the name by which platforms promise it
    "ofi": frozenset({"ofi", "efa"}),
    "mnnvl": frozenset({"mnnvl"}),
    "nvlink": frozenset({"nvlink", "mnnvl"}),
    "pcie": frozenset({"pcie", "nvlink"}),
}
EXPECTATIONS: frozenset[str] = frozenset(_ACCEPTS) | {"tcp", "shm", "gcp_tcpxo", "gcp_tcpx", "spcx", "ucx"}

# Distinct edges kept for counting; beyond it repeated lines of later communicators are counted again.
_MAX_EDGES = 200_000

# Where a Channel line goes on after the channel's number.
TAIL = len("Channel 00")

_ADDRESS = re.compile(r"(?<![^\s:\]])[^\s:\]]{1,64}:([0-9a-fA-F.:]{2,45})<\d{1,5}>")
_SAYS_ADDRESS = (
    "NET/IB : Using ",
    "NET/Socket : Using ",
    "Bootstrap : Using ",
    "NET/IB: Using ",
    "NET/Socket: Using ",
    "Bootstrap: Using ",
)


def _stays_inside(tail: str) -> bool:
    """Whether the end of a Channel line names no path, or one that cannot leave the host."""
    return " via " not in tail or " via SHM/" in tail or (" via P2P/" in tail and "MNNVL" not in tail)


class Edge(t.NamedTuple):
    """An edge that may join hosts: what its line says, the host that printed it, the first such line, its channels."""

    said: dict[str, t.Any]
    host: str
    line: str
    channels: set[str]


class Host:
    """What the lines of one host said."""

    def __init__(self) -> None:
        self.networks: set[str] = set()
        self.hcas: list[str] = []
        self.links: set[str] = set()
        self.providers: set[str] = set()
        self.ib_absent: str | None = None
        self.net_edges = 0
        self.gdr_edges = 0
        self.without_gdr: str | None = None
        self.network_line: str | None = None

    def as_dict(self) -> dict[str, t.Any]:
        return {
            "networks": sorted(self.networks),
            "hcas": self.hcas,
            "link": next((link for link in ("RoCE", "IB") if link in self.links), None),
            "providers": sorted(self.providers),
            "ib_absent": self.ib_absent is not None and not self.hcas,
            "net_edges": self.net_edges,
            "gdr_edges": self.gdr_edges,
        }


class Collector:
    """Collects the debug lines of one log; summary() says what they prove together."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self.networks: list[str] = []
        self.environment: dict[str, str] = {}
        self.forced: list[str] = []
        self.addresses: dict[str, str] = {}  # address -> host that uses it
        self._reporting: set[str] = set()
        self._rank_host: dict[int, str] = {}
        # (host, message without the channel's number) -> edge
        self._edges: dict[tuple[str, str], Edge] = {}
        self._tails: dict[str, dict[str, t.Any]] = {}
        self._senders: dict[str, tuple[str, str]] = {}
        # Ends of Channel lines that have nothing more to tell: a reader may skip them.
        self.known_tails: set[str] = set()
        self._local_paths: dict[str, None] = {}
        self._facts: dict[str, t.Any] = {}
        self._gpu_paths: set[str] = set()
        self._cliques: set[tuple[str, str]] = set()
        self._degraded: dict[str, str] = {}

    def add(self, head: str, message: str) -> None:
        """One INFO line: `head` is the text before ` NCCL INFO `, `message` the text after it."""
        if message.startswith("Channel "):
            self.add_channel(head, message)
            return
        address = _ADDRESS.search(message) if message.startswith(_SAYS_ADDRESS) else None
        if address:
            self.addresses.setdefault(address.group(1), self._sender(head)[0])
        said = classify_message(message)
        if "neutral" in said:
            return
        name, key = self._sender(head)
        if "edge" in said:
            self._keep_edge(name, head, message, "", said)
        else:
            self._take(said, name, self._host(name), f"{head} NCCL INFO {message}", key)

    def _host(self, name: str) -> Host:
        host = self.hosts.get(name)
        if host is None:
            host = self.hosts[name] = Host()
        return host

    def add_channel(self, head: str, message: str) -> None:
        """One `Channel ..` line. A log has thousands that differ in the channel's number only."""
        tail = message[TAIL:]
        said = self._tails.get(tail)
        if said is None:
            said = classify_message(message)
            kept = self.known_tails if _stays_inside(tail) else self._tails
            if len(kept) < _MAX_EDGES:
                self._tails[tail] = said
                if kept is self.known_tails:
                    self.known_tails.add(tail)
        if "edge" not in said:
            return
        name = (self._senders.get(head) or self._sender(head))[0]
        known = self._edges.get((name, tail))
        if known is not None:
            known.channels.add(message[:TAIL])
        elif said["edge"] in ("p2p", "shm") and not said.get("multi_node"):
            self._take_local(said, f"{head} NCCL INFO {message}")
            self._host(name)
        else:
            self._keep_edge(name, head, message, message[:TAIL], said)

    def _sender(self, head: str) -> tuple[str, str]:
        """(host, what tells one rank from another) of a line; the host is "" when the head was cut off."""
        known = self._senders.get(head)
        if known is None:
            match = HEAD.search(head)
            known = (match.group(1), match.group()) if match else ("", head)
            if len(self._senders) < _MAX_EDGES:
                self._senders[head] = known
        return known

    def _keep_edge(self, name: str, head: str, message: str, channel: str, said: dict[str, t.Any]) -> None:
        key = (name, message[len(channel) :])
        if len(self._edges) < _MAX_EDGES:
            self._host(name)
            self._edges.setdefault(key, Edge(said, name, f"{head} NCCL INFO {message}", set())).channels.add(channel)

    def _take_local(self, said: dict[str, t.Any], line: str) -> None:
        path = "SHM" if said["edge"] == "shm" else f"P2P/{said['kind']}"
        self._local_paths.setdefault(path)
        if said["edge"] == "shm" or said.get("degraded"):
            self._degraded.setdefault("SHM" if said["edge"] == "shm" else "P2P/indirect", line)

    def _take(self, said: dict[str, t.Any], name: str, host: Host, line: str, rank_key: str) -> None:
        if "net" in said:
            host.networks.add(said["net"])
            host.network_line = host.network_line or line
            self._reporting.add(rank_key)
            if said["net"] not in self.networks:
                self.networks.append(said["net"])
        elif "ib_absent" in said:
            host.ib_absent = line
        elif "hcas" in said:
            host.hcas = said["hcas"] or host.hcas
            if said["link"]:
                host.links.add(said["link"])
        elif "provider" in said:
            host.providers.add(said["provider"])
            self._facts.update(provider=said["provider"], nics=said["nics"])
        elif "n_ranks" in said:
            self._rank_host.setdefault(said["rank"], name)
            for key in ("n_ranks", "n_nodes"):
                self._facts[key] = max(said[key], self._facts.get(key, 0))
            self._facts["mnnvl"] = self._facts.get("mnnvl", False) or said["mnnvl"]
        elif "nvls_used" in said:
            self._facts["nvls"] = self._facts.get("nvls", False) or said["nvls_used"]
        elif "nvls_capable" in said:
            self._facts["nvls_capable"] = self._facts.get("nvls_capable", True) and said["nvls_capable"]
        elif "gdr_all_ranks" in said:
            self._facts["gdr_all_ranks"] = self._facts.get("gdr_all_ranks", True) and said["gdr_all_ranks"]
        elif "env" in said:
            self.environment[said["env"]] = said["value"]
            if said.get("env_forces") and said["env_forces"] not in self.forced:
                self.forced.append(said["env_forces"])
        elif "gpu_path" in said:
            self._gpu_paths.add(said["gpu_path"])
        elif "clique_id" in said:
            self._cliques.add((said["fabric_uuid"], said["clique_id"]))
        elif "protocol" in said:
            self._facts["protocol"] = said["protocol"]

    # --- the sum ---

    def summary(self, ranks: t.Sequence[tuple[int, int, str, int]] = ()) -> dict[str, t.Any]:
        """What the lines prove. `ranks`: (rank, group, host, pid) of the device list, as far as known."""
        places = _Places(ranks, self._rank_host, self._facts.get("n_nodes"))
        inter, local = self._split_edges(places)
        counts = {"total": 0, "net": 0, "gdr": 0, "mnnvl": 0, "collnet": 0}
        for edge in inter:
            for name in ("total", "mnnvl" if edge.said["edge"] == "p2p" else edge.said["edge"]):
                counts[name] += len(edge.channels)
            counts["gdr"] += len(edge.channels) if edge.said.get("gdr") else 0
        name, inferred = self._class(inter, local, places)
        blame = self._blame(inter, places)
        hosts = {host: data.as_dict() for host, data in sorted(self.hosts.items()) if host}
        return {
            "class": name,
            "inferred": inferred,
            "gdr": self._gdr(inter, inferred),
            "gdr_all_ranks": self._facts.get("gdr_all_ranks"),
            "networks": list(self.networks),
            "ranks_reporting": len(self._reporting),
            "provider": self._facts.get("provider"),
            "protocol": self._facts.get("protocol"),
            "nics": self._facts.get("nics"),
            "n_ranks": self._facts.get("n_ranks"),
            "n_nodes": self._facts.get("n_nodes"),
            "host_count": places.count,
            "inter_node_edges": counts,
            "intra_node": [*self._local_paths, *sorted({_local_path(edge.said) for edge in local})],
            "nvls": self._facts.get("nvls"),
            "nvls_capable": self._facts.get("nvls_capable"),
            "mnnvl": self._facts.get("mnnvl"),
            "cliques": [f"{uuid}.{clique}" for uuid, clique in sorted(self._cliques)],
            "environment": dict(sorted(self.environment.items())),
            "forced": list(self.forced),
            "degraded": [{"path": path, "line": line} for path, line in sorted(self._degraded.items())],
            "hosts": hosts,
            "hosts_without_gdr": sorted(host for host, data in self.hosts.items() if host and data.without_gdr),
            "blame": blame,
            "suspect_hosts": sorted({item["host"] for item in blame}),
        }

    def _split_edges(self, places: _Places) -> tuple[list[Edge], list[Edge]]:
        """(edges between hosts, edges inside one host), each with the host that printed it."""
        inter: list[Edge] = []
        local: list[Edge] = []
        for host in self.hosts.values():
            host.net_edges = host.gdr_edges = 0
            host.without_gdr = None
        for edge in self._edges.values():
            across = places.across(edge.said, edge.host)
            (inter if across else local).append(edge)
            if across and edge.said["edge"] in ("net", "collnet"):
                host = self.hosts[edge.host]
                host.net_edges += len(edge.channels)
                host.gdr_edges += len(edge.channels) if edge.said["gdr"] else 0
                if not edge.said["gdr"]:
                    host.without_gdr = host.without_gdr or edge.line
        return inter, local

    def _class(self, inter: list[Edge], local: list[Edge], places: _Places) -> tuple[str, bool]:
        """(class of the run, whether it is a guess from network names)."""
        if inter:
            return _worst(self._edge_classes(inter), _INTER_ORDER), False
        if places.count > 1:
            guesses = {self._network_class(network, name) for name, host in self.hosts.items() for network in host.networks}
            return (_worst(guesses, _INTER_ORDER), True) if guesses else ("unknown", False)
        found = self._edge_classes(local)
        found |= {self._local_class(path) for path in self._local_paths}
        return (_worst(found, _INTRA_ORDER) if found else "unknown"), False

    def _local_class(self, path: str) -> str:
        if path == "SHM":
            return "shm"
        # With the graph printed, a path that is not NVLink (NVL, NVB) or chip-to-chip is PCIe.
        on_pcie = self._gpu_paths and not self._gpu_paths & {"NVL", "NVB", "C2C"}
        return "pcie" if on_pcie else "nvlink"

    def _edge_classes(self, edges: list[Edge]) -> set[str]:
        kinds = {(edge.said["edge"], edge.said.get("net"), edge.host) for edge in edges}
        return {self._edge_class(edge, network, name) for edge, network, name in kinds}

    def _edge_class(self, edge: str, network: str | None, host: str) -> str:
        if edge == "p2p":
            return "mnnvl"
        return self._network_class(network, host) if edge == "net" and network else self._link_class(host)

    def _network_class(self, network: str, host: str) -> str:
        kind = family(network)
        if kind == "socket":
            return "tcp"
        if kind == "ofi":
            providers: t.Collection[str | None] = self.hosts[host].providers or [self._facts.get("provider")]
            return _worst({ofi_class(provider) for provider in providers}, _INTER_ORDER)
        return self._link_class(host) if kind == "ib" else kind

    def _link_class(self, host: str) -> str:
        links = self.hosts[host].links or {link for other in self.hosts.values() for link in other.links}
        return "roce" if "RoCE" in links else "ib"

    @property
    def link_layer_known(self) -> bool:
        """Whether any host said if its adapters speak InfiniBand or Ethernet."""
        return any(host.links for host in self.hosts.values())

    def _gdr(self, inter: list[Edge], inferred: bool) -> str:
        flags = [bool(edge.said["gdr"]) for edge in inter if edge.said["edge"] in ("net", "collnet")]
        if flags:
            return "all" if all(flags) else "partial" if any(flags) else "none"
        if inferred:
            return "all" if self._facts.get("gdr_all_ranks") else "unknown"
        return "not_applicable"

    def _blame(self, inter: list[Edge], places: _Places) -> list[dict[str, t.Any]]:
        """Hosts that differ from the others. When all agree it is an image or a setting, and nobody is blamed."""
        named = {name: host for name, host in self.hosts.items() if name}
        if places.count < 2 or len(named) < 2:
            return []
        most = max((len(host.hcas) for host in named.values()), default=0)
        ranking = [*_INTER_ORDER]
        classes = {
            name: _worst({self._network_class(network, name) for network in host.networks}, _INTER_ORDER)
            for name, host in named.items()
            if host.networks
        }
        best = min((_place(value, ranking) for value in classes.values()), default=0)
        checks: list[dict[str, tuple[str, str | None]]] = [
            {
                name: (f"uses {', '.join(sorted(named[name].networks))} where its peers have a better network", named[name].network_line)
                for name, value in classes.items()
                if _place(value, ranking) > best
            },
            {name: ("no RDMA device is visible", host.ib_absent) for name, host in named.items() if host.ib_absent and not host.hcas},
            {
                name: (f"{len(host.hcas)} RDMA devices, its peers have {most}", None)
                for name, host in named.items()
                if host.hcas and len(host.hcas) < most
            },
            {name: ("no GPU Direct RDMA", host.without_gdr) for name, host in named.items() if host.without_gdr},
        ]
        return [
            {"host": name, "why": why, "line": line}
            for check in checks
            if 0 < len(check) < len(named)
            for name, (why, line) in sorted(check.items())
        ]


def _local_path(said: dict[str, t.Any]) -> str:
    return f"P2P/{said['kind']}" if said["edge"] == "p2p" else f"{said['edge'].upper()}/{said.get('net', '')}"


class _Places:
    """Where ranks live."""

    def __init__(self, ranks: t.Sequence[tuple[int, int, str, int]], said: dict[int, str], nodes: int | None) -> None:
        self._groups: dict[int, list[str]] = {}
        self._group_of: dict[str, int] = {}
        for _rank, group, host, _pid in sorted(ranks):
            self._groups.setdefault(group, []).append(host)
            self._group_of.setdefault(host, group)
        self._said = said
        listed = {host for hosts in self._groups.values() for host in hosts}
        known = listed or set(said.values()) - {""}
        # One NVLink domain over several hosts is one node to NCCL; hosts that share a name are told apart by it.
        self.count = max(len(known), nodes or 0)
        self.same_names = (nodes or 0) > len(known)

    def host(self, rank: int, near: str) -> str | None:
        """Host of a communicator's rank. `near`: a host of the same communicator."""
        if self._groups:
            group = self._groups.get(self._group_of.get(near, next(iter(self._groups))), [])
            if rank < len(group):
                return group[rank]
        return self._said.get(rank)

    def across(self, said: dict[str, t.Any], near: str) -> bool:
        """Whether an edge joins two hosts."""
        if said["edge"] == "collnet":
            return self.count > 1
        if said["edge"] == "net" and self.same_names:
            return True
        one, other = self.host(said["src"], near), self.host(said["dst"], near)
        if one is None or other is None:
            return self.count > 1
        return one != other


def _place(name: str, order: t.Sequence[str]) -> int:
    return order.index(name) if name in order else order.index("vendor")


def _worst(names: t.Collection[str], order: t.Sequence[str]) -> str:
    return max(sorted(names), key=lambda name: _place(name, order), default="unknown")


def meets(summary: t.Mapping[str, t.Any], expected: str, *, link_layer_known: bool = True) -> bool:
    """Whether the class of a run is what was expected. An unknown class contradicts nothing."""
    found = summary["class"]
    if found == "unknown" or expected == "tcp":
        return True
    if found == "ib" and expected == "roce" and not link_layer_known:
        return True
    return found in _ACCEPTS.get(expected, frozenset({expected}))
