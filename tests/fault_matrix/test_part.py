# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Part of the fault matrix, in which each verb, each resource and each kind of fault occurs. `make fault-matrix` runs all of it."""

from __future__ import annotations

import concurrent.futures
import pathlib
import threading
import typing as t

import pytest

from .campaign import run_cells
from .cells import Cell, all_cells
from .trial import explain

PART = """
healthy/once get version 503
healthy/once get apis strange
healthy/once list nodes truncated
healthy/once list nodes@1 403
healthy/once list services@1 reset
healthy/once list configmaps list
healthy/once list jobs@1 strangeitems
healthy/once create selfsubjectaccessreviews garbage
healthy/once dryrun jobs 429
healthy/once dryrun pods 403
healthy/once create configmaps after:garbage
healthy/once create jobs after:reset
healthy/once create services cut
healthy/once create secrets after:500
healthy/once patch jobs emptyobj
healthy/once patch jobs after:hang
healthy/once delete jobs 500
healthy/once get pods/log cut
healthy/once watch nodes wclose
healthy/once watch pods wgarbage
healthy/once watch pods wsilent
healthy/once watch jobs 410
sick/once list pods emptylist
sick/once create jobs after:garbage
sick/once watch pods wnull
sick/ever get namespaces 409
sick/ever get pods/log 403
sick/ever get pods/log emptybody
sick/ever list secrets 500
sick/ever watch nodes wdrop
sick/ever watch pods 404
sick/ever create secrets after:reset
sick/ever delete configmaps 403
sick/ever watch jobs w410
sick/ever watch nodes w500
crash/once get nodes 503
crash/once list events hang
crash/ever list events 500
"""
CELLS = {cell.name: cell for cell in all_cells()}
NAMES = PART.strip().splitlines()
# Most cells wait for something most of the time.
AT_ONCE = 3

Rows = dict[str, "concurrent.futures.Future[dict[str, t.Any]]"]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Rows]:
    """The rows of the cells that are asked for, as they come: several run at the same time, whatever pytest does."""
    wanted = [item.callspec.params["name"] for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    found: Rows = {name: concurrent.futures.Future() for name in wanted}
    enough = threading.Event()

    def run() -> None:
        cells = [CELLS[name] for name in wanted]
        try:
            run_cells(
                cells, pathlib.Path(tmp_path_factory.mktemp("matrix")), AT_ONCE, lambda row: found[row["cell"]].set_result(row), enough
            )
        except BaseException as error:
            for row in found.values():
                if not row.done():
                    row.set_exception(error)

    thread = threading.Thread(target=run, name="fault-matrix")
    thread.start()
    yield found
    enough.set()
    thread.join()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_keeps_its_promises_whatever_the_api_does(name: str, rows: Rows) -> None:
    row = rows[name].result()
    assert not row["broken"], explain(row)
    assert row["hits"], f"the fault was never met: {explain(row)}"


def test_each_verb_resource_and_kind_of_the_matrix_is_in_the_part() -> None:
    def of(cells: t.Iterable[Cell]) -> set[tuple[str, str]]:
        faults = [cell.fault for cell in cells]
        return {pair for fault in faults for pair in (("verb", fault.verb), ("resource", fault.resource), ("kind", fault.kind))}

    assert of(CELLS.values()) == of(CELLS[name] for name in NAMES)
