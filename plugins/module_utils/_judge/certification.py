# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict of a certification: failed before error before incomplete before passed, over all nodes and categories."""

from __future__ import annotations

import types
import typing as t

from .._causes.reasons import finding, reason_of
from .._common.shapes import (
    CleanupProof,
    Coverage,
    Finding,
    JudgedCategory,
    JudgedNode,
    NodeFinding,
    NodeVerdict,
    OwnFinding,
    RolledUp,
    Snapshot,
    SnapshotNode,
    Untested,
    Verdict,
)
from .._common.words import counted
from .ranks import NODE_ORDER, STATES, rank, unique


def roll_up(
    snapshot: Snapshot, categories: t.Sequence[JudgedCategory], since: t.Mapping[str, Finding] = types.MappingProxyType({})
) -> RolledUp:
    """The certification's verdict: failed before error before incomplete before passed.
    Every target node is in the result, and every node that a category has seen although the snapshot has not.

    since: what has become of nodes since their tests, see `last_look`.
    """
    rows = snapshot["nodes"]
    excluded, not_selected = _excluded(rows)
    targets = sorted((row for row in rows if row["target"]), key=lambda row: row["name"])
    nodes = [_node(row["name"], row.get("findings") or [], categories, since.get(row["name"])) for row in targets]
    known = {node["name"] for node in nodes}
    unknown = sorted({name for category in categories for name in category["members"]} - known)
    nodes += [_node(name, [], categories, since.get(name)) for name in unknown]
    tested = sum(1 for node in nodes if _was_tested(node["name"], categories))
    asked = len(nodes) + len(excluded)
    coverage: Coverage = {
        "targets": len(nodes),
        "tested": tested,
        "excluded": len(excluded),
        "ratio": round(tested / asked, 4) if asked else 0.0,
    }
    verdict, why = _certification(categories, nodes, excluded)
    return {
        "verdict": verdict,
        "why": why,
        "coverage": coverage,
        "categories": list(categories),
        "nodes": nodes,
        "excluded": excluded,
        "not_selected": not_selected,
    }


def with_cleanup(rolled_up: RolledUp, cleanup: CleanupProof | None) -> RolledUp:
    """A run that cannot prove that it left nothing behind is incomplete at best, and says so."""
    if cleanup is None or cleanup["proven"]:
        return rolled_up
    verdict: Verdict = "incomplete" if rolled_up["verdict"] == "passed" else rolled_up["verdict"]
    return {**rolled_up, "verdict": verdict, "why": f"{rolled_up['why']}; the cleanup is not proven"}


def _excluded(rows: t.Sequence[SnapshotNode]) -> tuple[list[Untested], list[str]]:
    """What was asked for but left out, with the reason; and the names the user did not ask for."""
    excluded: list[Untested] = []
    not_selected = []
    for row in rows:
        exclusion = row.get("exclusion") or {"reason": "Unknown", "message": "no reason was recorded"}
        if row["target"]:
            continue
        if exclusion["reason"] == "NotSelected":
            not_selected.append(row["name"])
        else:
            excluded.append({"node": row["name"], "reason": exclusion["reason"], "message": exclusion["message"]})
    return sorted(excluded, key=lambda item: item["node"]), sorted(not_selected)


def _node(name: str, facts: t.Sequence[NodeFinding], categories: t.Sequence[JudgedCategory], since: Finding | None) -> JudgedNode:
    """One target node: the worst over its own facts, all categories and what became of it since, with every finding."""
    states: list[NodeVerdict] = []
    findings: list[Finding] = []
    for fact in facts:
        made = finding(fact["reason"], fact["message"], node=name, evidence=fact["evidence"])
        findings.append({**made, "category": None, "group": None})
        states.append("failed" if reason_of(made["reason"]).effect == "convicts" else "suspect")
    for category in categories:
        member = category["members"].get(name)
        if member is not None:
            states.append(member["verdict"])
            findings += [{**item, "category": category["id"], "group": item.get("group")} for item in member["findings"]]
    if since and _is_news(since, findings, states):
        states.append(STATES[reason_of(since["reason"]).effect])
        findings.append({**since, "category": None, "group": None})
    for wanted in _left_out(name, categories):
        states.append("untested")
        if not findings:
            findings.append({**finding("Untested", f"no group of {wanted} has this node"), "category": None, "group": None})
    if not states:
        states, findings = ["untested"], [{**finding("Untested", "no category was run"), "category": None, "group": None}]
    findings = sorted(unique(findings), key=_node_finding_order)
    return {"name": name, "verdict": max(states, key=NODE_ORDER.index), "findings": [_node_finding(item) for item in findings]}


def _is_news(since: Finding, findings: t.Sequence[Finding], states: t.Sequence[NodeVerdict]) -> bool:
    """Whether what became of a node says no less against it than its categories do, and something else."""
    worst = max((NODE_ORDER.index(state) for state in states), default=0)
    known = {item["reason"] for item in findings if not item["note"]}
    return since["reason"] not in known and NODE_ORDER.index(STATES[reason_of(since["reason"]).effect]) >= worst


def _left_out(name: str, categories: t.Sequence[JudgedCategory]) -> list[str]:
    """The tests of a certification that have the node in none of their categories.

    A test has one category per GPU model, so a node is in one of them. Logs from anywhere promise no such thing.
    """
    families: dict[str, bool] = {}
    for category in categories:
        if category["test_scale"] != "logs":
            label = f"{category['test']} {category['test_scale']}"
            families[label] = families.get(label, False) or name in category["members"]
    return [label for label, has_node in families.items() if not has_node]


def _node_finding_order(item: Finding) -> tuple[bool, int, int, bool]:
    """Of the notes those come first that tell what came up during the run."""
    effects = ("convicts", "suspects", "untested", "note")
    return (item["note"], effects.index(reason_of(item["reason"]).effect), rank(item), "since" not in item)


def _node_finding(item: Finding) -> OwnFinding:
    """A finding in a list that is the node's own: the name is left out."""
    return t.cast(OwnFinding, {key: value for key, value in item.items() if key != "node"})


def _was_tested(name: str, categories: t.Sequence[JudgedCategory]) -> bool:
    """Whether a complete measurement of a group it was in exists, a test brought it down, or isolation tested it."""
    for category in categories:
        own = category["members"].get(name)
        if own and own.get("isolated") and own["verdict"] != "untested":
            return True
        for group in category["groups"]:
            member = group["members"].get(name)
            if member and (group["measured"] or member["verdict"] in ("failed", "suspect")):
                return True
    return False


def _certification(
    categories: t.Sequence[JudgedCategory], nodes: t.Sequence[JudgedNode], excluded: t.Sequence[Untested]
) -> tuple[Verdict, str]:
    words = [category["verdict"] for category in categories]
    states = {word: sum(node["verdict"] == word for node in nodes) for word in NODE_ORDER}
    verdict: Verdict = "passed"
    if "failed" in words or states["failed"] or states["suspect"]:
        verdict = "failed"
    elif not categories or not nodes or "error" in words:
        verdict = "error"
    elif "incomplete" in words or states["untested"] or excluded:
        verdict = "incomplete"
    return verdict, _certification_why(verdict, words, states, len(nodes), len(excluded))


def _certification_why(verdict: Verdict, words: list[Verdict], states: t.Mapping[NodeVerdict, int], targets: int, excluded: int) -> str:
    """One sentence."""
    if not words:
        return "no category was run"
    if not targets:
        return "no node was targeted"
    if verdict == "passed":
        return f"{counted(len(words), 'category')} passed on {counted(targets, 'node')}"
    parts = [f"{words.count(word)} of {counted(len(words), 'category')} {text}" for word, text in _WORDS if word in words]
    parts += [f"{counted(states[word], 'node')} {word}" for word in _TOLD if states[word]]
    parts += [f"{counted(excluded, 'node')} excluded"] if excluded else []
    return "; ".join(parts)


_WORDS: tuple[tuple[Verdict, str], ...] = (("failed", "failed"), ("error", "could not be measured"), ("incomplete", "not complete"))
_TOLD: tuple[NodeVerdict, ...] = ("failed", "suspect", "untested")
