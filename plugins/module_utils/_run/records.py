# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From an attempt that has ended to its record."""

from __future__ import annotations

import time

from .._causes.classify import Said
from .._causes.record import attempt_record, pod_record
from .._common.shapes import AttemptRecord, PodRecord
from .._common.times import utc
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
        name=attempt.name,
        exit_code=decision.exit_code,
        created=moment(attempt.created_at),
        started=moment(attempt.started_at),
        finished=moment(attempt.finished_at),
        duration_s=round((attempt.finished_at or 0.0) - (attempt.started_at or 0.0), 1) if ran else None,
        pods=[_pod(pod, launcher, attempt.logs.get(pod["name"])) for pod in ordered],
        events=attempt.events,
        health=attempt.health,
    )


def _pod(pod: Facts, launcher: Facts | None, log: tuple[str, bool] | None) -> PodRecord:
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
    )
