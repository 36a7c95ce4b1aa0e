# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes of one kind compared with each other and with the GPU table: what is missing, and from whom."""

from __future__ import annotations

import typing as t
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from .._catalog.gpus import expectation, plain_product
from .._catalog.nics import SHARED_PLACES
from .._causes.evidence import Evidence
from .conditions import hardware_taints, quote

Row = dict[str, t.Any]

_REASON = "HardwareFailureDetected"
_ADVICE = "The device plugin keeps a GPU unhealthy until it is restarted, even when the cause is gone."


def set_expectations(nodes: Sequence[Row], catalog: Mapping[str, t.Any], expected_gpus: int | None = None) -> list[str]:
    """Fills gpu.expected and gpu.majority of every row that has whole GPUs; returns notes for people.

    expected_gpus: the user's own figure for every node, above table and majority.
    """
    notes = []
    for pool in _pools(nodes).values():
        gpu = pool[0]["gpu"]
        majority = _majority(pool)
        expected, note = _expected(pool, majority, expectation(catalog, pool[0]["platform"], gpu["model"]))
        for node in pool:
            node["gpu"]["majority"] = majority
            node["gpu"]["expected"] = expected_gpus or expected
        if note and not expected_gpus:
            notes.append(note)
    return notes


class Fact(t.NamedTuple):
    """Something on a node that would condemn it: what it is (the same for all nodes that have it), and the finding."""

    kind: tuple[str, ...]
    finding: dict[str, t.Any]


def set_findings(nodes: Sequence[Row], evidence: Evidence) -> list[str]:
    """Adds the findings that need no test: missing GPUs, missing network cards, conditions and taints that condemn hardware.

    What most nodes show at once is no finding about any of them: they get `mass_event` {reason, message} instead, and the note
    that is returned says what to look at.
    """
    facts = {node["name"]: _facts(node, evidence) for node in nodes}
    events = _mass_events(nodes, facts)
    for node in nodes:
        own = [fact for fact in facts[node["name"]] if (node["name"], fact.kind) not in events]
        node["findings"] += [fact.finding for fact in own]
        node["mass_event"] = next((events[(node["name"], fact.kind)] for fact in facts[node["name"]] if fact not in own), None)
    for pool in _pools(nodes).values():
        _missing_nics(pool)
    return list(dict.fromkeys(event["message"] for event in events.values()))


def _facts(node: Row, evidence: Evidence) -> list[Fact]:
    facts = []
    missing = _missing_gpus(node["gpu"]) if _whole(node) else None
    if missing:
        facts.append(Fact(("GPUs", "none" if not node["gpu"]["allocatable"] else f"{node['name']}"), missing))
    for condition in node["unhealthy"]:
        if condition["hardware"]:
            text = quote(condition)
            finding = {"reason": _REASON, "message": f"unhealthy condition: {text}", "evidence": [f"condition {text}"]}
            facts.append(Fact(("condition", condition["type"], condition["reason"], condition["why"]), finding))
    for text in hardware_taints(node["taints"], evidence):
        facts.append(
            Fact(("taint", text.partition("=")[0]), {"reason": _REASON, "message": f"a health agent's {text}", "evidence": [text]})
        )
    return facts


def _mass_events(nodes: Sequence[Row], facts: Mapping[str, Sequence[Fact]]) -> dict[tuple[str, tuple[str, ...]], dict[str, str]]:
    """(node, kind of fact) -> {reason, message} for every fact that more than half of its pool, or of all nodes, show at once.

    Hardware does not break everywhere in one moment; a plugin, an agent or an upgrade does. A node that is alone is no mass.
    """
    events: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
    whole = [node for node in nodes if _whole(node)]
    for crowd in (whole, *_pools(nodes).values()):
        counts = Counter(kind for node in crowd for kind in {fact.kind for fact in facts[node["name"]]})
        for kind, count in counts.items():
            if count < 2 or 2 * count <= len(crowd):
                continue
            for node in crowd:
                if any(fact.kind == kind for fact in facts[node["name"]]):
                    events.setdefault((node["name"], kind), _mass_event(kind, count, len(crowd)))
    return events


def _mass_event(kind: tuple[str, ...], count: int, size: int) -> dict[str, str]:
    if kind[0] == "GPUs":
        text = "offer none of their GPUs at the same time: look at the device plugin and the kubelet; no GPU is proven broken"
        return {"reason": "DevicePlugin", "message": f"{count} of {size} nodes {text}"}
    what = f"condition {kind[1]}" + (f" ({kind[2]})" if kind[2] else "") if kind[0] == "condition" else kind[1]
    text = f"show the same {what} at once: look at the agent that sets it, and at what was changed on all nodes; no node is accused"
    return {"reason": "SameOnMostNodes", "message": f"{count} of {size} nodes {text}"}


def pool_rows(nodes: Sequence[Row]) -> list[dict[str, t.Any]]:
    """One row per product and size: {product, model, nodes, gpus_per_node}, the largest pool first. Targets only."""
    counts = Counter((node["gpu"]["product"], node["gpu"]["model"], node["gpu"]["expected"]) for node in nodes if node["target"])
    rows = [{"product": product, "model": model, "nodes": count, "gpus_per_node": size} for (product, model, size), count in counts.items()]
    return sorted(rows, key=lambda row: (-row["nodes"], str(row["product"])))


def _whole(node: Row) -> bool:
    return bool(node["gpu"]["capacity"] or node["gpu"]["allocatable"]) and not node["gpu"]["mig"] and node["gpu"]["shared_replicas"] == 1


def _pools(nodes: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Nodes that should be equal: same product, platform and instance type."""
    pools: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for node in nodes:
        if _whole(node):
            instance = node["labels"].get("node.kubernetes.io/instance-type", "")
            kind = node["gpu"]["model"] or plain_product(node["gpu"]["product"] or "")
            pools[(kind, node["platform"] or "", instance)].append(node)
    return pools


def _majority(pool: Sequence[Row]) -> int:
    """The most common number of GPUs that nodes of the pool were built with; of two equally common ones the larger."""
    counts = Counter(_installed(node) for node in pool)
    return max(counts, key=lambda size: (counts[size], size))


def _installed(node: Row) -> int:
    return int(max(node["gpu"]["capacity"], node["gpu"]["allocatable"]))


def _expected(pool: Sequence[Row], majority: int, table: Mapping[str, t.Any]) -> tuple[int, str]:
    """The number of GPUs a node of this pool should have, and a note when that is not what the table says."""
    size = table["gpus_per_node"]
    model = pool[0]["gpu"]["model"]
    if size is None:
        product = pool[0]["gpu"]["product"] or "an unlabelled GPU"
        note = "" if model else f"{product} is not in the GPU table: its {len(pool)} nodes are sized by what most of them offer, {majority}"
        return majority, note
    if majority >= size:
        return majority, ""
    largest = max(max(_installed(node), node["gpu"]["count_label"] or 0) for node in pool)
    if majority in table["other_shapes"] and largest == majority:
        return majority, (
            f"{len(pool)} nodes with {model} offer {majority} GPUs each where the usual node has {size}: taken as the smaller form; "
            "set expected_gpus if it is not"
        )
    return size, ""


def _missing_gpus(gpu: Mapping[str, t.Any]) -> dict[str, t.Any] | None:
    """The finding for a node that offers fewer whole GPUs than it should, or None."""
    have, need = gpu["allocatable"], max(gpu["expected"] or 0, gpu["capacity"])
    if have >= need:
        return None
    evidence = [f"status.allocatable {gpu['resource']} = {have}", f"status.capacity {gpu['resource']} = {gpu['capacity']}"]
    if gpu["count_label"] is not None:
        evidence.append(f"label nvidia.com/gpu.count = {gpu['count_label']}")
    evidence.append(f"expected {gpu['expected']}, most nodes of its pool have {gpu['majority']}")
    if have == 0:
        message = f"all GPUs unhealthy: have 0, need {need} (capacity {gpu['capacity']}). {_ADVICE}"
    else:
        message = f"{need - have} of {need} GPUs missing: have {have}, need {need}"
        message += f". {_ADVICE}" if gpu["capacity"] > have else ""
    return {"reason": _REASON, "message": message, "evidence": evidence}


def _missing_nics(pool: Sequence[Row]) -> None:
    """A finding for nodes that offer fewer dedicated network devices than two thirds of a pool of at least three do."""
    if len(pool) < 3:
        return
    for name in sorted({name for node in pool for name in node["nics"]}):
        counts = Counter(node["nics"].get(name, 0) for node in pool)
        usual, times = counts.most_common(1)[0]
        if not 0 < usual < SHARED_PLACES or times * 3 < len(pool) * 2:
            continue
        for node in pool:
            have = node["nics"].get(name, 0)
            if have < usual:
                message = f"{usual - have} of {usual} network devices missing: have {have}, need {usual} of {name}"
                evidence = [f"status.allocatable {name} = {have}", f"{times} of {len(pool)} nodes of its pool offer {usual}"]
                node["findings"].append({"reason": _REASON, "message": message, "evidence": evidence})
