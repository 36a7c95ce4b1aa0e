# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What happens to nodes and pods under test, as kubelets, operators and others would have it: evidence is tied to what ran where."""

from __future__ import annotations

import json
import subprocess
import threading
import time

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.names import GROUP_LABEL

NODES = "/api/v1/nodes"
N = [f"gpu-r0-n0{index}" for index in range(4)]
LONG = {"max_bytes": "16G", "iterations": 400}
BOUNDS = {"start_grace_s": 2, "queue_timeout_s": 20, "node_grace_s": 6}


class World:
    """A cluster, a play on it, and a hand that reaches into both while the play runs."""

    def __init__(self, cluster, scale="intra-node", limit=300, **spec):
        self.cluster, self.api = cluster, Client.from_options({"kubeconfig": str(cluster.kubeconfig)})
        category = {"test": "communication/nccl-all-reduce", "test_scale": scale, "criteria": [f"measured.bus_bandwidth >= {limit}"]}
        self.spec = {"categories": [category], "options": LONG, "bounds": BOUNDS, "isolate": "never", **spec}
        self.process = None

    def begin(self, **variables):
        command = self.cluster.command("certify", {"certification": self.spec, **variables})
        self.process = subprocess.Popen(
            command, cwd=self.cluster.work, env=self.cluster.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self

    def end(self):
        output, _nothing = self.process.communicate(timeout=300)
        return self.cluster.result(self.process.returncode, output)

    def entries(self):
        found = list((self.cluster.work / "runs").glob("2*/journal.jsonl"))
        return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []

    def until(self, condition, why, wait_s=120):
        deadline = time.monotonic() + wait_s
        while not condition():
            assert self.process is None or self.process.poll() is None or condition(), f"the play ended before: {why}"
            assert time.monotonic() < deadline, why
            time.sleep(0.05)

    def until_running(self, node):
        self.until(
            lambda: any(item["event"] == "attempt_running" and item["group"] in self.groups(node) for item in self.entries()), "runs"
        )

    def groups(self, node):
        return {item["group"] for item in self.entries() if item["event"] == "attempt_creating" and node in item["nodes"]}

    def status(self, node, **changes):
        self.api.patch(f"{NODES}/{node}/status", {"status": changes}, kind="strategic")

    def ready(self, node, status):
        reason = {"True": "KubeletReady", "False": "KubeletNotReady"}[status]
        condition = {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": "container runtime status check may not have completed",
        }
        self.status(node, conditions=[condition])


def small(start_cluster, nodes=3, time_scale=20, **definition):
    return start_cluster(racks=1, nodes_per_rack=nodes, time_scale=time_scale, **definition)


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
    stop = threading.Event()

    def silence():
        while not stop.wait(0.2):
            for name in N:
                world.ready(name, "False")

    hand = threading.Thread(target=silence)
    hand.start()
    try:
        result = world.end()
    finally:
        stop.set()
        hand.join()
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
