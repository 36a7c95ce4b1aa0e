# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What happens to nodes and pods under test, as kubelets, operators and others would have it: evidence is tied to what ran where."""

from __future__ import annotations

import json
import time

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.rebuild import report_from_archive
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.names import GROUP_LABEL
from ansible_collections.gpu_cluster.readiness.tests.end_to_end.world import BOUNDS, N, World, small


def test_a_node_that_loses_a_gpu_under_test_does_not_pass(start_cluster):
    world = World(small(start_cluster)).begin()
    world.until_running(N[1])
    world.status(N[1], allocatable={"nvidia.com/gpu": "7"})
    result = world.end()
    assert result.verdicts() == {"failed": {N[1]}, "passed": {N[0], N[2]}}, result.output
    assert result.reasons(N[1]) == {"HardwareFailureDetected"} and "7 GPUs" in str(result.node(N[1])["findings"])


def test_a_node_that_restarts_under_test_does_not_pass(start_cluster):
    world = World(small(start_cluster)).begin()
    world.until_running(N[1])
    world.status(N[1], nodeInfo={"bootID": "another-boot"})
    result = world.end()
    assert result.verdicts() == {"failed": {N[1]}, "passed": {N[0], N[2]}}, result.output
    assert result.reasons(N[1]) == {"NodeLost"} and "another-boot" in str(result.node(N[1])["findings"])


def test_a_kubelet_that_restarts_under_test_condemns_nobody(start_cluster):
    world = World(small(start_cluster)).begin()
    world.until_running(N[1])
    world.ready(N[1], "False")
    time.sleep(2)
    world.ready(N[1], "True")
    result = world.end()
    assert result.status == 0 and result.verdicts() == {"passed": set(N[:3])}, result.output


def test_a_node_that_was_not_ready_before_its_test_began_is_not_condemned(start_cluster):
    world = World(small(start_cluster), bounds={**BOUNDS, "max_concurrent": 1, "node_grace_s": 2}).begin()
    world.until_running(N[0])
    world.ready(N[2], "False")
    result = world.end()
    assert result.verdicts() == {"passed": set(N[:2]), "untested": {N[2]}}, result.output
    assert result.reasons(N[2]) == {"NodeUnavailable"} and "KubeletNotReady" in str(result.node(N[2])["findings"])


def test_contact_lost_with_the_whole_cluster_condemns_no_member_of_a_small_batch(start_cluster):
    world = World(small(start_cluster, 4), target={"node_names": N[:2]}, bounds={**BOUNDS, "node_grace_s": 3}).begin()
    world.until_running(N[0])
    with world.silent(*N):
        result = world.end()
    assert result.verdicts() == {"untested": set(N[:2])}, result.output
    assert "4 of 4 nodes of the cluster" in result.output


def test_two_pods_of_a_group_never_share_a_node(start_cluster):
    """A tenant holds a part of one node's GPUs; the test asks for half of each node."""
    world = World(small(start_cluster, 3), "intra-rack", 1, workload={"gpus_per_node": 4})
    result = world.begin().end()
    pods = [pod for item in world.entries() if item["event"] == "attempt_done" for pod in item["record"]["pods"]]
    assert sorted(pod["node"] for pod in pods) == N[:3], result.output
    assert result.verdicts() == {"passed": set(N[:3])}


def test_a_pod_that_another_made_with_our_labels_is_no_evidence(start_cluster):
    cluster = small(start_cluster)
    world = World(cluster).begin()
    world.until(cluster.objects_of_ours, "objects came")
    attempts = ("get", "jobs", "-l", GROUP_LABEL, "-o", "json")
    world.until(lambda: json.loads(cluster.kubectl(*attempts))["items"], "a Job came")
    job = json.loads(cluster.kubectl(*attempts))["items"][0]
    # Without the UID of the Job: a Job controller adopts what its selector finds, and then it is a pod of the Job.
    labels = {key: value for key, value in job["spec"]["template"]["metadata"]["labels"].items() if "controller-uid" not in key}
    strange = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "impostor", "labels": labels, "annotations": {"batch.kubernetes.io/job-completion-index": "x"}},
        "spec": {"containers": [{"name": "node", "image": "registry.example/busybox"}]},
    }
    world.api.create("/api/v1/namespaces/default/pods", strange)
    try:
        result = world.end()
        assert result.verdicts().get("passed") == set(N[:3]), result.output
        assert not any(pod["name"] == "impostor" for item in world.entries() if "record" in item for pod in item["record"]["pods"])
    finally:
        world.api.delete("/api/v1/namespaces/default/pods/impostor")


@pytest.mark.parametrize("level", ["restricted"])
def test_a_namespace_that_refuses_our_pods_is_told_before_anything_is_created(start_cluster, level):
    cluster = small(start_cluster, 2)
    labels = {"pod-security.kubernetes.io/enforce": level}
    World(cluster).api.patch("/api/v1/namespaces/default", {"metadata": {"labels": labels}})
    try:
        result = World(cluster).begin().end()
    finally:
        World(cluster).api.patch("/api/v1/namespaces/default", {"metadata": {"labels": dict.fromkeys(labels)}})
    assert result.status != 0 and "violates PodSecurity" in result.output, result.output
    world = World(cluster)
    assert not world.entries() and cluster.objects_of_ours() == [], "no attempt was begun"


def test_what_becomes_of_nodes_between_the_last_test_and_the_verdict_counts(start_cluster):
    """All tests are over and have passed; then one node loses a GPU, and another restarts."""
    world = World(small(start_cluster), bounds={**BOUNDS, "node_grace_s": 3}).begin()
    world.until(lambda: any(item["event"] == "batch_end" for item in world.entries()), "the tests end")
    world.status(N[1], allocatable={"nvidia.com/gpu": "7"})
    world.status(N[2], nodeInfo={"bootID": "another-boot"})
    result = world.end()
    assert [category["verdict"] for category in result.report["categories"]] == ["passed"], result.output
    assert result.verdicts() == {"passed": {N[0]}, "failed": {N[1]}, "untested": {N[2]}}, result.output
    assert (result.reasons(N[1]), result.reasons(N[2])) == ({"HardwareFailureDetected"}, {"NodeUnavailable"})
    assert result.status != 0
    again = report_from_archive(RunDirectory(result.run_dir))
    assert (again["verdict"], again["nodes"]) == (result.report["verdict"], result.report["nodes"]), "offline, from the archive alone"
