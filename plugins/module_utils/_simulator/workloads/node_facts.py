# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""`node_facts.py`: the fact sheet of a simulated node. All is well but what a planted fault says of a GPU or a NIC, and what it has counted
with every workload that the node has run."""

from __future__ import annotations

import datetime
import json
import typing as t
from collections.abc import Iterator

from ..hardware.node_objects import KERNEL, boot_id
from ..hardware.nodes import Node
from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context, gpus_of
from .gpu_identity import gpu_identity

_NVLINKS = {"volta": 6, "ampere": 12, "hopper": 18, "blackwell": 18}
_ERRORS = ("replay_errors", "recovery_errors", "crc_errors")
_COUNTERS = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors", "port_xmit_discards")
_BOOTED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_SLOWED = ("sw_power_cap", "sync_boost", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")
_RATES = {12.5: "100 Gb/sec (4X EDR)", 25: "200 Gb/sec (4X HDR)", 50: "400 Gb/sec (4X NDR)", 100: "800 Gb/sec (4X XDR)"}


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that prints the fact sheet; None for others."""
    _before, words = shell.find_command(context.text, lambda name: name == "node_facts.py")
    if not words:
        return None
    outcome = Outcome(lines=())
    outcome.lines = _lines(context)
    return outcome


def _lines(context: Context) -> Iterator[LogLine]:
    node, software = context.node, context.hardware.definition.software
    unread = [] if node else [{"what": "nvidia-smi -q -x", "why": "exit 9: NVIDIA-SMI has failed because no devices were found"}]
    gpus = [_gpu(context, node, gpu) for gpu in range(gpus_of(context.pod))] if node else []
    facts = {
        "host": _host(context),
        "driver": {"version": software.driver, "cuda": software.cuda} if node else {},
        "gpus": gpus,
        "topology": _topology(len(gpus), node) if node else [],
        "nics": [_nic(context, node, number) for number in range(node.gpu.nics)] if node and node.nics and not node.hides_rdma else [],
        "kernel_log": _kernel_log(context, node) if node else None,
        "unread": unread,
    }
    yield from (LogLine(3.0, line) for line in json.dumps({"node_facts": facts}, indent=1).splitlines())


def _host(context: Context) -> dict[str, t.Any]:
    return {
        "kernel": KERNEL,
        "boot_id": boot_id(context.node.seat.digest(32, "machine")) if context.node else None,
        "product": "Simulated-GPU-Server",
        "cpus": 192,
        "memory_kib": 2113536000,
        "numa_nodes": {"node0": "0-47,96-143", "node1": "48-95,144-191"},
    }


def _risen(context: Context, node: Node, part: str, number: int, counter: str) -> int:
    """What a counter of a GPU or NIC has come to: faults raise it with every workload."""
    rises = [rise for fault in node.faults if (rise := fault.rises()) is not None]
    own = [rise.by for rise in rises if rise.part == part and rise.counter == counter and rise.number in (None, number)]
    return len(context.hardware.workloads[node.name]) * sum(own)


def _kernel_log(context: Context, node: Node) -> dict[str, t.Any]:
    """One line with each workload, and the Xids that faults write with it."""
    xids, last_s = [], 0.0
    for began in context.hardware.workloads[node.name]:
        last_s = (began - _BOOTED).total_seconds()
        for gpu, code, words in (item for fault in node.faults for item in fault.xids()):
            bus = gpu_identity(context, gpu).bus_id[4:-2].lower()
            line = f"NVRM: Xid (PCI:{bus}): {code}, {words}"
            xids.append({"at_s": last_s, "at": f"{began:%Y-%m-%dT%H:%M:%SZ}", "code": code, "bus_id": bus, "line": line})
    return {"last_s": last_s, "xids": xids}


def _gpu(context: Context, node: Node, gpu: int) -> dict[str, t.Any]:
    identity = gpu_identity(context, gpu)

    def risen(counter: str) -> int:
        return _risen(context, node, "gpu", gpu, counter)

    pending = any(fault.kind == "remap_pending" and getattr(fault, "gpu", None) == gpu for fault in node.faults)
    pending = pending or risen("ecc_uncorrectable") > 0
    links = _NVLINKS.get(node.gpu.family, 0) if node.gpu.nvlink else 0
    return {
        "number": gpu,
        "uuid": identity.uuid,
        "serial": identity.serial,
        "bus_id": identity.bus_id,
        "name": node.gpu.device_name,
        "vbios": "96.00.A5.00.01",
        "part_number": "692-2G520-0282-001",
        "mig": "Disabled",
        "pcie": {
            "generation": 5,
            "max_generation": 5,
            "width": int(16 * node.part_share("pcie", gpu)),
            "max_width": 16,
            "replays": risen("pcie_replays"),
        },
        "ecc": {
            "enabled": True,
            "correctable": risen("ecc_correctable"),
            "correctable_ever": risen("ecc_correctable"),
            "uncorrectable": risen("ecc_uncorrectable"),
            "uncorrectable_ever": risen("ecc_uncorrectable"),
            "sram_threshold_exceeded": False,
            "unrepairable": False,
            "repair_pending": False,
        },
        "remapped_rows": {"correctable": 0, "uncorrectable": int(pending), "pending": pending, "failure": False},
        "retired_pages": {"single_bit": None, "double_bit": None, "pending": None},
        "clocks": {"sm_mhz": 345, "max_sm_mhz": 1980, "memory_mhz": 2619, "max_memory_mhz": 2619},
        "slowed_by": ["gpu_idle"],
        "slowed_us": {name: risen(name) for name in _SLOWED},
        "power": {"limit_w": 700.0, "default_w": 700.0},
        "temperature_c": 31,
        "recovery_action": "None",
        "fabric": {"state": "Completed", "status": "Success"},
        "nvlinks": _nvlinks(links, risen) if links else None,
    }


def _nvlinks(links: int, risen: t.Callable[[str], int]) -> dict[str, t.Any]:
    counters = {str(link): {name: risen(f"nvlink{link}_{name}") for name in _ERRORS} for link in range(links)}
    errors = {name: sum(counted[name] for counted in counters.values()) for name in _ERRORS}
    return {"links": links, "inactive": [], "errors": errors, "counters": counters}


def _topology(gpus: int, node: Node) -> list[str]:
    names = [f"GPU{number}" for number in range(gpus)]
    way = f"NV{_NVLINKS.get(node.gpu.family, 0)}" if node.gpu.nvlink else "NODE"
    head = "\t" + "\t".join(names)
    return [head, *("\t".join([row, *(" X " if row == column else way for column in names)]) for row in names)]


def _nic(context: Context, node: Node, number: int) -> dict[str, t.Any]:
    ethernet = node.fabric == "roce"
    port = {
        "number": 1,
        "state": "ACTIVE",
        "physical": "LinkUp",
        "rate": _RATES.get(node.gpu.nic_gb_s, "400 Gb/sec (4X NDR)"),
        "link_layer": "Ethernet" if ethernet else "InfiniBand",
        "gids": {"0": {"gid": f"fe80:0000:0000:0000:0200:00ff:fe00:{number:04x}", "type": "RoCE v2" if ethernet else "IB/RoCE v1"}},
        "counters": {name: _risen(context, node, "nic", number, name) for name in _COUNTERS},
    }
    numa = 2 * number // max(1, node.gpu.nics)
    return {
        "device": f"mlx5_{number}",
        "model": "MT4129",
        "board": "MT_0000000838",
        "firmware": next((str(getattr(fault, "version", "")) for fault in node.faults if fault.kind == "old_firmware"), "28.39.1002"),
        "numa_node": numa,
        "ports": [port],
    }
