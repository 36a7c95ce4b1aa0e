# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The documented permissions: one too few and a run is refused, one too many and an administrator trusts us too far."""

from __future__ import annotations

import pathlib
import typing as t

import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster import kinds

ROOT = pathlib.Path(kinds.__file__).resolve().parents[3]


def documents() -> list[dict[str, t.Any]]:
    return yaml.safe_load((ROOT / "docs" / "rbac.yml").read_text(encoding="utf-8"))["items"]


def rules(kind: str) -> list[dict[str, t.Any]]:
    return next(document for document in documents() if document["kind"] == kind)["rules"]


def test_the_role_is_what_a_run_does_and_the_preflight_asks_for() -> None:
    assert rules("Role") == kinds.rules([*kinds.NAMESPACED, kinds.POD_EXAMINED])


def test_the_cluster_role_reads_nodes_and_what_discovery_may_look_at() -> None:
    assert rules("ClusterRole") == kinds.rules([*kinds.CLUSTER, *kinds.OPTIONAL])
    assert {verb for rule in rules("ClusterRole") for verb in rule["verbs"]} <= {"get", "list", "watch"}


def test_both_roles_are_bound_to_the_account() -> None:
    account = next(document["metadata"] for document in documents() if document["kind"] == "ServiceAccount")
    for binding in (document for document in documents() if document["kind"].endswith("Binding")):
        role = next(item for item in documents() if item["kind"] == binding["roleRef"]["kind"])
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
