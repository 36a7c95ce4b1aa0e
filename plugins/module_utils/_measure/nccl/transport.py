# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which path the data took: NCCL's debug lines, read one by one and summed up for a run.

`Using network X` says what was loaded; only the `via ..` of an edge between ranks on different hosts says what
was used. Without such edges the network names of a run over several hosts are a guess, marked `inferred`.
"""

from __future__ import annotations

import re
import typing as t

# Network module -> family. Names that carry a version (IBext_v8) are matched by their beginning.
_FAMILIES: tuple[tuple[str, str], ...] = (
    ("Socket", "socket"),
    ("IBext", "ib"),
    ("IB", "ib"),
    ("AWS Libfabric", "ofi"),
    ("Libfabric", "ofi"),
    ("OFI", "ofi"),
    ("gIB", "roce"),
    ("FasTrak", "gcp_tcpxo"),
    ("GPUDirectTCPX", "gcp_tcpx"),
    ("SPCX", "spcx"),
    ("UCX", "ucx"),
)
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

_HEAD = re.compile(r"([^\s:>\[\]]+):(\d+):(\d+) \[[^\]]*\]")
_EDGE = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[([0-9a-f]+)\] -> (\d+)\[[0-9a-f]+\](?: \[(send|receive)\])? via (.+)")
_COLLNET = re.compile(r"CollNet \S+ : (\d+) \[(send|receive)\] via COLLNET/(.+)")
_NET_PATH = re.compile(r"NET/([^/]+)/(\d+)(?:\((\d+)\))?((?:/.*)?)$")
_HCA = re.compile(r"\[\d+\]([^:\s]+):\d+/(\w+)")
_PROVIDER = re.compile(r"Selected [Pp]rovider is ([^,(]+?)(?:, fabric is (.+?))? \(found (\d+) nics\)")
_PROTOCOL = re.compile(r"Using transport protocol (\S+)")
_COMM = re.compile(r"comm \S+ rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank (\d+) MNNVL (\d)")
_NVLS_CHANNELS = re.compile(r"\d+ coll channels,.* (\d+) nvls channels")
_GDR_HCA = re.compile(r"NET/(\S+) : GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']*)'")
_SET_BY_ENV = re.compile(r"(NCCL_\w+) set by environment to (.*?)\.?$")
_CLIQUE = re.compile(r"MNNVL busId \S+ fabric UUID (\S+) cliqueId (\S+)")
# Bootstrap: Using eth0:10.0.0.1<0>   NET/IB : Using ..; OOB eth0:10.0.0.1<0>
_ADDRESS = re.compile(r"^(?:NET/IB|NET/Socket|Bootstrap) ?: Using .*?[^\s:\]]+:([0-9a-fA-F.:]+)<\d+>")
_PATTERN_TYPE = re.compile(r"Pattern \d+, .* type (\w+)/")
_WARNING = re.compile(r" NCCL WARN (.*)")

# First five characters of the messages that prove something: everything else is skipped without a closer look.
# The last ones are the beginnings of "24 coll channels, ..".
INTERESTING: frozenset[str] = frozenset(
    ["Using", "NET/I", "NET/O", "NET/S", "Boots", "Chann", "CollN", "Conne", "NVLS ", "comm ", "MNNVL", "NCCL ", "NCCL_", "Patte"]
    + [f"{number} coll"[:5] for number in range(1000)]
)


def family(network: str) -> str:
    """Family of a network module's name: ib, roce, ofi, socket, a vendor's, or the name itself in lower case."""
    for beginning, name in _FAMILIES:
        if network.startswith(beginning):
            return name
    return network.lower().replace(" ", "_")


def classify_line(line: str) -> dict[str, t.Any]:
    """What one debug line proves, as data; `neutral: true` for a line that proves nothing."""
    warning = _WARNING.search(line)
    if warning:
        return {"warn": True, "severity": warning_severity(warning.group(1))}
    _head, _mark, message = line.partition(" NCCL INFO ")
    return classify_message(message if _mark else line)


def warning_severity(message: str) -> str:
    """benign.., or serious for a warning that points at a fault."""
    if "libibverbs" in message:
        return "benign unless an IB network was expected"
    if any(text in message for text in _SERIOUS):
        return "serious"
    return "unknown"


_SERIOUS: tuple[str, ...] = (
    "Got completion",
    "Got async fatal event",
    "Mismatched NCCL version",
    "Duplicate GPU detected",
    "P2P is disabled between NVLINK connected GPUs",
    "cuMulticast",
    "ibv_modify_qp failed",
    "Net device count differs",
    "is available but not working",
    "Failed to initialize any NET plugin",
    "no socket interface found",
)


def classify_message(message: str) -> dict[str, t.Any]:
    """classify_line without the `host:pid:tid [dev] NCCL INFO` in front."""
    for beginning, reader in _READERS:
        if message.startswith(beginning):
            return reader(message) or {"neutral": True}
    if " coll channels," in message:
        return _read_channels(message) or {"neutral": True}
    return {"neutral": True}


def _read_network(message: str) -> dict[str, t.Any] | None:
    name = message[len("Using network ") :].strip()
    return {"net": name, "family": family(name)} if name else None


def _read_ib(message: str) -> dict[str, t.Any] | None:
    if "No device found" in message:
        return {"ib_absent": True}
    if "GPU Direct RDMA" in message:
        return _read_gdr_capability(message)
    if not message.startswith("NET/IB : Using "):
        return None
    adapters = _HCA.findall(message.partition("; OOB")[0])
    links = {link for _name, link in adapters}
    return {
        "link": next((link for link in ("RoCE", "IB") if link in links), None),
        "hcas": [name for name, _link in adapters],
        "sharp": "/SHARP" in message,
    }


def _read_ofi(message: str) -> dict[str, t.Any] | None:
    match = _PROVIDER.search(message)
    if match:
        provider = match.group(1).strip()
        return {"provider": provider, "fabric": match.group(2), "nics": int(match.group(3)), "ofi_class": _ofi_class(provider)}
    match = _PROTOCOL.search(message)
    if match:
        return {"protocol": match.group(1)}
    return _read_gdr_capability(message)


def _ofi_class(provider: str | None) -> str:
    """Class of a libfabric provider: most are fast, the ones over the host's network stack are TCP."""
    if provider is None:
        return "ofi"
    if provider.startswith("efa"):
        return "efa"
    return "tcp" if provider.startswith(("tcp", "sockets", "udp")) else "ofi"


def _read_gdr_capability(message: str) -> dict[str, t.Any] | None:
    match = _GDR_HCA.match(message)
    if not match or match.group(1) == "Socket":
        return None
    return {"gdr_capable": match.group(2) == "Enabled", "hca": match.group(4)}


def _read_edge(message: str) -> dict[str, t.Any] | None:
    match = _EDGE.match(message)
    if not match:
        return None
    path = _read_path(match.group(5).strip())
    return {"src": int(match.group(1)), "dst": int(match.group(3)), "direction": match.group(4), **path} if path else None


def _read_path(path: str) -> dict[str, t.Any] | None:
    """The part after `via`: NET/IB/0(2)/GDRDMA, P2P/CUMEM, SHM/direct/direct; None for one that is none or was cut."""
    match = _NET_PATH.match(path)
    if match:
        name, device, proxy, flags = match.groups()
        return {
            "edge": "net",
            "net": name,
            "family": family(name),
            "dev": int(device),
            "proxy_rank": int(proxy) if proxy else None,
            "gdr": "/GDRDMA" in flags,
            "shared": "/Shared" in flags,
        }
    words = path.split("/")
    if words[0] == "P2P":
        kind = words[1] if len(words) > 1 else ""
        if not kind:
            return None
        return {"edge": "p2p", "kind": kind, "multi_node": kind == "MNNVL", "degraded": kind == "indirect"}
    if words[0] == "SHM":
        return {"edge": "shm", "degraded_if": "NVLink expected inside the node"}
    return None


def _read_collnet(message: str) -> dict[str, t.Any] | None:
    match = _COLLNET.match(message)
    if not match:
        return None
    return {"edge": "collnet", "src": int(match.group(1)), "net": match.group(3).split("/")[0], "gdr": "/GDRDMA" in match.group(3)}


def _read_rings(message: str) -> dict[str, t.Any] | None:
    match = re.search(r" GDR (\d)", message)
    return {"gdr_all_ranks": match.group(1) == "1"} if match else None


def _read_nvls(message: str) -> dict[str, t.Any] | None:
    if message.startswith("NVLS multicast support is "):
        return {"nvls_capable": "not available" not in message}
    return None


def _read_channels(message: str) -> dict[str, t.Any] | None:
    match = _NVLS_CHANNELS.search(message)
    return {"nvls_channels": int(match.group(1)), "nvls_used": int(match.group(1)) > 0} if match else None


def _read_comm(message: str) -> dict[str, t.Any] | None:
    match = _COMM.match(message)
    if not match:
        return None
    rank, ranks, nodes, _local, _index, mnnvl = map(int, match.groups())
    return {"rank": rank, "n_ranks": ranks, "n_nodes": nodes, "mnnvl": mnnvl == 1}


def _read_clique(message: str) -> dict[str, t.Any] | None:
    match = _CLIQUE.match(message)
    return {"fabric_uuid": match.group(1), "clique_id": match.group(2)} if match else None


def _read_environment(message: str) -> dict[str, t.Any] | None:
    match = _SET_BY_ENV.match(message)
    if not match:
        return None
    name, value = match.group(1), match.group(2).strip()
    said: dict[str, t.Any] = {"env": name, "value": value}
    if name == "NCCL_NET":
        said["env_forces"] = value
    elif (name, value) in _FORCED:
        said["env_forces"] = _FORCED[name, value]
    return said


_FORCED: dict[tuple[str, str], str] = {
    ("NCCL_IB_DISABLE", "1"): "no IB",
    ("NCCL_P2P_DISABLE", "1"): "no P2P",
    ("NCCL_SHM_DISABLE", "1"): "no SHM",
    ("NCCL_NVLS_ENABLE", "0"): "no NVLS",
    ("NCCL_MNNVL_ENABLE", "0"): "no MNNVL",
}


def _read_topology(message: str) -> dict[str, t.Any] | None:
    match = _PATTERN_TYPE.match(message)
    return {"gpu_path": match.group(1)} if match else None


_READERS: tuple[tuple[str, t.Callable[[str], dict[str, t.Any] | None]], ...] = (
    ("Using network ", _read_network),
    ("Channel ", _read_edge),
    ("CollNet ", _read_collnet),
    ("NET/IB : ", _read_ib),
    ("NET/OFI ", _read_ofi),
    ("Connected all rings", _read_rings),
    ("NVLS multicast", _read_nvls),
    ("comm ", _read_comm),
    ("MNNVL busId", _read_clique),
    ("NCCL_", _read_environment),
    ("Pattern ", _read_topology),
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
        address = _ADDRESS.match(message) if ": Using " in message[:21] else None
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
            match = _HEAD.search(head)
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
            return _worst({_ofi_class(provider) for provider in providers}, _INTER_ORDER)
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
