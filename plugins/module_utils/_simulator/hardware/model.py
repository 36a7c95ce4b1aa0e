# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The hardware model: how fast a collective runs on which nodes.

A run's bandwidth is what healthy hardware of that shape gives, times the share left by the worst fault it exercises, times noise
that is log-normal with the definition's sigma. Everything is a pure function of the definition's seed and of the run.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
import random
import typing as t
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from .definition import Definition
from .faults import Exercise
from .gpus import GpuProduct
from .node_objects import cpu_node_object, node_object
from .nodes import Node, build_nodes

_NODE_SPREAD = 0.003  # relative spread between equal nodes
_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Path:
    """How data of one run travels, as the program's environment and the pods' devices allow.

    network:       ib, roce, efa or socket; what is used between NVLink domains.
    nvls:          NVLink SHARP may be used.
    peer_access:   GPUs of a node reach each other over NVLink or PCIe; False sends even that through NICs (loopback).
    shared_memory: without peer access, through host memory instead of NICs.
    mnnvl:         NVLink between nodes may be used.
    """

    network: str
    nvls: bool = True
    peer_access: bool = True
    shared_memory: bool = True
    mnnvl: bool = True


@dataclasses.dataclass(frozen=True)
class Speed:
    """The result of the model for one run.

    peak_gb_s:  bus bandwidth at 8 GiB, noise and faults included.
    latency_us: of an empty operation.
    ramp_bytes: how late the plateau is reached.
    """

    peak_gb_s: float
    latency_us: float
    ramp_bytes: float

    def time_us(self, size_bytes: float, factor: float) -> float:
        """µs of one operation on so many bytes; factor is bus bandwidth over algorithm bandwidth."""
        if size_bytes <= 0:
            return self.latency_us
        slope = (1 + math.sqrt(self.ramp_bytes / size_bytes)) / (1 + math.sqrt(self.ramp_bytes / (8 * _GIB)))
        return self.latency_us + size_bytes * factor / (self.peak_gb_s * 1e3) * slope


# Bus bandwidth of other collectives relative to all_reduce over a ring, inside a node.
_INSIDE = {
    "all_reduce": 1.0,
    "all_gather": 0.98,
    "reduce_scatter": 0.98,
    "broadcast": 0.96,
    "reduce": 0.96,
    "alltoall": 0.92,
    "alltoallv": 0.92,
    "sendrecv": 0.94,
    "gather": 0.9,
    "scatter": 0.9,
    "hypercube": 0.6,
}
_WITH_NVLS = ("all_reduce", "all_gather", "reduce_scatter")
_PER_GPU = ("alltoall", "alltoallv", "sendrecv", "gather", "scatter", "hypercube")
COLLECTIVES = tuple(_INSIDE)


class Hardware:
    """All nodes of a definition, and the model of their links."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.nodes: dict[str, Node] = {node.name: node for node in build_nodes(definition)}
        self._runs: Counter[tuple[str, frozenset[str]]] = Counter()
        # By node, when each of its workloads began: what wears it and makes its counters rise. Reading it is none.
        self.workloads: dict[str, list[datetime.datetime]] = defaultdict(list)

    def chance(self, *words: t.Any) -> random.Random:
        """A random stream that is a pure function of the seed and the words."""
        text = "/".join(map(str, (self.definition.seed, *words)))
        return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))

    def next_run(self, what: str, nodes: Iterable[str]) -> str:
        """A name for one more run of a program on a group of nodes: the same for the same history of that group."""
        key = (what, frozenset(nodes))
        self._runs[key] += 1
        return f"{what}|{','.join(sorted(key[1]))}|{self._runs[key]}"

    # -- the model ----------------------------------------------------------------------------------------------------

    def exercise(self, run: str, names: Sequence[str], path: Path) -> Exercise:
        """What a run on these nodes touches."""
        nodes = [self.nodes[name] for name in names]
        cliques = {node.clique or node.name for node in nodes}
        over_mnnvl = path.mnnvl and any(node.clique for node in nodes) and len(nodes) > len(cliques)
        domains = len(cliques) if path.mnnvl else len(nodes)
        loopback = not path.peer_access and not path.shared_memory
        return Exercise(
            nodes={node.name: node.rack for node in nodes},
            over_nic=domains > 1 or loopback,
            over_mnnvl=over_mnnvl,
            chance=lambda *words: self.chance("felt", run, *words).random(),
        )

    def speed(self, run: str, collective: str, names: Sequence[str], ranks_per_node: int, path: Path) -> Speed:
        """How fast a collective is on these nodes in this run."""
        healthy = self.healthy_speed(collective, names, ranks_per_node, path, self.chance("tcp", *sorted(names)))
        exercise = self.exercise(run, names, path)
        left = min((fault.limit(exercise) for fault in self.definition.faults), default=1.0)
        spread = min(1 - abs(self.chance("spread", name).gauss(0, _NODE_SPREAD)) for name in names)
        noise = math.exp(self.chance("noise", run).gauss(0, self.definition.noise))
        return dataclasses.replace(healthy, peak_gb_s=max(healthy.peak_gb_s * left * spread * noise, 1e-3))

    def jitter(self, run: str) -> random.Random:
        """The stream for differences between the rows of one run."""
        return self.chance("rows", run)

    def healthy_speed(self, collective: str, names: Sequence[str], ranks: int, path: Path, tcp: random.Random) -> Speed:
        """The same without faults and noise. ranks: of one node; tcp: what the speed of a run over TCP is drawn from."""
        nodes = [self.nodes[name] for name in names]
        gpu = min((node.gpu for node in nodes), key=lambda item: (item.nvls_gb_s or item.ring_gb_s, item.nic_gb_s * item.nics))
        exercise = self.exercise("", names, path)
        inside = self._inside(collective, gpu, path)
        if exercise.over_nic and path.network == "socket":
            return Speed(tcp.uniform(1.6, 4.8), 120 + 20 * math.log2(len(nodes) + 1), 1 << 20)
        if not exercise.multi_node:
            if exercise.over_nic:
                return Speed(min(inside, self._rails(gpu, ranks) * 0.9), 25, 4 << 20)
            return Speed(inside, 12 if gpu.nvlink else 30, 0.7e6)
        if not exercise.over_nic:
            return Speed(min(gpu.mnnvl_gb_s, gpu.mnnvl_gb_s * _INSIDE[collective]), 14 + 2 * math.log2(len(nodes)), 6e6)
        cliques = {node.clique or node.name for node in nodes}
        if exercise.over_mnnvl and collective not in _PER_GPU:
            # NVLink carries most of the traffic; the share that crosses domains weighs more with every domain.
            share = max(0.3, 0.956 - 0.143 * math.log2(len(cliques) / 2))
            return Speed(gpu.mnnvl_gb_s * share * _INSIDE[collective], 30 + 4 * math.log2(len(nodes)), 20e6)
        return Speed(min(inside, self._between(collective, gpu, ranks, len(nodes), path)), *self._net_shape(path, len(nodes)))

    @staticmethod
    def _inside(collective: str, gpu: GpuProduct, path: Path) -> float:
        if not path.peer_access:
            return min(gpu.ring_gb_s or 20.0, 18.0) * _INSIDE[collective] if path.shared_memory else gpu.ring_gb_s or 20.0
        if gpu.gpus_per_node == 1 or not gpu.ring_gb_s:
            return gpu.hbm_gb_s / 2
        best = gpu.nvls_gb_s if path.nvls and gpu.nvls_gb_s and collective in _WITH_NVLS else gpu.ring_gb_s
        return best * _INSIDE[collective]

    @staticmethod
    def _rails(gpu: GpuProduct, ranks: int) -> float:
        """GB/s of all NICs that so many ranks of a node use."""
        return gpu.nic_gb_s * max(1.0, min(gpu.nics, ranks * gpu.nics / gpu.gpus_per_node))

    def _between(self, collective: str, gpu: GpuProduct, ranks: int, nodes: int, path: Path) -> float:
        fabric = {"ib": 1.0, "roce": 0.97, "efa": 0.88}.get(path.network, 1.0)
        rails = self._rails(gpu, ranks) * fabric
        if collective in _PER_GPU:
            per_gpu = rails / ranks * 0.88
            return per_gpu * nodes / (nodes - 1) if collective.startswith("alltoall") else per_gpu
        # Two nodes profit from the NVLink tree beyond the line rate of their NICs; rings do not.
        if nodes == 2 and path.nvls and gpu.nvls_gb_s and collective in _WITH_NVLS and ranks > 1:
            return rails * 1.16 * _INSIDE[collective]
        return rails * (0.98 - 0.012 * math.log2(nodes)) * _INSIDE[collective]

    @staticmethod
    def _net_shape(path: Path, nodes: int) -> tuple[float, float]:
        latency = {"efa": 55.0}.get(path.network, 22.0) + 5 * math.log2(nodes)
        return latency, 4e6 * math.sqrt(nodes / 2)

    # -- the Node objects ---------------------------------------------------------------------------------------------

    def node_objects(self) -> list[dict[str, t.Any]]:
        """All Node objects to register, CPU nodes last."""
        gpu_nodes = [node_object(node, self.definition) for node in self.nodes.values()]
        return gpu_nodes + [cpu_node_object(number, self.definition) for number in range(self.definition.cpu_nodes)]
