# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a run of nccl-tests: hosts, ranks, and the paths between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from ..hardware.gpus import GpuProduct
from ..hardware.model import Path
from ..hardware.nodes import Node
from ..hardware.seam import PodView
from .context import gpus_of, sees_rdma
from .nccl_info import HostNetwork, usable_hcas
from .nccl_tests import Rank

_PCI_8 = ("18", "29", "3a", "4b", "5c", "6d", "7e", "8f")
_PCI_4 = ("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00")
_LINKS = {"ib": "IB", "roce": "RoCE", "efa": "EFA"}


@dataclasses.dataclass
class Member:
    """A host that takes part: its name for the launcher, its pod and node, its processes."""

    host: str
    pod: PodView
    node: Node
    processes: int


def host_name_of(pod: PodView) -> str:
    """The name that a process in the pod prints of its host."""
    if pod.manifest.get("spec", {}).get("hostNetwork"):
        return pod.node
    return pod.host_name.split(".")[0]


def ranks_of(members: Sequence[Member], per_process: int, pid_of: Callable[[int], int]) -> list[Rank]:
    """The ranks of all members, each process with so many GPUs. pid_of: the process id of a process by its number."""
    ranks: list[Rank] = []
    process = 0
    for member in members:
        for local in range(member.processes * per_process):
            ranks.append(
                Rank(
                    number=len(ranks),
                    host=host_name_of(member.pod),
                    node=member.node.name,
                    device=local,
                    local=local,
                    pid=pid_of(process + local // per_process),
                    pci=_pci_address(member.node.gpu, local),
                    gpu_name=member.node.gpu.device_name,
                    ip=member.pod.pod_ip or "10.0.0.1",
                )
            )
        process += member.processes
    return ranks


def _pci_address(gpu: GpuProduct, device: int) -> str:
    """The PCI address of a GPU, without the function."""
    if gpu.gpus_per_node == 4:
        return _PCI_4[device % 4]
    return f"0000:{_PCI_8[device % 8]}:00"


def lacks_gpus(member: Member, per_process: int) -> bool:
    """The pod of the member holds fewer GPUs than its processes ask for."""
    return member.processes * per_process > gpus_of(member.pod)


def network_of(member: Member, settings: Mapping[str, str]) -> HostNetwork:
    """The RDMA devices that NCCL finds on a member."""
    fabric, gpu = member.node.fabric, member.node.gpu
    link = _LINKS.get(fabric, "")
    if fabric == "tcp" or not sees_rdma(member.pod, member.node):
        return HostNetwork((), link)
    if fabric == "efa":
        return HostNetwork(tuple(f"rdmap{number}" for number in range(gpu.efa_nics)), link)
    return HostNetwork(usable_hcas(settings, [f"mlx5_{number}" for number in range(gpu.nics)]), link)


def path_of(members: Sequence[Member], settings: Mapping[str, str]) -> Path:
    """How data travels between the members under these NCCL settings."""
    networks = [network_of(member, settings) for member in members]
    off = settings.get("NCCL_IB_DISABLE") == "1" or settings.get("NCCL_NET", "").lower() == "socket"
    algorithms = settings.get("NCCL_ALGO", "").lower()
    return Path(
        network="socket" if off or not all(found.hcas for found in networks) else members[0].node.fabric,
        nvls=settings.get("NCCL_NVLS_ENABLE") != "0" and (not algorithms or "nvls" in algorithms),
        peer_access=settings.get("NCCL_P2P_DISABLE") != "1",
        shared_memory=settings.get("NCCL_SHM_DISABLE") != "1",
        mnnvl=settings.get("NCCL_MNNVL_ENABLE") != "0",
    )
