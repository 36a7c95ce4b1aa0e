# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept for one node."""

from __future__ import annotations

import itertools

from ..hardware.seam import NodeChange, Rejection
from .api import Object
from .matching import add_resources, milli, pod_requests
from .pod_state import PodState
from .pod_worker import PodWorker


class NodeState:
    """A node and the pods that hold its resources.

    alive:   it renews its lease.
    lost:    it has stopped: its pods are frozen, its logs out of reach.
    used:    resources in thousandths.
    worked:  a container with a device has started on it.
    waiting: the changes that follow from that.
    """

    def __init__(self, node: Object, number: int) -> None:
        self.node = node
        self.name: str = node["metadata"]["name"]
        self.alive = not any(row["type"] == "Ready" and row["status"] == "Unknown" for row in node["status"]["conditions"])
        self.lost = False
        self.used: dict[str, int] = {}
        self.images: set[str] = set()
        self.workers: dict[PodState, PodWorker] = {}
        self.worked = False
        self.waiting: list[NodeChange] = []
        self._number = number
        self._addresses = itertools.count(2)

    def next_address(self) -> str:
        """A pod address of its own for some thousand nodes: 10.128.0.0/9, a /24 for each node."""
        return f"10.{128 + self._number // 256 % 128}.{self._number % 256}.{next(self._addresses) % 254 or 254}"

    def hold(self, worker: PodWorker) -> None:
        """The pod takes its resources."""
        self.workers[worker.state] = worker
        add_resources(self.used, pod_requests(worker.state.pod))

    def release(self, state: PodState) -> None:
        """The pod gives them back, once."""
        if self.workers.pop(state, None) is not None:
            add_resources(self.used, pod_requests(state.pod), -1)

    def shortage(self, pod: Object) -> Rejection | None:
        """The kubelet's own check of a pod that holds its resources already: is there more than the node has?"""
        for name, need in pod_requests(pod).items():
            used, most = self.used.get(name, 0) - need, self._allocatable(name)
            if need and used + need > most:
                if "/" in name:
                    have = max(most - used, 0) // 1000
                    words = f"Allocate failed due to requested number of devices unavailable for {name}. "
                    words += f"Requested: {need // 1000}, Available: {have}, which is unexpected"
                    return Rejection("UnexpectedAdmissionError", words)
                words = f"Node didn't have enough resource: {name}, requested: {need}, used: {used}, capacity: {most}"
                return Rejection(f"OutOf{name}", words)
        return None

    def _allocatable(self, resource: str) -> int:
        status = self.node["status"]
        rows = status.get("allocatable") or status.get("capacity") or {}
        return milli(rows[resource]) if resource in rows else (110_000 if resource == "pods" else 0)
