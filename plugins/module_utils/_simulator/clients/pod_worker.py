# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One pod on its node: the part of a kubelet that starts containers, watches them end and keeps the pod's status."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import re
import time
import typing as t
import uuid
from collections.abc import Coroutine, Iterator

from ..._common.errors import ClusterError
from ..hardware.seam import LogPolicy, Outcome, PodView, StartProblem
from .api import ApiError, Object, now_rfc3339, resource_path
from .job_rules import is_terminal
from .kubelet_logs import ContainerLog, LogProblem
from .pod_view import Unresolved, container_specs, full_view, plain_view

if t.TYPE_CHECKING:
    from .node_agents import NodeAgents

log = logging.getLogger(__name__)

_CRASH_BACKOFF_S, _CRASH_BACKOFF_MAX_S = 10.0, 300.0
_RETRY_S = 10.0
_LEAST_PAUSE_S = 0.05
_LEAST_RETRY_S = 1.0  # each retry writes events
_NOTHING_TO_WAIT_S = 0.002
_GATHER_S = 0.01
_KILLED, _LOST = 143, 137
_MESSAGE_BYTES = 4096
# Registry, path in lower case, tag, digest: what a container runtime takes as a reference.
_IMAGE_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
_IMAGE_NAME = re.compile(
    rf"(([\w.-]+|\[[0-9a-fA-F:]+\])(:\d+)?/)?{_IMAGE_PART}(/{_IMAGE_PART})*(:\w[\w.-]{{0,127}})?(@\w+:[0-9a-fA-F]{{32,}})?", re.ASCII
)


@dataclasses.dataclass(slots=True)
class Container:
    """A container's state, kept over its restarts. `state` and `last_state` are as in the API."""

    spec: Object
    init: bool
    state: Object
    last_state: Object = dataclasses.field(default_factory=dict)
    restarts: int = 0
    container_id: str = ""
    log: ContainerLog | None = None
    previous_log: ContainerLog | None = None

    @property
    def name(self) -> str:
        return self.spec["name"]

    @property
    def sidecar(self) -> bool:
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """Of the run that ended last and is not being restarted; None while it may still run."""
        ended = self.state.get("terminated")
        return ended["exitCode"] if ended else None

    def status(self) -> Object:
        """Its ContainerStatus."""
        image = self.spec.get("image", "")
        started = self.container_id != ""
        row = {
            "name": self.name,
            "image": image,
            "imageID": image_id(image) if started else "",
            "ready": self.exit_code == 0 if self.init and not self.sidecar else self.running,
            "started": self.running,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }
        if started:
            row["containerID"] = self.container_id
        return row


def image_name_problem(image: str) -> StartProblem | None:
    """What the kubelet says of an image that no runtime can look up; the API server takes any text."""
    if _IMAGE_NAME.fullmatch(image):
        return None
    words = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference format'
    return StartProblem("InvalidImageName", words)


class PodWorker:
    """Runs one pod from admission to its end. `view` is set, and `is_running()` true, while peers can reach it."""

    def __init__(self, agents: NodeAgents, pod: Object, pod_ip: str) -> None:
        waiting = {"waiting": {"reason": "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"}}
        self.agents = agents
        self.pod = pod
        self.node: str = pod["spec"]["nodeName"]
        self.pod_ip = agents.host if pod["spec"].get("hostNetwork") else pod_ip
        self.view: PodView | None = None
        self.containers = [Container(spec, init, dict(waiting)) for spec, init in container_specs(pod)]
        self.over = False
        self._scale = agents.model.time_scale
        self._stopping = False
        self._closing = False
        self._sidecars: list[asyncio.Task[None]] = []
        self._failure: tuple[str, str] | None = None  # status.reason and message of a pod the kubelet fails
        self._evicted = False
        self._children: set[asyncio.Task[t.Any]] = set()
        self._start_time = now_rfc3339()
        self._written: dict[str, Object] = {}  # conditions by type
        self._dirty = False
        self._writer: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    # -- asked by the node agents

    def start(self) -> None:
        self._task = asyncio.create_task(self._guard(self._live()))

    def lost_containers(self) -> None:
        """Ends a pod whose containers were lost: this process or the node was started anew."""
        self._task = asyncio.create_task(self._guard(self._end_lost()))

    def update(self, pod: Object) -> None:
        """Takes over a change of the object; a deletion stops the containers."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp") and not self._stopping:
            self.stop()

    def stop(self) -> None:
        """Asks the containers to end, as at a deletion."""
        self._stopping = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._guard(self._confirm_deletion()))
        for container in self.containers:
            if container.running:
                self._event("Normal", "Killing", f"Stopping container {container.name}", container)
        self._cancel_children()

    def abandon(self, broken: bool = False) -> None:
        """Ends at once and without a word to the API: the object or the node is gone."""
        self.over = True
        for task in (self._task, self._writer):
            if task is not None:
                task.cancel()
        self._cancel_children()
        for container in self.containers:
            for kept in (container.log, container.previous_log):
                if kept is not None:
                    kept.close(broken)

    def is_running(self) -> bool:
        mains = [container for container in self.containers if not container.init]
        return self.view is not None and not self.over and all(container.running for container in mains)

    def find_log(self, name: str, previous: bool) -> ContainerLog | LogProblem:
        pod = self.pod["metadata"]["name"]
        container = next((container for container in self.containers if container.name == name), None)
        if container is None:
            return LogProblem(404, f'container "{name}" not found in pod "{pod}"')
        found = container.previous_log if previous else container.log
        if found is not None:
            return found
        if previous:
            return LogProblem(400, f'previous terminated container "{name}" in pod "{pod}" not found')
        reason = container.state.get("waiting", {}).get("reason", "ContainerCreating")
        return LogProblem(400, f'container "{name}" in pod "{pod}" is waiting to start: {reason}')

    # -- life of the pod

    async def _guard(self, life: Coroutine[t.Any, t.Any, None]) -> None:
        try:
            await life
        except (ApiError, ClusterError) as exc:
            log.debug("pod %s: %s", self.pod["metadata"]["name"], exc)
        except Exception:
            log.exception("pod %s", self.pod["metadata"]["name"])

    async def _live(self) -> None:
        rejection = self.agents.admit(self.pod, plain_view(self.pod, self.pod_ip))
        if rejection is not None:
            self._event("Warning", rejection.reason, rejection.message)
            await self._reject(rejection.reason, rejection.message)
        else:
            await self._run_containers()
        if self._stopping:
            await self._confirm_deletion()

    async def _run_containers(self) -> None:
        self._touch()
        deadline: asyncio.TimerHandle | None = None
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        if limit:
            words = "Pod was active on the node longer than the specified deadline"
            deadline = asyncio.get_running_loop().call_later(limit, self._fail, "DeadlineExceeded", words)
        await self._resolve()
        if not self._halted() and await self._run_init_containers():
            mains = (self._run_container(container) for container in self.containers if not container.init)
            await asyncio.gather(*mains)
        if deadline is not None:
            deadline.cancel()
        await self._finish()

    async def _run_init_containers(self) -> bool:
        """True when all have succeeded (sidecars: have been started)."""
        for container in self.containers:
            if not container.init:
                continue
            if container.sidecar:
                self._sidecars.append(asyncio.create_task(self._run_container(container)))
                while container.log is None and not self._halted():
                    await self._wait(_LEAST_PAUSE_S)
                continue
            await self._run_container(container)
            if container.exit_code != 0 or self._halted():
                return False
        for container in self.containers:
            if not container.init and "waiting" in container.state:
                container.state = {"waiting": {"reason": "ContainerCreating"}}
        return True

    async def _run_container(self, container: Container) -> None:
        """Runs a container until it ends for good: by its restart policy, or because the pod ends."""
        while not self._halted():
            if not await self._await_start(container):
                break
            started = time.monotonic()
            await self._run_once(container)
            if self._halted() or not self._restarts(container):
                return
            if not await self._back_off(container, started):
                break
        if "waiting" in container.state and container.last_state:
            container.state = container.last_state  # interrupted before the next run: the last one decides

    def _restarts(self, container: Container) -> bool:
        policy = "Always" if container.sidecar else self.pod["spec"].get("restartPolicy", "Always")
        if container.init and not container.sidecar:
            return policy != "Never" and container.exit_code != 0
        return policy == "Always" or (policy == "OnFailure" and container.exit_code != 0)

    async def _back_off(self, container: Container, started: float) -> bool:
        """Waits before a restart: not at all before the first, then longer each time. False if the pod ends meanwhile."""
        container.restarts += 1
        container.last_state = container.state
        if container.restarts > 1:
            delay = min(_CRASH_BACKOFF_S * 2 ** min(container.restarts - 2, 10), _CRASH_BACKOFF_MAX_S)
            name = f"{self.pod['metadata']['name']}_{self.pod['metadata']['namespace']}({self.pod['metadata']['uid']})"
            words = f"back-off {int(delay)}s restarting failed container={container.name} pod={name}"
            container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": words}}
            self._touch()
            self._event("Warning", "BackOff", f"Back-off restarting failed container {container.name} in pod {name}", container)
            if not await self._wait(max(delay / self._scale - (time.monotonic() - started), _LEAST_PAUSE_S)):
                return False
        return not self._halted()

    # -- starting a container

    async def _resolve(self) -> None:
        """Builds `view`; waits as long as volumes or variables refer to objects that do not exist."""
        told = ""
        while not self._halted():
            try:
                services = self.agents.service_variables(self.pod["metadata"]["namespace"])
                self.view = await full_view(self.pod, self.pod_ip, self.agents.host, self.agents.references, services)
                return
            except Unresolved as exc:
                self._tell_unresolved(exc, exc.message != told)
                told = exc.message
                await self._wait(max(2.0 / self._scale, 0.5))

    def _tell_unresolved(self, problem: Unresolved, new: bool) -> None:
        if problem.volume:
            if new:
                self._event("Warning", "FailedMount", f'MountVolume.SetUp failed for volume "{problem.volume}" : {problem.message}')
            return
        for container in self.containers:
            container.state = {"waiting": {"reason": "CreateContainerConfigError", "message": problem.message}}
            if new:
                self._event("Warning", "Failed", f"Error: {problem.message}", container)
        self._touch()

    async def _await_start(self, container: Container) -> bool:
        """Waits until the model lets the container start. False if the pod ends before."""
        since: dict[str, float] = {}
        attempt = 0
        while not self._halted():
            problem = image_name_problem(container.spec.get("image", "")) or self.agents.model.container_start(
                self._built_view(), self._seen(container)
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
            pause = max(min(_RETRY_S * 2 ** min(attempt, 5), 300.0) / self._scale, _LEAST_RETRY_S)
            if problem.lasts_s is not None:
                pause = min(pause, max(problem.lasts_s / self._scale, _LEAST_PAUSE_S))
            await self._wait(pause)
        return False

    async def _show_problem(self, container: Container, problem: StartProblem, attempt: int) -> None:
        image = container.spec.get("image", "")
        if problem.reason in ("ErrImagePull", "ImagePullBackOff"):
            words = f'Failed to pull image "{image}": {problem.message}'
            self._event("Normal", "Pulling", f'Pulling image "{image}"', container)
            self._event("Warning", "Failed", words, container)
            self._event("Warning", "Failed", "Error: ErrImagePull", container)
            self._wait_for(container, "ErrImagePull", problem.message)
            await self._wait(max(1.0 / self._scale, _LEAST_PAUSE_S))
            if not self._halted():
                words = f'Back-off pulling image "{image}": ErrImagePull: {problem.message}'
                self._wait_for(container, "ImagePullBackOff", words)
                self._event("Normal", "BackOff", f'Back-off pulling image "{image}"', container)
                self._event("Warning", "Failed", "Error: ImagePullBackOff", container)
        elif problem.reason == "InvalidImageName":
            self._event("Warning", "InspectFailed", problem.message, container)
            self._event("Warning", "Failed", "Error: InvalidImageName", container)
            self._wait_for(container, problem.reason, problem.message)
        elif problem.reason == "ContainerCreating":
            if attempt == 0 and problem.event_reason:
                self._event("Warning", problem.event_reason, problem.message)
            self._wait_for(container, "ContainerCreating", "")
        else:
            self._event("Warning", "Failed", f"Error: {problem.message}", container)
            self._wait_for(container, problem.reason, problem.message)

    def _wait_for(self, container: Container, reason: str, message: str) -> None:
        container.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        self._touch()

    def _tell_pulled(self, container: Container) -> None:
        image = container.spec.get("image", "")
        fresh = self.agents.pull(self.node, image)
        if not fresh and container.spec.get("imagePullPolicy") != "Always":
            self._event("Normal", "Pulled", f'Container image "{image}" already present on machine', container)
            return
        self._event("Normal", "Pulling", f'Pulling image "{image}"', container)
        words = f'Successfully pulled image "{image}" in 1.2s (1.2s including waiting). Image size: {image_size(image)} bytes.'
        self._event("Normal", "Pulled", words, container)

    # -- running a container

    async def _run_once(self, container: Container) -> None:
        view, seen = self._built_view(), self._seen(container)
        policy: LogPolicy = self.agents.model.log_policy(view, seen)
        container.container_id = f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}"
        if container.log is not None:
            container.previous_log = container.log
        output = ContainerLog(policy.max_bytes, policy.unavailable.replace("{container_id}", container.container_id))
        container.log = output
        started = now_rfc3339()
        container.state = {"running": {"startedAt": started}}
        self._event("Normal", "Created", f"Created container: {container.name}", container)
        self._event("Normal", "Started", f"Started container {container.name}", container)
        self.agents.container_started(self, container.spec)
        self._touch()
        outcome = Outcome(lines=())
        stopped = False
        try:
            outcome = self.agents.model.run(view, seen, self.agents.peers_of(self))
            stopped = not await self._until_halted(self._play(outcome, output))
        except Exception as exc:  # a fault of the model must not look like a healthy run
            log.exception("workload of %s", self.pod["metadata"]["name"])
            output.append(0.0, f"simulated workload failed: {exc!r}")
            outcome.exit_code = outcome.exit_code or 1
        close = getattr(outcome.lines, "close", None)
        if close is not None:
            close()
        self._end_container(container, output, outcome, stopped, started)
        if outcome.evicted and not stopped:
            self._evicted = True
            self._fail("Evicted", outcome.evicted)

    def _end_container(self, container: Container, output: ContainerLog, outcome: Outcome, stopped: bool, started: str) -> None:
        code = _KILLED if stopped else outcome.exit_code
        ended: Object = {
            "exitCode": code,
            "reason": "" if stopped else outcome.reason,
            "startedAt": started,
            "finishedAt": now_rfc3339(),
            "containerID": container.container_id,
        }
        ended["reason"] = ended["reason"] or ("Error" if code else "Completed")
        message = "" if stopped else outcome.termination_message
        if not message and code and container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = output.tail_message()
        if message:
            ended["message"] = message.encode()[:_MESSAGE_BYTES].decode("utf-8", errors="ignore")
        container.state = {"terminated": ended}
        output.close()
        self._touch()

    async def _play(self, outcome: Outcome, target: ContainerLog) -> None:
        """Writes the lines when their time has come and returns when the process ends."""
        loop = asyncio.get_running_loop()
        start, last = loop.time(), 0.0
        lines: Iterator[t.Any] = iter(outcome.lines)
        for number, line in enumerate(lines):
            last = max(last, line.at_s)
            pause = start + last / self._scale - loop.time()
            if pause > _NOTHING_TO_WAIT_S:
                await asyncio.sleep(pause)
            elif number % 100 == 99:
                await asyncio.sleep(0)
            if line.text is not None:
                target.append(last, line.text)
        if outcome.duration_s is None:
            await asyncio.get_running_loop().create_future()
        else:
            await asyncio.sleep(max(start + max(outcome.duration_s, last) / self._scale - loop.time(), 0))

    def _seen(self, container: Container) -> t.Any:
        return dataclasses.replace(self._built_view().container(container.name), restart_count=container.restarts)

    def _built_view(self) -> PodView:
        if self.view is None:
            raise RuntimeError("no container starts before the view of its pod is built")
        return self.view

    # -- ends

    def _halted(self) -> bool:
        return self._stopping or self._closing or self._failure is not None

    def _fail(self, reason: str, message: str) -> None:
        """The kubelet ends the pod."""
        if self._failure is None and not self._stopping:
            self._failure = (reason, message)
            self._event("Warning", reason, message)
            self._cancel_children()

    async def _reject(self, reason: str, message: str) -> None:
        self._failure = (reason, message)
        for container in self.containers:
            container.state = {"waiting": {"reason": "ContainerCreating"}}
        await self._finish(rejected=True)

    async def _finish(self, rejected: bool = False) -> None:
        """Writes the last status. The node's resources are free before anybody can read it."""
        self._closing = True
        self._cancel_children()
        await asyncio.gather(*self._sidecars, return_exceptions=True)
        self.over = True
        self.agents.freed(self)
        for container in self.containers:
            if container.log is not None:
                container.log.close()
        if self._writer is not None:
            await asyncio.wait({self._writer})  # an older status must not arrive after the last one
        if rejected and self._failure is not None:
            reason, message = self._failure
            await self._patch({"phase": "Failed", "reason": reason, "message": message, "startTime": self._start_time})
        else:
            await self._patch(self._status())

    async def _end_lost(self) -> None:
        now = now_rfc3339()
        for container in self.containers:
            words = "The container could not be located when the pod was terminated"
            container.state = {"terminated": {"exitCode": _LOST, "reason": "ContainerStatusUnknown", "message": words, "finishedAt": now}}
        self._start_time = (self.pod.get("status") or {}).get("startTime", self._start_time)
        await self._finish()
        if self._stopping or self.pod["metadata"].get("deletionTimestamp"):
            await self._confirm_deletion()

    async def _confirm_deletion(self) -> None:
        """Tells the API that nothing of the pod runs any more."""
        if not self.over:
            await self._finish()
        metadata = self.pod["metadata"]
        try:
            await self.agents.api.delete(resource_path("pods", metadata["namespace"], metadata["name"]), grace_s=0, uid=metadata["uid"])
        except ApiError as exc:
            if exc.status not in (404, 409):
                raise

    # -- waiting

    async def _until_halted(self, call: Coroutine[t.Any, t.Any, t.Any]) -> bool:
        """Awaits the call; False if the pod was stopped or failed before it was done."""
        if self._halted():
            call.close()
            return False
        task = asyncio.create_task(call)
        self._children.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._children.discard(task)
            task.cancel()
        if task.cancelled():
            return False
        task.result()
        return True

    async def _wait(self, seconds: float) -> bool:
        return await self._until_halted(asyncio.sleep(seconds))

    def _cancel_children(self) -> None:
        for task in list(self._children):
            task.cancel()

    # -- status

    def _event(self, kind: str, reason: str, message: str, container: Container | None = None) -> None:
        field = f"spec.{'initContainers' if container.init else 'containers'}{{{container.name}}}" if container else ""
        self.agents.events.record(self.pod, kind, reason, message, host=self.node, field_path=field)

    def _touch(self) -> None:
        """Has the status written soon; states that follow each other closely are written once."""
        self._dirty = True
        if self._writer is None and not self.over:
            self._writer = asyncio.create_task(self._guard(self._write()))

    async def _write(self) -> None:
        try:
            while self._dirty and not self.over:
                await asyncio.sleep(_GATHER_S)
                self._dirty = False
                await self._patch(self._status())
        finally:
            self._writer = None

    async def _patch(self, status: Object) -> None:
        metadata = self.pod["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        try:
            await self.agents.api.patch(resource_path("pods", metadata["namespace"], metadata["name"], "status"), body)
        except ApiError as exc:
            if exc.status not in (404, 409, 422):
                raise
            log.debug("status of %s: %s", metadata["name"], exc)

    def _phase(self) -> str:
        mains = [container for container in self.containers if not container.init]
        if self._failure is not None and self.over:
            return "Failed"
        if self.over:
            codes = [container.exit_code for container in mains]
            return "Succeeded" if all(code == 0 for code in codes) else "Failed"
        return "Running" if any(container.log is not None for container in mains) else "Pending"

    def _status(self) -> Object:
        phase = self._phase()
        status: Object = {
            "phase": phase,
            "startTime": self._start_time,
            "hostIP": self.agents.host,
            "hostIPs": [{"ip": self.agents.host}],
            "podIP": self.pod_ip,
            "podIPs": [{"ip": self.pod_ip}],
            "containerStatuses": [container.status() for container in self.containers if not container.init],
            "conditions": self._conditions(phase),
        }
        inits = [container.status() for container in self.containers if container.init]
        if inits:
            status["initContainerStatuses"] = inits
        if self._failure is not None and phase == "Failed":
            status["reason"], status["message"] = self._failure
        return status

    def _conditions(self, phase: str) -> list[Object]:
        mains = [container for container in self.containers if not container.init]
        unready = [container.name for container in mains if not container.running]
        inits = [container for container in self.containers if container.init]
        waiting = [container.name for container in inits if container.log is None or (not container.sidecar and container.exit_code != 0)]
        ready = ("True", "", "")
        if phase == "Succeeded":
            ready = ("False", "PodCompleted", "")
        elif phase == "Failed":
            ready = ("False", "PodFailed", "")
        elif unready:
            ready = ("False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
        initialized = ("True", "PodCompleted" if phase == "Succeeded" else "", "")
        if waiting and not any(container.log for container in mains):
            initialized = ("False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(waiting)}]")
        rows = {
            "PodReadyToStartContainers": ("False" if phase in ("Succeeded", "Failed") else "True", "", ""),
            "Initialized": initialized,
            "Ready": ready,
            "ContainersReady": ready,
        }
        if not any(row["type"] == "PodScheduled" for row in (self.pod.get("status") or {}).get("conditions") or []):
            rows["PodScheduled"] = ("True", "", "")  # bound at its creation: no scheduler has said so
        if self._evicted:
            rows["DisruptionTarget"] = ("True", "TerminationByKubelet", self._failure[1] if self._failure else "")
        return [self._condition(kind, *row) for kind, row in rows.items()]

    def _condition(self, kind: str, value: str, reason: str, message: str) -> Object:
        before = self._written.get(kind) or {}
        since = before["lastTransitionTime"] if before.get("status") == value else now_rfc3339()
        row: Object = {"type": kind, "status": value, "lastTransitionTime": since}
        for key, text in (("reason", reason), ("message", message)):
            if text:
                row[key] = text
            elif before.get(key):
                row[key] = None  # conditions are merged: what is left out would stay
        self._written[kind] = row
        return row


def needs_end(pod: Object) -> bool:
    """Whether a pod found at the start of the agents was running before."""
    status = pod.get("status") or {}
    return not is_terminal(pod) and any(row.get("containerID") for row in status.get("containerStatuses") or [])


def image_id(image: str) -> str:
    """A digest that is always the same for an image name; the image's own if it names one."""
    if "@sha256:" in image:
        return image
    repository, colon, tag = image.rpartition(":")
    if not colon or "/" in tag:
        repository = image
    return f"{repository}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


def image_size(image: str) -> int:
    """A plausible size in bytes, always the same for an image name."""
    return 2_000_000_000 + int(hashlib.sha256(image.encode()).hexdigest()[:8], 16) * 2
