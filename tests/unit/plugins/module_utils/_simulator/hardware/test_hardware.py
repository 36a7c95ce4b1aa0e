# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The model must give the bandwidths of healthy hardware, the same ones each time, and nodes that look like those of the platform."""

from __future__ import annotations

import statistics

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.model import Path
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.platforms import PLATFORMS

from ..world import World


@pytest.mark.parametrize(
    ("gpu", "nodes", "low", "high"),
    [
        ("h100", 1, 460, 490), ("h100", 2, 380, 480), ("h100", 8, 330, 400), ("h100", 64, 300, 400), ("h200", 1, 470, 490),
        ("h20-3e", 1, 465, 485), ("a100", 1, 220, 240), ("gb200", 2, 780, 860), ("gb200", 18, 780, 860), ("b200", 1, 650, 860),
    ],
)  # fmt: skip
def test_healthy_bandwidth_is_what_such_hardware_gives(gpu: str, nodes: int, low: float, high: float) -> None:
    world = World(gpu=gpu)
    ranks = world.model.hardware.nodes[world.names[0]].gpu.gpus_per_node
    speed = world.model.hardware.speed("run", "all_reduce", world.names[:nodes], ranks, Path("ib"))
    total = nodes * ranks
    factor = 2 * (total - 1) / total
    assert low < (8 << 30) * factor / speed.time_us(8 << 30, factor) / 1e3 < high


def test_settings_change_the_path() -> None:
    hardware = World().model.hardware
    one, two = ["gpu-r0-n00"], ["gpu-r0-n00", "gpu-r0-n01"]

    def peak(names: list[str], path: Path) -> float:
        return hardware.speed("run", "all_reduce", names, 8, path).peak_gb_s

    assert peak(one, Path("ib", nvls=False)) < 380
    assert peak(two, Path("socket")) < 6
    assert peak(one, Path("ib", peer_access=False, shared_memory=False)) < 400
    assert peak(one, Path("ib", peer_access=False)) < 20


def test_larger_sizes_are_never_slower() -> None:
    speed = World().model.hardware.speed("run", "all_reduce", ["gpu-r0-n00", "gpu-r0-n01"], 8, Path("ib"))
    rates = [size / speed.time_us(size, 1.875) for size in (2**power for power in range(3, 35))]
    assert rates == sorted(rates)


def test_noise_is_the_one_asked_for_and_repeats_with_the_seed() -> None:
    def sample(seed: int) -> list[float]:
        hardware = World(noise=0.05, seed=seed).model.hardware
        return [
            hardware.speed(hardware.next_run("p", ["gpu-r0-n00"]), "all_reduce", ["gpu-r0-n00"], 8, Path("ib")).peak_gb_s
            for _index in range(400)
        ]

    values = sample(3)
    assert values == sample(3)
    assert values != sample(4)
    assert 0.04 < statistics.stdev(values) / statistics.mean(values) < 0.06


@pytest.mark.parametrize(
    ("platform", "prefix", "nic"),
    [
        ("onprem", "", "rdma/hca_shared_devices_a"),
        ("aws", "aws://", "vpc.amazonaws.com/efa"),
        ("gcp", "gce://", "networking.gke.io.networks/rdma-0"),
        ("azure", "azure://", "nvidia.com/mlnxnics"),
        ("oci", "ocid1.", "nvidia.com/mlnxnics"),
        ("nscale", "nscale://", "nscale.com/rdmashare"),
        ("togetherai", "kubevirt://", "rdma/ib"),
        ("mistral", "metal3://", "rdma/ib"),
        ("forge", "", "rdma/hca_shared_devices_a"),
    ],
)
def test_nodes_look_like_those_of_the_platform(platform: str, prefix: str, nic: str) -> None:
    node = World(platform=platform, racks=1, nodes_per_rack=1).model.node_registration()[0]
    assert node["spec"].get("providerID", "").startswith(prefix)
    assert bool(node["spec"].get("providerID")) == bool(prefix)
    assert int(node["status"]["allocatable"][nic]) > 0
    assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert all(isinstance(value, str) and len(value) <= 63 for value in node["metadata"]["labels"].values())


def test_all_platforms_are_covered_above() -> None:
    assert set(PLATFORMS) == {"onprem", "aws", "gcp", "azure", "oci", "nscale", "togetherai", "mistral", "forge"}


def test_multi_node_nvlink_domains_have_full_names() -> None:
    nodes = World(gpu="gb200", racks=2).model.node_registration()
    cliques = [node["metadata"]["labels"]["nvidia.com/gpu.clique"] for node in nodes]
    assert len(set(cliques)) == 2
    assert {clique.split(".")[1] for clique in cliques} == {"32766"}
    assert "nvidia.com/gpu.clique" not in World().model.node_registration()[0]["metadata"]["labels"]


def test_a_tcp_fabric_offers_no_rdma_device() -> None:
    node = World(fabric="tcp").model.node_registration()[0]
    assert not any("rdma" in name for name in node["status"]["allocatable"])


def test_cpu_nodes_carry_no_gpus() -> None:
    nodes = World(racks=1, nodes_per_rack=2, cpu_nodes=3).model.node_registration()
    assert [node["metadata"]["name"] for node in nodes if "nvidia.com/gpu" not in node["status"]["allocatable"]] == [
        "cpu-n00",
        "cpu-n01",
        "cpu-n02",
    ]
