# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The leases by which nodes say that they live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from ..._common.errors import ClusterError
from .api import Api, ApiError, now_micro, resource_path
from .node_state import NodeState
from .tasks import Tasks

log = logging.getLogger(__name__)

_INTERVAL_S, _LEAST_INTERVAL_S, _RENEWALS_PER_S = 10.0, 1.0, 50.0
_NAMESPACE = "kube-node-lease"
_RESOURCE = "coordination.k8s.io/v1/leases"


class NodeLeases:
    """Creates and renews the leases of all nodes that are alive.

    `interval_s` is derived from the number of nodes and the time scale when it is None: a renewal every ten seconds of the simulated
    cluster, within bounds that the machine can bear.
    """

    def __init__(self, api: Api, nodes: Mapping[str, NodeState], time_scale: float, interval_s: float | None, tasks: Tasks) -> None:
        self._api = api
        self._nodes = nodes
        self._time_scale = time_scale
        self._interval_s = interval_s
        self._tasks = tasks

    async def ensure_namespace(self) -> None:
        """A genuine control plane makes it, but not always before the first node comes."""
        try:
            await self._api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
        except ApiError as exc:
            if exc.status != 409:
                raise

    async def create(self, node: NodeState) -> None:
        """The lease of a node; one that is there already is renewed."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.node["metadata"]["uid"]}
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": node.name, "namespace": _NAMESPACE, "ownerReferences": [owner]},
            "spec": {"holderIdentity": node.name, "leaseDurationSeconds": self._duration_s(), "renewTime": now_micro()},
        }
        try:
            await self._api.create(resource_path(_RESOURCE, _NAMESPACE), lease)
        except ApiError as exc:
            if exc.status != 409:
                raise
            await self._api.patch(_path(node), {"spec": lease["spec"]}, "merge")

    def _interval(self) -> float:
        if self._interval_s is not None:
            return self._interval_s
        return max(_INTERVAL_S / self._time_scale, _LEAST_INTERVAL_S, len(self._nodes) / _RENEWALS_PER_S)

    def _duration_s(self) -> int:
        """As with a kubelet, four missed renewals are too many."""
        return max(4, round(4 * self._interval()))

    async def renew(self) -> None:
        """Renews them one after the other, for ever."""
        gate = asyncio.Semaphore(8)
        while True:
            pause = self._interval() / max(len(self._nodes), 1)
            for node in list(self._nodes.values()):
                if node.alive:
                    await gate.acquire()
                    self._tasks.spawn(self._renew(node, gate))
                await asyncio.sleep(pause)
            if not self._nodes:
                await asyncio.sleep(_LEAST_INTERVAL_S)

    async def _renew(self, node: NodeState, gate: asyncio.Semaphore) -> None:
        try:
            await self._api.patch(_path(node), {"spec": {"renewTime": now_micro()}}, "merge")
        except ApiError as exc:
            if exc.status == 404 and node.alive:
                await self.create(node)
        except ClusterError as exc:
            log.debug("lease of %s: %s", node.name, exc)
        finally:
            gate.release()


def _path(node: NodeState) -> str:
    return resource_path(_RESOURCE, _NAMESPACE, node.name)
