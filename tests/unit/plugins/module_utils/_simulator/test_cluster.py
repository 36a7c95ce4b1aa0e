# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""End to end: a plain Indexed Job, written as a user would, through API server, controllers, node agents and hardware model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import typing as t
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config

from ansible_collections.gpu_cluster.readiness.plugins.plugin_utils._simulator_launcher import PACKAGE

GPUS = {"nvidia.com/gpu": "8", "rdma/hca_shared_devices_a": "8"}
SCRIPT = """
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then exec /usr/sbin/sshd -De -p 2222; fi
timeout 3600 mpirun --allow-run-as-root --hostfile /etc/mpi/hostfile -N 8 -x NCCL_DEBUG=INFO \\
  all_reduce_perf_mpi -b 1G -e 4G -f 2 -g 1 | tee /tmp/log
tail -n 12 /tmp/log > /dev/termination-log
"""
FAULTS = [
    {"kind": "socket_fallback", "node": "gpu-r0-n01"},
    {"kind": "oom", "node": "gpu-r0-n02"},
    {"kind": "image_pull", "node": "gpu-r0-n03"},
    {"kind": "device_rejects", "node": "gpu-r0-n04"},
    {"kind": "node_lost", "node": "gpu-r0-n05", "after_s": 0},
    {"kind": "log_rotated", "node": "gpu-r0-n06"},
]


class Cluster:
    """The API as a user has it."""

    def __init__(self, kubeconfig: str) -> None:
        api = config.new_client_from_config(kubeconfig)
        self.core, self.batch = client.CoreV1Api(api), client.BatchV1Api(api)

    def job_conditions(self, name: str) -> set[str]:
        return {item.type for item in self.batch.read_namespaced_job(name, "default").status.conditions or ()}

    def run(self, name: str, nodes: list[str]) -> None:
        """An Indexed Job on these nodes, with the Service and the hostfile that mpirun needs."""
        hosts = "".join(f"{name}-{index}.{name} slots=8\n" for index in range(len(nodes)))
        selector = {"batch.kubernetes.io/job-name": name}
        self.core.create_namespaced_config_map("default", {"metadata": {"name": name}, "data": {"hostfile": hosts}})
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
        self.core.create_namespaced_service("default", {"metadata": {"name": name}, "spec": spec})
        self.batch.create_namespaced_job("default", _job(name, nodes))

    def pods(self, name: str) -> dict[int, t.Any]:
        found = self.core.list_namespaced_pod("default", label_selector=f"batch.kubernetes.io/job-name={name}").items
        return {int(pod.metadata.annotations["batch.kubernetes.io/job-completion-index"]): pod for pod in found}

    def until(self, name: str, test: t.Callable[[dict[int, t.Any]], t.Any], limit_s: float = 30) -> dict[int, t.Any]:
        """The pods of a Job once the test is true."""
        deadline = time.monotonic() + limit_s
        while True:
            pods = self.pods(name)
            if test(pods):
                return pods
            assert time.monotonic() < deadline, {index: pod.status.to_dict() for index, pod in pods.items()}
            time.sleep(0.05)

    def finished(self, name: str) -> t.Any:
        """The launcher's pod after its end."""
        return self.until(name, lambda pods: 0 in pods and pods[0].status.phase in ("Succeeded", "Failed"))[0]

    def log(self, pod: t.Any) -> str:
        return self.core.read_namespaced_pod_log(pod.metadata.name, "default")


def _job(name: str, nodes: list[str]) -> dict[str, t.Any]:
    container = {
        "name": "main",
        "image": "registry.example.com/nccl-tests:1",
        "command": ["bash", "-c", SCRIPT],
        "resources": {"limits": GPUS},
        "volumeMounts": [{"name": "hosts", "mountPath": "/etc/mpi"}],
    }
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "containers": [container],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
        "volumes": [{"name": "hosts", "configMap": {"name": name}}],
    }
    size = {"completionMode": "Indexed", "completions": len(nodes), "parallelism": len(nodes), "backoffLimit": 0}
    return {
        "metadata": {"name": name},
        "spec": {**size, "successPolicy": {"rules": [{"succeededIndexes": "0"}]}, "template": {"spec": pod}},
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """On a lifeline: ansible-test runs each test in a child process, which ends without ever coming to the end of this function."""
    folder = tmp_path_factory.mktemp("cluster")
    path, definition = folder / "kubeconfig", folder / "definition.json"
    definition.write_text(json.dumps({"racks": 2, "nodes_per_rack": 8, "noise": 0, "faults": FAULTS}), encoding="utf-8")
    command = [sys.executable, "-m", PACKAGE, "--definition", str(definition), "--kubeconfig", str(path), "--lifeline"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == f"KUBECONFIG={path}\n"
        yield Cluster(str(path))
        process.stdin.close()


def test_a_healthy_group_measures_what_the_model_says(cluster: Cluster) -> None:
    cluster.run("healthy", ["gpu-r1-n00", "gpu-r1-n01", "gpu-r1-n02"])
    launcher = cluster.finished("healthy")
    log = cluster.log(launcher)
    assert launcher.status.phase == "Succeeded"
    assert "nRanks 24 nNodes 3" in log and "Using network IB" in log and "# Out of bounds values : 0 OK" in log
    assert "# Avg bus bandwidth" in launcher.status.container_statuses[0].state.terminated.message
    deadline = time.monotonic() + 30
    while "SuccessCriteriaMet" not in cluster.job_conditions("healthy"):  # the Job controller sees the pod's end a moment later
        assert time.monotonic() < deadline, "the Job never met its success policy"
        time.sleep(0.1)


def test_a_node_without_rdma_devices_takes_the_group_to_tcp(cluster: Cluster) -> None:
    cluster.run("tcp", ["gpu-r0-n00", "gpu-r0-n01"])
    launcher = cluster.finished("tcp")
    assert launcher.status.phase == "Succeeded"
    assert "via NET/Socket/0" in cluster.log(launcher)


def test_memory_kills_a_container_and_the_run_with_it(cluster: Cluster) -> None:
    cluster.run("oom", ["gpu-r0-n02"])
    state = cluster.finished("oom").status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (137, "OOMKilled")


def test_an_image_that_cannot_be_pulled_keeps_the_pod_waiting(cluster: Cluster) -> None:
    cluster.run("pull", ["gpu-r0-n03"])

    def waiting(pods: dict[int, t.Any]) -> bool:
        rows = [row for pod in pods.values() for row in pod.status.container_statuses or ()]
        return any(row.state.waiting and row.state.waiting.reason in ("ErrImagePull", "ImagePullBackOff") for row in rows)

    assert cluster.until("pull", waiting)[0].status.phase == "Pending"


def test_rejected_devices_fail_the_pod_with_the_kubelets_words(cluster: Cluster) -> None:
    cluster.run("reject", ["gpu-r0-n04"])
    pod = cluster.finished("reject")
    assert (pod.status.phase, pod.status.reason) == ("Failed", "UnexpectedAdmissionError")
    assert "nvidia.com/gpu" in pod.status.message


def test_a_rotated_log_has_lost_the_head_of_its_table(cluster: Cluster) -> None:
    cluster.run("rotated", ["gpu-r0-n06"])
    log = cluster.log(cluster.finished("rotated"))
    assert "# nccl-tests version" not in log and "# nThread" not in log


def test_a_lost_node_stops_its_heartbeats(cluster: Cluster) -> None:
    cluster.run("lost", ["gpu-r0-n05"])

    def is_lost() -> bool:
        node = cluster.core.read_node("gpu-r0-n05")
        return {item.type: item.status for item in node.status.conditions}["Ready"] != "True"

    deadline = time.monotonic() + 30
    while not is_lost():
        assert time.monotonic() < deadline, "the node is still Ready"
        time.sleep(0.1)


def test_the_kubeconfig_is_plain_json_that_any_client_reads(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    paths = list(Path(tmp_path_factory.getbasetemp()).glob("cluster*/kubeconfig"))
    assert json.loads(paths[0].read_text(encoding="utf-8"))["current-context"] == "simulated"
