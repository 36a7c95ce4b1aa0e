# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a batch watches: all nodes of the cluster, and the pods and Jobs that bear its labels."""

from __future__ import annotations

import typing as t

from .._cluster.client import Client
from .._cluster.kinds import JOB, NODE, POD
from .projections import job_facts, node_facts, pod_facts
from .watcher import Watcher


def start_watches(
    client: Client, namespace: str, label_selector: str, deliver: t.Callable[[str, str, t.Any], None], *, outage_s: float
) -> list[Watcher]:
    """Running watches; see `Watcher` for what is delivered."""
    watchers = [
        Watcher(client, NODE.name, NODE.path(), node_facts, deliver, outage_s=outage_s),
        Watcher(client, POD.name, POD.path(namespace), pod_facts, deliver, label_selector=label_selector, outage_s=outage_s),
        Watcher(client, JOB.name, JOB.path(namespace), job_facts, deliver, label_selector=label_selector, outage_s=outage_s),
    ]
    for watcher in watchers:
        watcher.start()
    return watchers
