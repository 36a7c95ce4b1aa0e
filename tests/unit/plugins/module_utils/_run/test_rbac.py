# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The documented permissions: one too few and a run is refused, one too many and an administrator trusts us too far."""

from __future__ import annotations

import pathlib
import typing as t

import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run import preflight

ROOT = pathlib.Path(preflight.__file__).resolve().parents[3]
OPTIONAL = {("list", "services", "", ""), ("list", "resourceslices", "resource.k8s.io", "")}


def documents() -> list[dict[str, t.Any]]:
    return yaml.safe_load((ROOT / "docs" / "rbac.yml").read_text(encoding="utf-8"))["items"]


def granted(kind: str) -> set[tuple[str, str, str, str]]:
    """Rules of the Role or ClusterRole as (verb, resource, group, subresource)."""
    role = next(document for document in documents() if document["kind"] == kind)
    found = set()
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                name, _slash, subresource = resource.partition("/")
                found |= {(verb, name, group, subresource) for verb in rule["verbs"]}
    return found


def test_the_role_is_what_the_preflight_asks_for() -> None:
    assert granted("Role") == set(preflight.NAMESPACED)


def test_the_cluster_role_reads_nodes_and_what_discovery_may_look_at() -> None:
    assert granted("ClusterRole") == set(preflight.CLUSTER) | OPTIONAL
    assert {verb for verb, *_rest in granted("ClusterRole")} <= {"get", "list", "watch"}


def test_both_roles_are_bound_to_the_account() -> None:
    account = next(document["metadata"] for document in documents() if document["kind"] == "ServiceAccount")
    for binding in (document for document in documents() if document["kind"].endswith("Binding")):
        role = next(item for item in documents() if item["kind"] == binding["roleRef"]["kind"])
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
