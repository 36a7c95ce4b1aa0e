# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The one maker of attempt records: whoever ends an attempt (the engine, a batch that broke off, logs from anywhere) says so here.

The cause is classified here and nowhere else; the judge reads it.
"""

from __future__ import annotations

import typing as t

from .._common.shapes import AttemptRecord, Cause, HealthEvent, NodeSeen, Outcome, PodRecord, Untested
from .classify import Said, classify


def attempt_record(
    number: int,
    outcome: Outcome,
    said: Said = Said(),  # noqa: B008 - immutable
    *,
    repeat: int = 1,
    name: str | None = None,
    exit_code: int | None = None,
    created: str | None = None,
    started: str | None = None,
    finished: str | None = None,
    duration_s: float | None = None,
    pods: t.Sequence[PodRecord] = (),
    events: t.Sequence[str] = (),
    health: t.Sequence[HealthEvent] = (),
    machines: t.Sequence[NodeSeen] = (),
    excluded: t.Sequence[Untested] = (),
) -> AttemptRecord:
    """The record of an attempt that has ended (docs/data_shapes.md), with its cause."""
    return {
        "attempt": number,
        "repeat": repeat,
        "name": name,
        "outcome": outcome,
        "cause": classify(outcome, said, exit_code=exit_code, pods=pods, events=events, health=health, ran=started is not None),
        "exit_code": exit_code,
        "created": created,
        "started": started,
        "finished": finished,
        "duration_s": duration_s,
        "pods": list(pods),
        "events": list(events),
        "health": list(health),
        "machines": list(machines),
        "excluded": list(excluded),
    }


def of_repeat(records: t.Iterable[AttemptRecord], repeat: int) -> list[AttemptRecord]:
    """Those of a group's attempts that belong to one of its repeats."""
    return [record for record in records if record.get("repeat", 1) == repeat]


def acquitted(record: AttemptRecord, why: str) -> AttemptRecord:
    """The record of an attempt whose nodes were accused while contact with most of the cluster was being lost."""
    return {**record, "outcome": "cancelled", "cause": _instead("Cancelled", why)}


def under_mass_event(record: AttemptRecord, event: str) -> AttemptRecord:
    """The record of an attempt whose nodes were the first to show what most nodes show now."""
    return {**record, "outcome": "failed", "cause": _instead("NodeUnavailable", event)}


def _instead(reason: str, why: str) -> Cause:
    return {"reason": reason, "message": why, "nodes": [], "evidence": [why], "retryable": False}


def pod_record(
    name: str,
    *,
    node: str | None = None,
    index: int | None = None,
    role: str = "launcher",
    phase: str | None = None,
    exit_code: int | None = None,
    reason: str | None = None,
    message: str | None = None,
    restarts: int = 0,
    log: str | None = None,
    log_complete: bool = False,
    log_problem: str | None = None,
) -> PodRecord:
    """One pod of an attempt (docs/data_shapes.md)."""
    return {
        "name": name,
        "node": node,
        "index": index,
        "role": role,
        "phase": phase,
        "exit_code": exit_code,
        "reason": reason,
        "message": message,
        "restarts": restarts,
        "log": log,
        "log_complete": log_complete,
        "log_problem": log_problem,
    }
