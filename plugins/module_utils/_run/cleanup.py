# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Removal of our own objects, proven by reading the cluster afterwards. Only deletes, and only what carries our run label.

What cannot be listed blocks nothing else: every kind is asked, what was found is removed, and the proof says what could not be asked.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import time
import typing as t

from .._cluster.client import Client
from .._cluster.kinds import NODE, OWNED, POD
from .._common.errors import ClusterError
from .._common.shapes import CleanupProof
from .._workload.names import RUN_LABEL, short
from .pool import Pool
from .projections import lost_reason, node_facts

POLL_S = 0.5
TIMEOUT_S = 180.0
WORKERS = 16
# A pod on a node that answers no more is never confirmed deleted by its kubelet; after this its node is looked at.
FORCE_AFTER_S = 30.0


@dataclasses.dataclass
class Remaining:
    """What still exists, {kind, name, path, uid, node, deleting} each, and what could not be asked."""

    items: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)


def selector(run_id: str) -> str:
    """The label selector of everything a run owns."""
    return f"{RUN_LABEL}={short(run_id, 63)}"


def remaining(client: Client, namespace: str, label_selector: str) -> Remaining:
    """Asks for every kind that a run creates; a kind that cannot be listed is a problem, and the others are listed all the same."""
    found = Remaining()
    for kind in OWNED:
        try:
            listed = list(client.list(kind.path(namespace), label_selector=label_selector))
        except ClusterError as error:
            found.problems.append(f"{kind.plural} cannot be listed: {error.render()}")
            continue
        for item in listed:
            meta = item["metadata"]
            found.items.append(
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
    timeout_s: float = TIMEOUT_S,
    lost_nodes: t.Container[str] = (),
    keep: t.Container[str] = (),
    sleep: t.Callable[[float], None] = time.sleep,
    clock: t.Callable[[], float] = time.monotonic,
) -> CleanupProof:
    """Deletes everything under the selector and waits until it is gone, within timeout_s whatever hangs.

    keep: UIDs of what stays. lost_nodes: nodes known to be lost; their pods are removed by force, which the message says. Proven only
    when a last read of every kind found nothing. A pod that stays on a node that answers is left, and named: only its kubelet knows what
    still runs there.
    """
    hurried = client.hurried()
    deadline = clock() + timeout_s
    forced: set[str] = set()
    while True:
        found = remaining(hurried, namespace, label_selector)
        found.items = [item for item in found.items if item["uid"] not in keep]
        if not found.items and not found.problems:
            return {"proven": True, "left": [], "message": _forced_note(forced)}
        if clock() >= deadline:
            break
        due = []
        for item in found.items:
            by_force = item["kind"] == POD.name and _is_lost(hurried, item, lost_nodes, clock() - (deadline - timeout_s))
            if by_force:
                forced.add(item["name"])
            if by_force or not item["deleting"]:
                due.append((item, by_force))
        found.problems += _delete(hurried, due, deadline - clock())
        sleep(POLL_S)
    names = [f"{item['kind']}/{item['name']}" for item in found.items]
    still = f"{len(names)} objects were still there after {timeout_s:.0f} s" if names else ""
    return {
        "proven": False,
        "left": names,
        "message": "; ".join(filter(None, [*dict.fromkeys(found.problems), still, _forced_note(forced)])),
    }


def _delete(client: Client, due: list[tuple[dict[str, t.Any], bool]], seconds: float) -> list[str]:
    """Asks for all deletions at the same time; those that have not been answered in time are seen by the next look."""
    pool = Pool(WORKERS, "cleanup")
    asked = [pool.submit(functools.partial(_delete_one, client, item, by_force)) for item, by_force in due]
    concurrent.futures.wait(asked, timeout=max(0.0, seconds))
    pool.stop()
    return [problem for answer in asked if answer.done() and not answer.cancelled() and (problem := answer.result())]


def _delete_one(client: Client, item: t.Mapping[str, t.Any], by_force: bool) -> str:
    try:
        client.delete(item["path"], uid=item["uid"], grace_period_s=0 if by_force else None)
    except ClusterError as error:
        if error.status != 409:  # another object has taken the name: it is not ours
            return f"{item['kind']}/{item['name']} cannot be deleted: {error.render()}"
    return ""


def _is_lost(client: Client, item: t.Mapping[str, t.Any], lost_nodes: t.Container[str], age_s: float) -> bool:
    """Whether the node of a pod is lost: known before, or, when its deletion takes long, as the cluster says now."""
    if item["node"] is None:
        return False
    if item["node"] in lost_nodes:
        return True
    if age_s <= FORCE_AFTER_S or not item["deleting"]:
        return False
    try:
        return lost_reason(node_facts(client.get(NODE.path(name=item["node"])))) is not None
    except ClusterError as error:
        return error.status == 404


def _forced_note(forced: t.Collection[str]) -> str:
    if not forced:
        return ""
    return f"{len(forced)} pods on lost nodes were removed by force: what runs there ends when the node does"
