# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report as data. Pure: the same archive gives the same bytes, whenever and wherever it is rebuilt.

Every other format is a view of this model; docs/report.schema.json describes it.
"""

from __future__ import annotations

import json
import typing as t

from .._common.plain import finite

SCHEMA_VERSION = 1
Row = dict[str, t.Any]


def build_report(
    run: t.Mapping[str, t.Any],
    snapshot: t.Mapping[str, t.Any],
    plan: t.Mapping[str, t.Any] | None,
    judged: t.Mapping[str, t.Any],
    cleanup: t.Mapping[str, t.Any] | None,
) -> Row:
    """The report of one run.

    run:      {run_id, started, finished, certification: name or {name, ...}, version?, archive?, notes?: [text]}.
    snapshot: of discovery. plan: may be None when nothing was planned.
    judged:   of `verdict.roll_up`. cleanup: {proven, left: []}; None when nothing was created.
    """
    certification = run.get("certification") or {}
    report = {
        "schema_version": SCHEMA_VERSION,
        "generator": {"collection": "gpu_cluster.readiness", "version": run.get("version")},
        "run_id": run["run_id"],
        "verdict": judged["verdict"],
        "why": judged["why"],
        "started": run.get("started"),
        "finished": run.get("finished"),
        "certification": dict(certification) if isinstance(certification, t.Mapping) else {"name": certification},
        "cluster": _cluster(snapshot),
        "coverage": dict(judged["coverage"]),
        "cost": (plan or {}).get("cost"),
        "categories": [_category(category) for category in judged["categories"]],
        "nodes": [dict(node) for node in judged["nodes"]],
        "excluded": [dict(item) for item in judged["excluded"]],
        "not_selected": list(judged.get("not_selected") or []),
        "cleanup": _cleanup(cleanup),
        "notes": [str(note) for note in run.get("notes") or []],
        "archive": run.get("archive"),
    }
    return finite(report)


def render_json(report: t.Mapping[str, t.Any]) -> str:
    """The report as JSON text: sorted keys, fixed indent, numbers as numbers."""
    return json.dumps(report, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def summary(report: t.Mapping[str, t.Any], limit: int = 200) -> Row:
    """What a pipeline needs: small, whatever the size of the cluster.

    {run_id, verdict, why, failed_nodes, suspect_nodes, untested_nodes, counts, report}; each list holds at most `limit` names,
    `counts` holds the true numbers.
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
        "report": f"{archive}/report.json" if archive else None,
    }


def _cluster(snapshot: t.Mapping[str, t.Any]) -> Row:
    platform, server = snapshot.get("platform") or {}, snapshot.get("server") or {}
    if not isinstance(platform, t.Mapping):
        platform = {"name": platform}
    return {
        "platform": platform.get("name"),
        "platform_evidence": list(platform.get("evidence") or []),
        "server_version": server.get("version"),
        "gpus": [dict(row) for row in snapshot.get("gpus") or []],
        "nodes": len(snapshot.get("nodes") or []),
        "versions": _versions(snapshot),
        "taken_at": snapshot.get("taken_at"),
    }


def _versions(snapshot: t.Mapping[str, t.Any]) -> dict[str, dict[str, int]]:
    """Which software stacks the target nodes run, and how many nodes each: {driver: {"580.95.05": 64}, ...}."""
    counts: dict[str, dict[str, int]] = {}
    for node in snapshot.get("nodes") or []:
        if not node.get("target"):
            continue
        for name in ("driver", "cuda", "kubelet", "kernel", "os_image", "container_runtime"):
            value = (node.get("versions") or {}).get(name)
            if value:
                column = counts.setdefault(name, {})
                column[value] = column.get(value, 0) + 1
    return counts


def _category(category: t.Mapping[str, t.Any]) -> Row:
    return {
        "id": category["id"],
        "test": category["test"],
        "test_scale": category["test_scale"],
        "verdict": category["verdict"],
        "why": category["why"],
        "criteria": [_expression(item) for item in category["criteria"]],
        "groups": [_group(group) for group in category["groups"]],
        "untested": [{key: item.get(key) for key in ("node", "reason", "message")} for item in category["untested"]],
        "isolation": category.get("isolation"),
    }


def _expression(criterion: t.Mapping[str, t.Any]) -> str:
    return f"{criterion['key']}: {criterion['expression']}" if criterion.get("key") else str(criterion["expression"])


def _group(group: t.Mapping[str, t.Any]) -> Row:
    return {
        "name": group["name"],
        "nodes": list(group["nodes"]),
        "domain": group.get("domain"),
        "verdict": group["verdict"],
        "attempts": [_attempt(attempt) for attempt in group["attempts"]],
        "measurement": _measurement(group.get("measurement")),
        "criteria": [dict(result) for result in group["criteria"]],
        "findings": [dict(item) for item in group["findings"]],
    }


def _attempt(attempt: t.Mapping[str, t.Any]) -> Row:
    """An attempt without its pods: those are in the archive; the logs are named."""
    keys = ("attempt", "outcome", "reason", "message", "created", "started", "finished", "exit_code")
    logs = [pod["log"] for pod in attempt.get("pods") or [] if pod.get("log")]
    return {**{key: attempt.get(key) for key in keys}, "nodes": list(attempt.get("nodes") or []), "logs": logs}


def _measurement(measurement: t.Mapping[str, t.Any] | None) -> Row | None:
    """The numbers and what they mean, without the parsed rows: those are in the archive."""
    if not measurement:
        return None
    keys = ("kind", "verdict", "complete", "reason", "transport", "judged")
    return {
        **{key: measurement.get(key) for key in keys},
        "values": dict(measurement.get("values") or {}),
        "units": dict(measurement.get("units") or {}),
    }


def _cleanup(cleanup: t.Mapping[str, t.Any] | None) -> Row:
    if cleanup is None:
        return {"proven": True, "left": []}
    return {"proven": bool(cleanup.get("proven")), "left": list(cleanup.get("left") or [])}
