# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The pod of one attempt: one per node of the group, each on a node of its own, whatever framework starts its program."""

from __future__ import annotations

import typing as t

from . import names
from .mpi_script import SSH_SECRET_DIR, mpi_script
from .plain_script import exec_script, torch_script
from .shell_parts import FILES_DIR, HOSTFILE, host_names

Manifest = dict[str, t.Any]
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"  # the Job controller writes it on each of its pods
SHM_MOUNT = {"name": "dshm", "mountPath": "/dev/shm"}  # NCCL's shared-memory segments do not fit the 64 MiB default
TORCH_PORT = 29500
Ends: t.TypeAlias = t.Literal["first", "each", "all"]


def ends(template: t.Mapping[str, t.Any]) -> Ends:
    """Whose end is the end of the test.

    first: that of index 0, which launches the others or speaks for them. each: every pod must succeed, and answers for its own node.
    all: every pod must succeed, and one that fails takes the others along, so that the first to fail need not be at fault.
    """
    if template["framework"] == "exec":
        return "first" if template["exec"].get("per") == "group" else "each"
    return "all" if template["framework"] == "torch" else "first"


def uses_ssh(template: t.Mapping[str, t.Any], nodes: int) -> bool:
    """Whether the launcher reaches its workers by ssh, so that keys are needed."""
    return nodes > 1 and bool(template["framework"] == "mpi")


def port_of(template: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The port at which pods of a group meet: {name, port}."""
    if template["framework"] == "mpi":
        return {"name": "ssh", "port": template["ssh_port"]}
    return {"name": "rendezvous", "port": TORCH_PORT}


HOST_IP = {"name": "READINESS_HOST_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}}


def _script(template: t.Mapping[str, t.Any], name: str, nodes: t.Sequence[str]) -> str:
    launch, gpus = template[template["framework"]], template["gpus_per_node"]
    if template["framework"] == "exec":
        return exec_script(launch, env=template["env"], nodes=len(nodes), gpus=gpus)
    if template["framework"] == "torch":
        hosts = host_names(name, template["namespace"], len(nodes))
        return torch_script(launch, env=template["env"], hosts=hosts, gpus=gpus, port=TORCH_PORT, run=name)
    return mpi_script(
        mpirun=launch["mpirun"],
        mpirun_args=launch["mpirun_args"],
        binary=launch["binary"],
        args=launch["args"],
        env=template["env"],
        slots=gpus,
        nodes=len(nodes),
        ssh_port=template["ssh_port"],
        pre_command=launch.get("pre_command", ()),
    )


def pod_spec(template: t.Mapping[str, t.Any], identity: t.Mapping[str, t.Any], name: str, nodes: t.Sequence[str]) -> Manifest:
    """The pod of each node of a group. Volumes, mounts, init containers and sidecars of platform and user come after ours."""
    folder, _slash, key = HOSTFILE.rpartition("/")
    files = sorted(template.get("files", {}))
    volumes: list[Manifest] = [
        {"name": "dshm", "emptyDir": {"medium": "Memory"}},
        {"name": "hostfile", "configMap": {"name": name, "items": [{"key": key, "path": key}]}},
    ]
    mounts: list[Manifest] = [dict(SHM_MOUNT), {"name": "hostfile", "mountPath": folder, "readOnly": True}]
    if files:
        volumes.append({"name": "files", "configMap": {"name": name, "items": [{"key": item, "path": item} for item in files]}})
        mounts.append({"name": "files", "mountPath": FILES_DIR, "readOnly": True})
    volumes += template.get("volumes", [])
    mounts += template.get("volume_mounts", [])
    if uses_ssh(template, len(nodes)):
        secret = {"secretName": names.secret_name(identity["run_id"], identity["category"]), "defaultMode": 0o400}
        volumes.append({"name": "ssh", "secret": secret})
        mounts.append({"name": "ssh", "mountPath": SSH_SECRET_DIR, "readOnly": True})
    pod: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "affinity": _affinity(name, nodes),
        "tolerations": list(template["tolerations"]),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": volumes,
        "containers": [_container(template, name, nodes, mounts), *template.get("sidecars", [])],
    }
    if len(nodes) > 1:
        pod["subdomain"] = name
    if template["security"].get("host_network"):
        pod.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    for key, value in (("priorityClassName", template.get("priority_class")), ("schedulerName", template.get("scheduler_name"))):
        if value:
            pod[key] = value
    if template.get("service_account"):
        pod["serviceAccountName"] = template["service_account"]
    if template.get("init_containers"):
        pod["initContainers"] = list(template["init_containers"])
    if template.get("image_pull_secrets"):
        pod["imagePullSecrets"] = [{"name": secret} for secret in template["image_pull_secrets"]]
    return pod


def _affinity(job: str, nodes: t.Sequence[str]) -> Manifest:
    """On the nodes of the group, and one pod on each: where two fit on a node, a scheduler that packs would leave another untested."""
    affinity: Manifest = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _pin(nodes)}}}
    if len(nodes) > 1:
        term = {"labelSelector": {"matchLabels": {JOB_NAME_LABEL: job}}, "topologyKey": "kubernetes.io/hostname"}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return affinity


def _pin(nodes: t.Sequence[str]) -> list[Manifest]:
    # The API server takes one value per field requirement, so each node is a term of its own (terms are alternatives).
    return [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]


def _container(template: t.Mapping[str, t.Any], name: str, nodes: t.Sequence[str], mounts: list[Manifest]) -> Manifest:
    limits = {item: str(amount) for item, amount in template["resources"].items() if amount}
    wanted = template["security"]
    security: Manifest = {"capabilities": {"add": list(wanted.get("capabilities", []))}}
    if wanted.get("privileged"):
        security = {"privileged": True}
    return {
        "name": names.CONTAINER,
        "image": template["image"],
        "command": ["/bin/bash", "-c", _script(template, name, nodes)],
        "env": [{"name": "HOME", "value": "/root"}, HOST_IP],
        "resources": {"limits": limits, "requests": {**limits, **template.get("requests", {})}},
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
