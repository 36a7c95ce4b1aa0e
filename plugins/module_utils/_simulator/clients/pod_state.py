# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a node agent knows of a pod and its containers. Nothing here speaks to the API."""

from __future__ import annotations

import dataclasses
import uuid

from ..hardware.seam import LogPolicy, Outcome, PodView
from .api import Object, now_rfc3339
from .images import image_id
from .kubelet_logs import ContainerLog, LogProblem
from .pod_view import container_specs

_KILLED, _LOST = 143, 137
_MESSAGE_BYTES = 4096


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
        """As in the spec."""
        return str(self.spec["name"])

    @property
    def image(self) -> str:
        """As in the spec."""
        return str(self.spec.get("image", ""))

    @property
    def sidecar(self) -> bool:
        """An init container that runs beside the others."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def running(self) -> bool:
        """It runs now."""
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """Of the run that ended last and is not being restarted; None while it may still run."""
        ended = self.state.get("terminated")
        return ended["exitCode"] if ended else None

    def wait_for(self, reason: str, message: str = "") -> None:
        """It does not run, for this reason."""
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}

    def begin(self, policy: LogPolicy) -> ContainerLog:
        """It runs from now on. Returns the log of this run."""
        self.container_id = f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}"
        if self.log is not None:
            self.previous_log = self.log
        self.log = ContainerLog(policy.max_bytes, policy.unavailable.replace("{container_id}", self.container_id))
        self.state = {"running": {"startedAt": now_rfc3339()}}
        return self.log

    def end(self, output: ContainerLog, outcome: Outcome, stopped: bool) -> None:
        """The run with this log is over: by itself, with its outcome, or because it was asked to stop."""
        code = _KILLED if stopped else outcome.exit_code
        ended: Object = {
            "exitCode": code,
            "reason": "" if stopped else outcome.reason,
            "startedAt": self.state["running"]["startedAt"],
            "finishedAt": now_rfc3339(),
            "containerID": self.container_id,
        }
        ended["reason"] = ended["reason"] or ("Error" if code else "Completed")
        message = "" if stopped else outcome.termination_message
        if not message and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = output.tail_message()
        if message:
            ended["message"] = message.encode()[:_MESSAGE_BYTES].decode("utf-8", errors="ignore")
        self.state = {"terminated": ended}
        output.close()

    def status(self) -> Object:
        """Its ContainerStatus."""
        started = self.container_id != ""
        row = {
            "name": self.name,
            "image": self.image,
            "imageID": image_id(self.image) if started else "",
            "ready": self.exit_code == 0 if self.init and not self.sidecar else self.running,
            "started": self.running,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }
        if started:
            row["containerID"] = self.container_id
        return row


class PodState:
    """One pod on its node.

    view:     the pod as its containers see it, once everything that it refers to is there.
    failure:  status.reason and message of a pod that the kubelet ends.
    evicted:  that reason is an eviction.
    stopping: the pod is being deleted.
    closing:  its last status is being written.
    over:     nothing of it runs any more.
    """

    def __init__(self, pod: Object, pod_ip: str) -> None:
        waiting = {"waiting": {"reason": "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"}}
        self.pod = pod
        self.node: str = pod["spec"]["nodeName"]
        self.pod_ip = pod_ip
        self.view: PodView | None = None
        self.containers = [Container(spec, init, dict(waiting)) for spec, init in container_specs(pod)]
        self.start_time = now_rfc3339()
        self.failure: tuple[str, str] | None = None
        self.evicted = False
        self.stopping = False
        self.closing = False
        self.over = False

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.pod["metadata"]["name"])

    @property
    def halted(self) -> bool:
        """No container may be started or go on."""
        return self.stopping or self.closing or self.failure is not None

    @property
    def main_containers(self) -> list[Container]:
        """All but the init containers."""
        return [container for container in self.containers if not container.init]

    @property
    def init_containers(self) -> list[Container]:
        """In the order in which they start, with the sidecars."""
        return [container for container in self.containers if container.init]

    def is_running(self) -> bool:
        """Whether peers can reach the pod."""
        return self.view is not None and not self.over and all(container.running for container in self.main_containers)

    def built_view(self) -> PodView:
        """The view, for code that runs only when there is one. Raises RuntimeError otherwise."""
        if self.view is None:
            raise RuntimeError("no container starts before the view of its pod is built")
        return self.view

    def end_lost(self) -> None:
        """Nothing is known of its containers: this process or the node was started anew."""
        now = now_rfc3339()
        for container in self.containers:
            words = "The container could not be located when the pod was terminated"
            container.state = {"terminated": {"exitCode": _LOST, "reason": "ContainerStatusUnknown", "message": words, "finishedAt": now}}
        self.start_time = (self.pod.get("status") or {}).get("startTime", self.start_time)

    def find_log(self, name: str, previous: bool) -> ContainerLog | LogProblem:
        """The log of a container, or of its run before this one."""
        container = next((container for container in self.containers if container.name == name), None)
        if container is None:
            return LogProblem(404, f'container "{name}" not found in pod "{self.name}"')
        found = container.previous_log if previous else container.log
        if found is not None:
            return found
        if previous:
            return LogProblem(400, f'previous terminated container "{name}" in pod "{self.name}" not found')
        reason = container.state.get("waiting", {}).get("reason", "ContainerCreating")
        return LogProblem(400, f'container "{name}" in pod "{self.name}" is waiting to start: {reason}')
