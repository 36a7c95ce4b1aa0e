# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The resolved workload of a category: what the entry, the platform, the GPU and the user say, one value each, with its rule."""

from __future__ import annotations

import typing as t

from .._catalog.entries import Entry, check_env_name, render
from .._catalog.load import shipped_evidence
from .._catalog.options import resolve_options
from .._catalog.resolve import resolve_network
from .._common.errors import InputError, unknown_value
from .._common.shapes import CategoryRequest, Explained, Request, Snapshot, SnapshotNode, Template
from .spec import NETWORK_KEYS

DEFAULT_NAMESPACE = "default"
DEFAULT_SSH_PORT = 2222
GPU_RESOURCE = "nvidia.com/gpu"
# Both clocks of an attempt and the time to read its logs fit into the Job's own deadline, which only backs them.
DEADLINE_MARGIN_S = 300
# Kubernetes sets these itself for the state of a node.
_STATE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


class Pool(t.NamedTuple):
    """Target nodes of one GPU product: different GPUs are never measured against each other."""

    product: str
    model: str | None
    nodes: list[SnapshotNode]


def resolve_template(
    request: Request,
    snapshot: Snapshot,
    catalog: t.Mapping[str, t.Any],
    wanted: CategoryRequest,
    entry: Entry,
    pool: Pool,
    place: str,
) -> tuple[Template, list[Explained], dict[str, t.Any]]:
    """Template, which rule set each value, and the options of a category: the same for all its groups. Raises InputError."""
    workload = wanted["workload"]
    models = [row["name"] for row in catalog["gpus"]]
    for name in entry["option_defaults_by_gpu"]:
        if name not in models:
            raise unknown_value("GPU", name, models, f"{entry['name']}: option_defaults_by_gpu")
    memory = min((node["gpu"]["memory_mib"] for node in pool.nodes if node["gpu"]["memory_mib"]), default=None)
    options, explain = resolve_options(entry, wanted["options"], wanted["test_scale"], f"{place}.options", memory, pool.model)
    gpus = _gpus_per_node(pool.nodes, workload, place)
    if "mnnvl" in options and options["mnnvl"] is None:
        options["mnnvl"] = _has_cliques(pool.nodes)
        explain.append({"path": "options.mnnvl", "value": options["mnnvl"], "rule": "nodes share NVLink cliques", "overridden": []})
    user = {key: workload[key] for key in ("env", "annotations", "volumes", "volume_mounts", *NETWORK_KEYS) if key in workload}
    user.update(mnnvl=options.get("mnnvl"), gpus_per_node=gpus)
    kind = "training" if entry["measure"]["kind"] in ("training", "goodput") else "collective"
    settings, network_explain = resolve_network(snapshot["platform"]["name"], pool.model, catalog, user, nodes=pool.nodes, workload=kind)
    variables = {"options": options, "gpus_per_node": gpus, "measure": entry["measure"]}
    attempt_timeout = request["bounds"]["attempt_timeout_s"] or entry["timeouts"]["attempt_s"]
    image, image_rule = _image(catalog, entry, settings, workload, place)
    explain.append({"path": "image", "value": image, "rule": image_rule, "overridden": []})
    limits = (workload.get("resources") or {}).get("limits", {})
    resources = {GPU_RESOURCE: gpus, **settings["resources"], **limits}
    if settings["nic_resource"]:
        resources[settings["nic_resource"]] = settings["nics_per_node"]
    template: Template = {
        "framework": entry["framework"],
        "namespace": workload.get("namespace", DEFAULT_NAMESPACE),
        "image": image,
        "image_pull_secrets": workload.get("image_pull_secrets", []),
        "service_account": workload.get("service_account"),
        "gpus_per_node": gpus,
        "nic_resource": settings["nic_resource"],
        "resources": resources,
        "requests": (workload.get("resources") or {}).get("requests", {}),
        "env": _env(entry, settings, workload, variables, place),
        "files": {**entry["files"], **workload.get("files", {})},
        "volumes": settings["volumes"],
        "volume_mounts": settings["volume_mounts"],
        "labels": workload.get("labels", {}),
        "annotations": settings["annotations"],
        "priority_class": workload.get("priority_class"),
        "scheduler_name": workload.get("scheduler_name"),
        "security": _security(entry, settings),
        "init_containers": [
            *[
                {**item, "image": _reference(catalog, item["image"], workload, place) if isinstance(item["image"], dict) else item["image"]}
                for item in settings["init_containers"]
            ],
            *workload.get("init_containers", []),
        ],
        "sidecars": workload.get("sidecars", []),
        "tolerations": _tolerations(request, catalog, workload, settings, pool.nodes),
        "ssh_port": workload.get("ssh_port", DEFAULT_SSH_PORT),
        "success_policy": bool(snapshot["capabilities"].get("success_policy")),
        "transport": settings["transport"],
        "attempt_timeout_s": attempt_timeout,
        "active_deadline_s": attempt_timeout + request["bounds"]["queue_timeout_s"] + DEADLINE_MARGIN_S,
    }
    launch: t.Any = {entry["framework"]: _launch(entry, settings, variables)}
    return {**template, **launch}, [*explain, *network_explain], options


def _env(
    entry: Entry, settings: t.Mapping[str, t.Any], workload: t.Mapping[str, t.Any], variables: t.Mapping[str, t.Any], place: str
) -> list[t.Any]:
    """The entry's variables, then the platform's, then the user's, which win."""
    for index, item in enumerate(workload.get("env", [])):
        check_env_name(item["name"], f"{place}.workload.env[{index}].name")
    env = render({item["name"]: str(item["value"]) for item in entry["env"]}, variables, f"{entry['name']}: env")
    env.update({item["name"]: str(item["value"]) for item in settings["env"] if item.get("value") is not None})
    return [{"name": name, "value": value} for name, value in env.items()]


def _launch(entry: Entry, settings: t.Mapping[str, t.Any], variables: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What the framework is told: the entry's section, filled in, with the platform's words."""
    launch: dict[str, t.Any] = render(entry[entry["framework"]], variables, f"{entry['name']}: {entry['framework']}")
    launch["pre_command"] = settings["pre_command"]
    if entry["framework"] != "mpi":
        return launch
    launch["mpirun_args"] = settings["mpirun_args"]
    if settings["mpirun"]:
        launch["mpirun"] = settings["mpirun"]
    if settings["binary_dir"]:
        # Images that keep their programs elsewhere name them without the suffix of an MPI build.
        launch["binary"] = f"{settings['binary_dir']}/{launch['binary'].rsplit('/', 1)[1].removesuffix('_mpi')}"
    return launch


def _security(entry: Entry, settings: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The most that platform and entry ask for."""
    wanted, own = settings["security"], entry["security"]
    return {
        "capabilities": list(dict.fromkeys([*wanted.get("capabilities", []), *own.get("capabilities", [])])),
        "privileged": bool(wanted.get("privileged") or own.get("privileged")),
        "host_network": bool(own.get("host_network")),
    }


def _image(
    catalog: t.Mapping[str, t.Any], entry: Entry, settings: t.Mapping[str, t.Any], workload: t.Mapping[str, t.Any], place: str
) -> tuple[str, str]:
    """The image reference and the rule that chose it: user, platform, catalog entry."""
    if workload.get("image"):
        return workload["image"], "user"
    # A platform names an image that carries its MPI and its network plugin; other programs come with an image of their own.
    from_platform = settings["image"] if entry["framework"] == "mpi" else None
    return _reference(catalog, from_platform or entry["image"], workload, place), "platform" if from_platform else "catalog entry"


def _reference(catalog: t.Mapping[str, t.Any], image: t.Mapping[str, str], workload: t.Mapping[str, t.Any], place: str) -> str:
    """The full reference of a catalog image, from the user's mirror if there is one."""
    registries = {**catalog["registries"], **workload.get("image_registries", {})}
    if image["registry"] not in registries:
        raise unknown_value("registry", image["registry"], registries, f"{place}: image {image['repository']}")
    suffix = f"@{image['digest']}" if image.get("digest") else f":{image['tag']}"
    return f"{registries[image['registry']]}/{image['repository']}{suffix}"


def _tolerations(
    request: Request,
    catalog: t.Mapping[str, t.Any],
    workload: t.Mapping[str, t.Any],
    settings: t.Mapping[str, t.Any],
    nodes: t.Sequence[SnapshotNode],
) -> list[dict[str, t.Any]]:
    """The user's, else one for each taint that target nodes carry; never one by which a node is unwell, leaves or is not yet there."""
    if "tolerations" in workload:
        return list(workload["tolerations"])
    evidence = catalog.get("evidence") or shipped_evidence()
    keys = {
        taint["key"]
        for node in nodes
        for taint in node["taints"]
        if not taint["key"].startswith(_STATE_TAINTS) and not evidence.of_taint(taint, "hardware", "leaving", "starting")
    }
    if request["target"]["include_cordoned"]:
        keys.add("node.kubernetes.io/unschedulable")
    found = [{"key": key, "operator": "Exists"} for key in sorted({GPU_RESOURCE, *keys})]
    return found + [item for item in settings["tolerations"] if item.get("key") not in {entry["key"] for entry in found}]


def _gpus_per_node(nodes: t.Sequence[SnapshotNode], workload: t.Mapping[str, t.Any], place: str) -> int:
    """All GPUs that every node of the pool has; a user may ask for fewer."""
    smallest = min(node["gpu"]["allocatable"] for node in nodes)
    wanted = workload.get("gpus_per_node")
    if wanted is None:
        return smallest
    if wanted > smallest:
        short = [node["name"] for node in nodes if node["gpu"]["allocatable"] < wanted]
        raise InputError(
            f"{wanted} GPUs per node are asked for, but {len(short)} target nodes have fewer, {short[0]} has "
            f"{smallest if len(short) == 1 else min(node['gpu']['allocatable'] for node in nodes)}",
            place=f"{place}.workload.gpus_per_node",
        )
    return int(wanted)


def _has_cliques(nodes: t.Sequence[SnapshotNode]) -> bool:
    cliques = [node["domains"].get("clique") for node in nodes]
    return all(cliques) and len(set(cliques)) < len(cliques)
