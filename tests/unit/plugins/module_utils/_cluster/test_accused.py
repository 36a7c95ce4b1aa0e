# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whom discovery accuses, whom it leaves out and whom it must not forget: no healthy part accused, no GPU node outside coverage."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.nodes import looks_like_gpu
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.selection import select
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError

from .builders import node, rows, snapshot

TYPE = "node.kubernetes.io/instance-type"


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


def annotated(raw: dict[str, t.Any], **annotations: str) -> dict[str, t.Any]:
    raw["metadata"]["annotations"] = annotations
    return raw


def reason(raw: dict[str, t.Any]) -> str | None:
    (row,) = rows(raw).values()
    assert row["target"] == (row["exclusion"] is None)
    return row["exclusion"]["reason"] if row["exclusion"] else None


# --- a mass event accuses nobody ---


@pytest.mark.parametrize(
    ("broken", "nodes", "is_mass"), [(4, 4, True), (3, 4, True), (2, 2, True), (2, 4, False), (1, 4, False), (1, 1, False)]
)
def test_no_gpu_anywhere_at_once_is_the_plugin_and_not_the_gpus(broken: int, nodes: int, is_mass: bool) -> None:
    made = snapshot(*[node(f"n{index}", gpus=0 if index < broken else 8, capacity=8) for index in range(nodes)])
    accused = [row["name"] for row in made["nodes"] if row["findings"]]
    untested = [row["name"] for row in made["nodes"] if row["exclusion"] and row["exclusion"]["reason"] == "DevicePlugin"]
    assert (len(accused), len(untested)) == ((0, broken) if is_mass else (broken, 0))
    assert any("device plugin" in note for note in made["notes"]) == is_mass


def test_one_pool_without_gpus_in_a_large_cluster_accuses_nobody() -> None:
    small = [node(f"s{index}", gpus=0, capacity=8, labels={TYPE: "p5.48xlarge"}) for index in range(2)]
    large = [node(f"l{index}", labels={TYPE: "p5en.48xlarge"}) for index in range(8)]
    assert not any(row["findings"] for row in rows(*small, *large).values())


def test_the_same_condition_on_most_nodes_accuses_none_and_another_one_beside_it_does() -> None:
    same = {"type": "GpuUnhealthy", "status": "True", "reason": "NewRule", "message": "GPU 0 is ill"}
    own = {"type": "GpuXidError", "status": "True", "reason": "Xid79", "message": "GPU has fallen off the bus"}
    made = snapshot(*[node(f"n{index}", conditions=[same, *([own] if index == 0 else [])]) for index in range(3)], node("n3"))
    found = {row["name"]: row for row in made["nodes"]}
    assert [len(found[name]["findings"]) for name in sorted(found)] == [1, 0, 0, 0]
    assert "Xid79" in found["n0"]["findings"][0]["message"]
    assert found["n1"]["exclusion"]["reason"] == "SameOnMostNodes" and found["n3"]["target"]
    assert any("3 of 4 nodes" in note and "no node is accused" in note for note in made["notes"])


def test_missing_single_gpus_are_findings_even_on_every_node() -> None:
    assert all(row["findings"] for row in rows(node("a", gpus=7), node("b", gpus=6)).values())


def test_a_request_that_meets_a_mass_event_says_what_to_look_at() -> None:
    made = snapshot(*[node(f"n{index}", gpus=0, capacity=8) for index in range(3)])
    with pytest.raises(InputError) as caught:
        select(made["nodes"])
    assert "3 DevicePlugin" in caught.value.message and "device plugin and the kubelet" in str(caught.value.hint)


# --- conditions and taints ---


def test_what_condemns_nobody_is_said_aloud_once() -> None:
    imex = {"type": "GpuNvlinkWatch", "status": "True", "reason": "x", "message": "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:0"}
    made = snapshot(*[node(f"n{index}", conditions=[imex]) for index in range(5)])
    assert [note for note in made["notes"] if "accuses nobody" in note and "5 nodes" in note and "IMEX" in note]
    assert all(row["target"] and not row["findings"] for row in made["nodes"])


def test_a_taint_of_a_health_agent_condemns_before_the_test_as_during_it() -> None:
    found = rows(node("a", taints=[taint("nvidia.com/gpu-unhealthy", value="xid")]), node("b"), node("c"))
    assert [item["evidence"] for item in found["a"]["findings"]] == [["taint nvidia.com/gpu-unhealthy=xid:NoSchedule"]]
    assert not found["b"]["findings"]


# --- nodes that go ---


@pytest.mark.parametrize(
    "raw",
    [
        node(taints=[taint("ToBeDeletedByClusterAutoscaler", value="1772447467")]),
        node(taints=[taint("karpenter.sh/disrupted")]),
        node(taints=[taint("karpenter.sh/disruption", value="disrupting")]),
        node(taints=[taint("node.cloudprovider.kubernetes.io/shutdown")]),
        node(taints=[taint("node.kubernetes.io/out-of-service", "NoExecute", "nodeshutdown")]),
        node(taints=[taint("cloud.google.com/impending-node-termination")]),
        node(taints=[taint("aws-node-termination-handler/scheduled-maintenance")]),
        node(taints=[taint("example.com/under-maintenance")]),
        node(labels={"cloud.google.com/active-node-maintenance": "ONGOING"}),
        node(labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"}),
        annotated(node(), **{"kured.dev/kured-reboot-in-progress": "x"}),
        annotated(node(), **{"cluster.x-k8s.io/delete-machine": ""}),
        node(conditions=[{"type": "PreemptScheduled", "status": "True"}]),
    ],
    ids=lambda raw: str(raw["spec"].get("taints") or raw["metadata"]["labels"])[-60:],
)
def test_a_node_that_is_about_to_go_is_left_out_and_not_lost_in_a_test(raw: dict[str, t.Any]) -> None:
    assert reason(raw) == "Leaving"


@pytest.mark.parametrize(
    "raw",
    [
        node(taints=[taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule")]),
        node(taints=[taint("nvidia.com/gpu", value="present")]),
        node(taints=[taint("dedicated", value="training")]),
        node(labels={"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}),
        node(labels={"cloud.google.com/active-node-maintenance": "PENDING"}),
        annotated(node(), **{"kured.dev/kured-most-recent-reboot-needed": "x"}),
        annotated(node(), **{"karpenter.sh/do-not-disrupt": "true"}),
        node(conditions=[{"type": "PreemptScheduled", "status": "False"}]),
    ],
    ids=lambda raw: str(raw["spec"].get("taints") or raw["metadata"]["labels"])[-60:],
)
def test_a_node_that_stays_is_tested(raw: dict[str, t.Any]) -> None:
    assert reason(raw) is None


def test_a_node_that_is_not_yet_set_up_is_left_out() -> None:
    assert reason(node(taints=[taint("node.cilium.io/agent-not-ready", "NoExecute")])) == "Starting"
    assert reason(node(taints=[taint("node.cloudprovider.kubernetes.io/uninitialized", value="true")])) == "Starting"


def test_a_pool_in_maintenance_is_tested_when_the_user_tolerates_its_taint_by_name() -> None:
    raws = [node("n0", taints=[taint("example.com/maintenance")]), node("n1")]
    named = [{"key": "example.com/maintenance", "operator": "Exists"}]
    assert [row["target"] for row in select(snapshot(*raws)["nodes"], tolerations=named)] == [True, True]
    assert [row["target"] for row in select(snapshot(*raws)["nodes"], tolerations=[{"operator": "Exists"}])] == [False, True]
    labelled = node("n2", taints=[taint("example.com/maintenance")], labels={"nvidia.com/gpu-driver-upgrade-state": "drain-required"})
    assert [row["target"] for row in select(snapshot(labelled, node("n3"))["nodes"], tolerations=named)] == [False, True]


# --- nodes that belong in the denominator ---


def bare(**options: t.Any) -> dict[str, t.Any]:
    return node(gpus=None, product=None, **options)


@pytest.mark.parametrize(
    "raw",
    [
        node(gpus=0, product=None),
        bare(labels={"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}),
        bare(labels={TYPE: "p5.48xlarge"}),
        bare(labels={TYPE: "Standard_ND96isr_H100_v5"}),
        bare(labels={TYPE: "BM.GPU.H100.8"}),
        bare(labels={"karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia"}),
        bare(labels={"feature.node.kubernetes.io/pci-0302_10de.present": "true"}),
        bare(labels={"nvidia.com/gpu.deploy.driver": "true"}),
        bare(taints=[taint("nvidia.com/gpu", value="present")]),
    ],
    ids=lambda raw: str(raw["metadata"]["labels"])[-60:],
)
def test_a_gpu_node_without_gpus_is_named_with_a_reason(raw: dict[str, t.Any]) -> None:
    assert looks_like_gpu(raw) and reason(raw) == "LabelWithoutResource"


@pytest.mark.parametrize(
    "raw",
    [
        bare(),
        bare(labels={TYPE: "m5.xlarge"}),
        bare(labels={TYPE: "g4ad.xlarge"}),
        bare(labels={TYPE: "k3s"}),
        bare(labels={"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice"}),
        bare(labels={"feature.node.kubernetes.io/pci-0200_15b3.present": "true"}),
        node(gpus=0, product=None, labels={"nvidia.com/gpu.present": "false"}),
    ],
    ids=lambda raw: str(raw["metadata"]["labels"])[-60:],
)
def test_a_node_that_never_had_a_gpu_is_not_counted(raw: dict[str, t.Any]) -> None:
    assert not looks_like_gpu(raw)


# --- shared and split GPUs ---


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (annotated(node(gpus=40, product=None), **{"hami.io/node-nvidia-register": '[{"id": "GPU-0", "count": 5}]'}), "TimeSlicing"),
        (annotated(node(gpus=80, product=None), **{"4pd.io/node-nvidia-register": "GPU-0,10,46068,NVIDIA A40"}), "TimeSlicing"),
        (
            annotated(node(gpus=None, product=None, resources={"volcano.sh/vgpu-number": 80}), **{"volcano.sh/node-vgpu-register": "x"}),
            "TimeSlicing",
        ),
        (node(gpus=16, product=None, labels={"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}), "TimeSlicing"),
        (node(gpus=16, product=None, labels={"cloud.google.com/gke-max-shared-clients-per-gpu": "2"}), "TimeSlicing"),
        (node(gpus=56, product=None, labels={"cloud.google.com/gke-gpu-partition-size": "1g.10gb"}), "Mig"),
        (node(gpus=8, resources={"nvidia.com/gpumem": 640000}), "TimeSlicing"),
        (node(gpus=8, resources={"aliyun.com/gpu-mem": 640}), "TimeSlicing"),
        (node(gpus=8, resources={"tencent.com/vcuda-core": 800}), "TimeSlicing"),
        (node(gpus=8, labels={"nvidia.com/vgpu.present": "true"}), "TimeSlicing"),
        (node(gpus=8, labels={"nvidia.com/mig-1g.10gb.count": "7"}), "Mig"),
        (node(gpus=8, labels={"nos.nebuly.com/gpu-partitioning": "mig"}), "Mig"),
    ],
    ids=range(12),
)
def test_shared_and_split_gpus_are_never_taken_for_whole_ones(raw: dict[str, t.Any], expected: str) -> None:
    assert looks_like_gpu(raw) and reason(raw) == expected


@pytest.mark.parametrize(
    "labels",
    [
        {"cloud.google.com/gke-max-shared-clients-per-gpu": "1"},
        {"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/mps.capable": "false"},
        {"nvidia.com/vgpu.present": "false"},
        {"gpu": "on"},
    ],
)
def test_whole_gpus_are_not_taken_for_shared_ones(labels: dict[str, str]) -> None:
    assert reason(node(labels=labels)) is None
