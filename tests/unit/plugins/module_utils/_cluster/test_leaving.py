# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A node under test whose departure is announced is not lost; one that the user certifies in its maintenance can be."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_evidence
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.leaving import departure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts


def told(tolerations=(), *, taints=(), annotations=None, labels=None, conditions=()):
    raw = {
        "metadata": {"name": "n0", "annotations": annotations, "labels": labels},
        "spec": {"taints": list(taints)},
        "status": {"conditions": list(conditions)},
    }
    return departure(node_facts(raw), shipped_evidence(), tolerations)


@pytest.mark.parametrize(
    "marks",
    [
        {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1772447467", "effect": "NoSchedule"}]},
        {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]},
        {"taints": [{"key": "aws-node-termination-handler/spot-itn", "value": "1", "effect": "NoSchedule"}]},
        {"taints": [{"key": "example.com/maintenance", "effect": "NoExecute"}]},
        {"annotations": {"kured.dev/kured-reboot-in-progress": "2026-03-02T08:00:00Z"}},
        {"labels": {"nvidia.com/gpu-driver-upgrade-state": "drain-required"}},
        {"conditions": [{"type": "SpotInterruption", "status": "True", "reason": "x", "message": "y"}]},
        {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "node is shutting down"}]},
    ],
)
def test_what_discovery_takes_for_leaving_announces_a_departure_under_test_too(marks):
    assert told(**marks)


@pytest.mark.parametrize(
    "marks",
    [
        {},
        {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]},
        {
            "conditions": [
                {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
            ]
        },
        {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "container runtime is down"}]},
    ],
)
def test_silence_alone_announces_nothing(marks):
    assert told(**marks) is None


def test_a_maintenance_that_the_user_tolerates_by_name_excuses_no_death_under_test():
    taints = [{"key": "example.com/maintenance", "effect": "NoSchedule"}]
    assert told([{"key": "example.com/maintenance", "operator": "Exists"}], taints=taints) is None
    assert told([{"operator": "Exists"}], taints=taints)
