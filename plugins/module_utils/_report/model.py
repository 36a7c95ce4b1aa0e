# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report as data. Pure: the same archive gives the same bytes, whenever and wherever it is rebuilt.

Every other format is a view of this model; docs/report.schema.json describes it.
"""

from __future__ import annotations

import json
import typing as t

from .._common.plain import finite
from .._common.shapes import (
    AttemptRecord,
    CleanupProof,
    JudgedCategory,
    JudgedGroup,
    Measurement,
    Plan,
    Report,
    RolledUp,
    Snapshot,
)
from .racks import roll_up_of

SCHEMA_VERSION = 1
Row = dict[str, t.Any]
_MEASUREMENT_KEYS = ("kind", "verdict", "complete", "reason", "transport", "judged", "values", "units")


def build_report(
    run: t.Mapping[str, t.Any],
    snapshot: Snapshot,
    plan: Plan | None,
    judged: RolledUp,
    cleanup: CleanupProof | None,
) -> Report:
    """The report of one run.

    run:      {run_id, started, finished, certification: name or {name, ...}, version?, archive?, notes?: [text]}.
    snapshot: of discovery. plan: may be None when nothing was planned.
    judged:   of `certification.roll_up`. cleanup: {proven, left: []}; None when nothing was created.
    """
    certification = run.get("certification") or {}
    report: Report = {
        "schema_version": SCHEMA_VERSION,
        "generator": {"collection": "gpu_cluster.readiness", "version": run.get("version")},
        "run_id": run["run_id"],
        "verdict": judged["verdict"],
        "why": judged["why"],
        "started": run.get("started"),
        "finished": run.get("finished"),
        "certification": dict(certification) if isinstance(certification, t.Mapping) else {"name": certification},
        "cluster": _cluster(snapshot),
        "coverage": judged["coverage"],
        "cost": plan["cost"] if plan else None,
        "categories": [_category(category) for category in judged["categories"]],
        "nodes": list(judged["nodes"]),
        "excluded": list(judged["excluded"]),
        "not_selected": list(judged["not_selected"]),
        "cleanup": _cleanup(cleanup),
        "notes": [str(note) for note in run.get("notes") or []],
        "archive": run.get("archive"),
    }
    return t.cast(Report, finite(report))


def render_json(report: Report) -> str:
    """The report as JSON text: sorted keys, fixed indent, numbers as numbers."""
    return json.dumps(report, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def summary(report: Report, limit: int = 200) -> Row:
    """What a pipeline needs: small, whatever the size of the cluster.

    {run_id, verdict, why, failed_nodes, suspect_nodes, untested_nodes, counts, cleanup: {proven, left}, report}; each list holds at most
    `limit` names, `counts` holds the true numbers.
    """
    names: dict[str, list[str]] = {word: [] for word in ("passed", "failed", "suspect", "untested")}
    for node in report["nodes"]:
        names[node["verdict"]].append(node["name"])
    archive = report.get("archive")
    return {
        "run_id": report["run_id"],
        "verdict": report["verdict"],
        "why": report["why"],
        **{f"{word}_nodes": names[word][:limit] for word in ("failed", "suspect", "untested")},
        "counts": {**{word: len(items) for word, items in names.items()}, "excluded": len(report["excluded"])},
        "cleanup": {"proven": report["cleanup"]["proven"], "left": report["cleanup"]["left"][:limit]},
        "report": f"{archive}/report.json" if archive else None,
    }


def _cluster(snapshot: Snapshot) -> Row:
    platform, server = snapshot.get("platform") or {}, snapshot.get("server") or {}
    return {
        "platform": platform.get("name"),
        "platform_evidence": list(platform.get("evidence") or []),
        "server_version": server.get("version"),
        "gpus": [dict(row) for row in snapshot["gpus"]],
        "nodes": len(snapshot["nodes"]),
        "versions": _versions(snapshot),
        "taken_at": snapshot.get("taken_at"),
    }


def _versions(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """Which software stacks the target nodes run, and how many nodes each: {driver: {"580.95.05": 64}, ...}."""
    counts: dict[str, dict[str, int]] = {}
    for node in snapshot["nodes"]:
        if not node["target"]:
            continue
        for name in ("driver", "cuda", "kubelet", "kernel", "os_image", "container_runtime"):
            value = (node.get("versions") or {}).get(name)
            if value:
                column = counts.setdefault(name, {})
                column[value] = column.get(value, 0) + 1
    return counts


def _category(category: JudgedCategory) -> Row:
    return {
        "id": category["id"],
        "test": category["test"],
        "test_scale": category["test_scale"],
        "verdict": category["verdict"],
        "why": category["why"],
        "criteria": [_expression(item) for item in category["criteria"]],
        "groups": [_group(group) for group in category["groups"]],
        "roll_up": roll_up_of(category),
        "untested": [{key: item.get(key) for key in ("node", "reason", "message")} for item in category["untested"]],
        "isolation": category["isolation"],
    }


def _expression(criterion: t.Mapping[str, t.Any]) -> str:
    return f"{criterion['key']}: {criterion['expression']}" if criterion.get("key") else str(criterion["expression"])


def _group(group: JudgedGroup) -> Row:
    return {
        "name": group["name"],
        "nodes": list(group["nodes"]),
        "domain": group["domain"],
        "verdict": group["verdict"],
        "attempts": [_attempt(attempt) for attempt in group["attempts"]],
        "measurement": _measurement(group["measurement"]),
        "criteria": list(group["criteria"]),
        "repeats": group.get("repeats"),
        "findings": list(group["findings"]),
    }


def _attempt(attempt: AttemptRecord) -> Row:
    """An attempt without its pods: those are in the archive; the logs are named."""
    cause = attempt["cause"]
    return {
        "attempt": attempt["attempt"],
        "repeat": attempt.get("repeat", 1),
        "outcome": attempt["outcome"],
        "created": attempt["created"],
        "started": attempt["started"],
        "finished": attempt["finished"],
        "exit_code": attempt["exit_code"],
        "reason": cause["reason"] if cause else None,
        "message": cause["message"] if cause else None,
        "nodes": list(cause["nodes"]) if cause else [],
        "logs": [pod["log"] for pod in attempt["pods"] if pod["log"]],
    }


def _measurement(measurement: Measurement | None) -> Row | None:
    """The numbers and what they mean, without the parsed rows: those are in the archive."""
    if not measurement:
        return None
    return {key: value for key, value in measurement.items() if key in _MEASUREMENT_KEYS}


def _cleanup(cleanup: CleanupProof | None) -> CleanupProof:
    if cleanup is None:
        return {"proven": True, "left": [], "message": ""}
    return {"proven": bool(cleanup["proven"]), "left": list(cleanup["left"]), "message": cleanup.get("message") or ""}
