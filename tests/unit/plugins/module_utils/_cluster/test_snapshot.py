# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Reading a whole cluster: paging, optional reads that are refused, clusters that only know DRA."""

from __future__ import annotations

import datetime
import json
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.capabilities import at_least
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.snapshot import take_snapshot
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.summary import summarize_snapshot
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError

from .builders import node, shipped
from .conftest import Api

NOW = datetime.datetime(2026, 3, 2, 8, 0, tzinfo=datetime.UTC)
FORBIDDEN = (403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "forbidden: cannot list"})


def cluster(api: Api, nodes: list[dict[str, t.Any]], groups: dict[str, str], services: t.Any = None) -> None:
    api.by_path["/version"] = (200, {"major": "1", "minor": "34+", "gitVersion": "v1.34.1"})
    api.by_path["/apis"] = (
        200,
        {
            "groups": [
                {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}
                for name, version in groups.items()
            ]
        },
    )
    api.by_path["/api/v1/nodes"] = (200, {"metadata": {}, "items": nodes})
    api.by_path["/api/v1/services"] = services or (200, {"metadata": {}, "items": []})


def take(api: Api, **options: t.Any) -> dict[str, t.Any]:
    return take_snapshot(api.client(), shipped(), now=NOW, **options)


def test_snapshot_has_the_documented_shape(api: Api) -> None:
    dcgm = {"metadata": {"name": "nvidia-dcgm", "namespace": "gpu-operator"}, "spec": {"ports": [{"port": 5555}]}}
    groups = {"trainer.kubeflow.org": "v1alpha1", "scheduling.run.ai": "v2", "kueue.x-k8s.io": "v1beta1", "resource.k8s.io": "v1"}
    cluster(api, [node("b"), node("a"), node("cpu", gpus=None, product=None)], groups, (200, {"metadata": {}, "items": [dcgm]}))
    api.by_path["/apis/trainer.kubeflow.org/v1alpha1"] = (200, {"resources": [{"name": "trainjobs"}]})
    api.by_path["/apis/resource.k8s.io/v1/resourceslices"] = (200, {"metadata": {}, "items": []})
    api.by_path["/api/v1/namespaces/kube-system"] = (200, {"metadata": {"name": "kube-system", "uid": "5e1f"}})
    made = take(api)
    assert made["server"]["uid"] == "5e1f", "a resumed run knows its cluster by it"
    assert made["taken_at"] == "2026-03-02T08:00:00Z" and made["server"]["version"] == "v1.34.1"
    assert [row["name"] for row in made["nodes"]] == ["a", "b"]
    assert made["capabilities"] == {
        "trainer": {"version": "v1alpha1"},
        "jobset": None,
        "dra": True,
        "compute_domains": False,
        "schedulers": ["kai-scheduler"],
        "dcgm_service": {"namespace": "gpu-operator", "name": "nvidia-dcgm", "port": 5555},
        "kueue": True,
        "success_policy": True,
    }
    assert made["notes"] == [] and json.loads(json.dumps(made)) == made


def test_group_left_over_without_its_resource_is_no_trainer(api: Api) -> None:
    cluster(api, [node()], {"trainer.kubeflow.org": "v1alpha1"})
    api.by_path["/apis/trainer.kubeflow.org/v1alpha1"] = (200, {"resources": []})
    assert take(api)["capabilities"]["trainer"] is None


POOL = {"eks.amazonaws.com/nodegroup": "gpus", "node.kubernetes.io/instance-type": "x9.metal"}


def test_a_node_whose_likes_have_gpus_is_named_although_it_says_nothing_of_any(api: Api) -> None:
    silent = node("silent", gpus=None, product=None, labels=POOL)
    cpu = node("cpu", gpus=None, product=None, labels={**POOL, "eks.amazonaws.com/nodegroup": "services"})
    denied = node("denied", gpus=None, product=None, labels={**POOL, "nvidia.com/gpu.present": "false"})
    k3s = [node(f"k{number}", gpus=number or None, product=None, labels={"node.kubernetes.io/instance-type": "k3s"}) for number in (0, 8)]
    cluster(api, [silent, cpu, denied, node("a", labels=POOL), *k3s], {})
    found = {row["name"]: row for row in take(api)["nodes"]}
    assert sorted(found) == ["a", "k8", "silent"]
    assert found["silent"]["exclusion"]["reason"] == "LabelWithoutResource" and "pool gpus" in found["silent"]["exclusion"]["message"]


def test_refused_optional_reads_are_notes(api: Api) -> None:
    cluster(api, [node(product=None)], {"resource.k8s.io": "v1"}, FORBIDDEN)
    api.by_path["/apis/resource.k8s.io/v1/resourceslices"] = FORBIDDEN
    made = take(api)
    assert len(made["notes"]) >= 2 and made["nodes"][0]["target"]
    assert any("Services" in note for note in made["notes"]) and any("ResourceSlices" in note for note in made["notes"])


def test_refused_node_list_is_an_error_with_the_remedy(api: Api) -> None:
    cluster(api, [], {})
    api.by_path["/api/v1/nodes"] = FORBIDDEN
    with pytest.raises(ClusterError) as caught:
        take(api)
    assert caught.value.status == 403 and caught.value.hint == "Allow our user to list nodes cluster-wide."


def test_gpus_that_only_dra_knows_are_found(api: Api) -> None:
    cluster(api, [node("a", gpus=None, product=None)], {"resource.k8s.io": "v1"})
    attributes = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA GB200"}}
    devices = [{"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": "189471Mi"}}} for index in range(4)]
    piece = {"metadata": {"name": "s"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "a", "devices": devices}}
    api.by_path["/apis/resource.k8s.io/v1/resourceslices"] = (200, {"metadata": {}, "items": [piece]})
    (row,) = take(api)["nodes"]
    assert row["target"] and row["gpu"]["model"] == "gb200" and row["gpu"]["allocatable"] == 4 and row["gpu"]["memory_mib"] == 189471


def test_whole_gpus_and_mig_parts_of_slices_are_not_added_up(api: Api) -> None:
    cluster(api, [node("a", gpus=None, product=None)], {"resource.k8s.io": "v1"})
    kinds = ["gpu"] * 8 + ["mig"] * 7
    devices = [{"name": f"d{index}", "attributes": {"type": {"string": kind}}} for index, kind in enumerate(kinds)]
    piece = {"metadata": {"name": "s"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "a", "devices": devices}}
    api.by_path["/apis/resource.k8s.io/v1/resourceslices"] = (200, {"metadata": {}, "items": [piece]})
    (row,) = take(api)["nodes"]
    assert row["exclusion"]["reason"] == "Mig" and row["gpu"]["allocatable"] == 8


def test_bulky_labels_are_dropped_unless_kept(api: Api) -> None:
    bulky = "feature.node.kubernetes.io/cpu-cpuid.AVX"
    cluster(api, [node("a", labels={bulky: "true", "mine": "x"})], {})
    assert set(take(api)["nodes"][0]["labels"]) >= {"mine"} and bulky not in take(api)["nodes"][0]["labels"]
    assert bulky in take(api, keep_labels=["feature.node.kubernetes.io/"])["nodes"][0]["labels"]


@pytest.mark.parametrize(("minor", "new"), [("31", True), ("30", False), ("31+", True), ("30.2-gke", False), ("", False)])
def test_vendor_spellings_of_the_minor_version(minor: str, new: bool) -> None:
    assert at_least({"major": "1", "minor": minor}, 1, 31) is new


def test_summary_names_the_bad_and_counts_the_rest(api: Api) -> None:
    cluster(
        api, [node("good"), node("short", gpus=7), node("off", conditions=[{"type": "Ready", "status": "False", "message": "gone"}])], {}
    )
    summary = summarize_snapshot(take(api))
    assert (summary["nodes"], summary["targets"], summary["failed"], summary["excluded"]) == (3, 2, ["short"], {"NotReady": 1})
    text = "\n".join(summary["text"])
    assert "short: 1 of 8 GPUs missing" in text and "off: NotReady" in text and "good" not in text
