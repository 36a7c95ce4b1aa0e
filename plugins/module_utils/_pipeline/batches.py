# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One batch of a run: the groups of a category, or of a wave of its isolation, through the engine and into the archive."""

from __future__ import annotations

import typing as t

from .._archive.lock import RunLock
from .._archive.run_directory import RunDirectory
from .._catalog.load import shipped_evidence
from .._causes.evidence import Evidence, kind_of_quote
from .._cluster.client import Client
from .._cluster.conditions import hardware_evidence
from .._cluster.leaving import departure
from .._common.errors import InputError, ReadinessError
from .._common.shapes import Category, Illness, NodeState, Observation, Owner, SnapshotNode
from .._criteria.health import DEFAULT_EXPRESSION, HealthCheck, compile_health, evaluate_health
from .._plan.isolation import wave_category
from .._run.engine import Engine
from .._run.fitness import Eyes
from .._run.messages import Batch
from .._run.workers import SIZE
from .categories import broken_off, effective_category

# Connections that the engine's threads, its watches and the signals of its end may use at the same time.
POOL_SIZE = SIZE + 8


def category_to_run(run: RunDirectory, category_id: str, *, wave: bool = False) -> Category:
    """A category as it is run now; wave: the outstanding wave of its isolation instead."""
    category = effective_category(run, category_id)
    if not wave:
        return category
    record = run.read_isolation(category_id)
    if record is None:
        raise InputError("no isolation of this category has begun", place=run.isolation(category_id), hint="Run isolation_step first")
    return wave_category(category, record)


def engine_of(
    run: RunDirectory,
    category: Category,
    client: Client,
    owner: Owner,
    *,
    progress: t.Callable[[str], None] = lambda _text: None,
    alive: t.Callable[[], bool] = lambda: True,
) -> Engine:
    """The engine for a category: `engine.run()` gives the observation, `engine.cancel(why)` ends it soon. owner: of the run's lock."""
    meta, plan = run.read_meta(), run.read_plan()
    batch = Batch(
        run_id=meta["run_id"],
        run_dir=run.path,
        category=category["short_id"],
        title=category["title"],
        template=category["template"],
        groups=category["groups"],
        bounds={**plan["bounds"], "attempt_timeout_s": category["template"]["attempt_timeout_s"]},
        deadline_at=meta["deadline_epoch"],
        planned=planned_states(run),
        finished=run.read_attempts(category["short_id"]),
        owner=owner,
        repeat=category.get("repeat", 1),
        k_of_n=category.get("k_of_n"),
        is_search=category["id"] not in {item["id"] for item in plan["categories"]},
    )
    eyes = eyes_of(run, category["template"].get("tolerations") or ())
    return Engine(client.patient(batch.api_outage_s), batch, eyes=eyes, progress=progress, alive=alive)


def eyes_of(run: RunDirectory, tolerations: t.Sequence[t.Mapping[str, t.Any]]) -> Eyes:
    """What nodes under test are asked: by the table that the plan was made with; an archive of an earlier version has none."""
    request, plan = run.read_request(), run.read_plan()
    check = compile_health((request and request["node_health"]) or DEFAULT_EXPRESSION)
    evidence = Evidence(plan["evidence"]) if plan.get("evidence") else shipped_evidence()
    return Eyes(lambda node: node_unhealthy(check, evidence, node), lambda node: departure(node, evidence, tolerations))


def planned_states(run: RunDirectory) -> dict[str, NodeState]:
    """By target node, what it was when the run was planned."""
    return {row["name"]: _planned(row) for row in run.read_snapshot()["nodes"] if row["target"]}


def _planned(row: SnapshotNode) -> NodeState:
    gpus, versions = row["gpu"], row["versions"]
    return {"uid": row.get("uid"), "boot_id": versions.get("boot_id"), "gpus": gpus["allocatable"], "trouble": None}


def run_category(run: RunDirectory, category: Category, engine: Engine, lock: RunLock) -> Observation:
    """Runs the engine to its clean end and leaves the observation in the archive, also when the batch breaks off.

    lock: of the run; once that is lost, the archive is another's and is left alone (InputError).
    """
    run.open()
    lock.on_lost = engine.disown
    try:
        observation = engine.run()
    except Exception as error:
        lock.require()
        why = error.render() if isinstance(error, ReadinessError) else f"{type(error).__name__}: {error}"
        run.write(run.observation(category["id"]), broken_off(category, why, engine.proof))
        raise
    lock.require()
    run.write(run.observation(category["id"]), observation)
    return observation


def node_unhealthy(check: HealthCheck, evidence: Evidence, node: t.Mapping[str, t.Any]) -> Illness | None:
    """What the node-health expression and the table of evidence say of a node under test; None if it is healthy.

    An expression that fails is loud (ReadinessError), never a healthy node.
    """
    verdict = evaluate_health(check, node)
    if verdict["error"]:
        hint = "Let the expression ask with has() for what a node may lack: docs/certification.md"
        raise ReadinessError(verdict["error"], place="certification.node_health", hint=hint)
    condemned = hardware_evidence(node, evidence)
    if not verdict["unhealthy"] and not condemned:
        return None
    quotes = list(dict.fromkeys([*condemned, *verdict["evidence"]]))
    kinds = [kind_of_quote(quote) for quote in condemned] + ([f"node_health: {check.expression}"] if verdict["unhealthy"] else [])
    message = f"{node['metadata']['name']} became unhealthy: {'; '.join(quotes) or check.expression}"
    return {"message": message, "evidence": quotes, "kinds": list(dict.fromkeys(kinds))}
