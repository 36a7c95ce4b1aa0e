# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Variables that several playbooks read mean one thing in one inventory: nobody certifies another cluster than the one they named."""

from __future__ import annotations

import pytest
import yaml

pytestmark = pytest.mark.end_to_end

NOWHERE = "/nonexistent/kubeconfig"
REQUEST = {"categories": [{"test": "communication/nccl-all-reduce", "test_scale": "intra-node", "criteria": []}]}
# Old and new names, and the one of the two that must decide.
NAMED = [
    ({"readiness_kube_context": "elsewhere"}, "elsewhere"),
    ({"context": "elsewhere"}, "elsewhere"),
    ({"readiness_kube_context": "elsewhere", "context": "other"}, "elsewhere"),
    ({"readiness_kubeconfig": NOWHERE}, NOWHERE),
    ({"kubeconfig": NOWHERE}, NOWHERE),
    ({"readiness_kubeconfig": NOWHERE, "kubeconfig": "/other"}, NOWHERE),
]


@pytest.mark.simulator
@pytest.mark.parametrize(("variables", "said"), NAMED)
@pytest.mark.parametrize("playbook", ["certify", "discover", "cleanup"])
def test_a_cluster_that_is_named_by_either_name_is_the_one_that_is_meant(start_cluster, playbook, variables, said):
    cluster = start_cluster(racks=1, nodes_per_rack=1)
    result = cluster.play(playbook, {"certification": REQUEST, **variables}, "--check")
    assert result.status != 0
    assert said in result.output


@pytest.mark.simulator
@pytest.mark.parametrize("playbook", ["certify", "discover", "cleanup"])
def test_what_is_known_of_logs_is_not_taken_for_a_cluster(start_cluster, playbook):
    """One inventory for all playbooks: here `context` is the mapping that the playbook analyze has always read."""
    cluster = start_cluster(racks=1, nodes_per_rack=1)
    result = cluster.play(playbook, {"certification": REQUEST, "context": {"expected_gpus": 8}}, "--check")
    assert result.status == 0, result.output


def test_the_whole_pipeline_reaches_a_cluster_by_the_new_names_alone(start_cluster, monkeypatch):
    cluster = start_cluster(racks=1, nodes_per_rack=1)
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
    named = {"readiness_kubeconfig": str(cluster.kubeconfig), "readiness_kube_context": kubeconfig["current-context"]}
    monkeypatch.setattr(cluster, "kubeconfig", NOWHERE)  # the environment leads nowhere
    request = {**REQUEST, "allow_no_criteria": True}
    result = cluster.play("certify", {"certification": request, **named})
    assert result.status == 0, result.output
    assert result.report["verdict"] == "passed"
