# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""`node_facts.py`: the fact sheet of a simulated node. All is well but what a planted fault says of a GPU or a NIC."""

from __future__ import annotations

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
        "nics": [_nic(node, number) for number in range(node.gpu.nics)] if node and node.nics and not node.hides_rdma else [],
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


def _gpu(context: Context, node: Node, gpu: int) -> dict[str, t.Any]:
    identity = gpu_identity(context, gpu)
    pending = any(fault.kind == "remap_pending" and getattr(fault, "gpu", None) == gpu for fault in node.faults)
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
        "pcie": {"generation": 5, "max_generation": 5, "width": int(16 * node.part_share("pcie", gpu)), "max_width": 16, "replays": 0},
        "ecc": {
            "enabled": True,
            "uncorrectable": 0,
            "uncorrectable_ever": 0,
            "sram_threshold_exceeded": False,
            "unrepairable": False,
            "repair_pending": False,
        },
        "remapped_rows": {"correctable": 0, "uncorrectable": int(pending), "pending": pending, "failure": False},
        "retired_pages": {"single_bit": None, "double_bit": None, "pending": None},
        "clocks": {"sm_mhz": 345, "max_sm_mhz": 1980, "memory_mhz": 2619, "max_memory_mhz": 2619},
        "slowed_by": ["gpu_idle"],
        "power": {"limit_w": 700.0, "default_w": 700.0},
        "temperature_c": 31,
        "recovery_action": "None",
        "fabric": {"state": "Completed", "status": "Success"},
        "nvlinks": {"links": links, "inactive": [], "errors": dict.fromkeys(_ERRORS, 0)} if links else None,
    }


def _topology(gpus: int, node: Node) -> list[str]:
    names = [f"GPU{number}" for number in range(gpus)]
    way = f"NV{_NVLINKS.get(node.gpu.family, 0)}" if node.gpu.nvlink else "NODE"
    head = "\t" + "\t".join(names)
    return [head, *("\t".join([row, *(" X " if row == column else way for column in names)]) for row in names)]


def _nic(node: Node, number: int) -> dict[str, t.Any]:
    ethernet = node.fabric == "roce"
    port = {
        "number": 1,
        "state": "ACTIVE",
        "physical": "LinkUp",
        "rate": _RATES.get(node.gpu.nic_gb_s, "400 Gb/sec (4X NDR)"),
        "link_layer": "Ethernet" if ethernet else "InfiniBand",
        "gids": {"0": {"gid": f"fe80:0000:0000:0000:0200:00ff:fe00:{number:04x}", "type": "RoCE v2" if ethernet else "IB/RoCE v1"}},
        "counters": dict.fromkeys(_COUNTERS, 0),
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
