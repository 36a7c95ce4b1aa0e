# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine keeps of pods, jobs and nodes: small plain dicts, so that a watch over thousands of objects stays cheap."""

from __future__ import annotations

import typing as t

from .._cluster.nodes import gpu_resources
from .._common.shapes import NodeState
from .._workload.names import CONTAINER
from .._workload.pods import JOB_NAME_LABEL

Facts = dict[str, t.Any]
INDEX = "batch.kubernetes.io/job-completion-index"


def pod_facts(pod: t.Mapping[str, t.Any]) -> Facts:
    """{name, uid, job, owner, node, index, phase, reason, message, deleting, scheduled, disruption, waiting, running, terminated,
    restarts}.

    job: name by label. owner: UID of the controller; what no Job of ours controls is none of our pods, whatever its labels say.
    running, terminated, restarts: of our own container; others beside it were injected. waiting: of ours, or of the init container
    that keeps it back. terminated: where ours never ran, of the init container that failed. {reason, message, exit_code …} or None.
    scheduled: {status, reason, message} of PodScheduled. disruption: {reason, message} of DisruptionTarget or None.
    """
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    conditions = {item.get("type"): item for item in status.get("conditions") or []}
    own = [item for item in status.get("containerStatuses") or [] if item.get("name") == CONTAINER]
    before = status.get("initContainerStatuses") or []
    scheduled = conditions.get("PodScheduled") or {}
    disruption = conditions.get("DisruptionTarget") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    running, ended = any("running" in (item.get("state") or {}) for item in own), _terminated(own)
    came = running or ended is not None
    return {
        "name": meta["name"],
        "uid": meta.get("uid"),
        "job": labels.get(JOB_NAME_LABEL),
        "owner": next((item.get("uid") for item in meta.get("ownerReferences") or [] if item.get("controller")), None),
        "node": spec.get("nodeName"),
        "index": _index(annotations.get(INDEX, labels.get(INDEX))),
        "phase": status.get("phase") or "Pending",
        "reason": status.get("reason"),
        "message": status.get("message"),
        "deleting": bool(meta.get("deletionTimestamp")),
        "scheduled": {key: scheduled.get(key) for key in ("status", "reason", "message")},
        "disruption": {key: disruption.get(key) for key in ("reason", "message")} if disruption.get("status") == "True" else None,
        "waiting": None if came else _waiting([*before, *own]),
        "running": running,
        "terminated": ended if came else _terminated(before, failed_only=True),
        "restarts": sum(item.get("restartCount") or 0 for item in own),
    }


def _index(text: t.Any) -> int | None:
    """The completion index; None for a text that is no number, which no Job controller writes."""
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else None


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
            "uid": meta.get("uid"),
            "labels": meta.get("labels") or {},
            "annotations": meta.get("annotations") or {},
            # Also what a health expression may compare; kept small by leaving managedFields and images out.
            "creationTimestamp": meta.get("creationTimestamp"),
            "deletionTimestamp": meta.get("deletionTimestamp"),
        },
        "spec": {"taints": spec.get("taints") or [], "unschedulable": bool(spec.get("unschedulable"))},
        "status": {
            "conditions": [
                {key: item.get(key) for key in ("type", "status", "reason", "message")} for item in status.get("conditions") or []
            ],
            "capacity": status.get("capacity") or {},
            "allocatable": status.get("allocatable") or {},
            "addresses": status.get("addresses") or [],
            "nodeInfo": {"bootID": (status.get("nodeInfo") or {}).get("bootID")},
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


def node_state(node: Facts | None) -> NodeState | None:
    """What of a node's facts must stay the same while it is tested; None for a node that is gone."""
    if node is None:
        return None
    return {
        "uid": node["metadata"]["uid"],
        "boot_id": node["status"]["nodeInfo"]["bootID"],
        "gpus": sum(gpu_resources(node["status"]["allocatable"]).values()),
        "trouble": lost_reason(node),
    }
