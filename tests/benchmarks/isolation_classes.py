# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One class of clusters for each condition by itself, and how sure isolation was against how often it was right."""

from __future__ import annotations

import dataclasses
import random
import statistics
import typing as t

from .isolation_score import Score
from .isolation_wild import SHARES, Conditions, WildWorld
from .isolation_worlds import Fault

Make = t.Callable[[random.Random], tuple[list[int], list[Fault], Conditions]]
STATED = (0.0, 0.5, 0.9, 0.99, 1.01)  # bounds of what is stated, for calibration
NOISE = (0.0, 0.025, 0.05, 0.2)


@dataclasses.dataclass
class Class:
    """A name, how its worlds are made, and the shares of worlds that may pass silently or accuse somebody innocent."""

    name: str
    make: Make
    silent: float = 0.0
    false: float = 0.02
    mnnvl: bool = False
    sigma: float = 0.02
    weight: int = 1  # times as many worlds, where chance decides
    options: dict[str, t.Any] = dataclasses.field(default_factory=dict)


def world_of(kind: Class, key: str) -> WildWorld:
    """The world of a class with this key."""
    chance = random.Random(key)
    sizes, faults, conditions = kind.make(chance)
    return WildWorld(sizes, faults, kind.sigma, chance.randrange(2**31), conditions, kind.mnnvl)


def racks(chance: random.Random, least: int = 4, most: int = 16) -> list[int]:
    return [16] * chance.choice((least, most))


def some(
    sizes: t.Sequence[int], kinds: t.Sequence[str], chance: random.Random, low: float = 0.35, high: float = 0.80, **more: t.Any
) -> list[Fault]:
    """One fault of each kind, in racks of their own as far as there are racks."""
    homes, at = [], 0
    for size in sizes:
        homes.append(list(range(at, at + size)))
        at += size
    chance.shuffle(homes)
    faults = []
    for number, kind in enumerate(kinds):
        home, away = homes[number % len(homes)], homes[(number + len(kinds)) % len(homes)]
        factor = chance.uniform(low, high)
        node = chance.choice(home)
        nodes, other = frozenset((node,)), frozenset[int]()
        if kind == "pair":
            nodes = frozenset(chance.sample(home, 2))
        elif kind == "crosspair":
            kind, nodes = "pair", frozenset((node, chance.choice(away)))
        elif kind == "uplink":
            nodes = frozenset(home)
        elif kind == "xbound":
            nodes, other = frozenset(home), frozenset(away)
        elif kind == "trunk":
            cut = chance.randint(2, len(home) - 2)
            nodes, other = frozenset(home[:cut]), frozenset(home[cut:])
        faults.append(Fault(kind, nodes, factor, other=other, **more))
    return faults


MIX = ("node", "nic", "pair", "uplink")


def classes() -> list[Class]:
    """Every class, in the order of the table."""
    result: list[Class] = []

    def plain(name: str, kinds: t.Sequence[str], told: str = "exact", **more: t.Any) -> None:
        def make(chance: random.Random) -> tuple[list[int], list[Fault], Conditions]:
            sizes = racks(chance)
            wanted = [chance.choice(kinds) for _at in range(chance.randint(1, 3))]
            return sizes, some(sizes, wanted, chance, high=0.80 if told not in ("floor", "one") else 0.66), Conditions(told=told)

        result.append(Class(name, make, **more))

    def under(name: str, condition: t.Callable[[random.Random, int], Conditions], kinds: t.Sequence[str] = MIX, **more: t.Any) -> None:
        def make(chance: random.Random) -> tuple[list[int], list[Fault], Conditions]:
            sizes = racks(chance)
            wanted = [chance.choice(kinds) for _at in range(chance.randint(1, 3))] if kinds else []
            return sizes, some(sizes, wanted, chance), condition(chance, sum(sizes))

        result.append(Class(name, make, **more))

    def shaped(name: str, sizes_of: t.Callable[[random.Random], list[int]], kinds: t.Sequence[str], **more: t.Any) -> None:
        def make(chance: random.Random) -> tuple[list[int], list[Fault], Conditions]:
            sizes = sizes_of(chance)
            return sizes, some(sizes, [chance.choice(kinds)], chance), Conditions(options=dict(more.get("options", {})))

        result.append(Class(name, make, **{key: value for key, value in more.items() if key != "options"}))

    def near(name: str, kinds: t.Sequence[str], told: str) -> None:
        def make(chance: random.Random) -> tuple[list[int], list[Fault], Conditions]:
            sizes = racks(chance)
            top = SHARES[told] * 0.94
            return sizes, some(sizes, [chance.choice(kinds)], chance, 0.97 * top, top), Conditions(told=told)

        result.append(Class(name, make))

    def lone(name: str, kind: str, **fault: t.Any) -> None:
        def make(chance: random.Random) -> tuple[list[int], list[Fault], Conditions]:
            sizes = racks(chance) if kind != "route" else [16] * 4
            size = round(fault.get("share", 0) * sum(sizes))
            return sizes, [Fault(kind, frozenset(), chance.uniform(0.4, 0.8), p=fault.get("p", 1.0), size=size)], Conditions()

        result.append(Class(name, make))

    plain("criterion per shape", MIX, "shape")
    plain("pass or fail only", MIX, "binary")
    plain("one limit for all shapes", ("node", "nic", "pair"), "one")
    plain("floor given as expected", MIX, "floor")
    near("just below the limit, expected known", ("node", "nic"), "exact")
    near("just below the limit, criterion only", ("node", "nic"), "shape")
    shaped("unequal racks", lambda chance: [chance.randint(2, 20) for _rack in range(chance.choice((4, 12)))], MIX[:3])
    shaped("racks of two and three, uplink", lambda chance: [chance.choice((2, 3)) for _rack in range(12)], ("uplink",))
    shaped("way between two racks", racks, ("xbound",))
    under(
        "labels on 80 %", lambda chance, count: Conditions(unlabelled=frozenset(chance.sample(range(count), count // 5))), ("node", "nic")
    )
    under("no labels", lambda chance, count: Conditions(unlabelled=frozenset(range(count))), ("node", "nic", "pair"))
    shaped("NVLink domains of 18", lambda chance: [18] * chance.choice((4, 8)), ("node", "nic", "nvlport", "trunk", "pair"), mnnvl=True)
    shaped(
        "NVLink domains of 18, min_group_size 4",
        lambda chance: [18] * 4,
        ("nic", "nvlport", "trunk"),
        mnnvl=True,
        options={"min_group_size": 4},
    )
    for smallest in (3, 4, 8):
        shaped(f"min_group_size {smallest}", racks, MIX, options={"min_group_size": smallest})
    under("20 % of runs unmeasured", lambda chance, count: Conditions(unmeasured=0.2))
    under("a node that never starts", lambda chance, count: Conditions(stuck=frozenset(chance.sample(range(count), 2))), ("node", "nic"))
    under(
        "nodes lost midway",
        lambda chance, count: Conditions(lost={node: chance.randint(1, 5) for node in chance.sample(range(count), 2)}),
        ("node", "nic"),
    )
    lone("only with many nodes at once", "scale", share=0.75)
    lone("a congested spine", "spine", share=0.5)
    lone("a bad spine link: 1 % of pairs across racks", "route", p=0.01)
    for share in (0.005, 0.02, 0.05):
        under(
            f"{share:.1%} of runs slow by chance",
            lambda chance, count, share=share: Conditions(transient=share),
            ("node", "nic"),
            false=0.2,
            weight=4,
        )
    under("healthy, 2.0% of runs slow by chance", lambda chance, count: Conditions(transient=0.02), (), false=0.2, weight=4)
    for often in (0.8, 0.5):
        for soak in (False, True):

            def intermittent(chance: random.Random, often: float = often) -> tuple[list[int], list[Fault], Conditions]:
                sizes = [16] * 4
                return sizes, some(sizes, ["intermittent"], chance, p=often), Conditions()

            name = f"fails in {often:.0%} of tests{', soak' if soak else ''}"
            result.append(Class(name, intermittent, silent=0.4, false=0.1, options={"soak": soak}, weight=4))
    return result


def table_row(kind: Class, ours: t.Sequence[Score], theirs: t.Sequence[Score], documented: t.Sequence[Score]) -> dict[str, t.Any]:
    """Means of one class, for us and for both models of NVCRE's method, and what is missed."""
    mine = means(ours)
    missed = [f"{key} {mine[key]:.3f} > {most:g}" for key, most in (("silent", kind.silent), ("false", kind.false)) if mine[key] > most]
    return {
        "name": kind.name,
        "worlds": len(ours),
        "ours": mine,
        "other": means(theirs),
        "documented": means(documented),
        "limits": {"at_most": {"silent": kind.silent, "false": kind.false}, "at_least": {}},
        "missed": missed,
    }


def means(scores: t.Sequence[Score]) -> dict[str, float]:
    """Shares and means over worlds. exact: faults named exactly; class_right: of the nodes named rightly."""
    faults, right = sum(s.faults for s in scores), sum(s.node_rightly for s in scores)
    return {
        "silent": statistics.fmean(s.silent for s in scores),
        "false": statistics.fmean(s.false_accusation for s in scores),
        "grave": statistics.fmean(s.grave for s in scores),
        "exact": sum(s.found for s in scores) / faults if faults else 1.0,
        "class_right": sum(s.class_right for s in scores) / right if right else 1.0,
        "inconclusive": statistics.fmean(s.inconclusive for s in scores),
        "tests": statistics.fmean(s.tests for s in scores),
        "waves": statistics.fmean(s.waves for s in scores),
        "node_minutes": statistics.fmean(s.node_minutes for s in scores),
    }


def calibration(worlds: t.Iterable[tuple[float, Score]]) -> list[dict[str, t.Any]]:
    """How sure suspects were said to be against how many were at fault: by class of suspect and by noise of the world.

    worlds: (noise, score). Rows: {class, noise: [from, to], stated, true, suspects}; class "all" sums them up.
    """
    cells: dict[tuple[str, int, int], list[tuple[float, bool]]] = {}
    for noise, score in worlds:
        level = next(at for at in range(len(NOISE) - 1) if noise < NOISE[at + 1])
        for kind, stated, right in score.stated:
            step = next(at for at in range(len(STATED) - 1) if stated < STATED[at + 1])
            for name in (kind, "all"):
                cells.setdefault((name, level, step), []).append((stated, right))
    return [
        {
            "class": name,
            "noise": [NOISE[level], NOISE[level + 1]],
            "stated": round(statistics.fmean(stated for stated, _right in seen), 4),
            "true": round(statistics.fmean(right for _stated, right in seen), 4),
            "suspects": len(seen),
        }
        for (name, level, _step), seen in sorted(cells.items())
    ]
