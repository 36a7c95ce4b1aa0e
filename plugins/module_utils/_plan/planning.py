# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From a spec and a snapshot to a plan: categories with their template, groups, criteria and cost.

Pure but for reading the catalog. Everything that can be wrong with a request is found here, before an object is created.
"""

from __future__ import annotations

import typing as t

from .._catalog.entries import Entry, expected_sizes, find_floor, load_entry, render, resolve_options
from .._catalog.resolve import resolve_network
from .._common.checks import one_of
from .._common.errors import InputError, unknown_value
from .._criteria.criteria import compile_criteria
from .._measure.metrics import METRICS, OPEN
from .grouping import Node, group_nodes
from .spec import NETWORK_KEYS

DEFAULT_NAMESPACE = "default"
DEFAULT_SSH_PORT = 2222
GPU_RESOURCE = "nvidia.com/gpu"
# Both clocks of an attempt and the time to read its logs fit into the Job's own deadline, which only backs them.
DEADLINE_MARGIN_S = 300
TRANSPORTS = ("ib", "roce", "rdma", "efa", "mnnvl", "nvlink", "tcpxo", "tcp", "any")


def make_plan(
    spec: t.Mapping[str, t.Any], snapshot: t.Mapping[str, t.Any], catalog: t.Mapping[str, t.Any], directories: t.Sequence[str]
) -> dict[str, t.Any]:
    """The plan of a parsed spec on a snapshot (shapes: docs/data_shapes.md).

    catalog: GPUs and platforms as _catalog.load gives them. directories: catalog directories, the user's before the shipped one.
    Raises InputError for unknown tests, options, criteria, and for a target that leaves nothing to test.
    """
    testable, untested = _testable(spec, snapshot)
    pools = _pools(testable)
    categories: list[dict[str, t.Any]] = []
    for index, wanted in enumerate(spec["categories"]):
        place = f"certification.categories[{index}]"
        entry = _checked_entry(wanted, directories, place)
        for pool in pools:
            number = len(categories) + 1
            suffix = f"-{pool['model'] or 'unknown'}" if len(pools) > 1 else ""
            category = _category(number, suffix, spec, wanted, entry, pool, snapshot, catalog, place)
            category["untested"] = [*untested, *category["untested"]] if not categories or pool is pools[0] else category["untested"]
            categories.append(category)
    return {"name": spec["name"], "bounds": dict(spec["bounds"]), "categories": categories, "cost": _cost(categories, testable)}


def _testable(spec: t.Mapping[str, t.Any], snapshot: t.Mapping[str, t.Any]) -> tuple[list[Node], list[dict[str, str]]]:
    """Target nodes that a group can be built with, and why the other targets are not tested."""
    targets = [node for node in snapshot["nodes"] if node["target"]]
    untested = [
        {"node": node["name"], "reason": "Untested", "message": f"not tested: {node['findings'][0]['message']}"}
        for node in targets
        if node.get("findings")
    ]
    good = sorted((node for node in targets if not node.get("findings")), key=lambda node: node["name"])
    limit = spec["bounds"]["max_nodes"]
    if limit is not None and len(good) > limit:
        for node in good[limit:]:
            untested.append({"node": node["name"], "reason": "Untested", "message": f"bounds.max_nodes = {limit} leaves it out"})
        good = good[:limit]
    return good, untested


def _pools(nodes: t.Sequence[Node]) -> list[dict[str, t.Any]]:
    """Nodes by GPU product: different GPUs are never measured against each other."""
    pools: dict[str, dict[str, t.Any]] = {}
    for node in nodes:
        product = node["gpu"]["product"] or ""
        pools.setdefault(product, {"product": product, "model": node["gpu"]["model"], "nodes": []})["nodes"].append(node)
    return [pools[name] for name in sorted(pools)]


def _category(
    number: int, suffix: str, spec: t.Mapping[str, t.Any], wanted: t.Mapping[str, t.Any], entry: Entry, pool: t.Mapping[str, t.Any],
    snapshot: t.Mapping[str, t.Any], catalog: t.Mapping[str, t.Any], place: str,
) -> dict[str, t.Any]:  # fmt: skip
    variant = entry["name"].rsplit("/", 1)[1]
    template, explain, options = _template(spec, wanted, entry, pool, snapshot, catalog, place)
    groups, left = group_nodes(pool["nodes"], wanted["test_scale"], spec["topology_key"])
    by_name = {node["name"]: node for node in pool["nodes"]}
    for group in groups:
        members = [by_name[name] for name in group["nodes"]]
        group["expected_transport"] = wanted["expect_transport"] or _expected_transport(members, template)
    criteria = list(wanted["criteria"])
    if wanted["floors"]:
        floor = _floor(entry, pool, groups, template, catalog)
        criteria = list(floor["criteria"]) if floor else []
        rule = f"catalog floor: {floor['source']}" if floor else "no calibrated floor for this GPU, group size and network"
        explain.append({"path": "criteria", "value": criteria, "rule": rule, "overridden": []})
    return {
        "id": f"c{number:02d}-{variant}-{wanted['test_scale']}{suffix}",
        "short_id": f"c{number:02d}",
        "title": f"c{number:02d} {variant} {wanted['test_scale']}{suffix}",
        "test": entry["name"],
        "test_scale": wanted["test_scale"],
        "gpu": pool["product"] or None,
        "criteria": criteria,
        "thresholds": dict(wanted["thresholds"]),
        "isolate": wanted["isolate"],
        "options": options,
        "measure": _measure(entry, options),
        "template": template,
        "net_transport": wanted["expect_transport"] or _net_transport(template),
        "explain": explain,
        "groups": groups,
        "untested": left,
    }


def _floor(
    entry: Entry,
    pool: t.Mapping[str, t.Any],
    groups: t.Sequence[t.Mapping[str, t.Any]],
    template: t.Mapping[str, t.Any],
    catalog: t.Mapping[str, t.Any],
) -> t.Mapping[str, t.Any] | None:
    """The catalog's floor for all groups of a category; None when one of them has none of its own or they need different ones."""
    found = []
    for group in groups:
        transport = group["expected_transport"]
        path = (
            "local"
            if len(group["nodes"]) == 1
            else "mnnvl"
            if transport == "mnnvl"
            else "rdma"
            if transport not in (None, "tcp", "any")
            else None
        )
        row = find_floor(
            catalog["floors"],
            test=entry["name"],
            gpu=pool["model"],
            gpus_per_node=template["gpus_per_node"],
            path=path,
            nodes=len(group["nodes"]),
        )
        if row is None:
            return None
        found.append(row)
    # Racks of different size may need different floors; the lowest holds for all of them.
    return min(found, key=lambda row: _limit(row["criteria"])) if found else None


def _limit(criteria: t.Sequence[str]) -> float:
    numbers = [
        float(word) for expression in criteria for word in expression.replace(">=", " ").split() if word.replace(".", "", 1).isdigit()
    ]
    return min(numbers, default=0.0)


def _measure(entry: Entry, options: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """How the log of this category is read: kind and what is expected in it."""
    measure = dict(entry["measure"])
    if measure["kind"] == "nccl":
        sizes = expected_sizes(options)
        measure.update(expected_sizes=sizes, judged_size=sizes[-1], require_data_check=bool(options.get("check_iterations", 1)))
    return measure


def _template(
    spec: t.Mapping[str, t.Any], wanted: t.Mapping[str, t.Any], entry: Entry, pool: t.Mapping[str, t.Any],
    snapshot: t.Mapping[str, t.Any], catalog: t.Mapping[str, t.Any], place: str,
) -> tuple[dict[str, t.Any], list[dict[str, t.Any]], dict[str, t.Any]]:  # fmt: skip
    """The resolved workload of a category: one for all its groups, with an explanation of each value."""
    workload = wanted["workload"]
    memory = min((node["gpu"]["memory_mib"] for node in pool["nodes"] if node["gpu"]["memory_mib"]), default=None)
    options, explain = resolve_options(entry, wanted["options"], wanted["test_scale"], f"{place}.options", memory)
    gpus = _gpus_per_node(pool["nodes"], workload, place)
    if "mnnvl" in options and options["mnnvl"] is None:
        options["mnnvl"] = _has_cliques(pool["nodes"])
        explain.append({"path": "options.mnnvl", "value": options["mnnvl"], "rule": "nodes share NVLink cliques", "overridden": []})
    user = {key: workload[key] for key in ("env", *NETWORK_KEYS) if key in workload}
    user.update(mnnvl=options.get("mnnvl"), gpus_per_node=gpus)
    settings, network_explain = resolve_network(snapshot["platform"]["name"], pool["model"], catalog, user, nodes=pool["nodes"])
    variables = {"options": options, "gpus_per_node": gpus}
    env = render({item["name"]: str(item["value"]) for item in entry["env"]}, variables, f"{entry['name']}: env")
    env.update({item["name"]: str(item["value"]) for item in settings["env"] if item.get("value") is not None})
    attempt_timeout = spec["bounds"]["attempt_timeout_s"] or entry["timeouts"]["attempt_s"]
    image, image_rule = _image(entry, settings, workload, catalog, place)
    explain.append({"path": "image", "value": image, "rule": image_rule, "overridden": []})
    mpi = render(entry["mpi"], variables, f"{entry['name']}: mpi")
    if settings["mpirun"]:
        mpi["mpirun"] = settings["mpirun"]
    if settings["binary_dir"]:
        # Images that keep their programs elsewhere name them without the suffix of an MPI build.
        mpi["binary"] = f"{settings['binary_dir']}/{mpi['binary'].rsplit('/', 1)[1].removesuffix('_mpi')}"
    resources = {GPU_RESOURCE: gpus, **settings["resources"]}
    if settings["nic_resource"]:
        resources[settings["nic_resource"]] = settings["nics_per_node"]
    template = {
        "framework": entry["framework"],
        "namespace": workload.get("namespace", DEFAULT_NAMESPACE),
        "image": image,
        "image_pull_secrets": workload.get("image_pull_secrets", []),
        "service_account": workload.get("service_account"),
        "gpus_per_node": gpus,
        "nic_resource": settings["nic_resource"],
        "resources": resources,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "mpi": {**mpi, "mpirun_args": settings["mpirun_args"], "pre_command": settings["pre_command"]},
        "volumes": settings["volumes"],
        "volume_mounts": settings["volume_mounts"],
        "annotations": settings["annotations"],
        "security": settings["security"],
        "init_containers": [
            {**item, "image": _reference(item["image"], catalog, workload, place) if isinstance(item["image"], dict) else item["image"]}
            for item in settings["init_containers"]
        ],
        "tolerations": _tolerations(spec, workload, settings, pool["nodes"]),
        "ssh_port": workload.get("ssh_port", DEFAULT_SSH_PORT),
        "success_policy": bool(snapshot["capabilities"].get("success_policy")),
        "transport": settings["transport"],
        "attempt_timeout_s": attempt_timeout,
        "active_deadline_s": attempt_timeout + spec["bounds"]["queue_timeout_s"] + DEADLINE_MARGIN_S,
    }
    return template, [*explain, *network_explain], options


def _gpus_per_node(nodes: t.Sequence[Node], workload: t.Mapping[str, t.Any], place: str) -> int:
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
    return wanted


def _has_cliques(nodes: t.Sequence[Node]) -> bool:
    cliques = [node["domains"].get("clique") for node in nodes]
    return all(cliques) and len(set(cliques)) < len(cliques)


def _expected_transport(members: t.Sequence[Node], template: t.Mapping[str, t.Any]) -> str | None:
    """What the group's traffic must use, where platform and nodes say so; None when nothing does."""
    if len(members) == 1:
        return None
    cliques = {node["domains"].get("clique") for node in members}
    mnnvl = any(item["name"] == "NCCL_MNNVL_ENABLE" and item["value"] == "1" for item in template["env"])
    return "mnnvl" if mnnvl and len(cliques) == 1 and None not in cliques else _net_transport(template)


def _net_transport(template: t.Mapping[str, t.Any]) -> str | None:
    """The same for traffic between NVLink domains."""
    if template["transport"] in TRANSPORTS and template["transport"] != "mnnvl":
        return template["transport"]
    if template["nic_resource"] is None:
        return None
    return "efa" if template["nic_resource"].endswith("/efa") else "rdma"


def _image(
    entry: Entry, settings: t.Mapping[str, t.Any], workload: t.Mapping[str, t.Any], catalog: t.Mapping[str, t.Any], place: str
) -> tuple[str, str]:
    """The image reference and the rule that chose it: user, platform, catalog entry."""
    if workload.get("image"):
        return workload["image"], "user"
    image = settings["image"] or entry["image"]
    return _reference(image, catalog, workload, place), "platform" if settings["image"] else "catalog entry"


def _reference(image: t.Mapping[str, str], catalog: t.Mapping[str, t.Any], workload: t.Mapping[str, t.Any], place: str) -> str:
    """The full reference of a catalog image, from the user's mirror if there is one."""
    registries = {**catalog["registries"], **workload.get("image_registries", {})}
    if image["registry"] not in registries:
        raise unknown_value("registry", image["registry"], registries, f"{place}: image {image['repository']}")
    suffix = f"@{image['digest']}" if image.get("digest") else f":{image['tag']}"
    return f"{registries[image['registry']]}/{image['repository']}{suffix}"


def _tolerations(
    spec: t.Mapping[str, t.Any], workload: t.Mapping[str, t.Any], settings: t.Mapping[str, t.Any], nodes: t.Sequence[Node]
) -> list[dict[str, t.Any]]:
    """The user's, else one for each taint that target nodes carry; never one for a taint by which Kubernetes says a node is unwell."""
    if "tolerations" in workload:
        return list(workload["tolerations"])
    keys = {taint["key"] for node in nodes for taint in node["taints"] if not taint["key"].startswith("node.kubernetes.io/")}
    if spec["target"]["include_cordoned"]:
        keys.add("node.kubernetes.io/unschedulable")
    found = [{"key": key, "operator": "Exists"} for key in sorted({GPU_RESOURCE, *keys})]
    return found + [item for item in settings["tolerations"] if item.get("key") not in {entry["key"] for entry in found}]


def _cost(categories: t.Sequence[t.Mapping[str, t.Any]], nodes: t.Sequence[Node]) -> dict[str, t.Any]:
    """An upper bound: every attempt runs into its timeout once."""
    gpu_hours = sum(
        len(group["nodes"]) * category["template"]["gpus_per_node"] * category["template"]["attempt_timeout_s"] / 3600
        for category in categories
        for group in category["groups"]
    )
    return {"groups": sum(len(category["groups"]) for category in categories), "nodes": len(nodes), "gpu_hours_max": round(gpu_hours, 1)}


def check_request(spec: t.Mapping[str, t.Any], directories: t.Sequence[str]) -> None:
    """The part of the plan's checks that needs no cluster: tests, test scales, options, criteria. Raises InputError."""
    for index, wanted in enumerate(spec["categories"]):
        _checked_entry(wanted, directories, f"certification.categories[{index}]")


def _checked_entry(wanted: t.Mapping[str, t.Any], directories: t.Sequence[str], place: str) -> Entry:
    entry = load_entry(directories, wanted["test"], f"{place}.test")
    one_of(wanted["test_scale"], entry["test_scales"], f"test scale for {entry['name']}", f"{place}.test_scale")
    if wanted["expect_transport"] is not None:
        one_of(wanted["expect_transport"], TRANSPORTS, "transport", f"{place}.expect_transport")
    options, _explain = resolve_options(entry, wanted["options"], wanted["test_scale"], f"{place}.options")
    kind = entry["measure"]["kind"]
    if kind == "nccl":
        expected_sizes(options)
    compile_criteria(wanted["criteria"], wanted["thresholds"], METRICS.get(kind, {}), place=place, open_metrics=kind in OPEN)
    return entry
