# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Running the containers of one pod: pulling, starting, writing what the model makes them print, restarting."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import typing as t
from collections.abc import Callable, Iterator

from ..hardware.seam import ContainerView, LogLine, Outcome, Peers, StartProblem, WorkloadModel
from .api import Object
from .images import image_name_problem, image_size
from .kubelet_logs import ContainerLog
from .pod_report import PodReporter
from .pod_state import Container, PodState
from .waits import Waits

log = logging.getLogger(__name__)

_CRASH_BACKOFF_S, _CRASH_BACKOFF_MAX_S = 10.0, 300.0
_RETRY_S, _RETRY_MAX_S = 10.0, 300.0
LEAST_PAUSE_S = 0.05
_LEAST_RETRY_S = 1.0  # each retry writes events
_NOTHING_TO_WAIT_S = 0.002


class NodeRuntime(t.Protocol):
    """What a container asks of its node."""

    model: WorkloadModel

    def pull(self, node: str, image: str) -> bool:
        """Notes that the node has the image; True if it was pulled just now."""

    def container_started(self, node: str, spec: Object) -> None:
        """Tells that a container of this spec has started."""


class ContainerRuntime:
    """Runs the containers of one pod. `fail(reason, message)` ends the pod."""

    def __init__(
        self, state: PodState, reporter: PodReporter, waits: Waits, node: NodeRuntime, peers: Peers, fail: Callable[[str, str], None]
    ) -> None:
        self._state = state
        self._reporter = reporter
        self._waits = waits
        self._node = node
        self._peers = peers
        self._fail = fail
        self._scale = node.model.time_scale

    async def run(self, container: Container) -> None:
        """Runs a container until it ends for good: by its restart policy, or because the pod ends."""
        while not self._state.halted:
            if not await self._await_start(container):
                break
            started = time.monotonic()
            await self._run_once(container)
            if self._state.halted or not self._restarts(container):
                return
            if not await self._back_off(container, started):
                break
        if "waiting" in container.state and container.last_state:
            container.state = container.last_state  # interrupted before the next run: the last one decides

    def _restarts(self, container: Container) -> bool:
        policy = "Always" if container.sidecar else self._state.pod["spec"].get("restartPolicy", "Always")
        if container.init and not container.sidecar:
            return policy != "Never" and container.exit_code != 0
        return policy == "Always" or (policy == "OnFailure" and container.exit_code != 0)

    async def _back_off(self, container: Container, started: float) -> bool:
        """Waits before a restart: not at all before the first, then longer each time. False if the pod ends meanwhile."""
        container.restarts += 1
        container.last_state = container.state
        if container.restarts > 1:
            delay = min(_CRASH_BACKOFF_S * 2 ** min(container.restarts - 2, 10), _CRASH_BACKOFF_MAX_S)
            metadata = self._state.pod["metadata"]
            name = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
            words = f"back-off {int(delay)}s restarting failed container={container.name} pod={name}"
            self._wait_for(container, "CrashLoopBackOff", words)
            self._event("Warning", "BackOff", f"Back-off restarting failed container {container.name} in pod {name}", container)
            if not await self._waits.sleep(max(delay / self._scale - (time.monotonic() - started), LEAST_PAUSE_S)):
                return False
        return not self._state.halted

    # -- starting

    async def _await_start(self, container: Container) -> bool:
        """Waits until the model lets the container start. False if the pod ends before."""
        since: dict[str, float] = {}
        attempt = 0
        while not self._state.halted:
            problem = image_name_problem(container.image) or self._node.model.container_start(
                self._state.built_view(), self._view_of(container)
            )
            if problem is not None and problem.lasts_s is not None:
                first = since.setdefault(problem.reason, time.monotonic())
                if (time.monotonic() - first) * self._scale >= problem.lasts_s:
                    problem = None
            if problem is None:
                self._tell_pulled(container)
                return True
            await self._show_problem(container, problem, attempt)
            attempt += 1
            await self._waits.sleep(self._pause_s(problem, attempt))
        return False

    def _pause_s(self, problem: StartProblem, attempt: int) -> float:
        """Real seconds until a start is tried again."""
        pause: float = max(min(_RETRY_S * 2 ** min(attempt, 5), _RETRY_MAX_S) / self._scale, _LEAST_RETRY_S)
        if problem.lasts_s is not None:
            pause = min(pause, max(problem.lasts_s / self._scale, LEAST_PAUSE_S))
        return pause

    async def _show_problem(self, container: Container, problem: StartProblem, attempt: int) -> None:
        if problem.reason in ("ErrImagePull", "ImagePullBackOff"):
            await self._show_pull_problem(container, problem)
        elif problem.reason == "InvalidImageName":
            self._event("Warning", "InspectFailed", problem.message, container)
            self._event("Warning", "Failed", "Error: InvalidImageName", container)
            self._wait_for(container, problem.reason, problem.message)
        elif problem.reason == "ContainerCreating":
            if attempt == 0 and problem.event_reason:
                self._event("Warning", problem.event_reason, problem.message)
            self._wait_for(container, "ContainerCreating")
        else:
            self._event("Warning", "Failed", f"Error: {problem.message}", container)
            self._wait_for(container, problem.reason, problem.message)

    async def _show_pull_problem(self, container: Container, problem: StartProblem) -> None:
        image = container.image
        self._event("Normal", "Pulling", f'Pulling image "{image}"', container)
        self._event("Warning", "Failed", f'Failed to pull image "{image}": {problem.message}', container)
        self._event("Warning", "Failed", "Error: ErrImagePull", container)
        self._wait_for(container, "ErrImagePull", problem.message)
        await self._waits.sleep(max(1.0 / self._scale, LEAST_PAUSE_S))
        if not self._state.halted:
            self._wait_for(container, "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {problem.message}')
            self._event("Normal", "BackOff", f'Back-off pulling image "{image}"', container)
            self._event("Warning", "Failed", "Error: ImagePullBackOff", container)

    def _wait_for(self, container: Container, reason: str, message: str = "") -> None:
        container.wait_for(reason, message)
        self._reporter.touch()

    def _tell_pulled(self, container: Container) -> None:
        image = container.image
        fresh = self._node.pull(self._state.node, image)
        if not fresh and container.spec.get("imagePullPolicy") != "Always":
            self._event("Normal", "Pulled", f'Container image "{image}" already present on machine', container)
            return
        self._event("Normal", "Pulling", f'Pulling image "{image}"', container)
        words = f'Successfully pulled image "{image}" in 1.2s (1.2s including waiting). Image size: {image_size(image)} bytes.'
        self._event("Normal", "Pulled", words, container)

    # -- running

    async def _run_once(self, container: Container) -> None:
        view, seen = self._state.built_view(), self._view_of(container)
        output = container.begin(self._node.model.log_policy(view, seen))
        self._event("Normal", "Created", f"Created container: {container.name}", container)
        self._event("Normal", "Started", f"Started container {container.name}", container)
        self._node.container_started(self._state.node, container.spec)
        self._reporter.touch()
        outcome = Outcome(lines=())
        stopped = False
        try:
            outcome = self._node.model.run(view, seen, self._peers)
            stopped = not await self._waits.until_halted(_play(outcome, output, self._scale))
        except Exception as exc:  # a fault of the model must not look like a healthy run
            log.exception("workload of %s", self._state.name)
            output.append(0.0, f"simulated workload failed: {exc!r}")
            outcome.exit_code = outcome.exit_code or 1
        close = getattr(outcome.lines, "close", None)
        if close is not None:
            close()
        container.end(output, outcome, stopped)
        self._reporter.touch()
        if outcome.evicted and not stopped:
            self._state.evicted = True
            self._fail("Evicted", outcome.evicted)

    def _view_of(self, container: Container) -> ContainerView:
        return dataclasses.replace(self._state.built_view().container(container.name), restart_count=container.restarts)

    def _event(self, kind: str, reason: str, message: str, container: Container | None = None) -> None:
        self._reporter.event(kind, reason, message, container)


async def _play(outcome: Outcome, target: ContainerLog, scale: float) -> None:
    """Writes the lines when their time has come and returns when the process ends. scale: simulated seconds per second."""
    loop = asyncio.get_running_loop()
    start, last = loop.time(), 0.0
    lines: Iterator[LogLine] = iter(outcome.lines)
    for number, line in enumerate(lines):
        last = max(last, line.at_s)
        pause = start + last / scale - loop.time()
        if pause > _NOTHING_TO_WAIT_S:
            await asyncio.sleep(pause)
        elif number % 100 == 99:
            await asyncio.sleep(0)
        if line.text is not None:
            target.append(last, line.text)
    if outcome.duration_s is None:
        await loop.create_future()
    else:
        await asyncio.sleep(max(start + max(outcome.duration_s, last) / scale - loop.time(), 0))
