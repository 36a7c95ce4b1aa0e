# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Cells run several at a time, and what came of them as tables."""

from __future__ import annotations

import collections
import pathlib
import queue
import threading
import typing as t

from .cells import Cell
from .invariants import INVARIANTS, broken, is_undisturbed
from .trial import forget, run_cell
from .world import Player, World

Row = dict[str, t.Any]
# The ends of texts that are kept for a cell that broke something.
KEPT = 6000
LEGEND = (
    "P passed, F failed, E error, I incomplete, - no report; seconds from 30 on; "
    "· the fault was never met, L objects left, ! one for each invariant that broke"
)


class Slot:
    """One world at a time and a player: what runs one cell after another."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._player, self._count = folder, Player(folder), 0
        self._world: World | None = None

    def run(self, world: str, cell: Cell | None) -> Row:
        """One cell, on a world without traces of the last one."""
        if self._world and (self._world.name != world or not self._world.tidy()):
            self._world.stop()
            self._world = None
        if self._world is None:
            self._world = World(world, self._folder / f"world{self._count}")
        self._count += 1
        folder = self._folder / f"cell{self._count}"
        row = run_cell(cell, self._world, self._player, folder)
        row["broken"] = broken(row, cell) if cell else []
        row["undisturbed"] = is_undisturbed(row, world)
        forget(folder)
        return row

    def stop(self) -> None:
        """Ends what was started."""
        self._player.stop()
        if self._world:
            self._world.stop()


def run_cells(
    cells: t.Sequence[Cell], folder: pathlib.Path, at_once: int, tell: t.Callable[[Row], None], enough: threading.Event | None = None
) -> list[Row]:
    """All cells, so many at a time, until it is enough. An error of ours ends the campaign."""
    work: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in cells:
        work.put(cell)
    rows: list[Row] = []
    errors: list[BaseException] = []
    lock = threading.Lock()

    def serve(index: int) -> None:
        slot = Slot(folder / f"slot{index}")
        try:
            while not errors and not (enough and enough.is_set()):
                cell = work.get_nowait()
                row = slot.run(cell.world, cell)
                with lock:
                    rows.append(row)
                    tell(row)
        except queue.Empty:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            slot.stop()

    threads = [threading.Thread(target=serve, args=(index,)) for index in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return rows


def kept(row: Row) -> Row:
    """A row as the output file has it: the whole texts only where something broke."""
    texts = {key: row[key][-KEPT:] if row["broken"] else "" for key in ("told", "output")}
    return {**row, **texts}


def mark(row: Row) -> str:
    """A cell of the table: verdict, seconds from 30 on, and what was broken."""
    letter = {"passed": "P", "failed": "F", "error": "E", "incomplete": "I", None: "-"}[row["verdict"]]
    flags = ("·" if not row["hits"] else "") + ("L" if row["left"] else "") + ("!" * len(row["broken"]))
    return letter + flags + (f" {row['seconds']:.0f}s" if row["seconds"] >= 30 else "")


def tables(rows: t.Sequence[Row]) -> list[str]:
    """One table for each world and lasting of the fault, the numbers of invariants, and the cells that broke one."""
    lines: list[str] = []
    parts = collections.defaultdict(list)
    for row in rows:
        parts[row["world"], row["forever"]].append(row)
    for (world, forever), part in sorted(parts.items()):
        lines += [f"## {world} world, fault {'for ever' if forever else 'once'}: {len(part)} cells", ""]
        lines += [*_table(part), ""]
    lines += [LEGEND, ""]
    columns = sorted(parts)
    lines.append("| | " + " | ".join(f"{world}/{'ever' if forever else 'once'}" for world, forever in columns) + " | all |")
    lines.append("|---|" + "---|" * (len(columns) + 1))
    counts: dict[str, t.Callable[[Row], bool]] = {"cells": lambda row: True, "hit": lambda row: bool(row["hits"])}
    counts |= {"as if undisturbed": lambda row: bool(row["hits"]) and row["undisturbed"], "broken": lambda row: bool(row["broken"])}
    counts |= {f"broken: {name}": (lambda row, name=name: name in row["broken"]) for name in INVARIANTS}
    for name, counted in counts.items():
        numbers = [sum(map(counted, parts[column])) for column in columns]
        lines.append(f"| {name} | " + " | ".join(map(str, [*numbers, sum(numbers)])) + " |")
    lines += ["", *(f"{row['cell']}: {', '.join(row['broken'])}" for row in sorted(rows, key=lambda row: row["cell"]) if row["broken"])]
    return lines


def _table(part: t.Sequence[Row]) -> list[str]:
    requests = list(dict.fromkeys(row["request"] for row in part))
    kinds = list(dict.fromkeys(row["kind"] for row in part))
    cells = {(row["request"], row["kind"]): mark(row) for row in part}
    head = ["| request | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    return head + [f"| {request} | " + " | ".join(cells.get((request, kind), "") for kind in kinds) + " |" for request in requests]
