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

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import load_entry, render
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.options import resolve_options
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.holding import make_ssh_key
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload import names
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.objects import anchor, attempt_objects, fuse, ssh_secret
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.shell_parts import SETUP_ERROR, SETUP_EXIT_CODE

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


EXEC = {"framework": "exec", "exec": {"script": "echo $READINESS_INDEX of $READINESS_NODES\n", "per": "node"}}
TORCH = {"framework": "torch", "torch": {"script": "/etc/readiness/files/train.py", "args": ["--steps", "5"]}, "files": {"train.py": "x"}}


def script_of(made):
    return made["job"]["spec"]["template"]["spec"]["containers"][0]["command"][2]


@pytest.mark.parametrize("version", ["1.32", "1.37"])
@pytest.mark.parametrize("framework", [EXEC, TORCH])
@pytest.mark.parametrize("nodes", [["n0"], ["n0", "n1"]])
def test_strict_schemas_accept_every_framework_with_all_that_a_user_may_add(version, framework, nodes):
    extra = {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volume_mounts": [{"name": "data", "mountPath": "/data"}],
        "init_containers": [{"name": "fetch", "image": "i", "restartPolicy": "Always"}],
        "sidecars": [{"name": "mesh", "image": "i"}],
        "labels": {"team": "infra"},
        "annotations": {"a": "b"},
        "priority_class": "high",
        "scheduler_name": "kai-scheduler",
        "requests": {"cpu": "64", "memory": "500Gi"},
        "resources": {"nvidia.com/gpu": 8, "cpu": "128", "memory": "800Gi", "hugepages-2Mi": "1Gi"},
    }
    made = objects(nodes, **framework, **extra)
    for manifest in made.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    template = made["job"]["spec"]["template"]
    pod, container = template["spec"], template["spec"]["containers"][0]
    assert template["metadata"]["labels"]["team"] == "infra" and names.RUN_LABEL in template["metadata"]["labels"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert [item["name"] for item in pod["containers"]] == [names.CONTAINER, "mesh"]
    assert pod["priorityClassName"] == "high" and pod["schedulerName"] == "kai-scheduler"
    assert container["resources"]["requests"]["memory"] == "500Gi" and container["resources"]["limits"]["memory"] == "800Gi"
    assert "ssh" not in {volume["name"] for volume in pod["volumes"]}
    checked = subprocess.run(["bash", "-n", "-c", script_of(made)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_job_ends_with_its_first_pod_only_where_that_one_speaks_for_all():
    assert "successPolicy" not in objects(["n0", "n1"], **EXEC)["job"]["spec"]
    assert "successPolicy" not in objects(["n0", "n1"], **TORCH)["job"]["spec"]
    together = {"framework": "exec", "exec": {"script": "true", "per": "group"}}
    assert "successPolicy" in objects(["n0", "n1"], **together)["job"]["spec"]


def run_script(script, tmp_path, **programs):
    """Runs a pod's script with these programs on its path, which print what they are called with."""
    for name, body in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JOB_COMPLETION_INDEX": "1", "HOME": str(tmp_path), "READINESS_HOST_IP": "10.0.0.7"}
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=env, timeout=60)


def test_a_command_knows_its_place_and_its_environment(tmp_path):
    env = [{"name": "ODD", "value": "a b'c$HOME"}, {"name": "PATH", "value": "$PATH:/opt/x y"}]
    script = {"script": 'echo "$READINESS_INDEX/$READINESS_NODES $READINESS_GPUS_PER_NODE $ODD ${PATH##*:}"; exit 3', "per": "node"}
    ran = run_script(script_of(objects(["n0", "n1"], framework="exec", exec=script, env=env)), tmp_path)
    assert (ran.returncode, ran.stdout) == (3, "1/2 8 a b'c$HOME /opt/x y\n")
    ran = run_script(script_of(objects(["n0"], framework="exec", exec={"command": ["printf", "%s|", "a b", "$HOME"]})), tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "a b|$HOME|")


def test_torchrun_is_told_who_it_is_and_where_all_meet(tmp_path):
    train = tmp_path / "train.py"
    train.write_text("")
    launch = {"script": str(train), "args": ["--note", "a b"]}
    made = objects(["n0", "n1"], framework="torch", torch=launch)
    ran = run_script(script_of(made), tmp_path, torchrun='printf "%s|" "$@"', getent="exit 0")
    name = made["job"]["metadata"]["name"]
    words = ["--nnodes", "2", "--nproc-per-node", "8", "--master-addr", f"{name}-0.{name}.default.svc", "--master-port", "29500"]
    assert ran.stdout.split("|")[:-1] == [*words, "--node-rank", "1", str(train), "--note", "a b"]
    made = objects(["n0", "n1"], framework="torch", torch={**launch, "rendezvous": "c10d"})
    ran = run_script(script_of(made), tmp_path, torchrun='printf "%s|" "$@"', getent="exit 0")
    assert "--rdzv-backend|c10d|--rdzv-endpoint" in ran.stdout and "--node-rank" not in ran.stdout
    assert made["service"]["spec"]["ports"] == [{"name": "rendezvous", "port": 29500, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("framework", "words"),
    [(TORCH, "the image has no torchrun"), ({"framework": "torch", "torch": {"script": "/no/such.py"}}, "there is no /no/such.py")],
)
def test_what_an_image_lacks_is_said_and_is_nobodys_fault(tmp_path, framework, words):
    programs = {} if "torchrun" in words else {"torchrun": "exit 0"}
    ran = run_script(script_of(objects(["n0"], **framework)), tmp_path, **programs)
    assert ran.returncode == SETUP_EXIT_CODE
    assert ran.stdout.startswith(SETUP_ERROR) and words in ran.stdout


DCGMI = """case "$1" in discovery) exit 0;; esac; printf '%s|' "$@"; exit 226"""


@pytest.mark.parametrize(
    ("test", "options", "words"),
    [
        ("dcgm-level2", {}, "diag|--host|127.0.0.1:5555|--run|2|--json|--verbose|"),
        ("dcgm-level1", {"tests": ["memory", "pcie"], "verbose": False}, "diag|--host|127.0.0.1:5555|--run|memory,pcie|--json|"),
        ("dcgm-level3", {}, "diag|--host|127.0.0.1:5555|--run|3|--json|--verbose|--parameters|nvbandwidth.is_allowed=true|"),
        ("dcgm-level1", {"host_engine": "dcgm.svc:5555"}, "diag|--host|dcgm.svc:5555|--run|1|--json|--verbose|"),
        ("dcgm-level1", {"host_engine": "node"}, "diag|--host|10.0.0.7:5555|--run|1|--json|--verbose|"),
    ],
)
def test_dcgm_is_asked_for_what_the_options_say_and_its_exit_status_is_kept(tmp_path, test, options, words):
    entry = load_entry([shipped_catalog_dir()], f"diagnostics/{test}")
    values, _explain = resolve_options(entry, options, "intra-node", "options")
    launch = render(entry["exec"], {"options": values, "measure": entry["measure"]}, "exec")
    script = script_of(objects(["n0"], framework="exec", exec=launch))
    ran = run_script(script, tmp_path, dcgmi=DCGMI, **{"nv-hostengine": "sleep 30"})
    assert (ran.returncode, ran.stdout) == (226, words), ran.stderr


@pytest.mark.parametrize(
    ("discovery", "words"),
    [
        ("echo 'Device UUID: GPU-bbbb'", "the host engine at dcgm.svc:5555 is another node's: it does not know GPU-aaaa"),
        ("echo 'connection refused'; exit 1", "no host engine of DCGM answers at dcgm.svc:5555: connection refused"),
    ],
)
def test_a_host_engine_that_is_another_nodes_says_nothing_of_this_one(tmp_path, discovery, words):
    entry = load_entry([shipped_catalog_dir()], "diagnostics/dcgm-level1")
    values, _explain = resolve_options(entry, {"host_engine": "dcgm.svc:5555"}, "intra-node", "options")
    launch = render(entry["exec"], {"options": values, "measure": entry["measure"]}, "exec")
    script = script_of(objects(["n0"], framework="exec", exec=launch))
    dcgmi = f'case "$1" in discovery) {discovery};; *) echo diagnosed;; esac'
    ran = run_script(script, tmp_path, dcgmi=dcgmi, **{"nvidia-smi": "echo GPU-aaaa"})
    assert ran.returncode == SETUP_EXIT_CODE and words in ran.stdout and "diagnosed" not in ran.stdout
    ran = run_script(script, tmp_path, dcgmi=dcgmi.replace("GPU-bbbb", "GPU-aaaa"), **{"nvidia-smi": "echo GPU-aaaa"})
    assert ("diagnosed" in ran.stdout) == ("exit 1" not in discovery)


def test_a_host_engine_that_ends_at_once_is_a_fault_of_the_setup_with_its_own_words(tmp_path):
    entry = load_entry([shipped_catalog_dir()], "diagnostics/dcgm-level1")
    values, _explain = resolve_options(entry, {}, "intra-node", "options")
    launch = render(entry["exec"], {"options": values, "measure": entry["measure"]}, "exec")
    script = script_of(objects(["n0"], framework="exec", exec=launch))
    ran = run_script(script, tmp_path, dcgmi="exit 1", **{"nv-hostengine": "echo no driver here; exit 1"})
    assert ran.returncode == SETUP_EXIT_CODE and "no driver here" in ran.stdout and SETUP_ERROR in ran.stdout


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
