# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster as it is now, with a request's selection applied."""

from __future__ import annotations

import typing as t

from .._catalog.load import load_catalog
from .._cluster.client import Client
from .._cluster.pools import pool_rows
from .._cluster.selection import select
from .._cluster.snapshot import take_snapshot
from .._common.shapes import Snapshot


def discover(
    client: Client,
    directories: t.Sequence[str],
    *,
    target: t.Mapping[str, t.Any] | None = None,
    tolerations: t.Sequence[t.Mapping[str, t.Any]] | None = None,
    platform: str | None = None,
    rack_label: str | None = None,
    expected_gpus: int | None = None,
    keep_labels: t.Sequence[str] = (),
) -> Snapshot:
    """Reads the cluster once.

    directories: catalog directories, the user's before the shipped one. target: of the request; None selects nothing away.
    tolerations: those of the pods to come; None: they tolerate everything. platform, rack_label, expected_gpus: the user's word.
    Raises ClusterError when nodes cannot be read, InputError when the selection leaves none.
    """
    # Labels that the request itself speaks of must be in the snapshot, whatever is usually dropped.
    keep = [*keep_labels, *_labels_of(target or {}), *([rack_label] if rack_label else [])]
    snapshot = take_snapshot(
        client,
        load_catalog(directories),
        platform=platform,
        rack_label=rack_label,
        expected_gpus=expected_gpus,
        keep_labels=keep,
    )
    if target is not None or tolerations is not None:
        snapshot["nodes"] = select(snapshot["nodes"], target, tolerations=tolerations)
        snapshot["gpus"] = pool_rows(snapshot["nodes"])
    return t.cast(Snapshot, snapshot)


def _labels_of(target: t.Mapping[str, t.Any]) -> list[str]:
    selectors = list(target.get("node_selector") or {})
    return selectors + [str(expression.get("key")) for expression in target.get("match_expressions") or []]
