# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Anchors in the cluster: what everything of a batch belongs to, and the sign by which others see whose the run is and that it lives.

An anchor names its owner and carries a heartbeat. Both, and the time after which it may be swept, are dated by the API server's clock,
and compared with that clock alone. A live run of another is refused before anything is created or deleted.
"""

from __future__ import annotations

import datetime
import json
import typing as t

from .._archive.owners import STALE_S, described, lives, read_owner, same_play
from .._cluster.client import Client
from .._cluster.kinds import CONFIG_MAP
from .._common.errors import ClusterError
from .._common.shapes import Owner
from .._common.times import utc
from .._workload import names
from . import cleanup

EXPIRY_MARGIN_S = 3600.0


class NotOurs(ClusterError):
    """Another process runs this run: nothing of it may be touched."""


class Anchor(t.NamedTuple):
    """An anchor as it was read. owner None: of an earlier version, which did not say."""

    run: str  # label
    category: str  # label
    name: str
    uid: str
    version: str
    created: str
    owner: Owner | None
    beat: str
    expires: str

    def lives(self, now: float) -> bool:
        """Whether its run goes on. now: by the API server's clock."""
        if self.owner is None:
            return False
        told = lives(self.owner)
        if told is not None:
            return told
        try:
            return now - datetime.datetime.fromisoformat(self.beat).timestamp() < STALE_S
        except ValueError:
            return False

    def who(self) -> str:
        """Its owner and last heartbeat, for people."""
        return f"{described(self.owner)}, last heartbeat {self.beat}" if self.owner else "unknown"


def read_anchor(item: t.Mapping[str, t.Any]) -> Anchor:
    """An anchor of its object."""
    meta = item["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    try:
        owner = read_owner(json.loads(notes.get(names.OWNER_ANNOTATION, "null")))
    except ValueError:
        owner = None
    return Anchor(
        labels.get(names.RUN_LABEL, ""),
        labels.get(names.CATEGORY_LABEL, ""),
        meta["name"],
        meta["uid"],
        meta.get("resourceVersion", ""),
        meta.get("creationTimestamp", ""),
        owner,
        notes.get(names.HEARTBEAT_ANNOTATION, ""),
        notes.get(names.EXPIRES_ANNOTATION, ""),
    )


def anchors(client: Client, namespace: str, run_id: str = "") -> list[Anchor]:
    """The anchors of a run, or of all runs. Raises ClusterError."""
    chosen = cleanup.selector(run_id) if run_id else f"app.kubernetes.io/managed-by={names.MANAGED_BY},{names.RUN_LABEL}"
    found = [read_anchor(item) for item in client.list(CONFIG_MAP.path(namespace), label_selector=chosen)]
    return [item for item in found if item.expires]  # hostfiles of attempts carry the label too


def refuse_if_alive(client: Client, namespace: str, run_id: str, mine: Owner) -> None:
    """Raises NotOurs when another process runs a run of this id in this namespace. Changes nothing."""
    for anchor in anchors(client, namespace, run_id):
        if not same_play(anchor.owner, mine) and anchor.lives(client.now()):
            raise alive(anchor, namespace)


def alive(anchor: Anchor, namespace: str) -> NotOurs:
    """The refusal of a run that goes on."""
    return NotOurs(
        f"a run {anchor.run} is going on here: {anchor.who()}",
        place=f"namespace {namespace}, configmap {anchor.name}",
        hint="Nothing was changed. Let it end, or end it where it runs (Ctrl-C); a run of your own needs another run_id",
        status=409,
    )


def marks(owner: Owner, now: float, expires: float) -> dict[str, str]:
    """What an anchor says of its run. Times by the API server's clock."""
    return {
        names.OWNER_ANNOTATION: json.dumps(owner, sort_keys=True),
        names.HEARTBEAT_ANNOTATION: utc(now),
        names.EXPIRES_ANNOTATION: utc(expires),
    }


def announced_runs(client: Client, namespace: str) -> dict[str, list[Anchor]]:
    """Run labels in the cluster, with their anchors."""
    runs: dict[str, list[Anchor]] = {}
    for anchor in anchors(client, namespace):
        runs.setdefault(anchor.run, []).append(anchor)
    return dict(sorted(runs.items()))


def expired_runs(client: Client, namespace: str) -> list[str]:
    """Runs whose announced end has passed and whose owner is dead: leftovers of a control node that died."""
    announced, now = announced_runs(client, namespace), client.now()
    past = {run: own for run, own in announced.items() if max(item.expires for item in own) < utc(now)}
    return [run for run, own in past.items() if not any(item.lives(now) for item in own)]


def category_selector(run_id: str, category: str) -> str:
    """The label selector of everything of one category (by short id) of a run."""
    return f"{cleanup.selector(run_id)},{names.CATEGORY_LABEL}={names.short(category, names.MAX_NAME)}"
