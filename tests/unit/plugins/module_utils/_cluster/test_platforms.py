# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A wrong platform pins wrong adapters: detection must be right, and must show why."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.platforms import detect_platform

from .builders import node, shipped, snapshot


@pytest.mark.parametrize(
    ("raw", "platform"),
    [
        (node(provider_id="aws:///us-east-1a/i-0abc"), "aws"),
        (node(provider_id="gce://project/zone/name"), "gcp"),
        (node(provider_id="azure:///subscriptions/x"), "azure"),
        (node(provider_id="ocid1.instance.oc1.iad.abc"), "oci"),
        (node(provider_id="nscale://x"), "nscale"),
        (node(provider_id="openstack:///x", resources={"nscale.com/rdmashare": 8}), "nscale"),
        (node(provider_id="openstack:///x"), "onprem"),
        (node(provider_id="kubevirt://x", labels={"node-role.together.ai/worker": ""}), "togetherai"),
        (node(provider_id="kubevirt://x"), "onprem"),
        (node(provider_id="metal3://x", resources={"rdma/ib": 64}), "mistral"),
        (node(provider_id="metal3://x"), "onprem"),
        (node("forge-n1"), "forge"),
        (node(labels={"nke.nvidia.com/site-name": "s"}), "forge"),
        (node(), "onprem"),
        (node(provider_id="kind://docker/kind/kind-worker"), "onprem"),
        (node("forge-n1", provider_id="aws:///z/i-1"), "aws"),
    ],
)
def test_each_platform_is_recognised(raw: dict, platform: str) -> None:
    assert detect_platform(raw, shipped())[0] == platform


def test_evidence_counts_nodes() -> None:
    made = snapshot(node("a"), node("b"))["platform"]
    assert made == {"name": "onprem", "evidence": ["2 nodes: onprem, without spec.providerID"]}


def test_disagreement_is_no_platform_and_is_said() -> None:
    made = snapshot(node("a"), node("b", provider_id="aws:///z/i-1"))
    assert made["platform"]["name"] is None and len(made["platform"]["evidence"]) == 2 and "different platforms" in made["notes"][0]
    assert [row["platform"] for row in made["nodes"]] == ["onprem", "aws"]


def test_the_users_word_wins() -> None:
    made = snapshot(node("a"), platform="oci")
    assert made["platform"]["name"] == "oci" and made["nodes"][0]["platform"] == "oci"
