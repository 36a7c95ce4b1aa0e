# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Runs isolation on a simulated cluster and compares its conclusion with what was planted."""

from __future__ import annotations

import dataclasses
import math
import statistics
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import explain
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate.planner import Session, start
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.isolation import DEFAULT_BUDGET
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_wild import WildWorld
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_worlds import ACCEPTED, Fault, World
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.nvcre_method import Nvcre

EXPECTED = 400.0
NODE_CLASSES = {"node": "node", "nic": "nic", "nvl": "nvlport", "intermittent": "intermittent"}


@dataclasses.dataclass
class Score:
    """What one run got right."""

    faults: int = 0
    found: int = 0
    accused: int = 0
    rightly: int = 0
    node_accused: int = 0
    node_rightly: int = 0
    class_right: int = 0
    silent: bool = False
    false_accusation: bool = False
    grave: bool = False  # an innocent node, or a link nothing of which is bad
    unresolved: bool = False
    inconclusive: bool = False
    alarm: bool = False
    weak: int = 0
    tests: int = 0
    waves: int = 0
    node_minutes: float = 0.0
    wall: float = 0.0
    bound: int = 0
    stated: list[tuple[str, float, bool]] = dataclasses.field(default_factory=list)  # class, confidence, right


def run_session(world: World, **options: t.Any) -> Session:
    """Isolate in one go, in memory."""
    if isinstance(world, WildWorld):
        options = {"budget": dict(DEFAULT_BUDGET), **world.conditions.options, **options}
    session = Session(start(world.nodes(), {"mnnvl": world.mnnvl, **options}))
    while session.wave:
        if isinstance(world, WildWorld):
            session.deliver(world.answer(session.wave))
        else:
            session.deliver([result_of(world, trial.id, trial.nodes, trial.transport) for trial in session.wave])
    return session


def result_of(world: World, name: str, nodes: t.Iterable[int], transport: str) -> dict[str, t.Any]:
    """The result of one test in a world, as the planner takes it."""
    ratio = world.measure(nodes, transport)
    return {"id": name, "outcome": "measured", "value": EXPECTED * ratio, "expected": EXPECTED, "passed": ratio >= ACCEPTED}


def matches(world: World, fault: Fault, suspect: dict[str, t.Any]) -> bool:
    """Does the suspect name exactly this fault?"""
    nodes = frozenset(int(name[1:]) for name in suspect["nodes"])
    kind = suspect["component"]["kind"]
    if kind == "node":
        # One node and its uplink are one component, also when the other end of the only boundary is meant.
        other_end = frozenset(range(world.count)) - fault.nodes
        lone_domain = fault.kind == "uplink" and nodes in (fault.nodes, other_end, fault.nodes - _out(world))
        blind = _out(world) | {node for other in world.faults if other.kind == "nvlport" for node in other.nodes}
        lone_side = fault.kind == "trunk" and nodes in (fault.nodes - blind, fault.other - blind)
        return lone_domain or lone_side or (fault.kind in NODE_CLASSES.values() and nodes == fault.nodes)
    if kind == "pair":
        carried = fault.kind == "route" and isinstance(world, WildWorld) and world.carries(min(nodes), max(nodes), fault)
        # The way between two domains of which one node each is left is the way between these two.
        ways = fault.kind == "xbound" and nodes == (fault.nodes | fault.other) - _out(world)
        return carried or ways or (fault.kind == "pair" and nodes == fault.nodes)
    if kind == "boundary" and fault.kind == "xbound":
        ends = [frozenset(int(name[1:]) for name in side) for side in suspect["sides"]]
        return len(ends) == 2 and all(any(side <= end for side in ends) for end in (fault.nodes, fault.other))
    if kind == "boundary":
        sides = [frozenset(int(name[1:]) for name in side) for side in suspect["sides"]] or [nodes]
        # Accused and lost members are not part of what is left of the domain.
        return fault.kind == "uplink" and any(side <= fault.nodes for side in sides)
    sides = [frozenset(int(name[1:]) for name in side) for side in suspect["sides"]]
    ends = {fault.nodes, fault.other}
    return fault.kind == "trunk" and all(any(side <= end for end in ends) for side in sides) and len(frozenset().union(*sides)) > 2


def _out(world: World) -> frozenset[int]:
    """Nodes that cannot speak for their domain: bad themselves over the network, lost, or never started."""
    gone = {node for fault in world.faults if fault.kind in ("node", "nic", "intermittent") for node in fault.nodes}
    if isinstance(world, WildWorld):
        gone |= set(world.conditions.stuck) | set(world.conditions.lost)
    return frozenset(gone)


def score(world: World, session: Session) -> Score:
    """Compare a conclusion with what was planted."""
    end = explain.conclude(session.search)
    observable = world.observable()
    result = Score(faults=len(observable), tests=end["cost"]["tests"], waves=end["cost"]["waves"])
    result.node_minutes = end["cost"]["node_minutes"] / world.count
    result.bound = bound(world)
    hard = [item for item in end["suspects"] if item["class"] not in ("unresolved", "irreproducible")]
    for suspect in hard:
        hit = next((fault for fault in world.faults if matches(world, fault, suspect)), None)
        convicts = suspect.get("convicts", True)
        result.stated.append((suspect["class"], suspect["confidence"], hit is not None))
        if not convicts:
            continue
        result.accused += 1
        result.rightly += hit is not None
        if hit is None:
            touched = {world.names[node] for fault in world.faults for node in fault.nodes | fault.other}
            result.grave = result.grave or suspect["component"]["kind"] == "node" or not touched & set(suspect["nodes"])
        if suspect["component"]["kind"] == "node":
            result.node_accused += 1
            result.node_rightly += hit is not None
            if hit is not None:
                named = NODE_CLASSES.get(suspect["class"], "")
                result.class_right += named == hit.kind or (hit.kind == "intermittent" and named == "nic") or hit.kind == "uplink"
            if suspect["class"] != "intermittent":
                witnesses = [entry for entry in suspect["evidence"] if entry["weight"] > 0]
                result.weak += len(witnesses) < 2
    hard = [item for item in hard if item.get("convicts", True)]
    result.found = sum(any(matches(world, fault, suspect) for suspect in hard) for fault in observable)
    result.false_accusation = result.rightly < result.accused
    result.unresolved = any(item["class"] == "unresolved" for item in end["suspects"])
    result.inconclusive = end["verdict"] == "inconclusive"
    result.wall = end["cost"]["wall_minutes"]
    result.silent = bool(observable) and end["verdict"] == "passed"
    result.alarm = not world.faults and end["verdict"] != "passed"
    return result


def score_nvcre(world: World, documented: bool, max_concurrent: int = 0) -> Score:
    """The same for NVCRE's method; the nodes it confirms are taken as accused."""
    run = Nvcre(world, documented, max_concurrent).run()
    observable = world.observable()
    result = Score(faults=len(observable), tests=run.tests, waves=run.waves, node_minutes=run.node_minutes / world.count)
    result.bound = bound(world)
    true_nodes = {node for fault in world.faults if fault.kind in NODE_CLASSES.values() for node in fault.nodes}
    result.node_accused = len(run.confirmed)
    result.node_rightly = len(set(run.confirmed) & true_nodes)
    links = [frozenset(left) | frozenset(right) for left, right in run.links]
    true_links = [fault.nodes | fault.other for fault in world.faults if fault.kind in ("pair", "trunk", "uplink")]
    result.accused = result.node_accused + len(links)
    result.rightly = result.node_rightly + sum(link in true_links for link in links)
    for fault in observable:
        if fault.kind in NODE_CLASSES.values():
            result.found += fault.nodes <= set(run.confirmed)
        else:
            result.found += (fault.nodes | fault.other) in links
    result.false_accusation = result.rightly < result.accused
    result.silent = bool(observable) and run.succeeded
    result.alarm = not world.faults and not run.succeeded
    return result


def bound(world: World) -> int:
    """log2 of the number of ways to choose as many nodes as there are faults."""
    return math.ceil(math.log2(math.comb(world.count, min(world.count, len(world.faults)))))


def summary(scores: t.Sequence[Score]) -> dict[str, float]:
    """Means over the worlds of one cell. Precision and recall are over all components."""
    faults, accused = sum(s.faults for s in scores), sum(s.accused for s in scores)
    right = sum(s.node_rightly for s in scores)
    return {
        "tests": statistics.fmean(s.tests for s in scores),
        "waves": statistics.fmean(s.waves for s in scores),
        "node_minutes": statistics.fmean(s.node_minutes for s in scores),
        "bound": statistics.fmean(s.bound for s in scores),
        "precision": sum(s.rightly for s in scores) / accused if accused else 1.0,
        "recall": sum(s.found for s in scores) / faults if faults else 1.0,
        "class_right": sum(s.class_right for s in scores) / right if right else 1.0,
        "silent": statistics.fmean(s.silent for s in scores),
        "false_alarm": statistics.fmean(s.alarm for s in scores),
        "unresolved": statistics.fmean(s.unresolved for s in scores),
        "wrong_node": statistics.fmean(s.node_rightly < s.node_accused for s in scores),
    }
