# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One pod on its node: the part of a kubelet that takes a pod from its admission to its end."""

from __future__ import annotations

import asyncio
import typing as t

from ..hardware.seam import Peers, PodView, Rejection
from .api import Api, ApiError, Object, resource_path
from .container_runtime import LEAST_PAUSE_S, ContainerRuntime, NodeRuntime
from .events import EventRecorder
from .informer import key_of
from .job_rules import is_terminal
from .pod_report import PodReporter, guard
from .pod_state import PodState
from .pod_view import References, Unresolved, full_view, plain_view
from .waits import Waits


class Kubelet(NodeRuntime, t.Protocol):
    """What a pod asks of the agent of its node."""

    api: Api
    host: str
    events: EventRecorder
    references: References

    def admit(self, pod: Object, view: PodView) -> Rejection | None:
        """A reason to refuse the pod, or None."""

    def service_variables(self, namespace: str) -> dict[str, str]:
        """The environment that Services of the namespace give to its pods."""

    def peers_of(self, state: PodState) -> Peers:
        """The cluster's DNS, as seen from the pod."""

    def freed(self, state: PodState) -> None:
        """Tells that the pod holds no resources of its node any more."""


class PodWorker:
    """Runs one pod from admission to its end."""

    def __init__(self, kubelet: Kubelet, pod: Object, pod_ip: str) -> None:
        self.state = PodState(pod, kubelet.host if pod["spec"].get("hostNetwork") else pod_ip)
        self._kubelet = kubelet
        self._reporter = PodReporter(self.state, kubelet.api, kubelet.events, kubelet.host)
        self._waits = Waits(self.state)
        self._runtime = ContainerRuntime(self.state, self._reporter, self._waits, kubelet, kubelet.peers_of(self.state), self._fail)
        self._scale = kubelet.model.time_scale
        self._sidecars: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None

    # -- asked by the node agents

    def start(self) -> None:
        """Runs the pod."""
        self._begin(self._live())

    def lost_containers(self) -> None:
        """Ends a pod whose containers were lost: this process or the node was started anew."""
        self._begin(self._end_lost())

    def update(self, pod: Object) -> None:
        """Takes over a change of the object; a deletion stops the containers."""
        self.state.pod = pod
        if pod["metadata"].get("deletionTimestamp") and not self.state.stopping:
            self._stop()

    def abandon(self, broken: bool = False) -> None:
        """Ends at once and without a word to the API: the object or the node is gone."""
        self.state.over = True
        if self._task is not None:
            self._task.cancel()
        self._reporter.abandon()
        self._waits.cancel()
        for container in self.state.containers:
            for kept in (container.log, container.previous_log):
                if kept is not None:
                    kept.close(broken)

    # -- life of the pod

    def _begin(self, life: t.Coroutine[t.Any, t.Any, None]) -> None:
        self._task = asyncio.create_task(guard(self.state.name, life))

    def _stop(self) -> None:
        """Asks the containers to end."""
        self.state.stopping = True
        if self._task is None or self._task.done():
            self._begin(self._confirm_deletion())
        for container in self.state.containers:
            if container.running:
                self._reporter.event("Normal", "Killing", f"Stopping container {container.name}", container)
        self._waits.cancel()

    async def _live(self) -> None:
        rejection = self._kubelet.admit(self.state.pod, plain_view(self.state.pod, self.state.pod_ip))
        if rejection is not None:
            self._reporter.event("Warning", rejection.reason, rejection.message)
            await self._reject(rejection)
        else:
            await self._run_containers()
        if self.state.stopping:
            await self._confirm_deletion()

    async def _run_containers(self) -> None:
        self._reporter.touch()
        deadline: asyncio.TimerHandle | None = None
        limit = self.state.pod["spec"].get("activeDeadlineSeconds")
        if limit:
            words = "Pod was active on the node longer than the specified deadline"
            deadline = asyncio.get_running_loop().call_later(limit, self._fail, "DeadlineExceeded", words)
        await self._resolve()
        if not self.state.halted and await self._run_init_containers():
            await asyncio.gather(*(self._runtime.run(container) for container in self.state.main_containers))
        if deadline is not None:
            deadline.cancel()
        await self._finish()

    async def _resolve(self) -> None:
        """Builds the view; waits as long as volumes or variables refer to objects that do not exist."""
        told = ""
        state, kubelet = self.state, self._kubelet
        while not state.halted:
            try:
                services = kubelet.service_variables(state.pod["metadata"]["namespace"])
                state.view = await full_view(state.pod, state.pod_ip, kubelet.host, kubelet.references, services)
                return
            except Unresolved as exc:
                self._tell_unresolved(exc, exc.message != told)
                told = exc.message
                await self._waits.sleep(max(2.0 / self._scale, 0.5))

    def _tell_unresolved(self, problem: Unresolved, new: bool) -> None:
        if problem.volume:
            if new:
                words = f'MountVolume.SetUp failed for volume "{problem.volume}" : {problem.message}'
                self._reporter.event("Warning", "FailedMount", words)
            return
        for container in self.state.containers:
            container.wait_for("CreateContainerConfigError", problem.message)
            if new:
                self._reporter.event("Warning", "Failed", f"Error: {problem.message}", container)
        self._reporter.touch()

    async def _run_init_containers(self) -> bool:
        """True when all have succeeded (sidecars: have been started)."""
        for container in self.state.init_containers:
            if container.sidecar:
                self._sidecars.append(asyncio.create_task(self._runtime.run(container)))
                while container.log is None and not self.state.halted:
                    await self._waits.sleep(LEAST_PAUSE_S)
                continue
            await self._runtime.run(container)
            if container.exit_code != 0 or self.state.halted:
                return False
        for container in self.state.main_containers:
            if "waiting" in container.state:
                container.wait_for("ContainerCreating")
        return True

    # -- ends

    def _fail(self, reason: str, message: str) -> None:
        """The kubelet ends the pod."""
        if self.state.failure is None and not self.state.stopping:
            self.state.failure = (reason, message)
            self._reporter.event("Warning", reason, message)
            self._waits.cancel()

    async def _reject(self, rejection: Rejection) -> None:
        self.state.failure = (rejection.reason, rejection.message)
        for container in self.state.containers:
            container.wait_for("ContainerCreating")
        await self._finish(rejected=True)

    async def _finish(self, rejected: bool = False) -> None:
        """Writes the last status. The node's resources are free before anybody can read it."""
        self.state.closing = True
        self._waits.cancel()
        await asyncio.gather(*self._sidecars, return_exceptions=True)
        self.state.over = True
        self._kubelet.freed(self.state)
        for container in self.state.containers:
            if container.log is not None:
                container.log.close()
        await self._reporter.write_last(rejected)

    async def _end_lost(self) -> None:
        self.state.end_lost()
        await self._finish()
        if self.state.stopping or self.state.pod["metadata"].get("deletionTimestamp"):
            await self._confirm_deletion()

    async def _confirm_deletion(self) -> None:
        """Tells the API that nothing of the pod runs any more."""
        if not self.state.over:
            await self._finish()
        pod = self.state.pod
        try:
            await self._kubelet.api.delete(resource_path("pods", *key_of(pod)), grace_s=0, uid=pod["metadata"]["uid"])
        except ApiError as exc:
            if exc.status not in (404, 409):
                raise


def needs_end(pod: Object) -> bool:
    """Whether a pod found at the start of the agents was running before."""
    status = pod.get("status") or {}
    return not is_terminal(pod) and any(row.get("containerID") for row in status.get("containerStatuses") or [])
