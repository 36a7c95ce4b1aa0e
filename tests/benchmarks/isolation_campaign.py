# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Measures fault isolation on simulated clusters, beside a model of NVIDIA's Cluster Readiness Engine (NVCRE).

    python tests/benchmarks/isolation_campaign.py [--worlds N] [--seed S] [--output FILE.json] [--only TABLE]

Every table prints means over seeded worlds next to the limit an implementation must reach, and the information bound
(the fewest tests that can single out so many nodes). N worlds per cell, 12 unless given; random and wild worlds: 25 N each.
Ten thousand of them: --worlds 400 --only random, and --only wild. False accusations count nodes, pairs and links.

JSON, about the random worlds unless a table says otherwise::

    worlds                       random worlds with any number of faults
    silent_passes                worlds with an observable fault that ended `passed`
    worlds_with_false_accusation worlds in which a component without a fault is accused
    faults, faults_found         observable faults, and those named exactly (component and sides)
    unresolved_worlds            worlds in which a set of nodes stayed unresolved
    weak_accusations             accusations of a node with fewer than two witnesses of its own
    mean_tests, mean_waves, mean_node_minutes
    other                        the same keys for NVCRE's method as its controller behaves
    documented                   the same keys for NVCRE's method as its design describes it
    wild                         the same keys (with other and documented) about as many wild worlds, see `isolation_wild`
    calibration                  [{class, noise, stated, true, suspects}]: how sure suspects were said to be, and how many were at fault
    tables                       {name: [rows]}, each with its means, limits and whether they are met
    met, missed                  number of limits met, and the list of those missed
    seed, seconds
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import statistics
import sys
import time
import typing as t

from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_classes import Class, calibration, classes, table_row, world_of
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_score import (
    Score,
    matches,
    result_of,
    run_session,
    score,
    score_nvcre,
    summary,
)
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_wild import wild_world
from ansible_collections.gpu_cluster.readiness.tests.benchmarks.isolation_worlds import Fault, World, plant

__all__ = ["Cell", "Score", "campaign", "cells", "main", "matches", "result_of", "run_cell", "run_random", "run_session", "score"]


@dataclasses.dataclass
class Cell:
    """One scenario: how its worlds are made, and the limits of its means ({key: (at most | at least, value)})."""

    table: str
    name: str
    make: t.Callable[[int, random.Random], World]
    options: dict[str, t.Any]
    most: dict[str, float]
    least: dict[str, float] = dataclasses.field(default_factory=dict)
    weight: float = 1.0


def mixed(kinds: t.Sequence[str], amount: int, chance: random.Random) -> list[str]:
    """`amount` kinds, drawn evenly."""
    return [kinds[(at + chance.randrange(len(kinds))) % len(kinds)] for at in range(amount)]


def cells() -> list[Cell]:
    """Every scenario with the limit it must reach."""
    result: list[Cell] = []
    exact = {"precision": 1.0, "recall": 1.0, "class_right": 0.99}

    def node_nic(count: int, rack: int, amount: int, sigma: float, bare: bool = False) -> t.Callable[[int, random.Random], World]:
        def make(seed: int, chance: random.Random) -> World:
            return World(count, rack, plant(mixed(("node", "nic"), amount, chance), count, rack, chance), sigma, seed, bare=bare)

        return make

    def kinds(
        wanted: t.Sequence[str],
        count: int,
        sigma: float = 0.02,
        mnnvl: bool = False,
        p: float = 1.0,
        load: bool = False,
        apart: bool = False,
    ) -> t.Callable[[int, random.Random], World]:
        def make(seed: int, chance: random.Random) -> World:
            return World(count, 16, plant(wanted, count, 16, chance, p, load, apart), sigma, seed, mnnvl=mnnvl)

        return make

    unlimited = {
        16: {0: (3, 2), 1: (11, 4.2), 2: (17, 5.0), 5: (33, 7.0)},
        64: {0: (5, 2), 1: (15, 4.2), 2: (24, 4.3), 5: (45, 5.2), 16: (105, 8.0)},
        # With many nodes a wave costs more than small tests: every suspect at once, and three waves.
        512: {0: (34, 2.1), 1: (52, 3.2), 2: (70, 3.4), 5: (120, 3.7), 16: (175, 5.2)},
        4096: {0: (258, 2.1), 1: (276, 3.2), 2: (294, 3.2), 5: (346, 3.4), 16: (545, 4.2)},
    }
    for count, row in unlimited.items():
        for amount, (tests, waves) in row.items():
            make = node_nic(count, 8 if count == 16 else 16, amount, 0.02)
            most = {"tests": tests, "waves": waves, "silent": 0, "false_alarm": 0}
            result.append(Cell("node and nic, sigma 2 %", f"N {count}, d {amount}", make, {}, most, exact, 0.25 if count > 600 else 1))
    limited = {
        4096: {0: (17, 2), 1: (36, 6.5), 2: (54, 6.5), 5: (105, 10), 16: (275, 19)},
        512: {0: (17, 2), 1: (30, 5.5), 2: (41, 5.5), 5: (74, 7.5), 16: (180, 14)},
    }
    for count, row in limited.items():
        for amount, (tests, waves) in row.items():
            most = {"tests": tests, "waves": waves, "silent": 0, "false_alarm": 0}
            make = node_nic(count, 16, amount, 0.02)
            result.append(
                Cell("max_concurrent 16", f"N {count}, d {amount}", make, {"max_concurrent": 16}, most, exact, 0.25 if count > 600 else 1)
            )
    for sigma in (0.05, 0.10):
        for count in (16, 64, 512):
            for amount in (0, 1, 5):
                make = node_nic(count, 8 if count == 16 else 16, amount, sigma)
                if sigma == 0.05:
                    most = {"waves": 7.5 if (count, amount) == (16, 5) else 5.5, "silent": 0.002, "false_alarm": 0.01}
                    least = {"precision": 0.995, "recall": 0.995} if amount else {}
                else:
                    most = {"silent": 0.005, "false_alarm": 0.03, **({"tests": 160} if (count, amount) == (512, 5) else {})}
                    least = {"precision": 0.97, "recall": 0.99} if amount else {}
                result.append(Cell(f"noise {sigma:.0%}", f"N {count}, d {amount}", make, {}, most, least))
    sharp = {"recall": 0.99, "precision": 1.0}
    for count, waves_pair, waves_cross, waves_link in ((64, 15, 18, 7), (512, 15, 24, 8)):
        table = "one fault of each kind, sigma 2 %"
        clean = {"silent": 0, "wrong_node": 0}
        result += [
            Cell(table, f"N {count}, pair in a rack", kinds(["pair"], count), {}, {"waves": waves_pair, **clean}, sharp),
            Cell(table, f"N {count}, pair across racks", kinds(["crosspair"], count), {}, {"waves": waves_cross, **clean}, sharp),
            Cell(table, f"N {count}, uplink", kinds(["uplink"], count), {}, {"waves": waves_link, **clean}, sharp),
            Cell(table, f"N {count}, uplink under load", kinds(["uplink"], count, load=True), {}, {"waves": waves_link, **clean}, sharp),
            Cell(table, f"N {count}, partition (MNNVL)", kinds(["trunk"], count, mnnvl=True), {}, {"waves": 8, **clean}, sharp),
        ]
    table = "NVLink domains, N 64"
    for name, wanted, waves in (
        ("healthy", [], 2),
        ("nvl port", ["nvlport"], 4.5),
        ("nic", ["nic"], 6.5),
        ("node and nic in two racks", ["node", "nic"], 8.5),
    ):
        make = kinds(wanted, 64, mnnvl=True, apart=True)
        result.append(Cell(table, name, make, {}, {"waves": waves, "silent": 0, "false_alarm": 0}, exact))
    table = "intermittent nic, N 64"
    for p, recall, silent, soak_recall, soak_silent in ((0.8, 0.90, 0.08, 0.97, 0.01), (0.5, 0.55, 0.35, 0.90, 0.05)):
        make = kinds(["intermittent"], 64, p=p)
        result.append(Cell(table, f"p {p}", make, {}, {"silent": silent, "wrong_node": 0.01}, {"recall": recall}, 4))
        most = {"silent": soak_silent, "wrong_node": 0.01}
        result.append(Cell(table, f"p {p}, soak", make, {"soak": True}, most, {"recall": soak_recall}, 4))
    table = "mixed faults, N 512"
    for amount, tests in ((5, 150), (16, 260)):
        wanted = [("node", "nic", "pair", "uplink", "nic")[at % 5] for at in range(amount)]
        result.append(
            Cell(
                table,
                f"d {amount}",
                kinds(wanted, 512),
                {},
                {"tests": tests, "silent": 0, "wrong_node": 0},
                {"recall": 0.99, "precision": 0.99},
            )
        )
    for rack in (8, 16, 18, 32):
        count = rack * 8
        result.append(
            Cell(
                "rack sizes, d 1",
                f"R {rack}",
                node_nic(count, rack, 1, 0.02),
                {},
                {"waves": 4.2, "silent": 0},
                {"recall": 1.0, "precision": 1.0},
            )
        )
    for amount, tests in ((1, 38), (5, 80)):
        make = node_nic(512, 16, amount, 0.02, bare=True)
        result.append(
            Cell(
                "no labels, N 512", f"d {amount}", make, {}, {"tests": tests, "waves": 4.3, "silent": 0}, {"recall": 1.0, "precision": 1.0}
            )
        )
    return result


def random_world(seed: int, chance: random.Random) -> World:
    """Any size, any mix of up to five persistent faults, noise 2 to 4 %; one in five with NVLink domains."""
    count, rack = chance.choice((16, 24, 32, 48, 64, 96, 128, 256, 512)), chance.randint(8, 18)
    mnnvl = chance.random() < 0.2
    kinds = ("node", "nic", "pair", "crosspair", "uplink", *(("nvlport", "trunk") if mnnvl else ()))
    wanted = mixed(kinds, chance.randint(0, 5), chance)
    if wanted.count("uplink") * rack * 2 > count:
        wanted = [kind for kind in wanted if kind != "uplink"]  # with half of all boundaries broken nobody is left to compare with
    faults = [fault for fault in plant(wanted, count, rack, chance) if _can_show(fault, count, rack)]
    return World(count, rack, faults, chance.uniform(0.02, 0.04), seed, mnnvl=mnnvl)


def _can_show(fault: Fault, count: int, rack: int) -> bool:
    """A link port without a neighbour, a side without another and a boundary without an outside never show."""
    if fault.kind == "trunk":
        return min(len(fault.nodes), len(fault.other)) > 1  # one node against the rest is a link port
    first = min(fault.nodes) // rack * rack
    alone = min(first + rack, count) - first == 1
    return not (fault.kind == "nvlport" and alone) and not (fault.kind == "uplink" and len(fault.nodes) == count)


def totals(scores: t.Sequence[Score]) -> dict[str, t.Any]:
    """The keys of the JSON for one method on the random worlds."""
    return {
        "worlds": len(scores),
        "silent_passes": sum(s.silent for s in scores),
        "worlds_with_false_accusation": sum(s.false_accusation for s in scores),
        "faults": sum(s.faults for s in scores),
        "faults_found": sum(s.found for s in scores),
        "graves": sum(s.grave for s in scores),
        "inconclusive_worlds": sum(s.inconclusive for s in scores),
        "unresolved_worlds": sum(s.unresolved for s in scores),
        "weak_accusations": sum(s.weak for s in scores),
        "mean_tests": round(statistics.fmean(s.tests for s in scores), 2),
        "mean_waves": round(statistics.fmean(s.waves for s in scores), 2),
        "mean_node_minutes": round(statistics.fmean(s.node_minutes for s in scores), 2),
        "mean_bound": round(statistics.fmean(s.bound for s in scores), 2),
    }


def run_cell(cell: Cell, worlds: int, seed: int) -> dict[str, t.Any]:
    """Ours and NVCRE's means for one scenario, and the limits that are missed."""
    ours, theirs, documented = [], [], []
    limit = cell.options.get("max_concurrent", 0)
    for number in range(max(2, round(worlds * cell.weight))):
        key = f"{seed}/{cell.table}/{cell.name}/{number}"
        builds = [cell.make(random.Random(key).randrange(2**31), random.Random(key)) for _copy in range(3)]
        ours.append(score(builds[0], run_session(builds[0], **cell.options)))
        theirs.append(score_nvcre(builds[1], False, limit))
        documented.append(score_nvcre(builds[2], True, limit))
    mine = summary(ours)
    missed = [f"{key} {mine[key]:.3f} > {most:g}" for key, most in cell.most.items() if mine[key] > most + 1e-9]
    missed += [f"{key} {mine[key]:.3f} < {least:g}" for key, least in cell.least.items() if mine[key] < least - 1e-9]
    return {
        "name": cell.name,
        "worlds": len(ours),
        "ours": mine,
        "other": summary(theirs),
        "documented": summary(documented),
        "limits": {"at_most": cell.most, "at_least": cell.least},
        "missed": missed,
    }


def run_random(worlds: int, seed: int, recipe: str = "random", seen: list[tuple[float, Score]] | None = None) -> dict[str, t.Any]:
    """The random worlds of one recipe (random or wild), for all three methods. seen: collects (noise, our score)."""
    make = {"random": random_world, "wild": wild_world}[recipe]
    ours, theirs, documented = [], [], []
    for number in range(worlds):
        key = f"{seed}/{recipe}/{number}"
        builds = [make(random.Random(key).randrange(2**31), random.Random(key)) for _copy in range(3)]
        ours.append(score(builds[0], run_session(builds[0])))
        theirs.append(score_nvcre(builds[1], False))
        documented.append(score_nvcre(builds[2], True))
        if seen is not None:
            seen.append((builds[0].sigma, ours[-1]))
    return {**totals(ours), "other": totals(theirs), "documented": totals(documented)}


def run_class(kind: Class, worlds: int, seed: int, seen: list[tuple[float, Score]]) -> dict[str, t.Any]:
    """One class of wild clusters, for all three methods."""
    ours, theirs, documented = [], [], []
    for number in range(worlds):
        builds = [world_of(kind, f"{seed}/{kind.name}/{number}") for _copy in range(3)]
        ours.append(score(builds[0], run_session(builds[0], **kind.options)))
        theirs.append(score_nvcre(builds[1], False))
        documented.append(score_nvcre(builds[2], True))
        seen.append((builds[0].sigma, ours[-1]))
    return table_row(kind, ours, theirs, documented)


def campaign(worlds: int, seed: int, only: str = "", show: t.Callable[[str], None] = lambda text: None) -> dict[str, t.Any]:
    """Everything: the data of the JSON file."""
    begun = time.monotonic()
    tables: dict[str, list[dict[str, t.Any]]] = {}
    for cell in cells():
        if only and only not in cell.table:
            continue
        if cell.table not in tables:
            show(f"\n{cell.table}\n{HEADER}")
        row = run_cell(cell, worlds, seed)
        tables.setdefault(cell.table, []).append(row)
        show(line(row))
    rows = [(name, row) for name, table in tables.items() for row in table]
    seen: list[tuple[float, Score]] = []
    data: dict[str, t.Any] = {} if only and only not in "random" else run_random(25 * worlds, seed, "random", seen)
    if not only or only in CLASS_TABLE:
        show(f"\n{CLASS_TABLE}\n{CLASS_HEADER}")
        for kind in classes():
            row = run_class(kind, worlds, seed, seen)
            tables.setdefault(CLASS_TABLE, []).append(row)
            rows.append((CLASS_TABLE, row))
            show(class_line(row))
    if not only or only in "wild":
        data["wild"] = run_random(25 * worlds, seed, "wild", seen)
    data["calibration"] = calibration(seen)
    data["tables"] = tables
    data["met"] = sum(len(row["limits"]["at_most"]) + len(row["limits"]["at_least"]) - len(row["missed"]) for _name, row in rows)
    data["missed"] = [f"{name}: {row['name']}: {text}" for name, row in rows for text in row["missed"]]
    data.update(seed=seed, seconds=round(time.monotonic() - begun, 1))
    return data


HEADER = (
    f"{'':36} {'bound':>6} | {'tests':>6} {'waves':>5} {'min/n':>5} {'prec':>5} {'rec':>5} {'class':>5} {'silent':>6} {'alarm':>5} "
    f"| NVCRE: {'tests':>6} {'waves':>5} {'prec':>5} {'rec':>5} {'silent':>6} | as documented: {'rec':>5} {'silent':>6} | limits"
)


def line(row: dict[str, t.Any]) -> str:
    """One row of a printed table."""
    a, b, c = row["ours"], row["other"], row["documented"]
    return (
        f"{row['name']:36} {a['bound']:6.0f} | {a['tests']:6.1f} {a['waves']:5.1f} {a['node_minutes']:5.1f} "
        f"{a['precision']:5.3f} {a['recall']:5.3f} {a['class_right']:5.3f} {a['silent']:6.3f} {a['false_alarm']:5.2f} |        "
        f"{b['tests']:6.1f} {b['waves']:5.1f} {b['precision']:5.2f} {b['recall']:5.2f} {b['silent']:6.2f} |                "
        f"{c['recall']:5.2f} {c['silent']:6.2f} | "
        f"{'met' if not row['missed'] else 'MISSED ' + ', '.join(row['missed'])}"
    )


CLASS_TABLE = "one condition each"
CLASS_HEADER = (
    f"{'':46} {'silent':>6} {'false':>6} {'exact':>6} {'class':>6} {'incl.':>6} {'tests':>7} {'waves':>6} {'min/n':>6} "
    f"| NVCRE: {'silent':>6} {'false':>6} {'exact':>6} {'waves':>6} | limits"
)


def class_line(row: dict[str, t.Any]) -> str:
    """One row of the printed table of classes."""
    a, b = row["ours"], row["other"]
    return (
        f"{row['name']:46} {a['silent']:6.3f} {a['false']:6.3f} {a['exact']:6.3f} {a['class_right']:6.3f} {a['inconclusive']:6.2f} "
        f"{a['tests']:7.1f} {a['waves']:6.1f} {a['node_minutes']:6.1f} |        {b['silent']:6.3f} {b['false']:6.3f} {b['exact']:6.3f} "
        f"{b['waves']:6.1f} | {'met' if not row['missed'] else 'MISSED ' + ', '.join(row['missed'])}"
    )


def print_totals(data: dict[str, t.Any]) -> None:
    """The totals of one recipe, for the three methods."""
    for title, part in (
        ("this collection", data),
        ("NVCRE as its controller behaves", data["other"]),
        ("NVCRE as documented", data["documented"]),
    ):
        print(f"  {title:32} " + "  ".join(f"{key} {part[key]}" for key in data["other"] if key in part))


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit status 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description="Measure fault isolation on simulated clusters.")
    parser.add_argument("--worlds", type=int, default=12, help="worlds per table cell (default 12)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", help="write the data as JSON to this file")
    parser.add_argument("--only", default="", help="only tables with this text in their name; 'random' or 'wild' for those worlds")
    given = parser.parse_args(arguments)
    if given.worlds < 1:
        parser.error("--worlds must be at least 1")
    data = campaign(given.worlds, given.seed, given.only, print)
    if "worlds" in data:
        print("\nrandom worlds: up to five faults of all kinds, 16 to 512 nodes, domains of 8 to 18, noise 2 to 4 %")
        print("(one world in five has NVLink domains)")
        print_totals(data)
    if "wild" in data:
        print(
            "\nwild worlds: unequal racks, missing labels, NVLink domains, min_group_size, max_concurrent, unmeasured, lost and stuck nodes,"
        )
        print("ways between two racks, faults down to just below the limit, and five ways of being told")
        print_totals(data["wild"])
    if data["calibration"]:
        print(f"\n{'how sure':18} {'noise':>12} {'stated':>7} {'true':>7} {'suspects':>9}")
        for cell in data["calibration"]:
            noise = f"{cell['noise'][0]:.1%}-{cell['noise'][1]:.1%}"
            print(f"{cell['class']:18} {noise:>12} {cell['stated']:7.3f} {cell['true']:7.3f} {cell['suspects']:9d}")
    print(f"\n{data['met']} limits met, {len(data['missed'])} missed, {data['seconds']} s, seed {given.seed}")
    for text in data["missed"]:
        print(f"  missed: {text}")
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, sort_keys=True)
            file.write("\n")
    return 1 if data["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
