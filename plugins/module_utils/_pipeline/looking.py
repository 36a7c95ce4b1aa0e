# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The last look at all nodes that a run has tested, before anything is said of them."""

from __future__ import annotations

import time
import typing as t

from .._archive.run_directory import RunDirectory
from .._cluster.client import Client
from .._cluster.kinds import NODE
from .._common.shapes import FinalLook, NodeState
from .._common.times import utc
from .._run.contact import Contact
from .._run.engine import NODE_GRACE_S
from .._run.fitness import Fitness
from .._run.illness import Health
from .._run.last_look import LastLook
from .._run.messages import api_outage_s
from .._run.pool import Pool
from .._run.projections import Facts, node_facts
from .._run.records import states_before
from .batches import eyes_of, planned_states

# A read that hangs keeps its thread.
THREADS = 8


def look_at_all(
    run: RunDirectory,
    client: Client,
    *,
    progress: t.Callable[[str], None] = lambda _text: None,
    alive: t.Callable[[], bool] = lambda: True,
) -> FinalLook:
    """Looks, and leaves in the archive what was seen. It ends within minutes, whatever hangs.

    Before it looks it writes that nobody has: a run that is killed here has no evidence of what became of its nodes.
    """
    run.open()
    before = states_before(
        attempt for observation in run.read_observations().values() for group in observation["groups"] for attempt in group["attempts"]
    )
    unseen = _look(None, "the run was ended before that")
    run.write(run.last_look, unseen if before else _look({}, ""))
    if not before:
        return _look({}, "")
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        progress(text)

    pool = Pool(THREADS, "look")
    try:
        nodes = _eyes(run, client, pool, tell).take(before, None, alive)
    finally:
        pool.stop()
    look = _look(nodes, "" if nodes is not None else (told or ["contact with most of the cluster was lost"])[-1])
    run.write(run.last_look, look)
    return look


def _look(nodes: dict[str, NodeState | None] | None, why: str) -> FinalLook:
    return {"at": utc(time.time()), "nodes": nodes, "why": why}


def _eyes(run: RunDirectory, client: Client, pool: Pool, tell: t.Callable[[str], None]) -> LastLook:
    plan = run.read_plan()
    tolerations = [item for category in plan["categories"] for item in category["template"].get("tolerations") or ()]
    eyes, planned = eyes_of(run, tolerations), planned_states(run)
    contact, health = Contact(plan["bounds"].get("node_grace_s", NODE_GRACE_S), eyes.departure), Health(eyes.unwell, planned)

    def read(_names: t.Sequence[str]) -> list[Facts]:
        # All of them: whether most of the cluster is silent is to be seen too. In little patience, since it is looked again for as long as
        # the API server may be away.
        return list(client.hurried().list_result(NODE.path(), project=node_facts).items)

    return LastLook(pool, read, contact, health, Fitness(contact, health, planned, tolerations), tell, api_outage_s(plan["bounds"]))
