# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine keeps of pods, jobs and nodes: small plain dicts, so that a watch over thousands of objects stays cheap."""

from __future__ import annotations

import typing as t

Facts = dict[str, t.Any]
INDEX = "batch.kubernetes.io/job-completion-index"
JOB_NAME = "batch.kubernetes.io/job-name"


def pod_facts(pod: t.Mapping[str, t.Any]) -> Facts:
    """{name, uid, job, node, index, phase, reason, message, deleting, scheduled, disruption, waiting, running, terminated, restarts}.

    waiting, terminated: of the first container that has such a state, init containers first; {reason, message, exit_code …} or None.
    scheduled: {status, reason, message} of PodScheduled. disruption: {reason, message} of DisruptionTarget or None.
    """
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = {item.get("type"): item for item in status.get("conditions") or []}
    main = status.get("containerStatuses") or []
    every = (status.get("initContainerStatuses") or []) + main
    scheduled = conditions.get("PodScheduled") or {}
    disruption = conditions.get("DisruptionTarget") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    index = annotations.get(INDEX, labels.get(INDEX))
    return {
        "name": meta["name"],
        "uid": meta.get("uid"),
        "job": labels.get(JOB_NAME),
        "node": spec.get("nodeName"),
        "index": int(index) if index is not None else None,
        "phase": status.get("phase") or "Pending",
        "reason": status.get("reason"),
        "message": status.get("message"),
        "deleting": bool(meta.get("deletionTimestamp")),
        "scheduled": {key: scheduled.get(key) for key in ("status", "reason", "message")},
        "disruption": {key: disruption.get(key) for key in ("reason", "message")} if disruption.get("status") == "True" else None,
        "waiting": _waiting(every),
        "running": bool(main) and all("running" in (item.get("state") or {}) for item in main),
        "terminated": _terminated(main) or _terminated(every, failed_only=True),
        "restarts": sum(item.get("restartCount") or 0 for item in main),
    }


def _waiting(statuses: t.Sequence[t.Mapping[str, t.Any]]) -> Facts | None:
    for item in statuses:
        state = (item.get("state") or {}).get("waiting")
        if state and state.get("reason") not in (None, "PodInitializing"):
            return {"reason": state.get("reason"), "message": state.get("message"), "image": item.get("image")}
    return None


def _terminated(statuses: t.Sequence[t.Mapping[str, t.Any]], failed_only: bool = False) -> Facts | None:
    for item in statuses:
        state = (item.get("state") or {}).get("terminated")
        if state and not (failed_only and state.get("exitCode") == 0):
            return {
                "exit_code": state.get("exitCode"),
                "reason": state.get("reason"),
                "message": state.get("message"),
                "finished": state.get("finishedAt"),
                "started": state.get("startedAt"),
            }
    return None


def job_facts(job: t.Mapping[str, t.Any]) -> Facts:
    """{name, uid, suspended, failed, complete}; failed and complete are {reason, message} of the terminal condition or None."""
    conditions = {item.get("type"): item for item in (job.get("status") or {}).get("conditions") or [] if item.get("status") == "True"}

    def condition(name: str) -> Facts | None:
        found = conditions.get(name)
        return {"reason": found.get("reason"), "message": found.get("message")} if found else None

    return {
        "name": job["metadata"]["name"],
        "uid": job["metadata"].get("uid"),
        "suspended": bool((job.get("spec") or {}).get("suspend")),
        # The criteria conditions come first and lack nothing we need: the job is decided from then on.
        "failed": condition("Failed") or condition("FailureTarget"),
        "complete": condition("Complete") or condition("SuccessCriteriaMet"),
    }


def node_facts(node: t.Mapping[str, t.Any]) -> Facts:
    """A Node reduced to what health expressions and messages use; its shape stays that of a Node (labels, spec, status)."""
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": meta["name"],
            "labels": meta.get("labels") or {},
            "annotations": meta.get("annotations") or {},
            # Also what a health expression may compare; kept small by leaving managedFields and images out.
            "creationTimestamp": meta.get("creationTimestamp"),
        },
        "spec": {"taints": spec.get("taints") or [], "unschedulable": bool(spec.get("unschedulable"))},
        "status": {
            "conditions": [
                {key: item.get(key) for key in ("type", "status", "reason", "message")} for item in status.get("conditions") or []
            ],
            "capacity": status.get("capacity") or {},
            "allocatable": status.get("allocatable") or {},
            "addresses": status.get("addresses") or [],
        },
    }


def lost_reason(node: Facts | None) -> str | None:
    """Why a node cannot run anything any more, in the words of its Ready condition; None while it can."""
    if node is None:
        return "the Node object is gone"
    for item in node["status"]["conditions"]:
        if item["type"] == "Ready" and item["status"] != "True":
            return f"Ready={item['status']}: {item['reason']}: {item['message']}"
    return None
