# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The cells: which request fails how, in which world, and what a run must make of it."""

from __future__ import annotations

import dataclasses
import typing as t

from .faults import Fault

NODES = tuple(f"gpu-r0-n{index:02}" for index in range(4))
SICK = NODES[2]
# By name, the faults planted in the hardware. A crash makes a run look at events and nodes.
WORLDS: dict[str, list[dict[str, t.Any]]] = {
    "healthy": [],
    "sick": [{"kind": "node_slow", "node": SICK, "factor": 0.5}],
    "crash": [{"kind": "crash", "node": SICK}],
}

# The kinds of faults (see proxy.py). Of those left out for faults that last, another kind is met in the same way.
REFUSED = ("403", "404", "409", "410")
AWAY = ("429", "500", "503", "reset", "hang")
SPOILT = ("cut", "truncated", "garbage", "list")
SHAPES = ("emptyobj", "strange")
LISTS = ("emptylist", "strangeitems")
AFTER = ("after:500", "after:reset", "after:hang", "after:garbage")
STREAMS = ("w410", "w500", "wclose", "wsilent", "wgarbage", "wnull", "wdrop")
ONLY_ONCE = frozenset({"cut", "list", "after:500", "after:hang"})
# What might make a run believe that all is well: these are tried once with a sick node too.
BELIEVABLE = frozenset({"404", "truncated", *SHAPES, *LISTS, "after:garbage", "w410", "wgarbage", "wnull", "wdrop"})

GETS = ("version", "apis", "namespaces", "nodes", "pods/log")
# With a number: so many such lists pass first, which leads to the watches' own, and to those of the cleanup.
LISTED = (("nodes", 0), ("nodes", 1), ("services", 0), ("services", 1), ("configmaps", 0), ("configmaps", 1), ("secrets", 0),
          ("jobs", 0), ("jobs", 1), ("pods", 0), ("pods", 1), ("events", 0))  # fmt: skip
WRITES = (
    ("create", "selfsubjectaccessreviews"),
    *(("dryrun", kind) for kind in ("jobs", "configmaps", "services", "pods")),
    *(("create", kind) for kind in ("configmaps", "secrets", "jobs", "services")),
    ("patch", "jobs"),
    *(("delete", kind) for kind in ("jobs", "configmaps", "secrets", "services", "pods")),
)
WATCHES = ("nodes", "pods", "jobs")

# Another try, or a new list, may be answered; a client of client-go's make goes on after these.
TRANSIENT = frozenset({*AWAY, *SPOILT, "emptybody"})
# What discovery looks at where it may: without it the run goes on, whatever the answer.
OPTIONAL = frozenset({"get apis", "get namespaces", "list services", "list events"})


@dataclasses.dataclass(frozen=True)
class Cell:
    """One certification of a world with one fault."""

    world: str
    fault: Fault

    @property
    def name(self) -> str:
        """As --only and the tables know it."""
        return f"{self.world}/{'ever' if self.fault.forever else 'once'} {self.fault.request} {self.fault.kind}"

    @property
    def must_survive(self) -> bool:
        """Whether the run must end as if nothing had happened."""
        fault, kind = self.fault, self.fault.kind.removeprefix("after:")
        if fault.forever:
            return fault.request in OPTIONAL and kind not in SHAPES + LISTS
        if fault.verb == "watch" or fault.request in OPTIONAL:
            return True
        return kind in TRANSIENT or (kind == "410" and fault.verb == "list")


def all_cells() -> list[Cell]:
    """The whole matrix, world by world."""
    cells = []
    for fault in _faults():
        crash = fault.request in ("list events", "get nodes")
        cells.append(Cell("crash" if crash else "healthy", fault))
        if fault.kind in BELIEVABLE and not crash:
            cells.append(Cell("sick", fault))
        if fault.kind not in ONLY_ONCE:
            cells.append(Cell("crash" if crash else "sick", dataclasses.replace(fault, forever=True)))
    order = list(WORLDS)
    return sorted(cells, key=lambda cell: order.index(cell.world))


def _faults() -> t.Iterator[Fault]:
    """Every request with every kind that it can meet, once."""
    for resource in GETS:
        shapes = ("emptybody",) if resource == "pods/log" else SHAPES
        yield from (Fault("get", resource, kind) for kind in REFUSED + AWAY + SPOILT + shapes)
    for resource, skip in LISTED:
        yield from (Fault("list", resource, kind, skip=skip) for kind in REFUSED + AWAY + SPOILT + SHAPES + LISTS)
    for verb, resource in WRITES:
        after = () if verb == "dryrun" or resource == "selfsubjectaccessreviews" else AFTER
        yield from (Fault(verb, resource, kind) for kind in REFUSED + AWAY + SPOILT + SHAPES + after)
    for resource in WATCHES:
        yield from (Fault("watch", resource, kind) for kind in REFUSED + AWAY + ("garbage",) + STREAMS)
