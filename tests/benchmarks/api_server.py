# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How fast the simulated API server is: creates, reads and writes per second, and the time of big lists.

usage: python tests/benchmarks/api_server.py [--nodes 4096] [--requests 4000]

The server runs in a process of its own; the client is this process, with 32 requests in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

import aiohttp

SERVER = "ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api"
IN_FLIGHT = 32


def node(index: int) -> dict[str, t.Any]:
    """A node of about 4 KB, as GPU operators label and report them."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{i}": "true" for i in range(30)}
    labels |= {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "8",
        "topology.kubernetes.io/zone": f"zone-{index % 4}",
        "example.com/rack": f"rack-{index // 32}",
    }
    capacity = {"cpu": "192", "memory": "2113411044Ki", "nvidia.com/gpu": "8", "rdma/ib": "8", "pods": "110", "ephemeral-storage": "1Ti"}
    conditions = [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "reason": f"Kubelet{kind}",
            "message": f"the node agent reports {kind}",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    info = {
        "architecture": "amd64",
        "bootID": "b",
        "containerRuntimeVersion": "containerd://2.0.0",
        "kernelVersion": "6.8.0",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.36.3",
        "machineID": "m",
        "operatingSystem": "linux",
        "osImage": "Ubuntu 24.04",
        "systemUUID": "u",
    }
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": f"node-{index:05d}"}]
    status = {"capacity": capacity, "allocatable": capacity, "conditions": conditions, "addresses": addresses, "nodeInfo": info}
    metadata = {"name": f"node-{index:05d}", "labels": labels, "annotations": {"example.com/note": "x" * 400}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


async def in_parallel(count: int, call: t.Callable[[int], t.Awaitable[None]]) -> float:
    """Calls per second of count calls, IN_FLIGHT at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await call(number)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _index in range(IN_FLIGHT)))
    return count / (time.perf_counter() - start)


class Bench:
    """The measurements, against one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str, nodes: int, requests: int) -> None:
        self.session = session
        self.url = url
        self.nodes = nodes
        self.requests = requests

    async def send(self, method: str, path: str, body: t.Any = None, content_type: str = "application/json") -> bytes:
        data = None if body is None else json.dumps(body).encode()
        async with self.session.request(method, self.url + path, data=data, headers={"Content-Type": content_type}) as answer:
            raw = await answer.read()
            if answer.status >= 400:
                raise SystemExit(f"{method} {path}: {answer.status} {raw[:300]!r}")
            return raw

    async def creates(self) -> float:
        async def call(index: int) -> None:
            await self.send("POST", "/api/v1/nodes", node(index))

        return await in_parallel(self.nodes, call)

    async def reads(self) -> float:
        async def call(index: int) -> None:
            await self.send("GET", f"/api/v1/nodes/node-{index % self.nodes:05d}")

        return await in_parallel(self.requests, call)

    async def status_patches(self) -> float:
        async def call(index: int) -> None:
            condition = {"type": "Ready", "status": "True", "message": str(index)}
            path = f"/api/v1/nodes/node-{index % self.nodes:05d}/status"
            await self.send("PATCH", path, {"status": {"conditions": [condition]}}, "application/strategic-merge-patch+json")

        return await in_parallel(self.requests, call)

    async def pods(self) -> float:
        async def call(index: int) -> None:
            container = {"name": "c", "image": "example.com/i:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
            pod = {"metadata": {"name": f"p-{index}"}, "spec": {"restartPolicy": "Never", "containers": [container]}}
            await self.send("POST", "/api/v1/namespaces/default/pods", pod)

        return await in_parallel(self.requests, call)

    async def list_time(self, query: str = "") -> tuple[float, int]:
        best, size = 1e9, 0
        for _index in range(5):
            start = time.perf_counter()
            size = len(await self.send("GET", "/api/v1/nodes" + query))
            best = min(best, time.perf_counter() - start)
        return best, size


async def measure(url: str, nodes: int, requests: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:
        bench = Bench(session, url, nodes, requests)
        print(f"create Node       {await bench.creates():8.0f} /s")
        print(f"GET Node          {await bench.reads():8.0f} /s")
        print(f"PATCH Node status {await bench.status_patches():8.0f} /s")
        print(f"create Pod        {await bench.pods():8.0f} /s")
        seconds, size = await bench.list_time()
        print(f"list {nodes} nodes   {seconds:8.3f} s   {size / 1e6:.1f} MB")
        seconds, size = await bench.list_time("?labelSelector=example.com/rack%3Drack-3")
        print(f"list one rack     {seconds:8.3f} s   {size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4096)
    parser.add_argument("--requests", type=int, default=4000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        command = [sys.executable, "-m", SERVER, "--kubeconfig", str(kubeconfig)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            if not server.stdout.readline().startswith("KUBECONFIG="):
                raise SystemExit("the server did not start")
            url = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
            asyncio.run(measure(url, arguments.nodes, arguments.requests))
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{server.pid}/status").read_text()
                print(next(line for line in status.splitlines() if line.startswith("VmRSS")))
        finally:
            server.terminate()
            server.wait(timeout=10)


if __name__ == "__main__":
    main()
