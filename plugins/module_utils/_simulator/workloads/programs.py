# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The workload model: decides from a pod's real command line what it runs, and lets the hardware model decide what comes of it.

A program is a module with a function `claim(context) -> Outcome | None`. To add one write its module and name
it in `_PROGRAMS`.
"""

from __future__ import annotations

import datetime
import typing as t
from collections.abc import Callable, Iterable

from ..hardware.definition import Definition
from ..hardware.faults import Fault
from ..hardware.model import Hardware
from ..hardware.seam import ContainerView, LogPolicy, NodeChange, Outcome, Peers, PodView, Rejection, StartProblem
from . import dcgm, fio, gemm_burn, nccl_run, node_facts, nvbandwidth, perftest, script, training
from .context import Context, gpus_of

_PROGRAMS: tuple[Callable[[Context], Outcome | None], ...] = (
    nccl_run.claim,
    dcgm.claim,
    training.claim,
    gemm_burn.claim,
    fio.claim,
    nvbandwidth.claim,
    perftest.claim,
    node_facts.claim,
)


class SimulatedWorkloads:
    """The WorkloadModel of a definition."""

    def __init__(self, definition: Definition) -> None:
        self.hardware = Hardware(definition)
        self.time_scale = definition.time_scale
        self._killed: set[str] = set()
        self._finished: set[str] = set()
        self._met: dict[str, datetime.datetime] = {}
        self._said: set[str] = set()

    def node_registration(self) -> list[dict[str, t.Any]]:
        return self.hardware.node_objects()

    def node_changes(self) -> Iterable[NodeChange]:
        return [change for fault in self.hardware.definition.faults for change in fault.changes()]

    def _faults(self, pod: PodView) -> Iterable[Fault]:
        """The faults of the pod's node."""
        node = self.hardware.nodes.get(pod.node)
        return node.faults if node else ()

    def pod_admission(self, pod: PodView) -> Rejection | None:
        return next((found for fault in self._faults(pod) if (found := fault.admit(pod, gpus_of(pod) > 0)) is not None), None)

    def container_start(self, pod: PodView, container: ContainerView) -> StartProblem | None:
        return next((found for fault in self._faults(pod) if (found := fault.start(container.image)) is not None), None)

    def run(self, pod: PodView, container: ContainerView, peers: Peers) -> Outcome:
        context = Context(self.hardware, pod, container, peers, self._killed, self._finished, self._said, self._met)
        for claim in _PROGRAMS:
            outcome = claim(context)
            if outcome is not None:
                if claim is not node_facts.claim and gpus_of(pod) and not container.init:
                    self.hardware.workloads[pod.node].append(datetime.datetime.now(datetime.UTC))
                return outcome
        return script.run(context)

    def log_policy(self, pod: PodView, container: ContainerView) -> LogPolicy:
        return next((found for fault in self._faults(pod) if (found := fault.log_policy()) is not None), LogPolicy())
