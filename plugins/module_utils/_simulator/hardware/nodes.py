# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The GPU nodes of a definition: where they sit, what they carry, what is wrong with them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator

from .definition import Definition
from .faults import Fault, Part
from .gpus import GpuProduct
from .platforms import Seat


@dataclasses.dataclass(frozen=True)
class Node:
    """A simulated GPU node. `clique` is the full NVLink domain id, "" where NVLink ends at the node."""

    seat: Seat
    clique: str
    fabric: str
    nics: dict[str, int]
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """Of the Node object."""
        return self.seat.name

    @property
    def rack(self) -> str:
        """The name of its rack."""
        return self.seat.rack

    @property
    def gpu(self) -> GpuProduct:
        """The product that it carries."""
        return self.seat.gpu

    def part_share(self, part: Part, number: int = 0) -> float:
        """The share of its speed that the worst fault leaves to a part."""
        return min((fault.part_share(part, number) for fault in self.faults), default=1.0)

    @property
    def hides_rdma(self) -> bool:
        """A fault keeps RDMA devices from its containers."""
        return any(fault.hides_rdma() for fault in self.faults)


def build_nodes(definition: Definition) -> Iterator[Node]:
    """The GPU nodes of a definition, rack by rack."""
    racks = [(pool, rack) for pool in definition.pools for rack in range(pool.racks)]
    by_node: dict[str, list[Fault]] = {}
    for fault in definition.faults:
        for name in fault.where():
            by_node.setdefault(name, []).append(fault)
    for rack_number, (pool, _rest) in enumerate(racks):
        for number in range(pool.nodes_per_rack):
            seat = Seat(f"gpu-r{rack_number}-n{number:02d}", f"r{rack_number}", rack_number, number, pool.gpu)
            yield Node(
                seat=seat,
                clique=_clique(definition.seed, seat),
                fabric=definition.fabric,
                nics=_nics(definition, pool.gpu),
                faults=tuple(by_node.get(seat.name, ())),
            )


def _clique(seed: int, seat: Seat) -> str:
    """The NVLink domain id as the DRA driver and GPU feature discovery write it: cluster UUID, dot, clique id."""
    if not seat.gpu.clique_nodes:
        return ""
    digits = seat.rack_digest(32, f"clique-{seed}-{seat.number // seat.gpu.clique_nodes}")
    return f"{uuid.UUID(digits)}.32766"


def _nics(definition: Definition, gpu: GpuProduct) -> dict[str, int]:
    if definition.fabric == "tcp":
        return {}
    if definition.fabric == "efa":
        return {"vpc.amazonaws.com/efa": gpu.efa_nics}
    resources = definition.platform.nics(gpu)
    if "vpc.amazonaws.com/efa" in resources:  # AWS with InfiniBand or RoCE: what a shared device plugin would offer
        return {"rdma/hca_shared_devices_a": gpu.nics}
    return {name: count for name, count in resources.items() if count}
