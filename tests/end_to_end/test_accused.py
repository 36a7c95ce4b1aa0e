# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Healthy nodes that must come out of a certification unaccused, whatever their monitors, mates and autoscalers say."""

from __future__ import annotations

import pytest

QUICK = {"options": {"max_bytes": "1G", "min_bytes": "64M", "iterations": 20}, "bounds": {"start_grace_s": 2, "queue_timeout_s": 20}}


def test_the_healthy_mate_of_a_slow_node_passes_when_it_is_the_last_of_its_rack(start_cluster):
    cluster = start_cluster(
        seed=3,
        platform="onprem",
        gpu="NVIDIA-H100-80GB-HBM3",
        racks=2,
        nodes_per_rack=2,
        time_scale=600,
        faults=[{"kind": "node_slow", "node": "gpu-r0-n00", "factor": 0.6}],
    )
    result = cluster.play("certify")
    assert result.report is not None, result.output
    assert result.verdicts() == {"failed": {"gpu-r0-n00"}, "passed": {"gpu-r0-n01", "gpu-r1-n00", "gpu-r1-n01"}}, result.output


def test_a_monitor_that_falls_silent_during_a_test_fails_no_node(start_cluster):
    silent = {
        "kind": "unhealthy_condition",
        "node": "gpu-r0-n01",
        "type": "GpuHealthy",
        "status": "Unknown",
        "reason": "AgentNotReporting",
        "message": "no heartbeat of the agent",
        "after_s": 20,
    }
    cluster = start_cluster(
        seed=3, platform="onprem", gpu="NVIDIA-H100-80GB-HBM3", racks=1, nodes_per_rack=3, time_scale=600, faults=[silent]
    )
    result = cluster.play("certify")
    assert result.report is not None, result.output
    assert result.verdicts() == {"passed": {"gpu-r0-n00", "gpu-r0-n01", "gpu-r0-n02"}}, result.output


@pytest.mark.parametrize(
    ("kind", "status", "reason", "message"),
    [
        ("GpuNvlinkWatch", "True", "GpuNvlinkWatchIsNotHealthy", "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:0 IMEX daemon status is -3"),
        ("AcceleratedHardwareReady", "False", "DCGMError", "failed to initialize DCGM: Host engine connection invalid/disconnected"),
    ],
    ids=["imex", "agent"],
)
def test_trouble_of_a_monitor_on_every_node_is_told_and_all_are_tested(start_cluster, kind, status, reason, message):
    condition = {"kind": "unhealthy_condition", "type": kind, "status": status, "reason": reason, "message": message}
    faults = [{**condition, "node": f"gpu-r0-n0{index}"} for index in range(2)]
    cluster = start_cluster(racks=1, nodes_per_rack=2, faults=faults)
    result = cluster.certify(("intra-node", ["measured.bus_bandwidth >= 400"]), **QUICK)
    assert result.report is not None, result.output
    assert result.status == 0 and result.report["verdict"] == "passed", result.output
