# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What one debug line of NCCL proves, as data.

`Using network X` says what was loaded; only the `via ..` of an edge between ranks says what was used.
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

# The head of every line of NCCL: host:pid:tid [device].
HEAD = re.compile(r"(?<![^\s:>\[\]])([^\s:>\[\]]+):(\d{1,10}):(\d{1,10}) \[[^\]]{0,40}\]")
_EDGE = re.compile(r"Channel \d+(?:/\d+)? : (\d{1,9})\[([0-9a-f]+)\] -> (\d{1,9})\[[0-9a-f]+\](?: \[(send|receive)\])? via (.+)")
_COLLNET = re.compile(r"CollNet \S+ : (\d{1,9}) \[(send|receive)\] via COLLNET/(.+)")
_NET_PATH = re.compile(r"NET/([^/]+)/(\d{1,9})(?:\((\d{1,9})\))?((?:/.*)?)$")
_HCA = re.compile(r"\[\d{1,4}\]([^:\s\[\]]{1,64}):\d{1,4}/(\w{1,16})")
_PROVIDER = re.compile(r"Selected [Pp]rovider is ([^,(]{1,64}?)(?:, fabric is ([^(]{1,64}?))? \(found (\d{1,9}) nics\)")
_PROTOCOL = re.compile(r"Using transport protocol (\S+)")
_COMM = re.compile(r"comm \S+ rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9}) localRank (\d{1,9}) MNNVL (\d)")
_NVLS_CHANNELS = re.compile(r" (\d{1,9}) nvls channels")
_GDR_HCA = re.compile(r"NET/(\S+) : GPU Direct RDMA (Enabled|Disabled) for HCA (\d{1,9}) '([^']*)'")
_SET_BY_ENV = re.compile(r"(NCCL_\w+) set by environment to (.*?)\.?$")
_CLIQUE = re.compile(r"MNNVL busId \S+ fabric UUID (\S+) cliqueId (\S+)")
# Bootstrap: Using eth0:10.0.0.1<0>   NET/IB : Using ..; OOB eth0:10.0.0.1<0>
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
    "async fatal event",
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
        return {"provider": provider, "fabric": match.group(2), "nics": int(match.group(3)), "ofi_class": ofi_class(provider)}
    match = _PROTOCOL.search(message)
    if match:
        return {"protocol": match.group(1)}
    return _read_gdr_capability(message)


def ofi_class(provider: str | None) -> str:
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
    match = _NVLS_CHANNELS.search(message.partition(" coll channels,")[2])
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
