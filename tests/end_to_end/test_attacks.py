# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What others do to a run, and clusters of other makes: no healthy node is accused, no sick one passes."""

from __future__ import annotations

import subprocess
import time

import pytest

QUICK = {"options": {"max_bytes": "1G", "min_bytes": "64M", "iterations": 20}, "bounds": {"start_grace_s": 2, "queue_timeout_s": 20}}
LONG = {"max_bytes": "16G", "iterations": 400}


@pytest.mark.parametrize("kind", ["pod", "job"])
def test_a_workload_that_somebody_else_deletes_accuses_nobody(start_cluster, kind):
    cluster = start_cluster(racks=1, nodes_per_rack=3, time_scale=30)
    category = {"test": "communication/nccl-all-reduce", "test_scale": "intra-rack", "criteria": ["measured.bus_bandwidth >= 300"]}
    spec = {"categories": [category], "options": LONG, "bounds": {"retries": 0}, "isolate": "never"}
    command = cluster.command("certify", {"certification": spec})
    process = subprocess.Popen(
        command, cwd=cluster.work, env=cluster.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not _running(cluster):
        time.sleep(0.1)
    cluster.kubectl("delete", cluster.kubectl("get", kind, "-o", "name").split()[-1], "--wait=false")
    output, _nothing = process.communicate(timeout=300)
    result = cluster.result(process.returncode, output)
    assert set(result.verdicts()) == {"untested"}, output
    assert result.node("gpu-r0-n00")["findings"][0]["reason"] == "Evicted"
    assert result.report["cleanup"]["proven"] and cluster.objects_of_ours() == []


def _running(cluster):
    return any('"attempt_running"' in path.read_text() for path in (cluster.work / "runs").glob("*/journal.jsonl"))


def test_a_node_whose_monitor_reports_a_fault_under_test_fails_and_the_others_are_proven(start_cluster):
    fault = {"kind": "unhealthy_condition", "node": "gpu-r0-n02", "type": "GpuXidError", "after_s": 20}
    cluster = start_cluster(racks=1, faults=[fault], time_scale=30)
    result = cluster.certify(("intra-rack", ["measured.bus_bandwidth >= 300"]), options=LONG, bounds=QUICK["bounds"])
    assert result.verdicts() == {"failed": {"gpu-r0-n02"}, "passed": {"gpu-r0-n00", "gpu-r0-n01", "gpu-r0-n03"}}, result.output
    assert "GpuXidError" in result.node("gpu-r0-n02")["findings"][0]["message"]


@pytest.mark.parametrize("platform", ["forge", "gcp", "nscale", "oci"])
def test_healthy_nodes_of_other_platforms_pass(start_cluster, platform):
    cluster = start_cluster(platform=platform, racks=1, nodes_per_rack=2)
    result = cluster.certify(("full-scale", ["measured.bus_bandwidth >= 300"]), **QUICK)
    assert result.status == 0, result.output


def test_a_limit_for_nvlink_does_not_condemn_the_adapters(start_cluster):
    cluster = start_cluster(gpu="gb200", racks=2, nodes_per_rack=3)
    result = cluster.certify(("diagnose", ["measured.bus_bandwidth >= 500"]), **QUICK)
    assert result.status == 0, result.output
    assert len(result.verdicts()["passed"]) == 6


def test_an_adapter_between_nvlink_domains_is_named(start_cluster):
    cluster = start_cluster(gpu="gb200", racks=2, faults=[{"kind": "nic_slow", "node": "gpu-r0-n01", "factor": 0.4}])
    result = cluster.certify(("full-scale", ["measured.bus_bandwidth >= 500"]), **QUICK)
    assert result.verdicts()["failed"] == {"gpu-r0-n01"} and len(result.verdicts()["passed"]) == 7, result.output
