# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A whole simulated cluster in one event loop: API server, controllers, node agents, hardware model."""

from __future__ import annotations

import contextlib
import tempfile
import typing as t
from pathlib import Path

from .api.server import ApiServer
from .clients.run import Clients, run_clients
from .hardware.definition import Definition
from .kubeconfig import write_kubeconfig
from .workloads.programs import SimulatedWorkloads


class SimulatedCluster:
    """Start with `await start()`, end with `await stop()`.

    The parts are joined only by the API: each is an ordinary client of the server, as it would be of a genuine one.
    """

    def __init__(self, definition: Definition, *, port: int = 0, audit_path: str | None = None) -> None:
        self.definition = definition
        self.server = ApiServer(port=port, version=definition.software.kubelet, audit_path=audit_path)
        self.model = SimulatedWorkloads(definition)
        self._clients: Clients | None = None

    @property
    def nodes(self) -> int:
        """The number of nodes, GPU and CPU."""
        return len(self.model.hardware.nodes) + self.definition.cpu_nodes

    async def start(self) -> None:
        """Returns when all nodes are registered and pods can be scheduled. Whatever was started is stopped on failure."""
        try:
            await self.server.start()
            with tempfile.TemporaryDirectory(prefix="simulated-") as folder:
                path = str(Path(folder, "kubeconfig"))
                self.write_kubeconfig(path)
                self._clients = await run_clients(path, self.model)
        except BaseException:
            await self.stop()
            raise

    def write_kubeconfig(self, path: str) -> None:
        """Write the kubeconfig, readable by its owner only."""
        write_kubeconfig(path, self.server.url, self.server.token)

    async def stop(self) -> None:
        """Stop everything. Safe to call twice."""
        clients, self._clients = self._clients, None
        if clients is not None:
            await clients.stop()
        await self.server.stop()


@contextlib.asynccontextmanager
async def simulated_cluster(definition: Definition, **options: t.Any) -> t.AsyncIterator[SimulatedCluster]:
    """A running cluster for the body of an `async with`."""
    cluster = SimulatedCluster(definition, **options)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
