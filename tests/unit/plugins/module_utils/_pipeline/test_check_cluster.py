# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A run is taken up on its own cluster alone: node names are the same everywhere."""

from __future__ import annotations

import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError, InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.runs import check_cluster


def run(uid, **nodes):
    snapshot = {"server": {"host": "https://first:6443", "uid": uid}, "nodes": [{"name": name, "uid": own} for name, own in nodes.items()]}
    return types.SimpleNamespace(path="runs/x", read_snapshot=lambda: snapshot)


class Cluster:
    host = "https://second:6443"

    def __init__(self, uid, **nodes):
        self.uid, self.nodes = uid, nodes

    def get(self, path):
        assert path == "/api/v1/namespaces/kube-system"
        if self.uid is None:
            raise ClusterError("forbidden", status=403)
        return {"metadata": {"uid": self.uid}}

    def list(self, _path):
        return [{"metadata": {"name": name, "uid": uid}} for name, uid in self.nodes.items()]


@pytest.mark.parametrize(
    ("planned", "here"),
    [
        (run("a", n0="1"), Cluster("b", n0="1")),
        (run("a", n0="1", n1="2"), Cluster(None, n0="3", n1="4")),
        (run(None, n0="1"), Cluster("b", n0="3")),
        (run(None, n0=None), Cluster(None, n1="1")),
    ],
)
def test_another_cluster_is_refused_and_both_are_named(planned, here):
    with pytest.raises(InputError) as caught:
        check_cluster(planned, here)
    assert "https://first:6443" in caught.value.message and "https://second:6443" in caught.value.message


@pytest.mark.parametrize(
    ("planned", "here"),
    [
        (run("a", n0="1"), Cluster("a", n0="1")),
        (run("a", n0="1"), Cluster("a", n0="replaced")),
        (run("a", n0="1", n1="2"), Cluster(None, n0="1", n1="replaced")),
        (run(None, n0=None), Cluster(None, n0="1")),
    ],
)
def test_the_same_cluster_is_known_again_by_whatever_address_and_with_nodes_replaced(planned, here):
    check_cluster(planned, here)
