# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes on a genuine control plane: they register, run pods and serve logs as kubelets do.

`python -m ….tests.control_plane.agents --kubeconfig K --definition FILE [--certificate C --key K --authority A]` prints READY when every
node can take pods, and runs until SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
import sys
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.api import Api, resource_path
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.run import Clients, run_clients
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.definition import Definition, load
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.workloads.programs import SimulatedWorkloads

from .certificates import Pair

_SCHEDULABLE_S = 60.0
_NOT_READY = "node.kubernetes.io/not-ready"


async def attach(kubeconfig: str, definition: Definition, tls: ssl.SSLContext | None) -> Clients:
    """Registers the nodes of the definition; returns when all those which are ready can take pods."""
    clients = await run_clients(
        kubeconfig, SimulatedWorkloads(definition), scheduler=False, job_controller=False, node_lifecycle=False, log_tls=tls
    )
    api = Api.from_kubeconfig(kubeconfig)
    try:
        deadline = asyncio.get_running_loop().time() + _SCHEDULABLE_S
        while waiting := await _tainted(api):
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{len(waiting)} ready nodes still carry the taint {_NOT_READY}: {', '.join(waiting[:4])}")
            await asyncio.sleep(0.1)
    except BaseException:
        await clients.stop()
        raise
    finally:
        await api.close()
    return clients


async def _tainted(api: Api) -> list[str]:
    """Ready nodes whose first taint the node lifecycle controller has not taken away yet."""
    found = await api.get(resource_path("nodes"))
    waiting = []
    for node in found["items"]:
        ready = any(row["type"] == "Ready" and row["status"] == "True" for row in node["status"].get("conditions") or [])
        if ready and any(taint["key"] == _NOT_READY for taint in node["spec"].get("taints") or []):
            waiting.append(node["metadata"]["name"])
    return waiting


def log_tls(pair: Pair, authority: str = "") -> ssl.SSLContext:
    """TLS of the log server. authority: who must have signed the certificate of the API server that asks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if authority:
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def serve(kubeconfig: str, definition: Definition, tls: ssl.SSLContext | None, ready: t.Callable[[], None]) -> None:
    """Attaches the nodes, calls ready(), and returns after SIGINT or SIGTERM."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    starting = asyncio.create_task(attach(kubeconfig, definition, tls))
    asked = asyncio.create_task(stopping.wait())
    await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
        return
    clients = starting.result()
    try:
        ready()
        await asked
    finally:
        await clients.stop()


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("kubeconfig", "definition"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("certificate", "key", "authority"):
        parser.add_argument(f"--{name}", default="")
    options = parser.parse_args()
    tls = log_tls(Pair(options.certificate, options.key), options.authority) if options.certificate else None
    asyncio.run(serve(options.kubeconfig, load(options.definition), tls, lambda: print("READY", flush=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
