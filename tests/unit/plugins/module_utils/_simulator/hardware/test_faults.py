# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Each fault must be felt exactly where it is on real hardware, and nowhere else: a rehearsal is worth no more than that."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.fault_kinds import KINDS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.model import Path

from ..world import World

BAD, GOOD = "gpu-r0-n01", "gpu-r0-n02"
GROUP = ["gpu-r0-n00", "gpu-r0-n01", "gpu-r0-n02", "gpu-r0-n03"]


def share(fault: dict[str, t.Any], nodes: t.Sequence[str], path: Path | None = None, **keys: t.Any) -> float:
    """The bandwidth that a group keeps with the fault, 1.0 when it is not felt."""
    path = path or Path("ib")
    speeds = [World(faults, **keys).model.hardware.speed("run", "all_reduce", nodes, 8, path).peak_gb_s for faults in ([fault], [])]
    return round(speeds[0] / speeds[1], 3)


def test_a_slow_node_is_slow_in_every_test() -> None:
    fault = {"kind": "node_slow", "node": BAD, "factor": 0.6}
    assert share(fault, [BAD]) == share(fault, GROUP) == 0.6
    assert share(fault, [GOOD]) == 1.0


def test_a_slow_nic_is_felt_only_between_nodes() -> None:
    fault = {"kind": "nic_slow", "node": BAD, "factor": 0.5}
    assert share(fault, [BAD]) == 1.0
    assert share(fault, GROUP) == 0.5
    assert share(fault, [BAD], Path("ib", peer_access=False, shared_memory=False)) == 0.5


def test_the_worst_fault_bounds_the_group() -> None:
    faults = [{"kind": "nic_slow", "node": BAD, "factor": 0.5}, {"kind": "node_slow", "node": GOOD, "factor": 0.8}]
    both = World(faults).model.hardware.speed("run", "all_reduce", GROUP, 8, Path("ib")).peak_gb_s
    healthy = World().model.hardware.speed("run", "all_reduce", GROUP, 8, Path("ib")).peak_gb_s
    assert both / healthy == pytest.approx(0.5)


def test_a_slow_uplink_is_felt_across_its_boundary() -> None:
    fault = {"kind": "uplink_slow", "rack": "r1", "factor": 0.4}
    assert share(fault, ["gpu-r1-n00", "gpu-r1-n01"]) == 1.0
    assert share(fault, ["gpu-r0-n00", "gpu-r2-n00"]) == 1.0
    assert share(fault, ["gpu-r0-n00", "gpu-r1-n00"]) == 0.4


def test_an_uplink_under_load_needs_many_nodes() -> None:
    fault = {"kind": "uplink_slow", "rack": "r1", "factor": 0.4, "under_load": True, "min_nodes": 4}
    few, many = [f"gpu-r1-n{number:02d}" for number in range(3)], [f"gpu-r1-n{number:02d}" for number in range(4)]
    assert share(fault, ["gpu-r0-n00", *few]) == 1.0
    assert share(fault, ["gpu-r0-n00", *many]) == 0.4


def test_a_slow_pair_needs_both_ends() -> None:
    fault = {"kind": "pair_slow", "nodes": ["gpu-r0-n00", "gpu-r1-n00"], "factor": 0.5}
    assert share(fault, ["gpu-r0-n00", "gpu-r1-n00"]) == 0.5
    assert share(fault, ["gpu-r0-n00", "gpu-r1-n01"]) == 1.0


def test_a_partition_needs_both_sides_of_one_rack() -> None:
    fault = {"kind": "partition", "nodes": ["gpu-r0-n00", "gpu-r0-n01"], "factor": 0.5}
    assert share(fault, ["gpu-r0-n00", "gpu-r0-n01"]) == 1.0
    assert share(fault, ["gpu-r0-n02", "gpu-r0-n03"]) == 1.0
    assert share(fault, ["gpu-r0-n01", "gpu-r1-n02"]) == 1.0
    assert share(fault, ["gpu-r0-n01", "gpu-r0-n02"]) == 0.5


def test_an_nvlink_port_is_felt_over_nvlink_only() -> None:
    fault = {"kind": "nvl_port", "node": BAD, "factor": 0.5}
    assert share(fault, GROUP, gpu="gb200") == 0.5
    assert share(fault, GROUP, Path("ib", mnnvl=False), gpu="gb200") == 1.0
    assert share(fault, [BAD], gpu="gb200") == 1.0


def test_an_intermittent_nic_fails_about_as_often_as_asked() -> None:
    hardware = World([{"kind": "intermittent", "node": BAD, "p": 0.3}]).model.hardware
    peaks = [hardware.speed(f"run {number}", "all_reduce", GROUP, 8, Path("ib")).peak_gb_s for number in range(300)]
    slow = sum(1 for peak in peaks if peak < max(peaks) * 0.9)
    assert 60 < slow < 120
    again = hardware.speed("run 5", "all_reduce", GROUP, 8, Path("ib")).peak_gb_s
    assert again == peaks[5]


def test_a_node_without_rdma_takes_its_group_to_tcp_and_is_the_only_one_to_say_so() -> None:
    ran = World([{"kind": "socket_fallback", "node": BAD}]).launch(GROUP)
    assert ran.outcome.exit_code == 0
    assert ran.peak() < 6
    assert ran.said("Using network Socket") and not ran.said("Using network IB")
    assert {line.split(":")[0] for line in ran.said("NET/IB : No device found.")} == {"job-1"}
    assert ran.said("via NET/Socket/0") and not ran.said("GDRDMA")
    assert World([{"kind": "socket_fallback", "node": BAD}]).alone(BAD).peak() > 400


def test_wrong_data_is_fast_and_wrong() -> None:
    faults = [{"kind": "wrong_data", "node": BAD}]
    ran = World(faults).launch(GROUP)
    assert ran.peak() > 350
    assert ran.said("# Out of bounds values :")[0].endswith("FAILED")
    assert all(int(float(row[8])) > 0 for row in ran.rows())
    assert ran.outcome.exit_code == 7
    assert World(faults).alone(GOOD).outcome.exit_code == 0


@pytest.mark.parametrize(("version", "code"), [("2.17.2", 1), ("2.17.4", 6), ("2.17.7", 7)])
def test_the_exit_code_for_wrong_data_follows_the_version(version: str, code: int) -> None:
    world = World([{"kind": "wrong_data", "node": BAD}], software={"nccl_tests": version})
    assert world.alone(BAD).outcome.exit_code == code


@pytest.mark.parametrize(("code", "words"), [(3, "Test NCCL failure"), (2, "Test CUDA failure"), (1, "Test failure"), (139, "signal 11")])
def test_a_crash_tears_the_table_and_names_the_rank(code: int, words: str) -> None:
    ran = World([{"kind": "crash", "node": BAD, "exit_code": code}]).launch(GROUP)
    assert ran.outcome.exit_code == code
    assert ran.said(words)
    assert len(ran.rows()[-1]) == 5  # the head of a row that was never measured
    assert not ran.said("Avg bus bandwidth")
    assert ran.said("job-1")


def test_a_crash_also_happens_alone_and_spares_others() -> None:
    faults = [{"kind": "crash", "node": BAD}]
    assert World(faults).alone(BAD).outcome.exit_code == 3
    assert World(faults).alone(GOOD).outcome.exit_code == 0


def test_out_of_memory_kills_the_container_on_its_node() -> None:
    world = World([{"kind": "oom", "node": BAD}])
    launcher = world.launch(GROUP)
    assert launcher.outcome.exit_code == 137
    assert launcher.outcome.reason == ""
    assert launcher.said("signal 9 (Killed)")
    worker = world.launch(GROUP, index=1)
    assert (worker.outcome.exit_code, worker.outcome.reason) == (137, "OOMKilled")
    alone = World([{"kind": "oom", "node": BAD}]).alone(BAD)
    assert (alone.outcome.exit_code, alone.outcome.reason) == (137, "OOMKilled")


def test_a_node_that_cannot_pull_keeps_its_containers_waiting() -> None:
    world = World([{"kind": "image_pull", "node": BAD}])
    pods = world.pods([BAD, GOOD], "true")
    problem = world.model.container_start(pods["job-0"], pods["job-0"].containers[0])
    assert problem is not None and problem.reason == "ErrImagePull"
    assert "registry.example.com" in problem.message
    assert world.model.container_start(pods["job-1"], pods["job-1"].containers[0]) is None


def test_a_device_plugin_refuses_only_pods_with_gpus() -> None:
    world = World([{"kind": "device_rejects", "node": BAD}])
    with_gpus, without = world.pod(0, BAD, [BAD], "true"), world.pod(0, BAD, [BAD], "true", gpus=0)
    rejection = world.model.pod_admission(with_gpus)
    assert rejection is not None and rejection.reason == "UnexpectedAdmissionError"
    assert world.model.pod_admission(without) is None
    assert world.model.pod_admission(world.pod(0, GOOD, [GOOD], "true")) is None


def test_a_lost_node_is_planned_and_ends_the_run_of_its_group() -> None:
    world = World([{"kind": "node_lost", "node": BAD, "after_s": 7}])
    changes = list(world.model.node_changes())
    assert [(change.node, change.after_s, change.lost) for change in changes] == [(BAD, 7, True)]
    ran = world.launch(GROUP, gone=["job-1"], debug="WARN")
    assert ran.outcome.exit_code != 0 and not ran.rows()


def test_a_rotating_log_keeps_only_its_end() -> None:
    world = World([{"kind": "log_rotated", "node": BAD, "max_bytes": 1024}])
    pods = world.pods([BAD, GOOD], "true")
    assert world.model.log_policy(pods["job-0"], pods["job-0"].containers[0]).max_bytes == 1024
    assert world.model.log_policy(pods["job-1"], pods["job-1"].containers[0]).max_bytes == 10 * 1024 * 1024


def node_of(fault: dict[str, t.Any]) -> dict[str, t.Any]:
    objects = World([{"node": BAD, **fault}]).model.node_registration()
    return next(item for item in objects if item["metadata"]["name"] == BAD)


def test_missing_gpus_show_in_the_node() -> None:
    sick = node_of({"kind": "gpus_missing", "count": 2})
    assert (sick["status"]["capacity"]["nvidia.com/gpu"], sick["status"]["allocatable"]["nvidia.com/gpu"]) == ("8", "6")
    gone = node_of({"kind": "gpus_missing", "count": 1, "off_the_bus": True})
    assert gone["status"]["capacity"]["nvidia.com/gpu"] == gone["metadata"]["labels"]["nvidia.com/gpu.count"] == "7"


def test_faults_that_kubernetes_shows() -> None:
    assert node_of({"kind": "cordoned"})["spec"]["unschedulable"] is True
    ready = {item["type"]: item for item in node_of({"kind": "not_ready"})["status"]["conditions"]}["Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "KubeletNotReady")
    conditions = node_of({"kind": "unhealthy_condition", "type": "GpuNvlinkWatch", "reason": "X", "message": "m"})["status"]["conditions"]
    assert conditions == [{"type": "GpuNvlinkWatch", "status": "True", "reason": "X", "message": "m"}]
    late = World([{"kind": "unhealthy_condition", "node": BAD, "after_s": 9}])
    assert [change.status_patch is not None for change in late.model.node_changes()] == [True]
    assert node_of({"kind": "time_slicing", "replicas": 4})["status"]["allocatable"]["nvidia.com/gpu"] == "32"
    assert "nvidia.com/mig-1g.10gb" in node_of({"kind": "mig"})["status"]["allocatable"]
    assert not any(key.startswith("nvidia.com/") for key in node_of({"kind": "unlabelled"})["metadata"]["labels"])


def test_every_kind_says_what_it_is() -> None:
    assert all(kind == cls.kind and cls.__doc__ for kind, cls in KINDS.items())
