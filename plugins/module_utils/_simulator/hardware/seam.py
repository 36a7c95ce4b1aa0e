# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The seam between the node agents and what runs on the nodes.

The node agents (`clients/node_agents.py`) speak the Kubernetes API; a `WorkloadModel` decides which nodes exist, what goes
wrong with them, and what each container prints and returns. The agents ask, in this order, for every pod bound to a node:

1. `pod_admission(pod)`: may the kubelet run it? A `Rejection` makes the pod Failed with that reason and message.
2. `container_start(pod, container)`, before each container is started: a `StartProblem` keeps the container in a
   waiting state; the agent asks again at each retry until the problem is gone or the pod is deleted.
3. `run(pod, container, peers)`: a `Outcome` with the log lines and the exit code. Init containers run one after the other,
   then all other containers at once; every restart is a new call (`container.restart_count` tells them apart).

Time. Every number of seconds here is *simulated*: the agents divide it by `time_scale` to get the real wait. A log line's
timestamp is the real start of its container plus its `at_s`, so an hour of log appears in seconds and its stamps still span an hour.

Laziness. `Outcome.lines` is pulled as simulated time passes: the agent takes the next line only when the time of the line
before it has come. So a generator may look at the world whenever it is resumed (is my peer still there?), and the
`Outcome` it belongs to is read only after its last line: a generator may set `exit_code`, `reason`,
`termination_message` and `duration_s` of its own outcome. A line whose text is `None` is a pause without output. Example, an
mpirun launcher that waits for its workers::

    def run(self, pod, container, peers):
        outcome = Outcome(lines=(), exit_code=0)
        outcome.lines = self._launch(outcome, pod, peers)
        return outcome


    def _launch(self, outcome, pod, peers):
        now = 0.0
        while any(peers(host) is None for host in hosts):
            now += 1.0
            yield LogLine(now, None)  # look again in a simulated second
            if now > 120:
                yield LogLine(now, "ssh: Could not resolve hostname ...", "stderr")
                outcome.exit_code = 255
                return
        yield LogLine(now + 2.5, "# nThread 1 nGpus 1 ...")

When the pod is deleted, its node is lost or another container of it fails the pod, the generator is closed (`GeneratorExit`)
and the container ends with exit code 143 if it was asked to stop.

The model runs in the agents' event loop: no call may block, and each must return quickly.
"""

from __future__ import annotations

import dataclasses
import typing as t
from collections.abc import Callable, Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """One line of output.

    at_s:   simulated seconds since the container started; never smaller than that of the line before it.
    text:   without the newline; None is a pause: nothing is written, but simulated time moves on to `at_s`.
    stream: stdout or stderr. Both end in the same log, as with a container runtime.
    """

    at_s: float
    text: str | None
    stream: str = "stdout"


@dataclasses.dataclass(slots=True)
class Outcome:
    """What one run of a container does. Read after `lines` is exhausted (see the module's text).

    lines:       pulled lazily in the order of `at_s`.
    exit_code:   of the process.
    duration_s:  simulated seconds from start to exit; the last line's `at_s` if that is later.
                 None: runs until it is stopped (a server such as sshd).
    reason:      of the terminated state when it is not Completed (exit 0) or Error: OOMKilled, StartError, ContainerCannotRun …
    termination_message: what the program wrote to its termination message file.
    evicted:     not empty: the kubelet ends the whole pod with this message, status.reason Evicted and condition DisruptionTarget.
    """

    lines: Iterable[LogLine]
    exit_code: int = 0
    duration_s: float | None = 0.0
    reason: str = ""
    termination_message: str = ""
    evicted: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Rejection:
    """The kubelet refuses the pod: phase Failed with this status.reason (UnexpectedAdmissionError, OutOfcpu …) and message."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class StartProblem:
    """Why a container does not start now.

    reason:  the waiting reason:
             ErrImagePull (the agent alternates it with ImagePullBackOff and writes the events Pulling, Failed, BackOff),
             CreateContainerConfigError, CreateContainerError, RunContainerError (event Failed),
             ContainerCreating (stuck before the start: needs `event_reason`, e.g. FailedMount, FailedCreatePodSandBox).
    message: the runtime's words, without the kubelet's frame (`Failed to pull image "x": …` is added by the agent).
    event_reason: reason of the Warning event for ContainerCreating.
    lasts_s: simulated seconds after which the problem is gone; None: for ever.
    """

    reason: str
    message: str = ""
    event_reason: str = ""
    lasts_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LogPolicy:
    """How the kubelet keeps a container's log.

    max_bytes:   containerLogMaxSize. Once the current file is larger it is rotated away; the log API serves only the current file, so
                 the head is lost. As with a real kubelet the size counts the runtime's own prefix of each line.
    unavailable: a text served instead of the log, e.g. `unable to retrieve container logs for containerd://…`: with status 200, as
                 a kubelet does once the runtime has dropped the container. `{container_id}` in it is filled in by the agent.
    """

    max_bytes: int = 10 * 1024 * 1024
    unavailable: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerView:
    """A container as its process sees it.

    env:     name -> value, resolved: literals with $(NAME) expanded, configMapKeyRef, secretKeyRef, envFrom, fieldRef, resourceFieldRef.
    command, args: with $(NAME) expanded.
    files:   path -> text of every file mounted from configMap, secret, downwardAPI and projected volumes.
    limits:  resource name -> quantity as written, e.g. `{"nvidia.com/gpu": "8"}`.
    init:    an init container.
    restart_count: 0 for the first run.
    """

    name: str
    image: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    limits: dict[str, str] = dataclasses.field(default_factory=dict)
    requests: dict[str, str] = dataclasses.field(default_factory=dict)
    init: bool = False
    restart_count: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PodView:
    """A pod bound to a node, with its references resolved.

    host_name:  what `hostname` prints: spec.hostname, else the pod's name.
    fqdn:       `host_name.subdomain.namespace.svc.cluster.local` when a subdomain is set, else the host name.
    job_completion_index: from the Job controller's annotation; None without one.
    containers: init containers first. In `pod_admission` env and files are still empty: nothing has been resolved yet.
    manifest:   the raw Pod object, for what is not here. Read only.
    """

    name: str
    namespace: str
    uid: str
    node: str
    pod_ip: str
    host_name: str
    fqdn: str
    subdomain: str
    labels: dict[str, str]
    annotations: dict[str, str]
    containers: Sequence[ContainerView]
    job_completion_index: int | None
    manifest: dict[str, t.Any]

    def container(self, name: str) -> ContainerView:
        """The container of that name; KeyError if there is none."""
        for item in self.containers:
            if item.name == name:
                return item
        raise KeyError(name)


Peers: t.TypeAlias = Callable[[str], PodView | None]
"""Looks a name up as the cluster's DNS would, for a *running* pod on a node that is alive; None otherwise.

Accepts `host.subdomain`, with any of `.namespace`, `.svc`, `.cluster.local` appended, the asking pod's own host name, a pod IP, and
the name of a Service (its first ready pod). As in a real cluster `host.subdomain` needs a Service of the name `subdomain` which
selects the pod.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeChange:
    """Something that happens to a node while the cluster runs.

    node:    its name.
    after_s: simulated seconds after `since`.
    since:   `first_workload`: the start of the first container of a pod that asks for an extended resource (such as GPUs) on the
             node; `registration`: the node's registration.
    lost:    True: the node stops: no lease, no status, frozen workloads, unreachable logs. False: it comes back (its pods have failed).
             None: no change.
    patch:   strategic merge patch for the Node, e.g. `{"spec": {"unschedulable": True}}`.
    status_patch: the same for its status, e.g. `{"status": {"conditions": [{"type": "GpuHealthy", "status": "False", …}]}}`.
             Missing lastTransitionTime and lastHeartbeatTime of conditions are filled in.
    event:   `(type, reason, message)` of an Event on the node.
    """

    node: str
    after_s: float = 0.0
    since: t.Literal["first_workload", "registration"] = "first_workload"
    lost: bool | None = None
    patch: dict[str, t.Any] | None = None
    status_patch: dict[str, t.Any] | None = None
    event: tuple[str, str, str] | None = None


class WorkloadModel(t.Protocol):
    """What the node agents ask. See the module's text for the order and for time."""

    time_scale: float
    """Simulated seconds per real second, > 0."""

    def node_registration(self) -> list[dict[str, t.Any]]:
        """The Node objects to register, as in the API.

        metadata (labels, annotations), spec (providerID, taints, unschedulable) and status (capacity, allocatable, conditions,
        nodeInfo) are the model's. The agents add what a kubelet adds: apiVersion, kind, label kubernetes.io/hostname, addresses, port
        of the log server, standard conditions that the model did not give, and heartbeat times. A node which the model registers with
        condition Ready Unknown gets no lease, so that it stays as it is.
        """

    def node_changes(self) -> Iterable[NodeChange]:
        """All changes that will happen, read once at the start."""

    def pod_admission(self, pod: PodView) -> Rejection | None:
        """A reason to refuse the pod, or None."""

    def container_start(self, pod: PodView, container: ContainerView) -> StartProblem | None:
        """A reason why this container cannot start now, or None."""

    def run(self, pod: PodView, container: ContainerView, peers: Peers) -> Outcome:
        """Start the container's process."""

    def log_policy(self, pod: PodView, container: ContainerView) -> LogPolicy:
        """How this container's log is kept."""
