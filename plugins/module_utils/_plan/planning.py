# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From a request and a snapshot to a plan: categories with their template, groups, criteria and cost.

Pure but for reading the catalog. Everything that can be wrong with a request is found here, before an object is created.
"""

from __future__ import annotations

import math
import typing as t

from .._catalog.entries import Entry, load_entry, render
from .._catalog.floors import floors_for
from .._catalog.load import shipped_evidence
from .._catalog.options import expected_sizes, resolve_options
from .._common.checks import one_of
from .._common.errors import InputError
from .._common.shapes import (
    Category,
    CategoryRequest,
    Cost,
    Group,
    Measure,
    Plan,
    Request,
    Snapshot,
    SnapshotNode,
    Untested,
)
from .._common.words import counted
from .._criteria.category import criteria_of
from .._workload.pods import ends
from .grouping import group_nodes
from .settling import TRANSPORTS, net_transport, settle
from .templates import Pool, resolve_template

# The checked catalog entry of each category of a request, in its order.
Entries = list[Entry]


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
    if wanted["again"] and not _is_sheet(entry):
        raise InputError(
            f"{entry['name']} is run once",
            place=f"{place}.again",
            hint="Only fact sheets are taken twice and compared",
        )
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
    sheets: dict[tuple[str, int], str] = {}  # by GPU product and GPUs of a pod, the category that has the first fact sheets
    for index, wanted, entry in _in_order(request, entries):
        for pool in pools:
            category = planning.category(len(categories) + 1, wanted, entry, pool, f"certification.categories[{index}]", len(pools) > 1)
            if pool is pools[0]:
                category["untested"] = [*untested, *category["untested"]]
            seen = (pool.product, category["template"]["gpus_per_node"])
            if _is_sheet(entry) and sheets.setdefault(seen, category["id"]) != category["id"]:
                # What came up during the run is evidence: nobody is to prove anything by a repetition.
                category["since"], category["isolate"] = sheets[seen], "never"
                category["title"] += " again"
            categories.append(category)
    return {
        "name": request["name"],
        "bounds": dict(request["bounds"]),
        "categories": categories,
        "cost": _cost(categories, testable),
        # While nodes are under test they are held to the same as before.
        "evidence": [_rule(row) for row in (catalog.get("evidence") or shipped_evidence()).rows],
    }


def _is_sheet(entry: Entry) -> bool:
    return bool(entry["measure"]["kind"] == "node_facts")


def _in_order(request: Request, entries: Entries) -> list[tuple[int, CategoryRequest, Entry]]:
    """The categories as they are run, with their places in the request: the first that takes fact sheets comes once more at the end, unless
    nothing follows it or the last one takes them anyway."""
    asked = [(index, wanted, entry) for index, (wanted, entry) in enumerate(zip(request["categories"], entries, strict=True))]
    first = next((item for item in asked if _is_sheet(item[2])), None)
    if first is None:
        return asked
    again = first[1]["again"]
    return [*asked, first] if again or (again is None and not _is_sheet(asked[-1][2])) else asked


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
        template, explain, options = resolve_template(self.request, self.snapshot, self.catalog, wanted, entry, pool, place)
        size = wanted["group_size"]
        if size is not None and size > len(pool.nodes):
            raise InputError(
                f"groups of {size} nodes are asked for, and {counted(len(pool.nodes), 'node')} can be tested", place=f"{place}.group_size"
            )
        groups, left = group_nodes(pool.nodes, wanted["test_scale"], self.request["topology_key"], size, wanted["left_over"])
        groups, small = _filled(entry, options, groups, template["gpus_per_node"], f"{place}.test_scale")
        left = [*left, *small]
        isolate = wanted["isolate"]
        if isolate != "never" and not _divides(entry, options, template["gpus_per_node"]):
            rule = "a part of a group has too few GPUs for the test"
            explain.append({"path": "isolate", "value": "never", "rule": rule, "overridden": [{"rule": "request", "value": isolate}]})
            isolate = "never"
        expected = wanted["expect_transport"] or entry["expect_transport"]
        if expected == "network":
            expected = net_transport(template) or "rdma"
        floors = None
        criteria = list(wanted["criteria"])
        if wanted["floors"] and entry["criteria"]:
            criteria = render(entry["criteria"], {"options": options}, f"{entry['name']}: criteria")
            explain.append({"path": "criteria", "value": criteria, "rule": "catalog entry", "overridden": []})
        elif wanted["floors"]:
            floors = floors_for(self.catalog["floors"], test=entry["floors_of"], gpu=pool.model, gpus_per_node=template["gpus_per_node"])
        category: Category = {
            "id": f"c{number:02d}-{variant}-{wanted['test_scale']}{suffix}",
            "short_id": f"c{number:02d}",
            "title": f"c{number:02d} {variant} {wanted['test_scale']}{suffix}",
            "test": entry["name"],
            "test_scale": wanted["test_scale"],
            "gpu": pool.product or None,
            "repeat": wanted["repeat"],
            "k_of_n": wanted["k_of_n"],
            "criteria": criteria,
            "thresholds": dict(wanted["thresholds"]),
            "isolate": isolate,
            "options": options,
            "measure": _measure(entry, options, template["gpus_per_node"]),
            "template": template,
            "expect_transport": expected,
            "net_transport": expected or net_transport(template),
            "floors": floors,
            "explain": explain,
            "groups": groups,
            "untested": left,
        }
        return settle(category, pool.nodes)


def _gpus_of_group(entry: Entry, options: t.Mapping[str, t.Any]) -> tuple[int, int]:
    """(fewest GPUs of a group, their number is a multiple of this), as the entry wants it."""
    wanted = entry["group_gpus"]
    return wanted["minimum"], math.prod(int(options[name]) for name in wanted["multiple_of"])


def _divides(entry: Entry, options: t.Mapping[str, t.Any], gpus: int) -> bool:
    """Whether any part of a group can run the test as well, so that a search by parts is possible."""
    least, step = _gpus_of_group(entry, options)
    return gpus >= least and gpus % step == 0


def _filled(entry: Entry, options: t.Mapping[str, t.Any], groups: list[Group], gpus: int, place: str) -> tuple[list[Group], list[Untested]]:
    """The groups that have the GPUs which the test needs, and why the nodes of the others are not tested. Raises InputError for none."""
    least, step = _gpus_of_group(entry, options)
    product = " x ".join(f"{name} {options[name]}" for name in entry["group_gpus"]["multiple_of"])
    kept, untested = [], []
    message = ""
    for group in groups:
        count = len(group["nodes"]) * gpus
        if count >= least and count % step == 0:
            kept.append(group)
            continue
        needs = f"at least {least}" if count < least else f"a multiple of {product} = {step}"
        message = f"{entry['name']} needs {needs} GPUs, and {counted(len(group['nodes']), 'node')} of {gpus} have {count}"
        untested += [t.cast(Untested, {"node": name, "reason": "Untested", "message": message}) for name in group["nodes"]]
    if groups and not kept:
        raise InputError(message, place=place, hint="Take a wider test scale or a larger group_size, or set the options it multiplies")
    return kept, untested


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


def _measure(entry: Entry, options: t.Mapping[str, t.Any], gpus: int) -> Measure:
    """How the log of this category is read: kind and what is expected in it."""
    measure: t.Any = dict(entry["measure"])
    of_pods = {"each": "each", "all": "ends"}.get(ends(entry))
    if of_pods:
        measure["pods"] = of_pods
    if measure["kind"] in ("dcgm", "gpu_burn", "nvbandwidth", "node_facts"):
        measure["expected_gpus"] = gpus
    # A node of one GPU has no pairs: the program passes over what needs two.
    required = [name for name in options.get("tests") or () if gpus > 1 or "device_to_device" not in name]
    if required and measure["kind"] in ("dcgm", "nvbandwidth"):
        measure["required_tests"] = required
    if measure["kind"] == "nccl":
        sizes = expected_sizes(options)
        measure.update(expected_sizes=sizes, judged_size=sizes[-1], require_data_check=bool(options.get("check_iterations", 1)))
    return t.cast(Measure, measure)


def _cost(categories: t.Sequence[Category], nodes: t.Sequence[SnapshotNode]) -> Cost:
    """An upper bound: every run of a group goes into its timeout once."""
    runs = [(group, category) for category in categories for group in category["groups"] for _repeat in range(category.get("repeat", 1))]
    seconds = sum(
        len(group["nodes"]) * category["template"]["gpus_per_node"] * category["template"]["attempt_timeout_s"] for group, category in runs
    )
    return {
        "groups": sum(len(category["groups"]) for category in categories),
        "runs": len(runs),
        "nodes": len(nodes),
        "gpu_hours_max": round(seconds / 3600, 1),
    }
