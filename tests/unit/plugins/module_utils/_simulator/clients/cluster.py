# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests that run a small simulated cluster in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time

import aiohttp

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.server import ApiServer
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.api import Api, ApiError, resource_path
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.run import run_clients
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.seam import LogLine, LogPolicy, Outcome
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.kubeconfig import write_kubeconfig

PATIENCE_S = 20


class Model:
    """A workload model of a test. Nothing goes wrong in it, and every container prints one line and ends at once, unless the test says
    otherwise: by `workload(pod, container, peers)`, `changes` or, by keyword, answers to the questions admission, start and log_policy.
    """

    def __init__(self, nodes=2, workload=None, time_scale=100.0, changes=(), **answers):
        self.nodes = [gpu_node(f"n{number}") for number in range(nodes)]
        self.workload = workload or (lambda pod, _container, _peers: Outcome(lines=(LogLine(0.0, f"{pod.name} on {pod.node}"),)))
        self.time_scale = time_scale
        self.changes = list(changes)
        self.answers = answers

    def node_registration(self):
        return self.nodes

    def node_changes(self):
        return self.changes

    def pod_admission(self, pod):
        return self._answer("admission", None, pod)

    def container_start(self, pod, container):
        return self._answer("start", None, pod, container)

    def run(self, pod, container, peers):
        return self.workload(pod, container, peers)

    def log_policy(self, pod, container):
        return self._answer("log_policy", LogPolicy(), pod, container)

    def _answer(self, question, otherwise, *about):
        return self.answers[question](*about) if question in self.answers else otherwise


class Cluster:
    """A running simulated cluster with the calls that tests make."""

    def __init__(self, api, server):
        self.api = api
        self.server = server

    async def create(self, resource, body):
        return await self.api.create(resource_path(resource, "default"), body)

    async def get(self, resource, name):
        return await self.api.get(resource_path(resource, "default", name))

    async def pods(self, **labels):
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found, _version = await self.api.list(resource_path("pods", "default"), labelSelector=selector)
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    async def events(self, reason):
        found, _version = await self.api.list(resource_path("events"), fieldSelector=f"reason={reason}")
        return [event["message"] for event in found]

    async def until(self, check, patience_s=PATIENCE_S):
        """The first true answer of `check()`; fails the test when none comes."""
        end = time.monotonic() + patience_s
        while True:
            answer = await check()
            if answer:
                return answer
            assert time.monotonic() < end, f"never came: {check}"
            await asyncio.sleep(0.02)

    async def finished_job(self, name):
        async def check():
            job = await self.get("batch/v1/jobs", name)
            rows = job.get("status", {}).get("conditions") or []
            return job if any(row["type"] in ("Complete", "Failed") for row in rows) else None

        return await self.until(check)

    async def pod_with(self, name, test):
        async def check():
            try:
                pod = await self.get("pods", name)
            except ApiError:
                return None
            return pod if test(pod) else None

        return await self.until(check)

    async def event(self, reason):
        async def check():
            return await self.events(reason)

        return (await self.until(check))[0]

    async def log(self, pod, **query):
        """(status, text)"""
        url = self.server.url + resource_path("pods", "default", pod, "log")
        async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
            return answer.status, await answer.text()


def in_cluster(tmp_path, model, scenario, **options):
    """Runs `scenario(cluster)` beside an API server and all clients."""

    async def main():
        async with running(tmp_path, model, **options) as cluster:
            await scenario(cluster)

    asyncio.run(asyncio.wait_for(main(), 60))


@contextlib.asynccontextmanager
async def running(tmp_path, model, *, server=None, lease_interval_s=None, **options):
    own = server is None
    if own:
        server = ApiServer()
        await server.start()
    path = str(tmp_path / "kubeconfig")
    write_kubeconfig(path, server.url, server.token)
    api = Api.from_kubeconfig(path)
    clients = await run_clients(path, model, lease_interval_s=lease_interval_s, **options)
    try:
        yield Cluster(api, server)
    finally:
        await clients.stop()
        await api.close()
        if own:
            await server.stop()


def gpu_node(name, **labels):
    status = {"capacity": {"cpu": "64", "memory": "1Ti", "nvidia.com/gpu": "8"}}
    return {"metadata": {"name": name, "labels": {"rack": "r0", **labels}}, "status": status}


def pod_spec(gpus=8, **more):
    container = {"name": "main", "image": "tests:1", "command": ["run"], "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    container.update(more.pop("container", {}))
    return {"restartPolicy": "Never", "containers": [container], **more}


def a_pod(name, **more):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec(**more)}


def a_job(name, count, pod=None, **spec):
    body = {"completions": count, "parallelism": count, "completionMode": "Indexed", "template": {"spec": pod or pod_spec()}, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}


def conditions(item):
    return [(row["type"], row["reason"]) for row in item["status"]["conditions"] if row["status"] == "True"]


def terminated(pod):
    return pod["status"]["containerStatuses"][0]["state"]["terminated"]
