# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Between the isolation planner and the rest: what it is asked, how its tests become groups, what judged groups tell it.

Pure. A "record" is what the archive keeps of one isolation:
{mode, state, wave, tests, single, conclusion}: see docs/isolation.md.
"""

from __future__ import annotations

import copy
import typing as t

from .._causes.reasons import reason_of
from .._common.shapes import Category, Group, JudgedCategory, JudgedGroup, Request
from .._isolate import planner, posterior
from .grouping import DOMAIN_ORDER, Node, choose_domain_kind, domain_of

Record = dict[str, t.Any]

# Reasons by which a test says nothing about its nodes; it is repeated, never counted.
NO_EVIDENCE_EFFECTS = ("untested",)
DEFAULT_BUDGET = {"waves": 100}  # sixteen mixed faults among 4096 nodes take about 80
WRONG_DATA = 1e-6  # chance of a healthy node to compute wrong data


def must_isolate(category: Category, judged: JudgedCategory) -> bool:
    """Whether a judged category of an ordinary test scale has suspects whose fault is to be located, or nodes to be proven without one."""
    if category["isolate"] != "auto" or _same_everywhere(judged):
        return False
    suspects = any(member["verdict"] == "suspect" for member in judged["members"].values())
    return suspects or any(_absolved(group) for group in judged["groups"])


def _absolved(group: JudgedGroup) -> bool:
    """Whether a node that died or showed its broken hardware stopped the test of others, who have proven nothing since."""
    verdicts = [member["verdict"] for member in group["members"].values()]
    return "failed" in verdicts and verdicts.count("untested") > 1


def _same_everywhere(judged: JudgedCategory) -> bool:
    """Whether every host of every group between nodes fell back alike: an image or a setting, which no smaller group would show better."""
    several = [group for group in judged["groups"] if len(group["nodes"]) > 1]
    return bool(several) and all(_all_fell_back(group) for group in several)


def _all_fell_back(group: JudgedGroup) -> bool:
    failing = [item for item in group["findings"] if not item["note"]]
    measurement = group["measurement"]
    transport: t.Mapping[str, t.Any] = (measurement["transport"] if measurement else None) or {}
    fell_back = bool(failing) and failing[0]["reason"] == "TransportFallback"
    return fell_back and len(transport.get("hosts") or {}) > 1 and not transport["blame"]


def start(category: Category, judged: JudgedCategory | None, rows: t.Sequence[Node], spec: Request) -> Record:
    """A new isolation.

    judged: the category as judged so far, whose failed groups are the evidence to start from; None at test scale diagnose.
    rows: snapshot rows of the category's nodes.
    Groups of one node need no search: each failed one is repeated, since nobody else can be to blame.
    """
    if judged is not None and all(len(group["nodes"]) == 1 for group in judged["groups"]):
        suspects = [
            _failed_alone(judged, name, next((item["reason"] for item in member["findings"] if not item["note"]), ""))
            for name, member in sorted(judged["members"].items())
            if member["verdict"] == "suspect"
        ]
        return {"mode": "single", "state": None, "wave": 0, "tests": [], "single": suspects, "conclusion": None}
    if judged is not None:  # a node that is condemned by its own hardware is left out of the search
        condemned = {name for name, member in judged["members"].items() if member["verdict"] == "failed"}
        rows = [row for row in rows if row["name"] not in condemned]
    kind = choose_domain_kind(rows)
    nodes: list[dict[str, t.Any]] = [
        {"name": row["name"], "domain": domain_of(row, spec["topology_key"], kind), "levels": _switches(row, kind)} for row in rows
    ]
    wanted = spec["isolation"]
    options = {
        "max_concurrent": spec["bounds"]["max_concurrent"],
        "min_group_size": wanted["min_group_size"],
        "mnnvl": _mnnvl(category),
        "soak": wanted["soak"],
        "budget": {**DEFAULT_BUDGET, **{key: value for key, value in wanted["budget"].items() if value is not None}},
        "prior_evidence": _prior(category, judged, rows, kind, spec) if judged else [],
    }
    state = planner.start(nodes, options)
    return {"mode": "search", "state": state, "wave": 0, "tests": [], "single": [], "conclusion": None}


def _switches(row: Node, kind: str | None) -> dict[str, str]:
    """The wider domains that a node carries beside its own: the switches above it."""
    wider = DOMAIN_ORDER[DOMAIN_ORDER.index(kind) + 1 :] if kind in DOMAIN_ORDER else ()
    return {level: str(value) for level in wider if (value := row["domains"].get(level))}


def advance(record: Record, results: list[dict[str, t.Any]] | None) -> Record:
    """The record after the results of its outstanding wave; with the next wave in tests, or a conclusion."""
    new = copy.deepcopy(record)
    if record["mode"] == "single":
        return _advance_single(new, results)
    state, step = planner.next_step(record["state"], results)
    new["state"] = state
    if "conclusion" in step:
        new["tests"], new["conclusion"] = [], planner.conclude(state)
    else:
        new["tests"], new["wave"] = step["wave"], record["wave"] + 1
    return new


def _advance_single(record: Record, results: list[dict[str, t.Any]] | None) -> Record:
    if record["wave"] == 0:
        record["wave"] = 1
        record["tests"] = [
            {
                "id": f"s{index:03d}",
                "shape": "single",
                "transport": "nvl",
                "nodes": [name],
                "purpose": "confirm",
                "hypothesis": f"{name} alone",
            }
            for index, name in enumerate((item["node"] for item in record["single"]), 1)
        ]
        return record
    record["conclusion"] = _single_conclusion(record, {item["id"]: item for item in results or []})
    record["tests"] = []
    return record


def _failed_alone(judged: JudgedCategory, node: str, reason: str) -> dict[str, t.Any]:
    """A node that failed alone: {node, reason, failures, nodes, chance}, as `posterior.alone` takes them."""
    verdicts = [member["verdict"] for member in judged["members"].values()]
    counts = {"failures": max(1, verdicts.count("suspect") + verdicts.count("failed")), "nodes": len(verdicts)}
    chance = posterior.SUDDEN
    if reason == "DataCorruption":
        chance = WRONG_DATA
    elif reason in ("ThresholdViolation", "Unstable"):
        values = [value for group in judged["groups"] if group.get("verdict") == "passed" for value in _numbers(group).values()]
        chance = posterior.chance_of_missing(values, _limit(judged))
    return {"node": node, "reason": reason, "chance": chance, **counts}


def _limit(judged: JudgedCategory) -> float:
    """The limit that values must exceed, 0 if there is none."""
    for group in judged["groups"]:
        for result in group.get("criteria") or []:
            for limit in result.get("limits") or []:
                if limit.get("op") in (">=", ">") and isinstance(limit.get("limit"), (int, float)):
                    return float(limit["limit"])
    return 0.0


def _single_conclusion(record: Record, results: t.Mapping[str, dict[str, t.Any]]) -> dict[str, t.Any]:
    """Twice failed alone is the node; failed once of two is intermittent; a repeat that could not run proves nothing.

    How sure that is depends on how often a healthy node would fail such a test: below a threshold it stays a suspect.
    """
    first = {item["node"]: item for item in record["single"]}
    suspects: list[dict[str, t.Any]] = []
    evidence_of_all: list[dict[str, t.Any]] = []
    for test in record["tests"]:
        name, result = test["nodes"][0], results.get(test["id"], {"outcome": "unmeasured", "reason": "no result came back"})
        evidence = [{"wave": 1, "id": test["id"], "shape": "single", "nodes": [name], **result}]
        evidence_of_all += evidence
        if result["outcome"] == "unmeasured":
            kind, words = "unresolved", f"{name} failed alone; the repeat could not be measured: {result.get('reason', 'unknown')}"
            action = "Repeat the category when the cause is mended."
        elif result["outcome"] == "failed" or result.get("passed") is False:
            kind, words = "node", f"{name} failed twice on its own: nothing but the node took part"
            action = "Drain the node and check its GPUs, NVLink, PCIe and host."
        else:
            kind, words = "intermittent", f"{name} failed once ({first[name]['reason'] or 'unknown'}) and passed once on its own"
            action = "Drain the node and watch its error counters: it fails now and then."
        known = first[name]
        sure = posterior.alone(known["failures"], known["nodes"], known["chance"], kind == "node") if kind != "unresolved" else 0.0
        if kind != "unresolved" and sure < posterior.LEAST:
            words += f"; a healthy node fails such a test in {known['chance']:.1%} of runs, so that is no proof"
        suspects.append(
            {
                "component": {"kind": "node", "name": name},
                "nodes": [name],
                "class": kind,
                "confidence": round(sure, 4),
                "convicts": sure >= posterior.LEAST,
                "evidence": evidence,
                "reason": words,
                "action": action,
            }
        )
    hard = [item for item in suspects if item["convicts"]]
    cost = {"tests": len(record["tests"]), "waves": 1, "node_minutes": None, "bound": None}
    return {
        "verdict": "failed" if hard else "inconclusive",
        "reason": f"{len(hard)} of {len(suspects)} nodes that failed alone are confirmed",
        "suspects": suspects,
        "cleared": [],
        "proof": None,
        "coverage": {"proven": 0, "target": len(suspects), "not_proven": [], "notes": []},
        "cost": cost,
        "tests": evidence_of_all,
        "domains": [],
        "story": [_single_story(suspects)],
    }


def _single_story(suspects: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    kinds = [item["class"] for item in suspects]
    told = [
        (kinds.count("node"), "failed again"),
        (kinds.count("intermittent"), "passed"),
        (kinds.count("unresolved"), "could not be measured"),
    ]
    shown = ", ".join(f"{count} {word}" for count, word in told if count) or "nothing came back"
    return f"Wave 1: every node that failed alone runs once more by itself ({len(kinds)} tests): {shown}."


def wave_category(category: Category, record: Record) -> Category:
    """The outstanding wave as a category of its own: one group per test."""
    derived = copy.deepcopy(category)
    number = record["wave"]
    derived["id"] = f"{category['id']}-w{number:02d}"
    derived["short_id"] = f"{category['short_id']}w{number:02d}"
    derived["title"] = f"{category['title']} isolation wave {number}"
    derived["untested"] = []
    derived["repeat"], derived["k_of_n"] = 1, None
    derived["groups"] = [_group(category, test) for test in record["tests"]]
    return derived


def _group(category: Category, test: t.Mapping[str, t.Any]) -> Group:
    several = len(test["nodes"]) > 1
    group: Group = {"name": test["id"].lower(), "nodes": list(test["nodes"]), "domain": None, "expected_transport": None}
    if several and _mnnvl(category):
        # Between domains traffic leaves NVLink by itself; there the test is that of the category, and its criterion holds.
        group["env"] = {"NCCL_MNNVL_ENABLE": "0" if test["shape"] == "domain-net" else "1"}
    if several:
        group["expected_transport"] = "mnnvl" if test["transport"] == "nvl" else category.get("net_transport")
    return group


def _mnnvl(category: Category) -> bool:
    return any(item["name"] == "NCCL_MNNVL_ENABLE" and item["value"] == "1" for item in category["template"]["env"])


def results_of(category: Category, judged: JudgedCategory, tests: t.Sequence[t.Mapping[str, t.Any]]) -> list[dict[str, t.Any]]:
    """What a judged wave tells the planner, one result per test."""
    groups = {group["name"]: group for group in judged["groups"]}
    results = []
    for test in tests:
        if test["id"].lower() in groups:
            result = result_of(groups[test["id"].lower()])
            results.append({"id": test["id"], **(result if _criterion_holds(category, test) else _unbound(result))})
    return results


def _criterion_holds(category: Category, test: t.Mapping[str, t.Any]) -> bool:
    """Whether the category's criterion speaks about a test: a limit holds for the shape, and about the size, it was made for.

    One for groups inside domains says nothing of traffic between them, and where NVLink joins nodes, none says anything of
    the adapters of a few.
    """
    made_for = [group for group in category["groups"] if len(group["nodes"]) > 1]
    if test["shape"] == "cross" and made_for and all(group.get("domain") is not None for group in made_for):
        return False
    if not _mnnvl(category) or len(test["nodes"]) == 1 or test["transport"] == "nvl":
        return True
    largest = max(len(group["nodes"]) for group in category["groups"])
    return test["shape"] == "cross" and 2 * len(test["nodes"]) >= largest


def _unbound(result: dict[str, t.Any]) -> dict[str, t.Any]:
    """A measurement below a limit that is not its own: complete and correct, and to be compared with its like."""
    if result["outcome"] != "measured" or result["passed"]:
        return result
    return {**result, "passed": True, "binding": False, "reason": ""}


def result_of(group: JudgedGroup) -> dict[str, t.Any]:
    """One judged group as {outcome, value, expected, passed, reason, log, minutes, lost}.

    Wrong data, a wrong transport, a crash or a hang fail at full strength: no bandwidth makes up for them.
    A cause that is not the nodes' fault is no evidence at all.
    """
    last = group["attempts"][-1] if group["attempts"] else None
    log = next((pod["log"] for pod in last["pods"] if pod["role"] == "launcher"), None) if last else None
    seconds = last["duration_s"] if last else None
    base: dict[str, t.Any] = {"log": log, "minutes": round(seconds / 60, 3) if seconds else None}
    failing = [item for item in group["findings"] if not item["note"]]
    convicted = sorted({item["node"] for item in failing if item["node"] and reason_of(item["reason"]).effect == "convicts"})
    if convicted:
        return {**base, "outcome": "unmeasured", "reason": failing[0]["message"], "lost": convicted}
    if group["verdict"] == "passed" or (
        group["criteria"] and all(item["reason"] in ("ThresholdViolation", "Unstable") for item in failing)
    ):
        return {**base, "outcome": "measured", "passed": group["verdict"] == "passed", **_numbers(group), **_first(failing)}
    if any(reason_of(item["reason"]).effect in NO_EVIDENCE_EFFECTS for item in failing[:1]):
        return {**base, "outcome": "unmeasured", **_first(failing)}
    return {**base, "outcome": "failed", **_first(failing)}


def _first(failing: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, str]:
    return {"reason": f"{failing[0]['reason']}: {failing[0]['message']}"} if failing else {}


def _numbers(group: JudgedGroup) -> dict[str, t.Any]:
    """The judged value, where a higher one is better; the planner compares it with that of groups of the same kind.

    The criterion's limit is not handed on: a floor stands well below what a healthy group reaches, and would pass for it.
    """
    for result in group["criteria"]:
        lower = [limit for limit in result.get("limits") or [] if limit.get("op") in (">=", ">")]
        if lower and isinstance(result["measured"], (int, float)):
            return {"value": float(result["measured"])}
    return {}


def _prior(category: Category, judged: JudgedCategory, rows: t.Sequence[Node], kind: str | None, spec: Request) -> list[dict[str, t.Any]]:
    """The category's own groups as evidence that need not be gathered again."""
    domains = {row["name"]: domain_of(row, spec["topology_key"], kind) for row in rows}
    nvl = _mnnvl(category)
    prior = []
    for group in judged["groups"]:
        if not domains.keys() >= set(group["nodes"]):
            continue
        members = {domains.get(name) for name in group["nodes"]}
        same = len(members) == 1 and None not in members
        shape = "single" if len(group["nodes"]) == 1 else ("domain-nvl" if nvl else "domain-net") if same else "cross"
        transport = "nvl" if nvl and same else "net"
        entry = {"id": f"prior-{group['name']}", "shape": shape, "transport": transport, "nodes": list(group["nodes"])}
        prior.append({**entry, **result_of(group)})
    return prior


def progress_line(record: Record) -> str:
    """What the outstanding wave asks, and what is known so far."""
    asked = sorted({test["hypothesis"] or test["purpose"] for test in record["tests"]})
    shown = "; ".join(asked[:3]) + (f" and {len(asked) - 3} more" if len(asked) > 3 else "")
    if record["state"] is None:
        return f"asking: {shown}"
    known = planner.progress(record["state"])
    asks = "; ".join(known["asks"][:3]) + (f" and {len(known['asks']) - 3} more" if len(known["asks"]) > 3 else "")
    return f"{known['standing']}; this wave: {asks}; about {known['minutes']:.0f} min"
