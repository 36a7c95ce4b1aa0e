# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What an operator relies on: healthy clusters pass, each fault is named at the right node, and nothing is left behind."""

from __future__ import annotations

import json

import pytest

ALL = (
    ("intra-node", ["measured.bus_bandwidth >= 400"]),
    ("intra-rack", ["measured.bus_bandwidth >= 300"]),
    ("full-scale", ["measured.bus_bandwidth >= 300"]),
)
BOUNDS = {"bounds": {"start_grace_s": 2, "queue_timeout_s": 20}}
QUICK = {"options": {"max_bytes": "1G", "min_bytes": "64M", "iterations": 20}, **BOUNDS}


def writes(cluster):
    """Writes the product asked for, from the API server's audit: (verb, resource, name)."""
    rows = [json.loads(line) for line in cluster.audit.read_text().splitlines()]
    ours = [row for row in rows if row["user_agent"] == "gpu_cluster.readiness"]
    return [(row["verb"], row["resource"], row["name"]) for row in ours if row["verb"] not in ("get", "list", "watch")]


def test_a_healthy_cluster_passes_at_every_scale_and_nothing_is_left(start_cluster):
    cluster = start_cluster()
    result = cluster.certify(*ALL, **QUICK)
    assert result.status == 0, result.output
    assert result.report["verdict"] == "passed"
    assert [category["verdict"] for category in result.report["categories"]] == ["passed"] * 3
    assert len(result.verdicts()["passed"]) == 8
    assert result.report["coverage"] == {"targets": 8, "tested": 8, "excluded": 0, "ratio": 1.0}
    assert result.report["cleanup"] == {"proven": True, "left": []} | result.report["cleanup"]
    assert cluster.objects_of_ours() == []
    assert "passed" in result.output.lower()


def test_no_node_is_ever_written_and_every_object_is_ours(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=2)
    result = cluster.certify(("full-scale", ["measured.bus_bandwidth >= 300"]), **QUICK)
    assert result.status == 0, result.output
    made = writes(cluster)
    assert made, "the audit shows what we wrote"
    reviews = {"selfsubjectaccessreviews"}  # questions, not objects
    assert {row[1] for row in made} <= {"jobs", "configmaps", "secrets", "services", "pods"} | reviews
    named = {row[2] for row in made if row[2] and row[1] not in reviews}
    assert all(name.startswith("readiness-") for name in named), named


@pytest.mark.parametrize(
    "fault, scale, reasons, verdict",
    [
        ({"kind": "node_slow", "factor": 0.5}, "intra-node", {"ThresholdViolation"}, "suspect"),
        ({"kind": "wrong_data"}, "intra-node", {"DataCorruption"}, "suspect"),
        ({"kind": "crash", "exit_code": 139}, "intra-node", {"WorkloadFailed"}, "suspect"),
        ({"kind": "oom"}, "intra-node", {"OOMKilled"}, "suspect"),
        ({"kind": "image_pull"}, "intra-node", {"ImagePull"}, "untested"),
        ({"kind": "device_rejects"}, "intra-node", {"DeviceRejected"}, "suspect"),
        ({"kind": "gpus_missing", "count": 1}, "intra-node", {"HardwareFailureDetected"}, "failed"),
        ({"kind": "unhealthy_condition"}, "intra-node", {"HardwareFailureDetected"}, "failed"),
    ],
)
def test_each_fault_is_named_at_its_node_and_nobody_else_is_touched(start_cluster, fault, scale, reasons, verdict):
    cluster = start_cluster(faults=[{**fault, "node": "gpu-r1-n02"}])
    result = cluster.certify((scale, ["measured.bus_bandwidth >= 400"]), isolate="never", **QUICK)
    assert result.status != 0
    assert result.node("gpu-r1-n02")["verdict"] == verdict, result.output
    assert reasons <= result.reasons("gpu-r1-n02")
    others = {name for word, names in result.verdicts().items() if word != "passed" for name in names}
    assert others == {"gpu-r1-n02"}
    assert cluster.objects_of_ours() == []


@pytest.mark.parametrize("kept", [2048, 65536])
def test_a_log_that_was_rotated_away_still_gives_the_number(start_cluster, kept):
    """The whole table of the first rack is longer than what its nodes keep; its numbers are as good as those of the second."""
    cluster = start_cluster(faults=[{"kind": "log_rotated", "node": f"gpu-r0-n0{index}", "max_bytes": kept} for index in range(4)])
    result = cluster.certify(("intra-rack", ["measured.bus_bandwidth >= 300", "measured.transport == 'ib'"]), **BOUNDS)
    assert result.status == 0, result.output
    measured = [group["measurement"] for group in result.report["categories"][0]["groups"]]
    assert [item["complete"] for item in measured] == [True, True]
    rotated, whole = (item["values"] for item in sorted(measured, key=lambda item: "recap" not in item["reason"]))
    assert rotated["bus_bandwidth"] == pytest.approx(whole["bus_bandwidth"], rel=0.05)
    assert {name: rotated[name] for name in ("message_size", "ranks", "nodes", "transport", "gdr")} == {
        name: whole[name] for name in ("message_size", "ranks", "nodes", "transport", "gdr")
    }
    assert sum("recap" in item["reason"] for item in measured) == (1 if kept == 2048 else 0)


@pytest.mark.parametrize("kind, reason", [("nic_slow", "ThresholdViolation"), ("socket_fallback", "TransportFallback")])
def test_a_network_fault_makes_its_rack_suspect_and_accuses_nobody(start_cluster, kind, reason):
    fault = {"kind": kind, "node": "gpu-r1-n02", **({"factor": 0.4} if kind == "nic_slow" else {})}
    cluster = start_cluster(faults=[fault])
    result = cluster.certify(("intra-rack", ["measured.bus_bandwidth >= 300"]), isolate="never", **QUICK)
    assert result.status != 0
    assert result.report["verdict"] == "failed"
    rack = {f"gpu-r1-n0{index}" for index in range(4)}
    assert result.verdicts() == {"passed": {f"gpu-r0-n0{index}" for index in range(4)}, "suspect": rack}
    assert reason in result.reasons("gpu-r1-n00")


@pytest.mark.parametrize("kind", ["cordoned", "not_ready"])
def test_a_node_that_cannot_be_tested_is_excluded_with_its_reason(start_cluster, kind):
    cluster = start_cluster(faults=[{"kind": kind, "node": "gpu-r0-n01"}])
    result = cluster.certify(("intra-node", ["measured.bus_bandwidth >= 400"]), **QUICK)
    assert [item["node"] for item in result.report["excluded"]] == ["gpu-r0-n01"]
    assert result.report["excluded"][0]["message"]
    assert result.report["verdict"] == "incomplete"
    assert result.status != 0, "incomplete does not open the gate by default"


def test_a_node_lost_under_load_is_named_and_its_group_is_tested_without_it(start_cluster):
    cluster = start_cluster(faults=[{"kind": "node_lost", "node": "gpu-r1-n02", "after_s": 5}], time_scale=60)
    spec = {"options": {"max_bytes": "16G", "iterations": 400}, "bounds": {**QUICK["bounds"], "node_grace_s": 5}}
    result = cluster.certify(("intra-rack", ["measured.bus_bandwidth >= 300"]), isolate="never", **spec)
    assert result.node("gpu-r1-n02")["verdict"] == "failed", result.output
    assert "NodeLost" in result.reasons("gpu-r1-n02")
    assert {result.node(f"gpu-r1-n0{index}")["verdict"] for index in (0, 1, 3)} == {"passed"}
    assert cluster.objects_of_ours() == []


@pytest.mark.long
def test_isolation_convicts_exactly_the_faulty_nodes_and_clears_the_rest(start_cluster):
    faults = [
        {"kind": "node_slow", "node": "gpu-r0-n01", "factor": 0.5},
        {"kind": "nic_slow", "node": "gpu-r1-n03", "factor": 0.4},
        {"kind": "socket_fallback", "node": "gpu-r2-n02"},
        {"kind": "wrong_data", "node": "gpu-r3-n00"},
    ]
    cluster = start_cluster(racks=4, nodes_per_rack=4, faults=faults)
    result = cluster.certify(*ALL, **QUICK)
    assert result.status != 0
    verdicts = result.verdicts()
    assert verdicts.get("failed") == {fault["node"] for fault in faults}, result.output
    assert len(verdicts["passed"]) == 12 and "suspect" not in verdicts and "untested" not in verdicts
    assert cluster.objects_of_ours() == []


@pytest.mark.simulator
@pytest.mark.parametrize(
    "change, words",
    [
        ({"criteria": ["measured.bus_bandwith >= 400"]}, "bus_bandwidth"),
        ({"criteria": ["measured.bus_bandwidth >="]}, "criteria[0]"),
        ({"test": "communication/nccl-allreduce"}, "nccl-all-reduce"),
        ({"options": {"max_byte": "8G"}}, "max_bytes"),
        ({"options": {"max_bytes": "many"}}, "not a size"),
        ({"test_scale": "rack"}, "intra-rack"),
    ],
)
def test_bad_input_is_told_before_anything_is_created(start_cluster, change, words):
    cluster = start_cluster(racks=1, nodes_per_rack=1)
    category = {
        "test": "communication/nccl-all-reduce",
        "test_scale": "intra-node",
        "criteria": ["measured.bus_bandwidth >= 400"],
        **change,
    }
    result = cluster.play("certify", {"certification": {"categories": [category]}})
    assert result.status != 0
    assert words in result.output
    assert "Traceback" not in result.output
    assert writes(cluster) == []


def test_an_unreachable_cluster_is_told_with_a_remedy(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=1)
    cluster.kubeconfig.write_text(cluster.kubeconfig.read_text().replace("127.0.0.1:", "127.0.0.1:1"))
    result = cluster.certify(("intra-node", ["measured.bus_bandwidth >= 400"]))
    assert result.status != 0
    assert "Traceback" not in result.output
    assert "127.0.0.1" in result.output


def test_check_mode_shows_the_plan_lets_the_server_examine_it_and_creates_nothing(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=2)
    result = cluster.play("certify", {"certification": {"categories": [{"test": "communication/nccl-all-reduce"}]}}, "--check")
    assert result.status == 0, result.output
    assert "1 group" in result.output and "GPU hours" in result.output
    assert cluster.objects_of_ours() == [] and not (cluster.work / "runs").exists()
    assert "archive" not in result.output, "it names no directory that is not there"
    broken = {"workload": {"namespace": "nowhere"}, "categories": [{"test": "communication/nccl-all-reduce"}]}
    result = cluster.play("certify", {"certification": broken}, "--check")
    assert result.status != 0 and "nowhere" in result.output


def test_nodes_cordoned_on_purpose_are_tested_when_asked_for(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=2, faults=[{"kind": "cordoned", "node": "gpu-r0-n01"}])
    result = cluster.certify(("full-scale", ["measured.bus_bandwidth >= 300"]), target={"include_cordoned": True}, **QUICK)
    assert result.status == 0, result.output
    assert result.verdicts() == {"passed": {"gpu-r0-n00", "gpu-r0-n01"}} and result.report["excluded"] == []
