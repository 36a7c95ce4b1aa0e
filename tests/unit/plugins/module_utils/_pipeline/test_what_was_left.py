# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A group that was tested without a member is judged by the plan of what it was: its last node must not be asked for the network."""

from __future__ import annotations

import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record, pod_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measurement
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline import categories
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.settling import settle

FLOORS = [
    {"test": "t", "path": "local", "nodes_max": None, "criteria": ["measured.bus_bandwidth >= 400"], "source": "one node"},
    {"test": "t", "path": "rdma", "nodes_max": None, "criteria": ["measured.bus_bandwidth >= 300"], "source": "many"},
]
ROWS = [{"name": name, "domains": {"clique": None}} for name in ("n0", "n1", "n2", "n3")]


def judged(monkeypatch, floors, bandwidth, out=("n1",)):
    """A group of two, tested without one, beside a whole one. Returns the judged category and the transports that were asked for."""
    asked = {}

    def measure(_kind, paths, context):
        asked[paths[0].rpartition("/")[2]] = context.get("expect_transport")
        return measurement("nccl", None, "", complete=True, values={"bus_bandwidth": bandwidth, "data_correct": True})

    monkeypatch.setattr(categories, "measure", measure)
    planned = settle({
        "id": "c01", "test": "t", "test_scale": "intra-rack", "criteria": ["measured.bus_bandwidth >= 300"], "thresholds": {},
        "measure": {"kind": "nccl"}, "expect_transport": None, "floors": floors, "explain": [], "untested": [],
        "template": {"transport": None, "nic_resource": "rdma/hca", "env": []},
        "groups": [{"name": f"g{n}", "nodes": nodes, "domain": None} for n, nodes in ((1, ["n0", "n1"]), (2, ["n2", "n3"]))],
    }, ROWS)  # fmt: skip

    def group(name, nodes, excluded):
        pods = [
            pod_record(f"p-{node}", node=node, index=0, exit_code=0, log=name, phase="Succeeded") for node in nodes if node not in excluded
        ]
        left = [{"node": node, "reason": "NodeUnavailable", "message": "it was cordoned"} for node in excluded]
        attempt = attempt_record(1, "succeeded", exit_code=0, started="2026-03-02T08:00:00Z", pods=pods, excluded=left)
        return {"name": name, "nodes": nodes, "attempts": [attempt]}

    run = types.SimpleNamespace(path="/r", plan="plan.json", read_snapshot=lambda: {"nodes": ROWS}, read_request=lambda: None)
    groups = [group("g1", ["n0", "n1"], out), group("g2", ["n2", "n3"], ())]
    made = categories.judge_observed(run, planned, {"groups": groups, "cleanup": None, "cancelled": ""})
    return {node: member["verdict"] for node, member in made["members"].items()}, asked


def test_the_last_node_of_a_group_is_not_asked_for_the_network(monkeypatch):
    verdicts, asked = judged(monkeypatch, None, 450.0)
    assert asked == {"g1": None, "g2": "rdma"}
    assert verdicts == {"n0": "passed", "n1": "untested", "n2": "passed", "n3": "passed"}


@pytest.mark.parametrize(("bandwidth", "alone"), [(450.0, "passed"), (350.0, "suspect")])
def test_the_last_node_of_a_group_is_held_to_the_floor_of_one_node(monkeypatch, bandwidth, alone):
    verdicts, _asked = judged(monkeypatch, FLOORS, bandwidth)
    assert verdicts == {"n0": alone, "n1": "untested", "n2": "passed", "n3": "passed"}


def test_what_is_left_and_has_no_floor_proves_nothing(monkeypatch):
    verdicts, _asked = judged(monkeypatch, FLOORS[1:], 450.0)
    assert verdicts == {"n0": "untested", "n1": "untested", "n2": "passed", "n3": "passed"}
