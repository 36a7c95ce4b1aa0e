# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Node objects as clusters really show them: a GPU node must never be lost, and never counted for what it is not."""

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.nodes import clique, looks_like_gpu

from .builders import node, rows, snapshot


def excluded(raw: dict[str, t.Any]) -> str:
    (row,) = rows(raw).values()
    assert row["target"] is False
    return row["exclusion"]["reason"]


def test_healthy_node_is_a_target() -> None:
    (row,) = rows(node()).values()
    assert row["target"] and not row["findings"] and row["exclusion"] is None
    assert row["gpu"]["model"] == "h100" and row["gpu"]["expected"] == row["gpu"]["allocatable"] == row["gpu"]["majority"] == 8


def test_short_nodes_are_named_with_have_and_need() -> None:
    found = rows(*[node(f"n{index}", gpus=count) for index, count in enumerate([1, 1, 2, 2, 2, 2])])
    assert [bool(row["findings"]) for row in found.values()] == [True, True, False, False, False, False]
    finding = found["n0"]["findings"][0]
    assert finding["reason"] == "HardwareFailureDetected" and "have 1, need 2" in finding["message"]
    assert found["n0"]["target"] is True


def test_seven_of_eight_even_when_capacity_and_label_agree() -> None:
    found = rows(node("a", gpus=7, labels={"nvidia.com/gpu.count": "7"}), node("b", labels={"nvidia.com/gpu.count": "8"}))
    assert "have 7, need 8" in found["a"]["findings"][0]["message"] and not found["b"]["findings"]


def test_whole_pool_with_seven_is_caught_by_the_table() -> None:
    assert all("have 7, need 8" in row["findings"][0]["message"] for row in rows(node("a", gpus=7), node("b", gpus=7)).values())


def test_pool_of_a_smaller_shape_is_accepted_and_said() -> None:
    made = snapshot(node("a", gpus=1), node("b", gpus=1))
    assert not any(row["findings"] for row in made["nodes"]) and "expected_gpus" in made["notes"][0]


def test_half_a_board_in_a_pool_of_whole_ones_is_no_smaller_shape() -> None:
    found = rows(node("a", gpus=4), node("b", gpus=4), node("c", gpus=8))
    assert found["a"]["findings"] and found["b"]["findings"] and not found["c"]["findings"]


def test_expected_gpus_of_the_user_win() -> None:
    assert rows(node("a", gpus=1), expected_gpus=8)["a"]["findings"]
    assert not rows(node("a", gpus=7), expected_gpus=7)["a"]["findings"]


def test_unknown_product_is_sized_from_its_nodes() -> None:
    made = snapshot(*[node(f"n{index}", gpus=6, product="NVIDIA-Z9000") for index in range(3)])
    assert [row["gpu"]["expected"] for row in made["nodes"]] == [6, 6, 6] and not any(row["findings"] for row in made["nodes"])
    assert made["nodes"][0]["gpu"]["model"] is None and "not in the GPU table" in made["notes"][0]


def test_mig_node_is_no_whole_gpu_node() -> None:
    assert excluded(node(resources={"nvidia.com/mig-1g.10gb": 7}, gpus=2)) == "Mig"
    assert excluded(node(product="NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", gpus=56)) == "Mig"
    assert excluded(node(gpus=None, resources={"nvidia.com/mig-3g.40gb": 2})) == "Mig"
    assert excluded(node(labels={"nvidia.com/mig.config": "all-1g.10gb"})) == "Mig"


def test_mig_switched_off_is_no_obstacle() -> None:
    (row,) = rows(
        node(labels={"nvidia.com/mig.config": "all-disabled", "nvidia.com/mig.strategy": "mixed"}, resources={"nvidia.com/mig-1g.10gb": 0})
    ).values()
    assert row["target"]


def test_time_slicing_counts_physical_gpus() -> None:
    raw = node(gpus=12, product="NVIDIA-GeForce-RTX-3090-SHARED", labels={"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "12"})
    (row,) = rows(raw).values()
    assert row["exclusion"]["reason"] == "TimeSlicing"
    assert (row["gpu"]["allocatable"], row["gpu"]["shared_replicas"]) == (1, 12)


@pytest.mark.parametrize(
    "raw",
    [
        node(gpus=12, product="NVIDIA-GeForce-RTX-3090", labels={"nvidia.com/gpu.count": "1"}),
        node(gpus=0, resources={"nvidia.com/gpu.shared": 50}, labels={"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "1"}),
        node(gpus=None, resources={"nvidia.com/gpu.shared": 16}),
        node(labels={"nvidia.com/gpu.sharing-strategy": "mps"}),
        node(product="NVIDIA-H100-80GB-HBM3-SHARED"),
    ],
    ids=["more than the label", "shared resource, label says 1", "shared resource, no label", "mps", "product"],
)
def test_sharing_is_seen_from_resources_and_labels(raw: dict[str, t.Any]) -> None:
    assert excluded(raw) == "TimeSlicing"


def test_stale_count_label_does_not_make_a_whole_node_shared() -> None:
    (row,) = rows(node(gpus=8, labels={"nvidia.com/gpu.count": "4"})).values()
    assert row["target"] and row["gpu"]["shared_replicas"] == 1


def test_product_label_is_not_needed() -> None:
    (row,) = rows(node(product=None, gpus=4)).values()
    assert row["target"] and row["gpu"]["product"] is None and row["gpu"]["expected"] == 4


def test_labels_without_gpus_are_excluded_with_that_reason() -> None:
    assert excluded(node(gpus=None)) == "LabelWithoutResource"
    assert excluded(node(gpus=0)) == "LabelWithoutResource"
    assert excluded(node(gpus=None, product=None, labels={"feature.node.kubernetes.io/pci-10de.present": "true"})) == "LabelWithoutResource"


def test_all_gpus_unhealthy_is_a_finding_not_a_cpu_node() -> None:
    (row,) = rows(node(gpus=0, capacity=16)).values()
    assert row["target"] and "all GPUs unhealthy: have 0, need 16" in row["findings"][0]["message"]


def test_cpu_nodes_are_not_listed() -> None:
    assert not looks_like_gpu(node(gpus=None, product=None))
    assert not looks_like_gpu(node(gpus=0, product=None, labels={"nvidia.com/gpu.present": "false"}))


def test_clique_is_the_full_pair_and_zero_means_none() -> None:
    uuid = "0a1b2c3d-0000-4000-8000-000000000001"
    assert clique({"nvidia.com/gpu.clique": f"{uuid}.32766"}) == f"{uuid}.32766"
    assert clique({"nvidia.com/gpu.clique": "00000000-0000-0000-0000-000000000000.32766"}) is None
    assert clique({"nvidia.com/gpu.clique": "32766"}) is None and clique({}) is None


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ([{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}], "NotReady"),
        ([{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}], "NotReady"),
        ([{"type": "DiskPressure", "status": "True", "message": "disk full"}], "DiskPressure"),
        ([{"type": "NetworkUnavailable", "status": "True"}], "NetworkUnavailable"),
    ],
)
def test_nodes_that_cannot_run_pods_are_excluded(conditions: list[dict[str, str]], reason: str) -> None:
    assert excluded(node(conditions=conditions)) == reason


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("GpuHealthy", "False"),
        ("NVSentinelGPUHealthy", "False"),
        ("GpuUnhealthy", "True"),
        ("XidError", "True"),
        ("GpuXidError", "True"),
        ("SysLogsSXIDError", "True"),
        ("GpuNvlinkWatch", "True"),
        ("UnhealthyNvidiaDevicePlugin", "True"),
        ("AcceleratedHardwareReady", "False"),
        ("GPUMissing", "True"),
        ("IBLinkFlapping", "True"),
        ("NVLinkStatusInactive", "True"),
    ],
)
def test_unhealthy_condition_condemns_and_is_quoted(kind: str, status: str) -> None:
    healthy = "False" if status == "True" else "True"
    (sick,) = rows(node(conditions=[{"type": kind, "status": status, "reason": "Because", "message": "GPU 3 fell off the bus"}])).values()
    (fine,) = rows(node(conditions=[{"type": kind, "status": healthy}])).values()
    assert sick["target"] and f"{kind}={status} (Because): GPU 3 fell off the bus" in sick["findings"][0]["message"]
    assert not fine["findings"] and not fine["unhealthy"]


@pytest.mark.parametrize(
    "kind", ["KernelDeadlock", "CommunicationHealthy", "CorruptDockerOverlay2", "FrequentKubeletRestart", "EtcdIsVoter"]
)
def test_conditions_about_other_things_accuse_nobody(kind: str) -> None:
    for status in ("True", "False", "Unknown"):
        (row,) = rows(node(conditions=[{"type": kind, "status": status}])).values()
        assert row["target"] and not row["findings"]


def test_unknown_gpu_condition_is_listed_and_condemns_nothing() -> None:
    (row,) = rows(node(conditions=[{"type": "GpuHealthy", "status": "Unknown"}])).values()
    assert [item["type"] for item in row["unhealthy"]] == ["GpuHealthy"] and not row["findings"]


def test_cordoned_comes_after_every_other_obstacle() -> None:
    assert excluded(node(unschedulable=True)) == "Cordoned"
    assert excluded(node(unschedulable=True, conditions=[{"type": "Ready", "status": "False"}])) == "NotReady"


def test_missing_network_card_is_named() -> None:
    raws = [node(f"n{index}", resources={"rdma/hca": 8 if index else 7}) for index in range(4)]
    found = rows(*raws)
    assert "have 7, need 8 of rdma/hca" in found["n0"]["findings"][0]["message"] and not found["n1"]["findings"]


def test_shared_rdma_places_are_no_missing_cards() -> None:
    raws = [node(f"n{index}", resources={"rdma/ib": 64 if index else 63}) for index in range(4)]
    assert not any(row["findings"] for row in rows(*raws).values())


def test_mixed_products_are_split_not_dropped() -> None:
    made = snapshot(node("a"), node("b"), node("c", product="NVIDIA-H200"))
    assert [(pool["model"], pool["nodes"]) for pool in made["gpus"]] == [("h100", 2), ("h200", 1)]
    assert all(row["target"] for row in made["nodes"])


def test_instance_types_are_pools_of_their_own() -> None:
    kind = "node.kubernetes.io/instance-type"
    raws = [node(f"big{index}", labels={kind: "p5.48xlarge"}) for index in range(3)] + [node("small", gpus=1, labels={kind: "p5.4xlarge"})]
    assert not any(row["findings"] for row in rows(*raws).values())


def test_provider_id_is_shown_and_never_the_identity() -> None:
    found = rows(node("a", provider_id="aws:///us-east-1a/i-1"), node("b", provider_id="aws:///us-east-1a/i-1"))
    assert list(found) == ["a", "b"] and found["a"]["provider_id"] == "aws:///us-east-1a/i-1"


def test_rack_is_one_label_for_all() -> None:
    racks = {"topology.kubernetes.io/rack": "r1"}
    made = snapshot(node("a", labels={**racks, "rack": "x"}), node("b", labels={"rack": "y"}))
    assert made["topology"]["rack"] == "rack" and [row["domains"]["rack"] for row in made["nodes"]] == ["x", "y"]
    made = snapshot(node("a", labels={"example.com/leaf": "l1"}), rack_label="example.com/leaf")
    assert made["nodes"][0]["domains"]["rack"] == "l1"


def test_versions_in_both_spellings_of_the_labels() -> None:
    old = {"nvidia.com/cuda.driver.major": "580", "nvidia.com/cuda.driver.minor": "95", "nvidia.com/cuda.driver.rev": "05"}
    new = {"nvidia.com/cuda.driver-version.full": "580.95.05", "nvidia.com/cuda.runtime-version.full": "13.0"}
    assert rows(node(labels=old))["n0"]["versions"]["driver"] == "580.95.05"
    versions = rows(node(labels=new))["n0"]["versions"]
    assert (versions["driver"], versions["cuda"], versions["boot_id"]) == ("580.95.05", "13.0", "b")


@given(
    allocatable=st.integers(0, 17),
    capacity=st.integers(0, 17),
    product=st.sampled_from(["NVIDIA-H100-80GB-HBM3", "NVIDIA-L4", "NVIDIA-Z9000", None]),
    count=st.sampled_from([None, "0", "1", "8", "x", ""]),
    replicas=st.sampled_from([None, "1", "4", "x"]),
)
def test_every_gpu_looking_node_is_a_target_or_excluded_with_a_reason(
    allocatable: int, capacity: int, product: str | None, count: str | None, replicas: str | None
) -> None:
    labels = {key: value for key, value in (("nvidia.com/gpu.count", count), ("nvidia.com/gpu.replicas", replicas)) if value is not None}
    raw = node(gpus=allocatable, capacity=capacity, product=product, labels=labels)
    found = rows(raw)
    assert bool(found) == looks_like_gpu(raw)
    for row in found.values():
        assert row["target"] == (row["exclusion"] is None)
        if row["target"] and not row["findings"]:
            assert row["gpu"]["allocatable"] >= row["gpu"]["expected"] > 0
