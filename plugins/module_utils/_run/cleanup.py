# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Removal of our own objects, proven by reading the cluster afterwards. Only deletes, and only what carries our run label.

What cannot be listed blocks nothing else: every kind is asked, what was found is removed, and the proof says what could not be asked.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import re
import time
import typing as t

from .._cluster.client import Client
from .._cluster.kinds import CONFIG_MAP, NODE, OWNED, POD, Kind
from .._common.errors import ClusterError
from .._common.shapes import CleanupProof
from .._common.words import counted
from .._workload.names import RUN_LABEL, short
from .pool import Pool
from .projections import lost_reason, node_facts

POLL_S = 0.5
TIMEOUT_S = 180.0
WORKERS = 16
# A pod on a node that answers no more is never confirmed deleted by its kubelet. Its node is looked at after LOOK_AFTER_S, and is lost when
# it has been silent for SILENT_S: a kubelet that restarts is back by then.
LOOK_AFTER_S, SILENT_S = 10.0, 30.0
# What is held by finalizers of others alone, and has not changed for so long, is waited for no longer: only their owners can let it go.
HELD_S = 30.0
MAX_HELD = 3
# Finalizers of Kubernetes itself have no domain, or one of these; its controllers take them away in time.
KUBERNETES_DOMAINS = re.compile(r"(.*\.)?(kubernetes|k8s)\.io/")


@dataclasses.dataclass
class Remaining:
    """What still exists, {kind, name, path, uid, version, node, deleting, held_by} each, and what could not be asked.

    held_by: finalizers of others.
    """

    items: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)


def selector(run_id: str) -> str:
    """The label selector of everything a run owns."""
    return f"{RUN_LABEL}={short(run_id, 63)}"


def remaining(client: Client, namespace: str, label_selector: str) -> Remaining:
    """Asks for every kind that a run creates, all at the same time: one that hangs delays no other.

    A kind that cannot be listed is a problem, and the others are listed all the same.
    """
    pool = Pool(len(OWNED), "look")
    asked = [(kind, pool.submit(functools.partial(_listed, client, kind, namespace, label_selector))) for kind in OWNED]
    concurrent.futures.wait([answer for _kind, answer in asked])
    pool.stop()
    found = Remaining()
    for kind, answer in asked:
        try:
            found.items += answer.result()
        except ClusterError as error:
            found.problems.append(f"{kind.plural} cannot be listed: {error.render()}")
    return found


def _listed(client: Client, kind: Kind, namespace: str, label_selector: str) -> list[dict[str, t.Any]]:
    return [_known(kind, namespace, item) for item in client.list(kind.path(namespace), label_selector=label_selector)]


def _known(kind: Kind, namespace: str, item: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    meta = item["metadata"]
    return {
        "kind": kind.name,
        "name": meta["name"],
        "path": kind.path(namespace, meta["name"]),
        "uid": meta.get("uid"),
        "version": meta.get("resourceVersion"),
        "node": (item.get("spec") or {}).get("nodeName") if kind is POD else None,
        "deleting": bool(meta.get("deletionTimestamp")),
        "held_by": [name for name in meta.get("finalizers") or [] if "/" in name and not KUBERNETES_DOMAINS.match(name)],
    }


def _look_for(client: Client, namespace: str, anchor: t.Mapping[str, t.Any], found: Remaining) -> None:
    """Asks for an anchor by its name, where the list does not show it."""
    if any(item["uid"] == anchor["uid"] for item in found.items):
        return
    try:
        item = client.get(CONFIG_MAP.path(namespace, anchor["name"]))
    except ClusterError as error:
        if error.status != 404:
            found.problems.append(f"configmap/{anchor['name']} cannot be looked for: {error.render()}")
        return
    if item["metadata"].get("uid") == anchor["uid"]:
        found.items.append(_known(CONFIG_MAP, namespace, item))


def clean(
    client: Client,
    namespace: str,
    label_selector: str,
    *,
    timeout_s: float = TIMEOUT_S,
    outage_s: float | None = None,
    anchors: t.Sequence[t.Mapping[str, t.Any]] = (),
    lost_nodes: t.Container[str] = (),
    keep: t.Container[str] = (),
    sleep: t.Callable[[float], None] = time.sleep,
    clock: t.Callable[[], float] = time.monotonic,
) -> CleanupProof:
    """Deletes everything under the selector and waits until it is gone, for timeout_s while the API server answers.

    outage_s: how long it may refuse or not answer; default: as long. anchors: owner references to anchors that were made; they are looked
    for by name too, since what a list shows may come from a cache that is wrong. lost_nodes: nodes known to be lost; their pods are removed
    by force, which the message says. keep: UIDs of what stays. Proven only when a last read of every kind found nothing. A pod that stays
    on a node that answers is left, and named: only its kubelet knows what still runs there. What finalizers of others hold is left too,
    and named with them, as soon as nothing else has to be waited for.
    """
    hurried = client.hurried()
    outage_s = timeout_s if outage_s is None else outage_s
    began = clock()
    trouble_since: float | None = None
    forced: set[str] = set()
    silent: dict[str, float] = {}
    seen: set[tuple[str, str]] = set()
    seen_at = began
    while True:
        found = remaining(hurried, namespace, label_selector)
        for anchor in anchors:
            _look_for(hurried, namespace, anchor, found)
        found.items = [item for item in found.items if item["uid"] not in keep]
        if not found.items and not found.problems:
            return {"proven": True, "left": [], "message": _forced_note(forced)}
        now = clock()
        marks = {(item["path"], item["version"]) for item in found.items}
        seen, seen_at = marks, seen_at if marks == seen else now
        held = not found.problems and all(item["deleting"] and item["held_by"] for item in found.items)
        if trouble_since is None and (now - began >= timeout_s or (held and now - seen_at >= HELD_S)):
            break
        due = []
        for item in found.items:
            by_force = item["kind"] == POD.name and _is_lost(hurried, item, lost_nodes, now - began, silent)
            if by_force:
                forced.add(item["name"])
            if by_force or not item["deleting"]:
                due.append((item, by_force))
        found.problems += _delete(hurried, due, max(began + timeout_s, now + outage_s) - now)
        trouble_since = (now if trouble_since is None else trouble_since) if found.problems else None
        if trouble_since is not None and clock() - trouble_since >= outage_s:
            break
        sleep(POLL_S)
    names = [f"{item['kind']}/{item['name']}" for item in found.items]
    still = f"still there after {clock() - began:.0f} s: {counted(len(names), 'object')}" if names else ""
    return {
        "proven": False,
        "left": names,
        "message": "; ".join(filter(None, [*dict.fromkeys(found.problems), still, _held_note(found.items), _forced_note(forced)])),
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


def _is_lost(client: Client, item: t.Mapping[str, t.Any], lost_nodes: t.Container[str], age_s: float, silent: dict[str, float]) -> bool:
    """Whether the node of a pod is lost: known before, or, when its deletion takes long, as the cluster says for SILENT_S.

    silent: by node, at what age of the cleanup it was found silent; kept here.
    """
    node = item["node"]
    if node is None or node in lost_nodes:
        return node is not None
    if age_s <= LOOK_AFTER_S or not item["deleting"]:
        return False
    try:
        lost = lost_reason(node_facts(client.get(NODE.path(name=node)))) is not None
    except ClusterError as error:
        if error.status != 404:
            return False
        lost = True
    if not lost:
        silent.pop(node, None)
    return lost and age_s - silent.setdefault(node, age_s) >= SILENT_S


def _forced_note(forced: t.Collection[str]) -> str:
    if not forced:
        return ""
    return f"removed by force from lost nodes: {counted(len(forced), 'pod')}; what runs there ends when the node does"


def _held_note(items: t.Iterable[t.Mapping[str, t.Any]]) -> str:
    """Whom to ask about what is held: the first few, since one controller usually holds all of them."""
    held = [f"{item['kind']}/{item['name']} is held by the finalizer {', '.join(item['held_by'])}" for item in items if item["held_by"]]
    more = f" and {len(held) - MAX_HELD} more are held" if len(held) > MAX_HELD else ""
    hint = ": whoever set it must take it away (a controller that is gone never will: kubectl edit)"
    return f"{', '.join(held[:MAX_HELD])}{more}{hint}" if held else ""
