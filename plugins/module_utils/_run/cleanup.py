# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Removal of our own objects, proven by reading the cluster afterwards. Only deletes, and only what carries our run label."""

from __future__ import annotations

import time
import typing as t

from .._cluster.client import Client
from .._cluster.kinds import CONFIG_MAP, OWNED, POD
from .._common.errors import ClusterError
from .._common.shapes import CleanupProof
from .._workload.names import EXPIRES_ANNOTATION, MANAGED_BY, RUN_LABEL, short

POLL_S = 0.5
# A pod on a node that answers no more is never confirmed deleted by its kubelet; after this it is removed by force.
FORCE_AFTER_S = 30.0


def selector(run_id: str) -> str:
    """The label selector of everything a run owns."""
    return f"{RUN_LABEL}={short(run_id, 63)}"


def remaining(client: Client, namespace: str, label_selector: str) -> list[dict[str, t.Any]]:
    """What still exists: {kind, name, path, node, deleting, uid}."""
    found = []
    for kind in OWNED:
        for item in client.list(kind.path(namespace), label_selector=label_selector):
            meta = item["metadata"]
            found.append(
                {
                    "kind": kind.name,
                    "name": meta["name"],
                    "path": kind.path(namespace, meta["name"]),
                    "uid": meta.get("uid"),
                    "node": (item.get("spec") or {}).get("nodeName") if kind is POD else None,
                    "deleting": bool(meta.get("deletionTimestamp")),
                }
            )
    return found


def clean(
    client: Client,
    namespace: str,
    label_selector: str,
    *,
    timeout_s: float = 180.0,
    force_at_once: t.Container[str] = (),
    sleep: t.Callable[[float], None] = time.sleep,
    clock: t.Callable[[], float] = time.monotonic,
) -> CleanupProof:
    """Deletes everything under the selector and waits until it is gone.

    force_at_once: nodes known to be lost. Returns {proven: bool, left: ["pod/name", …], message}; proven only when a last
    read of every kind found nothing.
    """
    start = clock()
    problem = ""
    while True:
        try:
            left = remaining(client, namespace, label_selector)
            problem = ""
        except ClusterError as error:
            left, problem = [], error.render()
        if not left and not problem:
            return {"proven": True, "left": [], "message": ""}
        age = clock() - start
        if age > timeout_s:
            break
        for item in left:
            forced = item["kind"] == POD.name and (item["node"] in force_at_once or age > FORCE_AFTER_S)
            if item["deleting"] and not forced:
                continue
            try:
                client.delete(item["path"], uid=item["uid"], grace_period_s=0 if forced else None)
            except ClusterError as error:
                if error.status != 409:
                    problem = error.render()
        sleep(POLL_S)
    names = [f"{item['kind']}/{item['name']}" for item in left]
    return {"proven": False, "left": names, "message": problem or f"{len(names)} objects were still there after {timeout_s:.0f} s"}


def announced_runs(client: Client, namespace: str) -> dict[str, str]:
    """Run labels of our own anchors in the cluster, with the time (RFC 3339) after which each counts as dead."""
    runs: dict[str, str] = {}
    for item in client.list(CONFIG_MAP.path(namespace), label_selector=f"app.kubernetes.io/managed-by={MANAGED_BY},{RUN_LABEL}"):
        expires = (item["metadata"].get("annotations") or {}).get(EXPIRES_ANNOTATION)
        if expires:
            run_id = item["metadata"]["labels"][RUN_LABEL]
            runs[run_id] = max(expires, runs.get(run_id, ""))
    return dict(sorted(runs.items()))


def expired_runs(client: Client, namespace: str, now_utc: str) -> list[str]:
    """Runs whose announced end has passed: leftovers of a control node that died."""
    return [run_id for run_id, expires in announced_runs(client, namespace).items() if expires < now_utc]
