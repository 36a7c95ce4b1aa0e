# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Every test of the catalog runs through the real playbook, passes on healthy hardware, and finds what only it can find."""

from __future__ import annotations

import pathlib

import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import list_entries, load_entry
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_catalog_dir

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICK = {"min_bytes": "64M", "max_bytes": "1G", "iterations": 5}
DATA = {"volumes": [{"name": "data", "emptyDir": {}}], "volume_mounts": [{"name": "data", "mountPath": "/data"}]}
WORKLOADS = {"diagnostics/fio": DATA}


def category(test: str) -> dict:
    """A short form of a test at the largest scale that it has."""
    entry = load_entry([shipped_catalog_dir()], test)
    scale = next(scale for scale in ("full-scale", "intra-rack", "intra-node") if scale in entry["test_scales"])
    options = QUICK if entry["measure"]["kind"] == "nccl" else {}
    return {"test": test, "test_scale": scale, "options": options, "workload": WORKLOADS.get(test, {})}


@pytest.mark.long
def test_every_test_of_the_catalog_passes_on_healthy_hardware(start_cluster):
    cluster = start_cluster(racks=2, nodes_per_rack=2)
    tests = list_entries([shipped_catalog_dir()])
    request = {"categories": [category(test) for test in tests], "allow_no_criteria": True}
    result = cluster.play("certify", {"certification": request})
    assert result.status == 0, result.output
    shown = {item["test"]: item for item in result.report["categories"]}
    assert set(shown) == set(tests)
    for test, item in shown.items():
        assert item["verdict"] == "passed", (test, result.output)
        for group in item["groups"]:
            measurement = group["measurement"]
            assert measurement["complete"] and measurement["values"], test
            wanted = load_entry([shipped_catalog_dir()], test)["measure"].get("collective")
            assert wanted in (None, measurement["values"].get("collective"))
    assert shown["communication/nccl-loopback"]["groups"][0]["measurement"]["values"]["transport"] == "ib"
    assert shown["communication/nccl-loopback-nvswitch"]["groups"][0]["measurement"]["values"]["transport"] == "nvlink"
    assert cluster.objects_of_ours() == []


@pytest.mark.simulator
def test_a_fault_that_only_one_kind_of_test_shows_is_named_by_it_at_its_node(start_cluster):
    faults = [{"kind": "wrong_data", "node": "gpu-r0-n00"}, {"kind": "socket_fallback", "node": "gpu-r0-n01"}]
    cluster = start_cluster(racks=1, nodes_per_rack=4, faults=faults)
    tests = ["diagnostics/dcgm-level2", "communication/nccl-loopback", "training/smoke"]
    request = {
        "categories": [{**category(test), "test_scale": "intra-node"} for test in tests],
        "allow_no_criteria": True,
        "isolate": "never",
        "bounds": {"retries": 0},
    }
    result = cluster.play("certify", {"certification": request})
    assert result.status != 0
    dcgm, loopback, smoke = result.report["categories"]
    verdicts = [{group["nodes"][0]: group["verdict"] for group in item["groups"]} for item in (dcgm, loopback, smoke)]
    assert verdicts[0]["gpu-r0-n00"] == "failed" and "HardwareFailureDetected" in result.reasons("gpu-r0-n00"), result.output
    assert verdicts[1]["gpu-r0-n01"] == "failed" and "TransportFallback" in result.reasons("gpu-r0-n01"), result.output
    for healthy in ("gpu-r0-n02", "gpu-r0-n03"):
        assert result.node(healthy)["verdict"] == "passed"
    assert "gpu-r0-n00" not in verdicts[1], "a node that is known to be broken is not tested again"


@pytest.mark.simulator
def test_a_part_of_a_node_that_is_slow_is_named_by_the_test_that_looks_at_it(start_cluster):
    faults = [
        {"kind": "gpu_slow", "node": "gpu-r0-n00", "gpu": 3},
        {"kind": "pcie_slow", "node": "gpu-r0-n01", "gpu": 6},
        {"kind": "disk_slow", "node": "gpu-r0-n02"},
        {"kind": "nic_slow", "node": "gpu-r0-n03", "nic": 5},
        {"kind": "remap_pending", "node": "gpu-r0-n01", "gpu": 2},
        {"kind": "old_firmware", "node": "gpu-r0-n00"},
    ]
    cluster = start_cluster(racks=1, nodes_per_rack=4, faults=faults)
    tests = {
        "diagnostics/gemm-burn": [],
        "communication/nvbandwidth": [],
        "diagnostics/fio": ["measured.read_bandwidth > 5"],
        "communication/ib-write-bw": ["measured.bandwidth_gbit > 380"],
        "diagnostics/node-facts": [],
    }
    request = {
        "categories": [{**category(test), **({"criteria": criteria} if criteria else {})} for test, criteria in tests.items()],
        "isolate": "never",
        "bounds": {"retries": 0},
    }
    result = cluster.play("certify", {"certification": request})
    assert result.status != 0
    found = {item["test"]: item["groups"] for item in result.report["categories"]}
    for number, test in enumerate(list(tests)[:3]):
        failed = [group["nodes"] for group in found[test] if group["verdict"] == "failed"]
        assert failed == [[f"gpu-r0-n0{number}"]], (test, result.output)
        assert "ThresholdViolation" in result.reasons(f"gpu-r0-n0{number}")
    said = {test: " ".join(item["message"] for group in groups for item in group["findings"]) for test, groups in found.items()}
    assert "GPU 3 is slow" in said["diagnostics/gemm-burn"] and "GPU 6 is slow" in said["communication/nvbandwidth"]
    (group,) = found["communication/ib-write-bw"]
    assert group["verdict"] == "failed" and group["measurement"]["values"]["device"] == "mlx5_5"
    assert "mlx5_5" in said["communication/ib-write-bw"] and "mlx5_4" not in said["communication/ib-write-bw"]
    assert result.node("gpu-r0-n03")["verdict"] == "suspect", "which side of a pair is bad the group alone does not say"
    assert result.node("gpu-r0-n01")["verdict"] == "failed" and "HardwareFailureDetected" in result.reasons("gpu-r0-n01"), result.output
    sheets = {group["nodes"][0]: [item["message"] for item in group["findings"]] for group in found["diagnostics/node-facts"]}
    assert any("GPU 2: a row of its memory waits for a reset" in text for text in sheets["gpu-r0-n01"])
    assert any("NIC firmware: 28.36.1010; 3 of 4 nodes have 28.39.1002" in text for text in sheets["gpu-r0-n00"])
    assert sheets["gpu-r0-n02"] == []


@pytest.mark.simulator
def test_the_node_with_a_bad_nic_is_found_by_its_pairs(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=4, faults=[{"kind": "nic_slow", "node": "gpu-r0-n02", "nic": 5}])
    wanted = {"test": "communication/ib-write-bw", "test_scale": "diagnose", "criteria": ["measured.bandwidth_gbit > 380"]}
    result = cluster.play("certify", {"certification": {"categories": [wanted]}})
    assert result.status != 0
    assert result.verdicts() == {"failed": {"gpu-r0-n02"}, "passed": {"gpu-r0-n00", "gpu-r0-n01", "gpu-r0-n03"}}, result.output


def test_a_test_of_ones_own_is_one_file_in_a_directory_that_is_named(start_cluster, tmp_path):
    entry = tmp_path / "mine" / "tests" / "site" / "hello.yml"
    entry.parent.mkdir(parents=True)
    entry.write_text(
        "name: site/hello\ndescription: Says what it measured.\nframework: exec\nimage: {registry: ngc, repository: a/b, tag: '1'}\n"
        "test_scales: [intra-node]\nmeasure: {kind: key_value}\n"
        "options: {answer: {type: int, default: 42, description: The answer.}}\n"
        "exec: {script: 'echo \"RESULT answer={{ options.answer }}\"'}\n"
    )
    cluster = start_cluster(racks=1, nodes_per_rack=2)
    request = {"categories": [{"test": "site/hello", "test_scale": "intra-node", "criteria": ["measured.answer >= 42"]}]}
    variables = {"certification": request, "readiness_catalog_dirs": [str(tmp_path / "mine")]}
    result = cluster.play("certify", variables)
    assert result.status == 0, result.output
    request["categories"][0]["options"] = {"answer": 41}
    result = cluster.play("certify", variables)
    assert result.status != 0 and result.verdicts() == {"failed": {"gpu-r0-n00", "gpu-r0-n01"}}, result.output
    entry.write_text(entry.read_text().replace("framework: exec", "framework: exce"))
    result = cluster.play("certify", variables)
    assert result.status != 0 and "hello.yml:3" in result.output and "exec" in result.output


@pytest.mark.simulator
def test_the_worked_example_of_hardware_of_ones_own_finds_the_card_with_half_its_lanes(start_cluster):
    example = ROOT / "docs" / "examples" / "l20"
    cluster = start_cluster(**yaml.safe_load((example / "simulation.yml").read_text()))
    result = cluster.play(
        "certify", {**yaml.safe_load((example / "certification.yml").read_text()), "readiness_catalog_dirs": [str(example)]}
    )
    assert result.status != 0 and result.verdicts() == {"passed": {"gpu-r0-n00"}, "failed": {"gpu-r0-n01"}}, result.output
    assert result.report["cluster"]["platform"] == "lab"
    inside, cards, _both = result.report["categories"]
    assert inside["criteria"] == ["measured.bus_bandwidth >= 17"] and inside["verdict"] == "passed"
    assert "GPU 2 is slow in host_to_device" in str(cards["groups"])


@pytest.mark.simulator
def test_what_came_up_during_the_run_is_told_at_its_node_by_the_second_fact_sheet(start_cluster):
    faults = [
        {"kind": "node_slow", "node": "gpu-r0-n00"},
        {"kind": "nvlink_errors", "node": "gpu-r0-n00", "gpu": 2, "link": 3},
        {"kind": "memory_error", "node": "gpu-r0-n01", "gpu": 5},
    ]
    cluster = start_cluster(racks=1, nodes_per_rack=3, faults=faults)
    test = {**category("communication/nccl-all-reduce"), "test_scale": "intra-node", "criteria": ["measured.bus_bandwidth >= 400"]}
    request = {"categories": [category("diagnostics/node-facts"), test], "isolate": "never", "bounds": {"retries": 0}}
    result = cluster.play("certify", {"certification": request})
    first, _between, second = result.report["categories"]
    assert result.status != 0 and (first["verdict"], second["verdict"]) == ("passed", "failed"), result.output
    assert result.node("gpu-r0-n01")["verdict"] == "failed" and "HardwareFailureDetected" in result.reasons("gpu-r0-n01")
    since = {}
    for node in result.report["nodes"]:
        since[node["name"]] = [item["message"] for item in node["findings"] if item.get("since") == first["id"]]
    assert any("NVLink 3: CRC errors: 0 -> 1412" in text for text in since["gpu-r0-n00"]), "a node that failed is on the second sheet too"
    assert any("Xid 48" in text for text in since["gpu-r0-n01"]) and since["gpu-r0-n02"] == []
    assert result.node("gpu-r0-n02")["verdict"] == "passed" and cluster.objects_of_ours() == []
