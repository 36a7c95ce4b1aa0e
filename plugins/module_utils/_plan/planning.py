# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From a request and a snapshot to a plan: categories with their template, groups, criteria and cost.

Pure but for reading the catalog. Everything that can be wrong with a request is found here, before an object is created.
"""

from __future__ import annotations

import typing as t

from .._catalog.entries import Entry, expected_sizes, floors_for, load_entry, render, resolve_options
from .._catalog.load import shipped_evidence
from .._catalog.resolve import resolve_network
from .._common.checks import one_of
from .._common.errors import InputError, unknown_value
from .._common.shapes import (
    Category,
    CategoryRequest,
    Cost,
    Explained,
    Measure,
    Plan,
    Request,
    Snapshot,
    SnapshotNode,
    Template,
    Untested,
)
from .._criteria.category import criteria_of
from .grouping import group_nodes
from .settling import TRANSPORTS, net_transport, settle
from .spec import NETWORK_KEYS

DEFAULT_NAMESPACE = "default"
DEFAULT_SSH_PORT = 2222
GPU_RESOURCE = "nvidia.com/gpu"
# Both clocks of an attempt and the time to read its logs fit into the Job's own deadline, which only backs them.
DEADLINE_MARGIN_S = 300
# Kubernetes sets these itself for the state of a node.
_STATE_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")

# The checked catalog entry of each category of a request, in its order.
Entries = list[Entry]


class Pool(t.NamedTuple):
    """Target nodes of one GPU product: different GPUs are never measured against each other."""

    product: str
    model: str | None
    nodes: list[SnapshotNode]


def check_request(request: Request, directories: t.Sequence[str]) -> Entries:
    """The part of the plan's checks that needs no cluster: tests, test scales, options, criteria. Raises InputError.

    directories: catalog directories, the user's before the shipped one. Returns the entries, for `make_plan`.
    """
    return [_checked_entry(wanted, directories, f"certification.categories[{index}]") for index, wanted in enumerate(request["categories"])]


def _checked_entry(wanted: CategoryRequest, directories: t.Sequence[str], place: str) -> Entry:
    entry = load_entry(directories, wanted["test"], f"{place}.test")
    one_of(wanted["test_scale"], entry["test_scales"], f"test scale for {entry['name']}", f"{place}.test_scale")
    if wanted["expect_transport"] is not None:
        one_of(wanted["expect_transport"], TRANSPORTS, "transport", f"{place}.expect_transport")
    options, _explain = resolve_options(entry, wanted["options"], wanted["test_scale"], f"{place}.options")
    if entry["measure"]["kind"] == "nccl":
        expected_sizes(options)
    criteria_of({**wanted, "measure": entry["measure"]}, place=place)
    return entry


def make_plan(request: Request, entries: Entries, snapshot: Snapshot, catalog: t.Mapping[str, t.Any]) -> Plan:
    """The plan of a checked request on a snapshot (docs/data_shapes.md).

    entries: of `check_request`. catalog: GPUs, platforms, floors, registries and evidence as _catalog gives them.
    Raises InputError for options that do not fit the nodes, and for images whose registry is unknown.
    """
    planning = _Planning(request, snapshot, catalog)
    testable, untested = _testable(request, snapshot)
    pools = _pools(testable)
    categories: list[Category] = []
    for index, (wanted, entry) in enumerate(zip(request["categories"], entries, strict=True)):
        for pool in pools:
            category = planning.category(len(categories) + 1, wanted, entry, pool, f"certification.categories[{index}]", len(pools) > 1)
            if pool is pools[0]:
                category["untested"] = [*untested, *category["untested"]]
            categories.append(category)
    return {
        "name": request["name"],
        "bounds": dict(request["bounds"]),
        "categories": categories,
        "cost": _cost(categories, testable),
        # While nodes are under test they are held to the same as before.
        "evidence": [_rule(row) for row in (catalog.get("evidence") or shipped_evidence()).rows],
    }


def _rule(row: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """A row of evidence without what only people read."""
    return {key: value for key, value in row.items() if key not in ("source", "examples", "counter_examples")}


class _Planning:
    """What is the same for every category of a plan."""

    def __init__(self, request: Request, snapshot: Snapshot, catalog: t.Mapping[str, t.Any]) -> None:
        self.request, self.snapshot, self.catalog = request, snapshot, catalog

    def category(self, number: int, wanted: CategoryRequest, entry: Entry, pool: Pool, place: str, several: bool) -> Category:
        """One category on one pool. several: the plan has further pools, so the pool is part of its name."""
        suffix = f"-{pool.model or 'unknown'}" if several else ""
        variant = entry["name"].rsplit("/", 1)[1]
        template, explain, options = self._template(wanted, entry, pool, place)
        groups, left = group_nodes(pool.nodes, wanted["test_scale"], self.request["topology_key"])
        floors = None
        if wanted["floors"]:
            floors = floors_for(self.catalog["floors"], test=entry["name"], gpu=pool.model, gpus_per_node=template["gpus_per_node"])
        category: Category = {
            "id": f"c{number:02d}-{variant}-{wanted['test_scale']}{suffix}",
            "short_id": f"c{number:02d}",
            "title": f"c{number:02d} {variant} {wanted['test_scale']}{suffix}",
            "test": entry["name"],
            "test_scale": wanted["test_scale"],
            "gpu": pool.product or None,
            "criteria": list(wanted["criteria"]),
            "thresholds": dict(wanted["thresholds"]),
            "isolate": wanted["isolate"],
            "options": options,
            "measure": _measure(entry, options),
            "template": template,
            "expect_transport": wanted["expect_transport"],
            "net_transport": wanted["expect_transport"] or net_transport(template),
            "floors": floors,
            "explain": explain,
            "groups": groups,
            "untested": left,
        }
        return settle(category, pool.nodes)

    def _template(
        self, wanted: CategoryRequest, entry: Entry, pool: Pool, place: str
    ) -> tuple[Template, list[Explained], dict[str, t.Any]]:
        """The resolved workload of a category: one for all its groups, with an explanation of each value."""
        workload = wanted["workload"]
        memory = min((node["gpu"]["memory_mib"] for node in pool.nodes if node["gpu"]["memory_mib"]), default=None)
        options, explain = resolve_options(entry, wanted["options"], wanted["test_scale"], f"{place}.options", memory)
        gpus = _gpus_per_node(pool.nodes, workload, place)
        if "mnnvl" in options and options["mnnvl"] is None:
            options["mnnvl"] = _has_cliques(pool.nodes)
            explain.append({"path": "options.mnnvl", "value": options["mnnvl"], "rule": "nodes share NVLink cliques", "overridden": []})
        user = {key: workload[key] for key in ("env", *NETWORK_KEYS) if key in workload}
        user.update(mnnvl=options.get("mnnvl"), gpus_per_node=gpus)
        settings, network_explain = resolve_network(self.snapshot["platform"]["name"], pool.model, self.catalog, user, nodes=pool.nodes)
        variables = {"options": options, "gpus_per_node": gpus}
        env = render({item["name"]: str(item["value"]) for item in entry["env"]}, variables, f"{entry['name']}: env")
        env.update({item["name"]: str(item["value"]) for item in settings["env"] if item.get("value") is not None})
        attempt_timeout = self.request["bounds"]["attempt_timeout_s"] or entry["timeouts"]["attempt_s"]
        image, image_rule = self._image(entry, settings, workload, place)
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
        template: Template = {
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
                {**item, "image": self._reference(item["image"], workload, place) if isinstance(item["image"], dict) else item["image"]}
                for item in settings["init_containers"]
            ],
            "tolerations": self._tolerations(workload, settings, pool.nodes),
            "ssh_port": workload.get("ssh_port", DEFAULT_SSH_PORT),
            "success_policy": bool(self.snapshot["capabilities"].get("success_policy")),
            "transport": settings["transport"],
            "attempt_timeout_s": attempt_timeout,
            "active_deadline_s": attempt_timeout + self.request["bounds"]["queue_timeout_s"] + DEADLINE_MARGIN_S,
        }
        return template, [*explain, *network_explain], options

    def _image(self, entry: Entry, settings: t.Mapping[str, t.Any], workload: t.Mapping[str, t.Any], place: str) -> tuple[str, str]:
        """The image reference and the rule that chose it: user, platform, catalog entry."""
        if workload.get("image"):
            return workload["image"], "user"
        image = settings["image"] or entry["image"]
        return self._reference(image, workload, place), "platform" if settings["image"] else "catalog entry"

    def _reference(self, image: t.Mapping[str, str], workload: t.Mapping[str, t.Any], place: str) -> str:
        """The full reference of a catalog image, from the user's mirror if there is one."""
        registries = {**self.catalog["registries"], **workload.get("image_registries", {})}
        if image["registry"] not in registries:
            raise unknown_value("registry", image["registry"], registries, f"{place}: image {image['repository']}")
        suffix = f"@{image['digest']}" if image.get("digest") else f":{image['tag']}"
        return f"{registries[image['registry']]}/{image['repository']}{suffix}"

    def _tolerations(
        self, workload: t.Mapping[str, t.Any], settings: t.Mapping[str, t.Any], nodes: t.Sequence[SnapshotNode]
    ) -> list[dict[str, t.Any]]:
        """The user's, else one for each taint that target nodes carry; never one by which a node is unwell, leaves or is not yet there."""
        if "tolerations" in workload:
            return list(workload["tolerations"])
        evidence = self.catalog.get("evidence") or shipped_evidence()
        keys = {
            taint["key"]
            for node in nodes
            for taint in node["taints"]
            if not taint["key"].startswith(_STATE_TAINTS) and not evidence.of_taint(taint, "hardware", "leaving", "starting")
        }
        if self.request["target"]["include_cordoned"]:
            keys.add("node.kubernetes.io/unschedulable")
        found = [{"key": key, "operator": "Exists"} for key in sorted({GPU_RESOURCE, *keys})]
        return found + [item for item in settings["tolerations"] if item.get("key") not in {entry["key"] for entry in found}]


def _testable(request: Request, snapshot: Snapshot) -> tuple[list[SnapshotNode], list[Untested]]:
    """Target nodes that a group can be built with, and why the other targets are not tested."""
    targets = [node for node in snapshot["nodes"] if node["target"]]
    untested: list[Untested] = [
        {"node": node["name"], "reason": "Untested", "message": f"it was not put to a test: {node['findings'][0]['message']}"}
        for node in targets
        if node.get("findings")
    ]
    good = sorted((node for node in targets if not node.get("findings")), key=lambda node: node["name"])
    limit = request["bounds"]["max_nodes"]
    if limit is not None and len(good) > limit:
        for node in good[limit:]:
            untested.append({"node": node["name"], "reason": "Untested", "message": f"bounds.max_nodes = {limit} leaves it out"})
        good = good[:limit]
    return good, untested


def _pools(nodes: t.Sequence[SnapshotNode]) -> list[Pool]:
    """Nodes by GPU product, sorted by its name."""
    pools: dict[str, Pool] = {}
    for node in nodes:
        product = node["gpu"]["product"] or ""
        pools.setdefault(product, Pool(product, node["gpu"]["model"], [])).nodes.append(node)
    return [pools[name] for name in sorted(pools)]


def _measure(entry: Entry, options: t.Mapping[str, t.Any]) -> Measure:
    """How the log of this category is read: kind and what is expected in it."""
    measure: t.Any = dict(entry["measure"])
    if measure["kind"] == "nccl":
        sizes = expected_sizes(options)
        measure.update(expected_sizes=sizes, judged_size=sizes[-1], require_data_check=bool(options.get("check_iterations", 1)))
    return t.cast(Measure, measure)


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


def _cost(categories: t.Sequence[Category], nodes: t.Sequence[SnapshotNode]) -> Cost:
    """An upper bound: every attempt runs into its timeout once."""
    gpu_hours = sum(
        len(group["nodes"]) * category["template"]["gpus_per_node"] * category["template"]["attempt_timeout_s"] / 3600
        for category in categories
        for group in category["groups"]
    )
    return {"groups": sum(len(category["groups"]) for category in categories), "nodes": len(nodes), "gpu_hours_max": round(gpu_hours, 1)}
