# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Starting the clients of a simulated cluster together."""

from __future__ import annotations

import ssl
import typing as t
from collections.abc import Awaitable

from ..hardware.seam import WorkloadModel
from .api import Api, resource_path
from .informer import Informer
from .job_controller import JobController
from .node_agents import NodeAgents
from .node_lifecycle import NodeLifecycle
from .scheduler import Scheduler


class _Client(t.Protocol):
    def start(self) -> Awaitable[None]: ...

    def stop(self) -> Awaitable[None]: ...


class Clients:
    """The running clients. `await stop()` ends them and leaves the cluster's objects as they are."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._started: list[_Client] = []

    async def start(self, *clients: _Client) -> None:
        """Starts them one after the other."""
        for client in clients:
            await client.start()
            self._started.append(client)

    async def stop(self) -> None:
        """Stops them in reverse order and closes the connections."""
        for client in reversed(self._started):
            await client.stop()
        await self._api.close()


async def run_clients(
    kubeconfig: str,
    model: WorkloadModel,
    *,
    scheduler: bool = True,
    job_controller: bool = True,
    node_lifecycle: bool = True,
    log_tls: ssl.SSLContext | None = None,
    lease_interval_s: float | None = None,
) -> Clients:
    """Starts the node agents of `model` and, unless the control plane has its own, the controllers.

    Returns when all nodes are registered. Everything runs in the current event loop until `stop()`.
    `log_tls`: server side TLS of the log server, for a genuine API server. Raises InputError for a broken kubeconfig, ClusterError or
    ApiError when the API server refuses the nodes.
    """
    api = Api.from_kubeconfig(kubeconfig)
    clients = Clients(api)
    only_bound = not (scheduler or job_controller or node_lifecycle)
    pods = Informer(api, resource_path("pods"), **({"fieldSelector": "spec.nodeName!="} if only_bound else {}))
    nodes = Informer(api, resource_path("nodes"))
    services = Informer(api, resource_path("services"))
    # Handlers first, then the nodes, then what is to be followed, then the work: a controller must not act on half a picture.
    agents = NodeAgents(api, model, pods, services, nodes, tls=log_tls, lease_interval_s=lease_interval_s)
    followed, controllers = [nodes, services, pods], list[_Client]()
    if scheduler:
        controllers.append(Scheduler(api, pods, nodes))
    if node_lifecycle:
        leases = Informer(api, resource_path("coordination.k8s.io/v1/leases", "kube-node-lease"))
        followed.append(leases)
        controllers.append(NodeLifecycle(api, nodes, pods, leases, model.time_scale))
    if job_controller:
        jobs = Informer(api, resource_path("batch/v1/jobs"))
        followed.append(jobs)
        controllers.append(JobController(api, jobs, pods, model.time_scale))
    try:
        await clients.start(agents, *followed, *controllers)
    except BaseException:
        await clients.stop()
        raise
    return clients
