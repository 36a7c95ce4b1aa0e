# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The faults that can be planted in a simulated cluster: one small class per kind.

A fault overrides only the hooks it needs (see `faults.Fault`). To add a kind, write a class with the decorator `@fault` below: the
definition file, its schema and its documentation follow from the fields of the class.
"""

from __future__ import annotations

import dataclasses
import typing as t
from collections.abc import Iterable

from .faults import (
    BYTES,
    COUNT,
    EXIT_CODE,
    FACTOR,
    FLAG,
    INDEX,
    NODE,
    NODES,
    PAIR,
    PROBABILITY,
    RACK,
    SECONDS,
    STATUS,
    TEXT,
    Abort,
    Exercise,
    Fault,
    Part,
    Rise,
    option,
)
from .seam import LogPolicy, NodeChange, PodView, Rejection, StartProblem

KINDS: dict[str, type[Fault]] = {}
_FaultClass = t.TypeVar("_FaultClass", bound=type[Fault])
_NO_NETWORK = (
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
    "message:Network plugin returns error: cni plugin not initialized"
)


def fault(cls: _FaultClass) -> _FaultClass:
    """Register a kind of fault."""
    made = dataclasses.dataclass(frozen=True)(cls)
    KINDS[made.kind] = made
    return t.cast(_FaultClass, made)


def _set_condition(node: dict[str, t.Any], condition: dict[str, t.Any]) -> None:
    conditions = node["status"].setdefault("conditions", [])
    conditions[:] = [item for item in conditions if item["type"] != condition["type"]]
    conditions.append(condition)


def _taint(node: dict[str, t.Any], key: str, effect: str) -> None:
    node["spec"].setdefault("taints", []).append({"key": key, "effect": effect})


# --- slow hardware ---------------------------------------------------------------------------------------------------


@fault
class NodeSlow(Fault):
    """The whole node is slow (GPU clocks, NVSwitch): every test with it, also alone, is slower."""

    kind = "node_slow"
    counts = Rise("gpu", None, "hw_therm_slowdown", 4_000_000)
    node: str = option(NODE, "the slow node")
    factor: float = option(FACTOR, "share of the bandwidth left", 0.6)

    def limit(self, exercise: Exercise) -> float:
        return self.factor if self.node in exercise.nodes else 1.0

    def part_share(self, part: Part, number: int) -> float:
        return self.factor if part == "gpu" else 1.0

    def rail_limit(self, exercise: Exercise, rail: int) -> float:
        return 1.0


@fault
class GpuSlow(Fault):
    """One GPU of the node computes slowly, for heat or power: felt by what computes on it, not by what only copies."""

    kind = "gpu_slow"
    counts = Rise("gpu", "gpu", "hw_therm_slowdown", 4_000_000)
    node: str = option(NODE, "the node with the slow GPU")
    gpu: int = option(INDEX, "number of the GPU", 0)
    factor: float = option(FACTOR, "share of its speed left", 0.6)

    def part_share(self, part: Part, number: int) -> float:
        return self.factor if (part, number) == ("gpu", self.gpu) else 1.0


@fault
class PcieSlow(Fault):
    """The PCIe link of one GPU has come up too narrow: felt by copies between host and GPU."""

    kind = "pcie_slow"
    counts = Rise("gpu", "gpu", "pcie_replays", 7)
    node: str = option(NODE, "the node with the slow link")
    gpu: int = option(INDEX, "number of the GPU", 0)
    factor: float = option(FACTOR, "share of the bandwidth left", 0.5)

    def part_share(self, part: Part, number: int) -> float:
        return self.factor if (part, number) == ("pcie", self.gpu) else 1.0


@fault
class DiskSlow(Fault):
    """The volumes that are mounted on the node are slow."""

    kind = "disk_slow"
    node: str = option(NODE, "the node")
    factor: float = option(FACTOR, "share of the bandwidth left", 0.3)

    def part_share(self, part: Part, number: int) -> float:
        return self.factor if part == "disk" else 1.0


@fault
class NicSlow(Fault):
    """A NIC or cable of the node is slow: felt when traffic goes through NICs, so not by the node alone."""

    kind = "nic_slow"
    counts = Rise("nic", "nic", "symbol_error", 25)
    node: str = option(NODE, "the node with the slow NIC")
    factor: float = option(FACTOR, "share of the bandwidth left", 0.5)
    nic: int = option(INDEX, "number of the NIC; collectives wait for the slowest, a test of each NIC shows which it is", 0)

    def limit(self, exercise: Exercise) -> float:
        return self.factor if exercise.over_nic and self.node in exercise.nodes else 1.0

    def rail_limit(self, exercise: Exercise, rail: int) -> float:
        return self.limit(exercise) if rail == self.nic else 1.0


@fault
class Intermittent(Fault):
    """Like nic_slow, but only in some runs."""

    kind = "intermittent"
    counts = Rise("nic", 0, "link_error_recovery", 1)
    node: str = option(NODE, "the node with the flapping NIC")
    p: float = option(PROBABILITY, "probability that a run feels it", 0.5)
    factor: float = option(FACTOR, "share of the bandwidth left when it is felt", 0.5)

    def limit(self, exercise: Exercise) -> float:
        felt = exercise.over_nic and self.node in exercise.nodes and exercise.chance(self.kind, self.node) < self.p
        return self.factor if felt else 1.0


@fault
class NvlPort(Fault):
    """An NVLink port of the node to its rack is slow: felt by multi-node NVLink only (GB200, GB300)."""

    kind = "nvl_port"
    node: str = option(NODE, "the node with the slow port")
    factor: float = option(FACTOR, "share of the bandwidth left", 0.5)

    def limit(self, exercise: Exercise) -> float:
        return self.factor if exercise.over_mnnvl and self.node in exercise.nodes else 1.0


@fault
class UplinkSlow(Fault):
    """The uplink of a rack is slow: felt by traffic that crosses the rack's boundary, always or only under load."""

    kind = "uplink_slow"
    rack: str = option(RACK, "the rack")
    factor: float = option(FACTOR, "share of the bandwidth left", 0.5)
    under_load: bool = option(FLAG, "true: only when at least min_nodes of the rack take part", False)
    min_nodes: int = option(COUNT, "nodes of the rack from which under_load is felt", 8)

    def limit(self, exercise: Exercise) -> float:
        members = sum(1 for rack in exercise.nodes.values() if rack == self.rack)
        if not members or members == len(exercise.nodes) or not exercise.over_nic:
            return 1.0
        return 1.0 if self.under_load and members < self.min_nodes else self.factor


@fault
class PairSlow(Fault):
    """The path between two nodes is slow; each is fine with everybody else."""

    kind = "pair_slow"
    nodes: tuple[str, ...] = option(PAIR, "the two nodes")
    factor: float = option(FACTOR, "share of the bandwidth left", 0.5)

    def named_nodes(self) -> tuple[str, ...]:
        return tuple(self.nodes)

    def limit(self, exercise: Exercise) -> float:
        return self.factor if all(node in exercise.nodes for node in self.nodes) else 1.0


@fault
class Partition(Fault):
    """A switch inside a rack is split: nodes of the list and other nodes of their rack reach each other only slowly.

    Over NVLink where the GPU has multi-node NVLink, else over NICs.
    """

    kind = "partition"
    nodes: tuple[str, ...] = option(NODES, "one side of the split")
    factor: float = option(FACTOR, "share of the bandwidth left", 0.5)

    def named_nodes(self) -> tuple[str, ...]:
        return tuple(self.nodes)

    def limit(self, exercise: Exercise) -> float:
        side = set(self.nodes)
        racks_here = {rack for node, rack in exercise.nodes.items() if node in side}
        both = any(rack in racks_here for node, rack in exercise.nodes.items() if node not in side)
        return self.factor if both and exercise.multi_node else 1.0


# --- wrong behaviour -------------------------------------------------------------------------------------------------


@fault
class SocketFallback(Fault):
    """The node shows no RDMA device to its containers: every multi-node run with it falls back to TCP."""

    kind = "socket_fallback"
    node: str = option(NODE, "the node without RDMA devices")

    def hides_rdma(self) -> bool:
        return True


@fault
class WrongData(Fault):
    """Results are wrong at full speed."""

    kind = "wrong_data"
    node: str = option(NODE, "the node that corrupts data")

    def corrupts(self) -> bool:
        return True


@fault
class Crash(Fault):
    """A process on the node fails in the middle of every run."""

    kind = "crash"
    node: str = option(NODE, "the node")
    exit_code: int = option(EXIT_CODE, "exit code of the failing process; from 129 a signal (139 is a segmentation fault)", 3)

    def abort(self) -> Abort | None:
        return Abort(self.node, self.exit_code)


@fault
class Oom(Fault):
    """The container on the node is killed for memory in the middle of every run: OOMKilled, exit code 137."""

    kind = "oom"
    node: str = option(NODE, "the node")

    def abort(self) -> Abort | None:
        return Abort(self.node, 137, killed=True)


@fault
class RemapPending(Fault):
    """A row of the memory of one GPU waits for a reset to be remapped: nothing is slow or wrong, the GPU itself says it."""

    kind = "remap_pending"
    node: str = option(NODE, "the node")
    gpu: int = option(INDEX, "number of the GPU", 0)


@fault
class NvlinkErrors(Fault):
    """An NVLink of one GPU has bad packets that are sent again: nothing is slow or wrong yet, its counters rise with every workload."""

    kind = "nvlink_errors"
    node: str = option(NODE, "the node")
    gpu: int = option(INDEX, "number of the GPU", 0)
    link: int = option(INDEX, "number of the NVLink", 0)
    count: int = option(COUNT, "CRC errors that a workload adds", 1412)

    def rises(self) -> Rise:
        return Rise("gpu", self.gpu, f"nvlink{self.link}_crc_errors", self.count)


@fault
class UncorrectedMemory(Fault):
    """With every workload the memory of one GPU has an error that is not corrected: Xid 48, and a row that waits for a reset."""

    kind = "memory_error"
    counts = Rise("gpu", "gpu", "ecc_uncorrectable", 1)
    node: str = option(NODE, "the node")
    gpu: int = option(INDEX, "number of the GPU", 0)

    def xids(self) -> Iterable[tuple[int, int, str]]:
        yield self.gpu, 48, "pid='<unknown>', name=<unknown>, DBE (Double Bit Error) ECC Error"


@fault
class OldFirmware(Fault):
    """The NICs of the node have another firmware than the others: nothing is slow or wrong for that."""

    kind = "old_firmware"
    node: str = option(NODE, "the node")
    version: str = option(TEXT, "the firmware of its NICs", "28.36.1010")


# --- what Kubernetes sees --------------------------------------------------------------------------------------------


@fault
class ImagePull(Fault):
    """The node cannot pull images: containers stay in ErrImagePull and ImagePullBackOff."""

    kind = "image_pull"
    node: str = option(NODE, "the node")
    lasts_s: float | None = option(SECONDS, "simulated seconds until pulling works again; left out: for ever", None)

    def start(self, image: str) -> StartProblem | None:
        host = image.split("/", 1)[0] if "/" in image and "." in image.split("/", 1)[0] else "the registry"
        message = (
            f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": '
            f"failed to do request: dial tcp: lookup {host}: no such host"
        )
        return StartProblem("ErrImagePull", message, lasts_s=self.lasts_s)


@fault
class GpusMissing(Fault):
    """The node offers fewer GPUs than its product has."""

    kind = "gpus_missing"
    node: str = option(NODE, "the node")
    count: int = option(COUNT, "how many GPUs are missing", 1)
    off_the_bus: bool = option(
        FLAG, "true: the driver does not see them, so capacity and labels drop too; false: unhealthy, only allocatable drops", False
    )

    def dress(self, node: dict[str, t.Any]) -> None:
        status = node["status"]
        for table in ("capacity", "allocatable") if self.off_the_bus else ("allocatable",):
            status[table]["nvidia.com/gpu"] = str(max(0, int(status[table]["nvidia.com/gpu"]) - self.count))
        if self.off_the_bus:
            node["metadata"]["labels"]["nvidia.com/gpu.count"] = status["capacity"]["nvidia.com/gpu"]


@fault
class Cordoned(Fault):
    """An administrator has cordoned the node."""

    kind = "cordoned"
    node: str = option(NODE, "the node")

    def dress(self, node: dict[str, t.Any]) -> None:
        node["spec"]["unschedulable"] = True
        _taint(node, "node.kubernetes.io/unschedulable", "NoSchedule")


@fault
class NotReady(Fault):
    """The node is not ready."""

    kind = "not_ready"
    node: str = option(NODE, "the node")
    status: str = option(STATUS, 'status of the condition Ready; "Unknown": the kubelet is silent', "False")

    def dress(self, node: dict[str, t.Any]) -> None:
        silent = self.status == "Unknown"
        reason = "NodeStatusUnknown" if silent else "KubeletNotReady"
        message = "Kubelet stopped posting node status." if silent else _NO_NETWORK
        _set_condition(node, {"type": "Ready", "status": self.status, "reason": reason, "message": message})
        _taint(node, "node.kubernetes.io/unreachable" if silent else "node.kubernetes.io/not-ready", "NoSchedule")


@fault
class UnhealthyCondition(Fault):
    """A monitor on the node has reported a fault as a node condition; the node stays schedulable."""

    kind = "unhealthy_condition"
    node: str = option(NODE, "the node")
    type: str = option(TEXT, "type of the condition", "SysLogsXIDError")
    status: str = option(STATUS, "status of the condition", "True")
    reason: str = option(TEXT, "its reason", "SysLogsXIDErrorIsNotHealthy")
    message: str = option(
        TEXT, "its message", "ErrorCode:79 GPU:3 PCI:0000:4b:00.0 GPU has fallen off the bus Recommended Action=RESTART_BM"
    )
    after_s: float | None = option(SECONDS, "simulated seconds after the node's first workload started; left out: from the beginning", None)

    def _condition(self) -> dict[str, t.Any]:
        return {"type": self.type, "status": self.status, "reason": self.reason, "message": self.message}

    def dress(self, node: dict[str, t.Any]) -> None:
        if self.after_s is None:
            _set_condition(node, self._condition())

    def changes(self) -> Iterable[NodeChange]:
        if self.after_s is not None:
            yield NodeChange(self.node, self.after_s, status_patch={"status": {"conditions": [self._condition()]}})


@fault
class NodeLost(Fault):
    """The node disappears while a workload runs: no more heartbeats, pods frozen, logs out of reach."""

    kind = "node_lost"
    node: str = option(NODE, "the node")
    after_s: float = option(SECONDS, "simulated seconds after the node's first workload started", 5)

    def changes(self) -> Iterable[NodeChange]:
        yield NodeChange(self.node, self.after_s, lost=True)


@fault
class LogRotated(Fault):
    """The kubelet of the node keeps only the end of each log: the head of a result table is lost."""

    kind = "log_rotated"
    node: str = option(NODE, "the node")
    max_bytes: int = option(BYTES, "size at which the log is rotated away", 2048)

    def log_policy(self) -> LogPolicy | None:
        return LogPolicy(max_bytes=self.max_bytes)


@fault
class DeviceRejects(Fault):
    """The device plugin refuses its GPUs: pods that ask for GPUs fail with UnexpectedAdmissionError."""

    kind = "device_rejects"
    node: str = option(NODE, "the node")

    def admit(self, pod: PodView, wants_gpus: bool) -> Rejection | None:
        if not wants_gpus:
            return None
        return Rejection(
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected",
        )


@fault
class Mig(Fault):
    """The node's GPUs are split by MIG (mixed strategy): beside whole GPUs it shows slices."""

    kind = "mig"
    node: str = option(NODE, "the node")

    def dress(self, node: dict[str, t.Any]) -> None:
        gpus = int(node["status"]["capacity"]["nvidia.com/gpu"])
        for table in ("capacity", "allocatable"):
            node["status"][table]["nvidia.com/mig-1g.10gb"] = str(7 * (gpus // 2))
            node["status"][table]["nvidia.com/gpu"] = str(gpus - gpus // 2)
        node["metadata"]["labels"].update(
            {
                "nvidia.com/mig.strategy": "mixed",
                "nvidia.com/mig.config": "mixed",
                "nvidia.com/mig.config.state": "success",
                "nvidia.com/mig-1g.10gb.count": str(7 * (gpus // 2)),
            }
        )


@fault
class TimeSlicing(Fault):
    """The node's GPUs are shared by time slicing: it offers a multiple of its GPUs."""

    kind = "time_slicing"
    node: str = option(NODE, "the node")
    replicas: int = option(COUNT, "slices of each GPU", 4)

    def dress(self, node: dict[str, t.Any]) -> None:
        for table in ("capacity", "allocatable"):
            node["status"][table]["nvidia.com/gpu"] = str(int(node["status"][table]["nvidia.com/gpu"]) * self.replicas)
        labels = node["metadata"]["labels"]
        labels["nvidia.com/gpu.replicas"] = str(self.replicas)
        labels["nvidia.com/gpu.sharing-strategy"] = "time-slicing"
        labels["nvidia.com/gpu.product"] += "-SHARED"


@fault
class Unlabelled(Fault):
    """GPU feature discovery has not labelled the node; its GPUs are allocatable."""

    kind = "unlabelled"
    node: str = option(NODE, "the node")

    def dress(self, node: dict[str, t.Any]) -> None:
        labels = node["metadata"]["labels"]
        for key in [key for key in labels if key.startswith(("nvidia.com/", "feature.node.kubernetes.io/"))]:
            del labels[key]
