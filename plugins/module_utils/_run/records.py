# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From an attempt that has ended to its record."""

from __future__ import annotations

import time
import typing as t

from .._causes.classify import Said
from .._causes.record import attempt_record, pod_record
from .._causes.wordings import reason_of_refusal
from .._common.errors import ClusterError
from .._common.shapes import AttemptRecord, CleanupProof, Group, GroupObservation, NodeSeen, NodeState, Observation, PodRecord
from .._common.times import utc
from .._common.words import counted
from .attempt import Attempt, Decision
from .projections import Facts


def record_of(attempt: Attempt, decision: Decision) -> AttemptRecord:
    """The attempt as data; its cause is classified here, once."""
    offset = time.time() - time.monotonic()

    def moment(at: float | None) -> str | None:
        return utc(at + offset) if at else None

    ran = attempt.started_at is not None and attempt.finished_at is not None
    launcher = attempt.launcher()
    ordered = sorted(attempt.pods.values(), key=lambda pod: (pod["index"] or 0, pod["name"]))
    return attempt_record(
        attempt.number,
        decision.outcome,
        Said(decision.reason, decision.message, tuple(decision.nodes)),
        repeat=attempt.repeat,
        name=attempt.name,
        exit_code=decision.exit_code,
        created=moment(attempt.created_at),
        started=moment(attempt.started_at),
        finished=moment(attempt.finished_at),
        duration_s=round((attempt.finished_at or 0.0) - (attempt.started_at or 0.0), 1) if ran else None,
        pods=[_pod(pod, launcher, attempt.logs.get(pod["name"]), attempt.log_problems.get(pod["name"])) for pod in ordered],
        events=attempt.events,
        health=attempt.health,
        machines=[_seen(attempt, node) for node in attempt.nodes if node in attempt.before],
        excluded=attempt.excluded,
    )


def _seen(attempt: Attempt, node: str) -> NodeSeen:
    return {
        "node": node,
        "before": attempt.before[node],
        "after": attempt.after.get(node),
        "fewest_gpus": attempt.fewest_gpus.get(node),
    }


def _pod(pod: Facts, launcher: Facts | None, log: tuple[str, bool] | None, problem: str | None) -> PodRecord:
    end, waiting = pod["terminated"] or {}, pod["waiting"] or {}
    return pod_record(
        pod["name"],
        node=pod["node"],
        index=pod["index"],
        role="launcher" if pod is launcher else "worker",
        phase=pod["phase"],
        exit_code=end.get("exit_code"),
        reason=end.get("reason") or pod["reason"] or waiting.get("reason"),
        # The container's own last words are its log's business (see the .termination file); here stands what the API says.
        message=pod["message"] or waiting.get("message"),
        restarts=pod["restarts"],
        log=log[0] if log else None,
        log_complete=bool(log and log[1]),
        log_problem=problem,
    )


def states_before(attempts: t.Iterable[AttemptRecord]) -> dict[str, list[NodeState]]:
    """By node that was tested, sorted, what it was when each of its tests began, where that is known."""
    found: dict[str, list[NodeState]] = {}
    for attempt in attempts:
        for item in attempt.get("machines") or ():
            found.setdefault(item["node"], []).extend([item["before"]] if item["before"] else [])
    return dict(sorted(found.items()))


def observation_of(
    groups: t.Sequence[Group],
    records: t.Mapping[str, list[AttemptRecord]],
    proof: CleanupProof,
    cancelled: str,
    look: dict[str, NodeState | None] | None,
) -> Observation:
    """What happened to all groups of a batch."""
    observed: list[GroupObservation] = [
        {"name": group["name"], "nodes": group["nodes"], "attempts": records[group["name"]]} for group in groups
    ]
    return {"groups": observed, "cleanup": proof, "cancelled": cancelled, "last_look": look}


def refusal_by(error: Exception) -> str:
    """The reason of an attempt whose objects could not be created."""
    if isinstance(error, ClusterError):
        return reason_of_refusal(error.status, error.message)
    return reason_of_refusal(None, str(error))


def acquit(
    records: t.Mapping[str, list[AttemptRecord]],
    said: t.Mapping[str, str],
    reason: str,
    instead: t.Callable[[AttemptRecord], AttemptRecord],
) -> dict[str, AttemptRecord]:
    """Takes back the accusations, with this reason, of none but these nodes. Returns the corrected records, by group.

    said: by node, words that such an accusation quotes; "": it may quote what it will.
    """
    corrected = {}
    for group, own in records.items():
        for index, record in enumerate(own):
            cause = record["cause"]
            if not cause or cause["reason"] != reason or not cause["nodes"] or not set(said).issuperset(cause["nodes"]):
                continue
            if all(said[node] in f"{cause['message']} {' '.join(cause['evidence'])}" for node in cause["nodes"]):
                own[index] = corrected[group] = instead(record)
    return corrected


def progress_line(title: str, groups: int, waiting: int, live: int, running: int) -> str:
    """How far a batch is; all but the title are numbers of groups."""
    parts = f"{running} running, {live - running} starting or ending, {waiting} waiting"
    return f"{title}: {groups - waiting - live} of {counted(groups, 'group')} done, {parts}"


def ending(attempt: Attempt, record: AttemptRecord) -> str:
    """How an attempt that did not succeed ended, in one line."""
    where = ", ".join(attempt.nodes[:3]) + (" …" if len(attempt.nodes) > 3 else "")
    cause = record["cause"]
    text = " ".join((cause["message"] if cause else "").split())[:160]
    return f"{attempt.group} ({where}) {record['outcome']}: {cause['reason'] if cause else 'no cause'}: {text}"


def words_of(error: Exception) -> str:
    """An error in words."""
    return error.render() if isinstance(error, ClusterError) else str(error) or type(error).__name__
