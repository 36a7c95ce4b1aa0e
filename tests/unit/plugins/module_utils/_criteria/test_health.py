# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Node health: a sick node is named with its own words, and an expression that breaks is never a healthy node."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria import health

READY = {"type": "Ready", "status": "True"}


def node(*, conditions=(READY,), **spec):
    return {"metadata": {"name": "n1"}, "spec": spec, "status": {"conditions": list(conditions)}}


def test_a_healthy_node_is_healthy():
    result = health.evaluate_health(health.compile_health(), node(conditions=[READY, {"type": "MemoryPressure", "status": "False"}]))
    assert result == {"unhealthy": False, "error": None, "message": "", "evidence": []}


@pytest.mark.parametrize(
    ("sick", "quoted"),
    [
        (node(conditions=[]), "no Ready condition"),
        (
            node(
                conditions=[
                    {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
                ]
            ),
            "Kubelet stopped posting",
        ),
    ],
)
def test_a_sick_node_is_quoted(sick, quoted):
    result = health.evaluate_health(health.compile_health(), sick)
    assert result["unhealthy"] is True
    assert quoted in result["message"]
    assert any(quoted in line for line in result["evidence"])


def test_a_cordon_is_no_broken_hardware_unless_the_user_says_so():
    assert health.evaluate_health(health.compile_health(), node(unschedulable=True))["unhealthy"] is False
    assert health.evaluate_health(health.compile_health(), node(unschedulable=True, conditions=[]))["unhealthy"] is True
    asked = health.evaluate_health(health.compile_health("node.spec.unschedulable"), node(unschedulable=True))
    assert asked["unhealthy"] is True and "cordoned" in asked["message"]


@pytest.mark.parametrize("bare", [{}, {"metadata": None, "spec": None, "status": None}, {"spec": {"taints": None}}])
def test_absent_parts_have_defaults(bare):
    check = health.compile_health(
        "node.spec.unschedulable == true || node.spec.taints.exists(t, t.key == 'x') || 'a' in node.metadata.labels"
    )
    assert health.evaluate_health(check, bare)["unhealthy"] is False


@pytest.mark.parametrize(
    "expression",
    [
        "node.metadata.labels['ecc'] > 3",
        "node.status.allocatable['nvidia.com/gpu'] > '7'",
        "node.spec.unschedulable > 1",
        "node.metadata.name",
    ],
)
def test_a_broken_expression_is_loud(expression):
    result = health.evaluate_health(health.compile_health(expression), node())
    assert result["unhealthy"] is None
    assert "cannot be evaluated on n1" in result["error"]


@pytest.mark.parametrize("expression", ["", "true", "nodes.spec.unschedulable", "node.spec.unschedulable ==", "1", 3])
def test_bad_expressions_are_refused(expression):
    with pytest.raises(InputError):
        health.compile_health(expression)
