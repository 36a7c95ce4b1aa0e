# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities and selectors. If they are wrong, pods land on nodes where a real scheduler would not put them."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients import matching


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8000),
        ("100m", 100),
        ("1.5", 1500),
        ("2Gi", 2 * 2**30 * 1000),
        ("1k", 10**6),
        ("0.1m", 1),
        ("1e3", 10**6),
        (4, 4000),
        ("1E", 10**21),
    ],
)
def test_quantities(text, value):
    assert matching.milli(text) == value


@pytest.mark.parametrize("text", ["", "abc", "1Zi", "Gi"])
def test_wrong_quantities_are_refused(text):
    with pytest.raises(ValueError, match="no quantity"):
        matching.milli(text)


def test_init_containers_take_the_maximum_and_sidecars_add_up():
    def cpu(value, **more):
        return {"resources": {"requests": {"cpu": value}}, **more}

    pod = {"spec": {"containers": [cpu("1"), cpu("2")], "initContainers": [cpu("1", restartPolicy="Always"), cpu("4")]}}
    assert matching.pod_requests(pod) == {"cpu": 5000, "pods": 1000}


def test_node_terms_compare_numbers_and_names():
    node = {"metadata": {"name": "n1", "labels": {"gpus": "8"}}}
    assert matching.matches_node_term({"matchExpressions": [{"key": "gpus", "operator": "Gt", "values": ["7"]}]}, node)
    assert not matching.matches_node_term({"matchExpressions": [{"key": "gpus", "operator": "Lt", "values": ["8"]}]}, node)
    assert matching.matches_node_term({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, node)
    assert not matching.matches_node_term({}, node)


def test_tolerations():
    taint = {"key": "gpu", "value": "x", "effect": "NoSchedule"}
    assert matching.tolerates([{"operator": "Exists"}], taint)
    assert matching.tolerates([{"key": "gpu", "value": "x", "effect": "NoSchedule"}], taint)
    assert not matching.tolerates([{"key": "gpu", "value": "y"}], taint)
    assert not matching.tolerates([{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}], taint)
