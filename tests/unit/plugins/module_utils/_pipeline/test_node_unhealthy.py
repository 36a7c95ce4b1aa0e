# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A node that falls ill under test must not pass, and one whose monitor has trouble of its own must not fail."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_evidence
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.health import compile_health
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.batches import node_unhealthy
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts


def node(taints=(), **condition):
    ready = {"type": "Ready", "status": "True"}
    raw = {
        "metadata": {"name": "n0"},
        "spec": {"taints": list(taints)},
        "status": {"conditions": [ready, *([condition] if condition else [])]},
    }
    return node_facts(raw)


def told(raw, expression=None):
    return node_unhealthy(compile_health(expression) if expression else compile_health(), shipped_evidence(), raw)


@pytest.mark.parametrize("kind", ["GpuXidError", "SysLogsXIDError", "GpuNvlinkWatch"])
def test_hardware_conditions_of_monitors_condemn_a_node_under_test(kind):
    said = told(node(type=kind, status="True", reason="Xid79", message="fell off the bus"))
    assert kind in said["message"] and "fell off the bus" in said["message"] and said["evidence"]


@pytest.mark.parametrize("kind", ["GPUHealthy", "NVSentinelGPUHealthy", "GpuHealthy"])
def test_a_gpu_that_is_not_healthy_condemns_and_is_quoted_in_its_own_words(kind):
    assert "XID 79 on GPU 3" in told(node(type=kind, status="False", message="XID 79 on GPU 3"))["message"]


def test_a_taint_of_a_health_agent_condemns_a_node_under_test():
    said = told(node([{"key": "nvidia.com/gpu-unhealthy", "value": "xid", "effect": "NoSchedule"}]))
    assert said["evidence"] == ["taint nvidia.com/gpu-unhealthy=xid:NoSchedule"]


@pytest.mark.parametrize("kind", ["GPUHealthy", "GpuHealthy", "AcceleratedHardwareReady", "GpuXidError"])
def test_a_silent_agent_convicts_nobody_under_test(kind):
    assert told(node(type=kind, status="Unknown", reason="AgentNotReporting", message="no heartbeat of the agent")) is None


@pytest.mark.parametrize(
    ("kind", "status", "reason", "message"),
    [
        ("AcceleratedHardwareReady", "False", "DCGMError", "failed to initialize DCGM: Host engine connection invalid/disconnected"),
        ("GpuNvlinkWatch", "True", "GpuNvlinkWatchIsNotHealthy", "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:0 IMEX daemon status is -3"),
        ("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", "ErrorCode:DCGM_FR_XID_ERROR GPU:4 XID 31 Recommended Action=NONE;"),
        ("GpuDcgmConnectivityFailure", "True", "x", "ErrorCode:DCGM_CONNECTIVITY_ERROR"),
    ],
)
def test_what_is_no_hardware_before_a_test_is_none_during_it(kind, status, reason, message):
    assert told(node(type=kind, status=status, reason=reason, message=message)) is None


def test_other_conditions_and_healthy_ones_do_not():
    assert told(node()) is None
    assert told(node(type="GpuXidError", status="False")) is None
    assert told(node(type="FrequentKubeletRestart", status="True")) is None


def test_an_expression_of_the_users_own_stands_beside_the_table():
    cordoned = node_facts(
        {"metadata": {"name": "n0"}, "spec": {"unschedulable": True}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    )
    assert told(cordoned) is None
    assert "cordoned" in told(cordoned, "node.spec.unschedulable")["message"]
    assert told(node(type="GpuUnhealthy", status="True"), "node.spec.unschedulable")["evidence"] == ["condition GpuUnhealthy=True"]
