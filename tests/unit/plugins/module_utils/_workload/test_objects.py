# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What we create must pass a strict API server of the oldest and the newest release, and be found again by its labels."""

from __future__ import annotations

import shlex
import subprocess

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.holding import make_ssh_key
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload import names
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.objects import anchor, attempt_objects, fuse, ssh_secret

TEMPLATE = {
    "framework": "mpi",
    "namespace": "default",
    "image": "registry.example/nccl:1",
    "image_pull_secrets": ["pull"],
    "service_account": None,
    "gpus_per_node": 8,
    "resources": {"nvidia.com/gpu": 8, "rdma/hca": 8, "unused": 0},
    "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
    "mpi": {
        "mpirun": "/usr/bin/mpirun",
        "binary": "/usr/bin/all_reduce_perf_mpi",
        "args": ["-b", "8"],
        "mpirun_args": ["--bind-to", "none"],
    },
    "volumes": [],
    "volume_mounts": [],
    "annotations": {},
    "security": {"capabilities": ["IPC_LOCK"], "privileged": False},
    "init_containers": [],
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "ssh_port": 2222,
    "success_policy": True,
    "active_deadline_s": 100,
}
OWNER = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "anchor", "uid": "u"}]


def objects(nodes, **changes):
    identity = {"run_id": "20260302-080000-1a2b", "category": "c01", "group": "g001", "attempt": 1, "owner": OWNER}
    return attempt_objects({**TEMPLATE, **changes}, identity, nodes)


@pytest.mark.parametrize("version", ["1.32", "1.37"])
@pytest.mark.parametrize("nodes", [["n0"], ["n0", "n1", "n2"]])
def test_strict_schemas_of_the_oldest_and_newest_release_accept_them(version, nodes):
    private, public = make_ssh_key()
    secret = ssh_secret("run", "default", "c01", OWNER, private_key=private, public_key=public, port=2222)
    owned = anchor("run", "default", "c01", {"gpu-cluster.readiness/expires": "x"}, OWNER)
    for manifest in [*objects(nodes).values(), owned, fuse(TEMPLATE, "run", "c01", "0a", 60), secret]:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_every_object_carries_the_run_label_and_pods_too():
    made = objects(["n0", "n1"])
    every = [manifest["metadata"] for manifest in made.values()] + [made["job"]["spec"]["template"]["metadata"]]
    assert {meta["labels"][names.RUN_LABEL] for meta in every} == {"20260302-080000-1a2b"}


def test_each_pod_is_pinned_to_a_node_of_the_group_and_takes_all_its_gpus():
    pod = objects(["n0", "n1"])["job"]["spec"]["template"]["spec"]
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [term["matchFields"][0]["values"] for term in terms] == [["n0"], ["n1"]]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "8"}


def test_one_node_needs_neither_ssh_nor_a_service():
    made = objects(["n0"])
    script = made["job"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert "service" not in made and "sshd" not in script
    assert made["config_map"]["data"]["hostfile"] == "localhost slots=8\n"


def test_without_success_policy_the_job_has_none():
    assert "successPolicy" in objects(["n0", "n1"])["job"]["spec"]
    assert "successPolicy" not in objects(["n0", "n1"], success_policy=False)["job"]["spec"]


@pytest.mark.parametrize("nodes", [["n0"], ["n0", "n1"]])
def test_the_script_is_valid_shell(nodes):
    script = objects(nodes)["job"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    checked = subprocess.run(["bash", "-n", "-c", script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_values_with_blanks_and_quotes_reach_the_program_whole():
    env = [{"name": "ODD", "value": "a b'c$HOME"}]
    script = objects(["n0"], env=env)["job"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    line = next(line for line in script.splitlines() if line.startswith("exec /usr/bin/mpirun"))
    assert "ODD=a b'c$HOME" in shlex.split(line)


def test_a_path_that_extends_itself_is_extended_in_the_image(tmp_path):
    env = [{"name": "PATH", "value": "$PATH:/opt/x y"}]
    script = objects(["n0"], env=env)["job"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    line = next(line for line in script.splitlines() if line.startswith("export PATH="))
    shown = subprocess.run(["bash", "-c", f"PATH=/bin; {line}; echo $PATH"], capture_output=True, text=True, check=True)
    assert shown.stdout == "/bin:/opt/x y\n"
    assert "-x PATH " in script


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300), st.integers(10, 63))
def test_a_shortened_name_fits_in_bytes_and_two_stay_two(first, second, limit):
    assert len(names.short(first, limit).encode()) <= limit
    if first != second and len(first.encode()) > limit and len(second.encode()) > limit:
        assert names.short(first, limit) != names.short(second, limit)


def test_names_leave_room_for_what_a_job_adds():
    name = names.attempt_name("r" * 32, "c01", "g" * 60, 12)
    assert len(f"{name}-00000-abcde") <= 63


def test_a_group_of_several_nodes_gets_one_pod_on_each():
    """A scheduler that packs would put two pods on one node, and certify another on which nothing ran."""
    made = objects(["n0", "n1"], gpus_per_node=4, resources={"nvidia.com/gpu": 4})["job"]
    affinity = made["spec"]["template"]["spec"]["affinity"]
    (term,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"] == {"matchLabels": {"batch.kubernetes.io/job-name": made["metadata"]["name"]}}
    assert "podAntiAffinity" not in objects(["n0"])["job"]["spec"]["template"]["spec"]["affinity"]
