# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a simulated program can see of the world: its pod, its peers, the hardware below."""

from __future__ import annotations

import dataclasses
import datetime
import re
import typing as t
from functools import cached_property

from ..hardware.faults import Abort
from ..hardware.model import Hardware
from ..hardware.nodes import Node
from ..hardware.seam import ContainerView, Peers, PodView
from . import shell

GPU_RESOURCE = "nvidia.com/gpu"
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LIMIT = 4096


@dataclasses.dataclass
class Context:
    """One start of one container.

    killed: uids of pods whose containers the memory killer has hit; a server on such a pod ends when it looks.
    finished: host names of group members whose program has come to its good end; who is a little behind does not miss them.
    met: when a group was complete, by the host where it meets: from then on its members have one clock, as machines in a rack do.
    said:   what the programs of different pods have told each other, in words of their own.
    """

    hardware: Hardware
    pod: PodView
    container: ContainerView
    peers: Peers
    killed: set[str]
    finished: set[str] = dataclasses.field(default_factory=set)
    said: set[str] = dataclasses.field(default_factory=set)
    met: dict[str, datetime.datetime] = dataclasses.field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The container's command as one expanded shell text."""
        return shell.script_text(self.container)

    @property
    def time_scale(self) -> float:
        """Simulated seconds per real second."""
        return self.hardware.definition.time_scale

    @property
    def index(self) -> int | None:
        """The completion index inside an Indexed Job, None outside."""
        value = self.container.env.get("JOB_COMPLETION_INDEX", "")
        return int(value) if value.isdigit() else self.pod.job_completion_index

    @property
    def node(self) -> Node | None:
        """The GPU node below, None on a node without GPUs."""
        return self.hardware.nodes.get(self.pod.node)

    def poll_s(self) -> float:
        """Simulated seconds between two looks at the world: at least 20 real milliseconds."""
        return max(1.0, 0.02 * self.time_scale)

    def patience_s(self, simulated: float, peers: int = 0) -> float:
        """A time limit that is also long enough for the real latency of the API, until so many other pods have come up."""
        return max(simulated, max(5.0 + 0.3 * peers, 0.7 * peers) * self.time_scale)

    def is_me(self, host: str) -> bool:
        """True when a host name means this pod."""
        if host in ("localhost", "127.0.0.1", self.pod.pod_ip, self.pod.fqdn) or host.split(".")[0] == self.pod.host_name:
            return True
        found = self.peers(host)
        return found is not None and found.uid == self.pod.uid

    def find(self, host: str) -> PodView | None:
        """The running pod that a host name means, or None."""
        return self.pod if self.is_me(host) else self.peers(host)

    def nccl_settings(self) -> dict[str, str]:
        """NCCL_* and FI_* variables of the container and of exports in its script."""
        names = re.findall(r"(?:^|[\s;&])(?:export\s+|env\s+)?(NCCL_\w+)=([^\s;&|]*)", self.text, re.MULTILINE)
        own = {name: value for name, value in self.container.env.items() if name.startswith("NCCL_")}
        return {**own, **{name: value.strip("'\"") for name, value in names}}

    def write_termination(self, lines: list[str]) -> str:
        """The end of the lines that fits into a termination message, "" when the command does not write one."""
        spec = _container_spec(self.pod, self.container.name)
        path = spec.get("terminationMessagePath", TERMINATION_LOG)
        if path not in self.text and spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        kept: list[str] = []
        used = 0
        for line in reversed(lines):
            used += len(line.encode()) + 1
            if used > TERMINATION_LIMIT:
                break
            kept.insert(0, line)
        return "\n".join(kept)


def _container_spec(pod: PodView, name: str) -> dict[str, t.Any]:
    containers = [*pod.manifest["spec"].get("containers", ()), *pod.manifest["spec"].get("initContainers", ())]
    return next((item for item in containers if item.get("name") == name), {})


def mount_paths(context: Context) -> list[str]:
    """Where volumes are mounted in the container."""
    return [item["mountPath"] for item in _container_spec(context.pod, context.container.name).get("volumeMounts", ())]


def _quantity(text: str) -> int:
    return int(text) if text.isdigit() else 0


def gpus_of(pod: PodView) -> int:
    """GPUs that the pod's containers see: what the device plugin handed out."""
    return sum(_quantity(str({**item.requests, **item.limits}.get(GPU_RESOURCE, "0"))) for item in pod.containers if not item.init)


def sees_rdma(pod: PodView, node: Node) -> bool:
    """RDMA devices are in the pod: by a resource, a claim, a secondary network, the host's network, or privilege."""
    if node.hides_rdma or not (node.nics or node.fabric != "tcp"):
        return False
    spec = pod.manifest.get("spec", {})
    if spec.get("hostNetwork") or spec.get("resourceClaims"):
        return True
    if any("cni.cncf.io/networks" in key or key.startswith("networking.gke.io/") for key in pod.annotations):
        return True
    asked = {name for item in pod.containers for name in (*item.limits, *item.requests)}
    if asked & set(node.nics):
        return True
    return any((item.get("securityContext") or {}).get("privileged") for item in spec.get("containers", ()))


def abort_of(nodes: t.Iterable[Node]) -> Abort | None:
    """The first fault that ends a run on these nodes early."""
    return next((abort for node in nodes for fault in node.faults if (abort := fault.abort()) is not None), None)
