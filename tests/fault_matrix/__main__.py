# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The whole fault matrix, or part of it. Exit status 1 when an invariant is broken, 2 when the worlds themselves are not as they should be.

python -m ansible_collections.gpu_cluster.readiness.tests.fault_matrix [--only TEXT] [--at-once 4] [--output FILE [--resume]]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time
import typing as t

from .campaign import Slot, kept, mark, run_cells, tables
from .cells import WORLDS, all_cells


def main() -> int:
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="fault-matrix", description="Certifications through an API that fails.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="cells whose names contain this; may stand several times"
    )
    parser.add_argument("--without", action="append", default=[], metavar="TEXT", help="no cells whose names contain this")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="write every cell as JSON")
    parser.add_argument("--resume", action="store_true", help="take the cells that FILE holds already as they are, and run the others")
    parser.add_argument("--at-once", type=int, default=4, help="cells at the same time (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="only name the cells")
    options = parser.parse_args()
    chosen = [cell for cell in all_cells() if all(text in cell.name for text in options.only)]
    cells = [cell for cell in chosen if not any(text in cell.name for text in options.without)]
    if options.list or not cells:
        say("\n".join(cell.name for cell in cells) or f"no cell is named so: {options.only}")
        return 0 if cells else 2
    if options.resume and not options.output:
        parser.error("--resume needs --output FILE, the cells of an earlier matrix")
    earlier = rows_of(options.output) if options.resume else []
    known = {row["cell"] for row in earlier}
    names = {cell.name for cell in cells}
    done = [row for row in earlier if row["cell"] in names]
    cells = [cell for cell in cells if cell.name not in known]
    count = len(names)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fault-matrix-") as folder:
        wrong = spoilt_worlds(pathlib.Path(folder, "worlds"), {cell.world for cell in cells})
        if wrong:
            say("\n".join(wrong))
            return 2

        def tell(row: dict[str, t.Any]) -> None:
            done.append(row)
            if options.output:  # also of a matrix that is ended midway
                options.output.write_text(json.dumps({"cells": [kept(item) for item in done]}, indent=1) + "\n")
            say(f"{len(done)}/{count} {row['cell']}: {mark(row)} {row['seconds']:.0f} s {', '.join(row['broken'])}")

        run_cells(cells, pathlib.Path(folder), options.at_once, tell)
    say("\n".join(tables(done)))
    say(f"{len(cells)} cells in {(time.monotonic() - started) / 60:.0f} minutes, {options.at_once} at a time")
    return 1 if any(row["broken"] for row in done) else 0


def rows_of(path: pathlib.Path) -> list[dict[str, t.Any]]:
    """The cells of an earlier matrix; none where there was none."""
    return t.cast("list[dict[str, t.Any]]", json.loads(path.read_text())["cells"]) if path.exists() else []


def spoilt_worlds(folder: pathlib.Path, names: set[str]) -> list[str]:
    """A cell proves nothing in a world that is not what it should be without any fault of the API."""
    slot = Slot(folder)
    try:
        rows = [slot.run(world, None) for world in WORLDS if world in names]
    finally:
        slot.stop()
    return [
        f"{row['cell']} ended with {row['status']} {row['verdict']} {row['nodes']}:\n{row['output']}"
        for row in rows
        if not row["undisturbed"]
    ]


def say(text: str) -> None:
    """One or more lines, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
