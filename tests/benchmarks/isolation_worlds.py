# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated clusters with planted faults, for measuring isolation methods.

A test returns the worst of the faults it exercises, times noise, as a share of what a healthy group reaches:

=============  =====================================================================================
fault          shows in
=============  =====================================================================================
node           every test with the node
nic            every test of several nodes over the network
nvlport        every test over NVLink with another node of its domain
intermittent   like nic, with probability `p` per test
pair           a network test with both nodes
uplink         a test that leaves the domain; with `load` only if at least 8 of its nodes take part
trunk          a test over NVLink between nodes with nodes of both sides
=============  =====================================================================================
"""

from __future__ import annotations

import dataclasses
import math
import random
import typing as t

ACCEPTED = 0.90
SPREAD = 0.003


@dataclasses.dataclass(frozen=True)
class Fault:
    """nodes: the node, the pair, the members of the domain (uplink) or one side (trunk; other: the other side)."""

    kind: str
    nodes: frozenset[int]
    factor: float
    p: float = 1.0
    load: bool = False
    other: frozenset[int] = frozenset()
    size: int = 0


class World:
    """rack: size of a domain; sizes: one size for each domain instead. bare: nodes carry no label."""

    def __init__(
        self,
        count: int,
        rack: int,
        faults: t.Sequence[Fault],
        sigma: float,
        seed: int,
        mnnvl: bool = False,
        bare: bool = False,
        sizes: t.Sequence[int] = (),
    ):
        self.count, self.rack, self.sigma, self.mnnvl, self.bare = count, rack, sigma, mnnvl, bare
        sizes = sizes or [min(rack, count - at) for at in range(0, count, rack)]
        self.home = [number for number, size in enumerate(sizes) for _node in range(size)]
        self.faults = list(faults)
        self.random = random.Random(seed)
        self.spread = [math.exp(self.random.gauss(0, SPREAD)) for _node in range(count)]
        self.names = [f"n{node:04d}" for node in range(count)]

    def nodes(self) -> list[dict[str, t.Any]]:
        """What the planner is given."""
        return [{"name": name, "domain": None if self.bare else f"r{self.home[at]:03d}"} for at, name in enumerate(self.names)]

    def domains(self) -> list[list[int]]:
        """Members of each rack."""
        result: dict[int, list[int]] = {}
        for node, home in enumerate(self.home):
            result.setdefault(home, []).append(node)
        return list(result.values())

    def labelled(self) -> list[list[int]]:
        """Nodes by their label; those without one together."""
        return [list(range(self.count))] if self.bare else self.domains()

    def passes(self, nodes: t.Iterable[int], transport: str) -> bool:
        """One run of a group against the limit."""
        return self.measure(nodes, transport) >= ACCEPTED

    def shows(self, fault: Fault, members: frozenset[int], transport: str) -> bool:
        """Does this test exercise the fault? Chance included."""
        inside = fault.nodes & members
        if not inside:
            return False
        if fault.kind == "node":
            return True
        if len(members) < 2:
            return False
        net = transport == "net"
        if fault.kind == "nic":
            return net
        if fault.kind == "intermittent":
            return net and self.random.random() < fault.p
        if fault.kind == "nvlport":
            home = self.home[min(fault.nodes)]
            return not net and sum(self.home[node] == home for node in members) > 1
        if fault.kind == "pair":
            return net and len(inside) == 2
        if fault.kind == "uplink":
            return net and bool(members - fault.nodes) and (not fault.load or len(inside) >= 8)
        return not net and bool(fault.other & members)

    def measure(self, nodes: t.Iterable[int], transport: str) -> float:
        """Share of the expected value that this group reaches."""
        members = frozenset(nodes)
        worst = min((self.spread[node] for node in members), default=1.0)
        for fault in self.faults:
            if self.shows(fault, members, transport):
                worst = min(worst, fault.factor)
        return worst * math.exp(self.random.gauss(0, self.sigma))

    def observable(self) -> list[Fault]:
        """Faults that no other fault hides: a pair with a broken end or behind a broken uplink cannot be told apart."""
        broken = {node for fault in self.faults if fault.kind in ("node", "nic", "intermittent") for node in fault.nodes}
        uplinks = [fault.nodes for fault in self.faults if fault.kind == "uplink"]
        result = []
        for fault in self.faults:
            hidden = fault.kind == "pair" and (
                fault.nodes & broken or any(fault.nodes & nodes and not fault.nodes <= nodes for nodes in uplinks)
            )
            if not hidden:
                result.append(fault)
        return result


def plant(
    kinds: t.Sequence[str], count: int, rack: int, chance: random.Random, p: float = 1.0, load: bool = False, apart: bool = False
) -> list[Fault]:
    """One fault of each kind in `kinds`, on distinct components. apart: each in a rack of its own."""
    taken: set[int] = set()
    racks_used: set[int] = set()
    faults = []
    for kind in kinds:
        for _try in range(200):
            fault = _one(kind, count, rack, chance, p, load)
            racks = {node // rack for node in fault.nodes}
            if fault.nodes & taken or (apart and racks & racks_used):
                continue
            taken |= fault.nodes if kind not in ("uplink", "trunk") else set()
            racks_used |= racks
            if kind in ("uplink", "trunk") and any(other.kind == kind and other.nodes & fault.nodes for other in faults):
                continue
            faults.append(fault)
            break
    return faults


def _one(kind: str, count: int, rack: int, chance: random.Random, p: float, load: bool) -> Fault:
    factor = chance.uniform(0.35, 0.80)
    node = chance.randrange(count)
    first = node // rack * rack
    home = list(range(first, min(first + rack, count)))
    if kind in ("pair", "crosspair"):
        near = [other for other in home if other != node]
        far = [other for other in range(count) if other // rack != node // rack]
        pool = (near or far) if kind == "pair" else (far or near)
        return Fault("pair", frozenset((node, chance.choice(pool) if pool else node)), factor)
    if kind == "uplink":
        return Fault("uplink", frozenset(home), factor, load=load)
    if kind == "trunk":
        cut = len(home) // 2
        return Fault("trunk", frozenset(home[:cut]), factor, other=frozenset(home[cut:]))
    return Fault(kind, frozenset((node,)), factor, p=p)
