# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Random clusters as they are in the wild, to measure isolation where the easy assumptions do not hold.

A wild world has racks of unequal size, labels on some nodes or none, perhaps NVLink domains, a smallest group, limited
concurrency, runs that cannot be measured, nodes that are lost or never start, and faults down to just below the limit.
What the planner is told differs too:

========  ==================================================================================
told      a result carries
========  ==================================================================================
exact     the value and what a healthy group of this shape and size reaches; the limit is 0.90 of it
floor     the value and the limit as the expected value, 0.78 of healthy
one       the value, and whether it meets one limit for all shapes
shape     the value, and whether it meets the limit of its shape, 0.90 of healthy
binary    only whether it meets the limit
========  ==================================================================================

Faults beyond those of `isolation_worlds`:

=============  =====================================================================================
xbound         a test with nodes of both racks (`nodes`, `other`) over the network
scale          a network test of at least `size` nodes: nobody in particular is bad
spine          network tests across racks of one wave that together have at least `size` nodes
route          a network test with a pair across racks that a bad spine link carries
=============  =====================================================================================
"""

from __future__ import annotations

import dataclasses
import math
import random
import typing as t

from .isolation_worlds import Fault, World

# What healthy groups reach, by shape; a little less for each doubling of the group.
FULL = {"single": 455.0, "domain-nvl": 860.0, "domain-net": 392.0, "cross": 376.0}
SLOPE = 0.004
TOLD = ("exact", "floor", "one", "shape", "binary")
SHARES = {"exact": 0.90, "shape": 0.90, "binary": 0.90, "floor": 0.78, "one": 0.78}
SINGLE_KINDS = ("node", "nic", "nvlport", "intermittent")


class Request(t.Protocol):
    """One test, as the planner asks for it."""

    id: str
    transport: str
    nodes: tuple[int, ...]
    wave: int


class Run(t.NamedTuple):
    """A test that no planner asked for."""

    id: str
    transport: str
    nodes: tuple[int, ...]
    wave: int


@dataclasses.dataclass
class Conditions:
    """What makes a world wild; the defaults are those of an easy one."""

    told: str = "exact"
    unlabelled: frozenset[int] = frozenset()
    unmeasured: float = 0.0  # share of runs that cannot be measured
    transient: float = 0.0  # share of runs that are slow by chance
    stuck: frozenset[int] = frozenset()  # nodes whose tests never start
    lost: dict[int, int] = dataclasses.field(default_factory=dict)  # node: wave from which it is gone
    nvl_never_above: int = 0  # NVLink jobs of more nodes never start
    options: dict[str, t.Any] = dataclasses.field(default_factory=dict)  # of the planner


class WildWorld(World):
    """A world under `conditions`. Faults name nodes as in `isolation_worlds`."""

    def __init__(
        self, sizes: t.Sequence[int], faults: t.Sequence[Fault], sigma: float, seed: int, conditions: Conditions, mnnvl: bool = False
    ):
        super().__init__(sum(sizes), max(sizes), faults, sigma, seed, mnnvl=mnnvl, sizes=sizes)
        self.conditions = conditions
        self.runs = 0
        self.routes = random.Random(seed + 1).getrandbits(64)

    def nodes(self) -> list[dict[str, t.Any]]:
        """What the planner is given: some nodes without a label."""
        told = super().nodes()
        return [{**item, "domain": None} if at in self.conditions.unlabelled else item for at, item in enumerate(told)]

    def labelled(self) -> list[list[int]]:
        """Nodes by their label; those without one together."""
        bare = self.conditions.unlabelled
        groups = [[node for node in members if node not in bare] for members in self.domains()]
        return [group for group in [*groups, sorted(bare)] if group]

    def passes(self, nodes: t.Iterable[int], transport: str) -> bool:
        """One run of a group against the limit; what cannot be measured does not pass."""
        self.runs += 1
        members = tuple(sorted(nodes))
        test = Run(f"t{self.runs}", transport if len(members) > 1 else "net", members, self.runs)
        return self.answer([test])[0].get("passed") is True

    def shows(self, fault: Fault, members: frozenset[int], transport: str) -> bool:
        """Does this test exercise the fault? Chance included."""
        net = transport == "net" and len(members) > 1
        if fault.kind == "xbound":
            return net and bool(members & fault.nodes) and bool(members & fault.other)
        if fault.kind == "scale":
            return net and len(members) >= fault.size
        if fault.kind == "route":
            return net and any(self.carries(a, b, fault) for a in members for b in members if a < b)
        return fault.kind != "spine" and super().shows(fault, members, transport)

    def carries(self, a: int, b: int, fault: Fault) -> bool:
        """Whether the bad spine link carries the traffic of these two: `p` of all pairs across racks, always the same."""
        mixed = ((self.routes ^ (a * 65537 + b)) * 0x9E3779B97F4A7C15 >> 20) % 1_000_003
        return self.home[a] != self.home[b] and mixed < fault.p * 1_000_003

    def healthy(self, shape: str, size: int) -> float:
        """What a healthy group reaches."""
        return FULL[shape] * (1 - SLOPE * math.log2(size))

    def limit(self, shape: str, size: int) -> float:
        """The value that the user's criterion asks of such a test."""
        share = SHARES[self.conditions.told]
        return share * (self.healthy("cross", self.count) if self.conditions.told == "one" else self.healthy(shape, size))

    def true_shape(self, test: Request) -> str:
        """The shape that the fabric sees, whatever the labels say."""
        if len(test.nodes) == 1:
            return "single"
        inside = len({self.home[node] for node in test.nodes}) == 1
        return f"domain-{test.transport}" if inside else "cross"

    def answer(self, wave: t.Sequence[Request]) -> list[dict[str, t.Any]]:
        """The results of one wave."""
        crossing = sum(len(test.nodes) for test in wave if self.true_shape(test) == "cross")
        jammed = [fault.factor for fault in self.faults if fault.kind == "spine" and crossing >= fault.size]
        return [self.result(test, min(jammed, default=1.0) if self.true_shape(test) == "cross" else 1.0) for test in wave]

    def result(self, test: Request, jam: float = 1.0) -> dict[str, t.Any]:
        """One result, as the planner takes it."""
        now = self.conditions
        gone = [node for node in test.nodes if now.lost.get(node, 10**9) <= test.wave]
        if gone:
            return {"id": test.id, "outcome": "unmeasured", "reason": "the node went away", "lost": [self.names[node] for node in gone]}
        never = test.transport == "nvl" and 0 < now.nvl_never_above < len(test.nodes)
        if never or now.stuck & set(test.nodes) or self.random.random() < now.unmeasured:
            return {"id": test.id, "outcome": "unmeasured", "reason": "ImagePull: no image"}
        ratio = min(self.measure(test.nodes, test.transport), jam * math.exp(self.random.gauss(0, self.sigma)))
        if now.transient and self.random.random() < now.transient:
            ratio *= self.random.uniform(0.4, 0.85)
        shape, size = self.true_shape(test), len(test.nodes)
        value, limit = ratio * self.healthy(shape, size), self.limit(shape, size)
        told: dict[str, t.Any] = {"id": test.id, "outcome": "measured", "passed": value >= limit}
        if now.told != "binary":
            told["value"] = value
        if now.told == "exact":
            told["expected"] = self.healthy(shape, size)
        elif now.told == "floor":
            told["expected"] = limit
        return told

    def observable(self) -> list[Fault]:
        """Faults that no other fault and no missing node hides."""
        missing = set(self.conditions.stuck) | set(self.conditions.lost)
        found = super().observable()
        cut = [fault.nodes for fault in self.faults if fault.kind == "uplink"]
        broken = {node for fault in self.faults if fault.kind in ("node", "nic") for node in fault.nodes}
        out = missing | broken
        result = []
        for fault in found:
            sides = [fault.nodes, fault.other] if fault.kind in ("xbound", "trunk") else [fault.nodes]
            lame = any(side <= out if fault.kind in ("uplink", "xbound", "trunk") else side & missing for side in sides if side)
            behind = fault.kind == "xbound" and any(side <= nodes for nodes in cut for side in sides)
            if not lame and not behind:
                result.append(fault)
        return result


def random_sizes(chance: random.Random, mnnvl: bool) -> list[int]:
    """Sizes of 2 to 24 racks; every third cluster has racks of one size, some have small ones."""
    if mnnvl:
        whole = chance.choice((4, 8, 9, 16, 18))
        sizes = [whole] * chance.randint(2, 8)
        return [*sizes, chance.randint(2, whole)] if chance.random() < 0.3 else sizes
    racks = chance.choice((2, 3, 4, 6, 8, 12, 16, 24))
    kind = chance.random()
    if kind < 0.35:
        return [chance.choice((4, 8, 12, 16))] * racks
    if kind < 0.5:
        return [chance.choice((1, 2, 3)) for _rack in range(max(4, racks))]
    return [chance.randint(2, 20) for _rack in range(racks)]


def wild_world(seed: int, chance: random.Random) -> WildWorld:
    """Everything persistent at once; chance decides how wild it is."""
    mnnvl = chance.random() < 0.2
    sizes = random_sizes(chance, mnnvl)
    count = sum(sizes)
    now = Conditions(told=chance.choices(TOLD, (4, 1, 1, 3, 1))[0])
    if not mnnvl and chance.random() < 0.1:
        share = chance.choice((0.2, 1.0))
        now.unlabelled = frozenset(node for node in range(count) if chance.random() < share)
    if chance.random() < 0.1:
        now.options["min_group_size"] = chance.choice((3, 4, 8))
    if chance.random() < 0.3:
        now.options["max_concurrent"] = chance.choice((1, 2, 4, 16))
    if chance.random() < 0.2:
        now.unmeasured = chance.uniform(0.02, 0.2)
    if chance.random() < 0.1:
        now.stuck = frozenset(chance.sample(range(count), min(count // 4, chance.randint(1, 2))))
    if chance.random() < 0.1:
        now.lost = {node: chance.randint(1, 6) for node in chance.sample(range(count), min(count // 4, chance.randint(1, 2)))}
    sigma = chance.uniform(0.01, 0.04)
    faults = plant_wild(sizes, chance, now, sigma, mnnvl)
    return WildWorld(sizes, faults, sigma, seed, now, mnnvl)


def plant_wild(sizes: t.Sequence[int], chance: random.Random, now: Conditions, sigma: float, mnnvl: bool) -> list[Fault]:
    """Up to five persistent faults on distinct components, each far or just far enough below the limit."""
    racks, at = [], 0
    for size in sizes:
        racks.append(list(range(at, at + size)))
        at += size
    kinds = ["node", "nic", "nic", "pair", "crosspair", "uplink", "xbound", *(("nvlport", "trunk") if mnnvl else ())]
    taken: set[int] = set()
    cut: set[int] = set()
    faults: list[Fault] = []
    for _fault in range(chance.randint(0, 5)):
        kind = chance.choice(kinds)
        fault = _wild(kind, racks, chance, _factor(now, sigma, chance, kind))
        if fault is None or fault.nodes & taken:
            continue
        if kind in ("uplink", "xbound"):
            ends = {number for number, rack in enumerate(racks) if (fault.nodes | fault.other) & set(rack)}
            labelled = not (fault.nodes | fault.other) & now.unlabelled
            if ends & cut or not labelled or 2 * (len(cut) + len(ends)) >= len(racks):
                continue  # where most boundaries are bad nobody is left to compare with
            cut |= ends
        if kind in SINGLE_KINDS or kind in ("pair", "crosspair"):
            taken |= fault.nodes
        if kind == "trunk" and any(other.kind == "trunk" and other.nodes & fault.nodes for other in faults):
            continue
        faults.append(fault)
    return faults


def _factor(now: Conditions, sigma: float, chance: random.Random, kind: str) -> float:
    """A share of healthy that every kind of test shows as a miss; one fault of five is only just below the limit."""
    share = SHARES[now.told]
    if now.told == "one":
        # One limit for all shapes: a test that exceeds it by far while healthy hides what is not deep.
        full = {"node": FULL["single"], "nvlport": FULL["domain-nvl"], "trunk": FULL["domain-nvl"]}.get(kind, FULL["domain-net"])
        share = share * FULL["cross"] * (1 - SLOPE * 9) / full
    top = share * math.exp(-3 * sigma)
    return chance.uniform(0.94 * top, top) if chance.random() < 0.2 else chance.uniform(min(0.35, 0.7 * top), 0.94 * top)


def _wild(kind: str, racks: list[list[int]], chance: random.Random, factor: float) -> Fault | None:
    home = chance.choice(racks)
    node = chance.choice(home)
    away = [other for rack in racks if rack is not home for other in rack]
    if kind == "pair":
        near = [other for other in home if other != node]
        return Fault("pair", frozenset((node, chance.choice(near))), factor) if near else None
    if kind == "crosspair":
        return Fault("pair", frozenset((node, chance.choice(away))), factor) if away else None
    if kind == "uplink":
        return Fault("uplink", frozenset(home), factor) if away and len(racks) > 2 else None
    if kind == "xbound":
        other = chance.choice(racks)
        return Fault("xbound", frozenset(home), factor, other=frozenset(other)) if other is not home and len(racks) > 2 else None
    if kind == "trunk":
        cut = chance.randint(2, len(home) - 2) if len(home) > 3 else 0
        return Fault("trunk", frozenset(home[:cut]), factor, other=frozenset(home[cut:])) if cut else None
    if kind == "nvlport" and len(home) < 2:
        return None
    return Fault(kind, frozenset((node,)), factor)
