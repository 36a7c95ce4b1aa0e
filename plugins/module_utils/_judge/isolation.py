# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the search for a fault concluded, as verdicts on nodes and, at test scale diagnose, as a judged category."""

from __future__ import annotations

import typing as t

from .._causes.reasons import finding, reason_of
from .._common.shapes import Category, Conclusion, Finding, JudgedCategory, Member, Verdict
from .categories import concluded_finding, judged_category

DIAGNOSE_VERDICTS: dict[str, Verdict] = {"passed": "passed", "failed": "failed", "inconclusive": "incomplete"}


def conclusions(conclusion: t.Mapping[str, t.Any]) -> list[Conclusion]:
    """The conclusion as verdicts on nodes, for `categories.apply_isolation`.

    A convicted node is failed, a cleared one passed, one of an unresolved set suspect. A fault between nodes (a pair, a boundary,
    a partition) is a finding of the category: its nodes stay what the planner proved of them.
    """
    found: list[t.Any] = []
    named: set[str] = set()
    for suspect in conclusion["suspects"]:
        open_question = suspect["class"] in ("unresolved", "irreproducible") or not suspect.get("convicts", True)
        if suspect["component"]["kind"] == "node" or open_question:
            verdict = "suspect" if open_question else "failed"
            found += [{"node": node, "verdict": verdict, **_told(suspect)} for node in suspect["nodes"]]
            named.update(suspect["nodes"])
        else:
            found.append({"node": None, "nodes": suspect["nodes"], "verdict": "failed", **_told(suspect)})
    for node in [*conclusion["cleared"], *conclusion.get("acquitted", [])]:
        if node not in named:
            message = "cleared by isolation: it took part in tests that passed"
            cleared = {"reason": "Warning", "message": message, "evidence": [], "hint": "", "class": "cleared"}
            found.append({"node": node, "verdict": "passed", **cleared})
    return found


def _told(suspect: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    reasons = [str(item.get("reason") or "").split(":", 1)[0] for item in suspect["evidence"] if item.get("outcome") != "unmeasured"]
    known = [name for name in reasons if name and reason_of(name).name == name]
    return {
        "reason": known[0] if known else "ThresholdViolation",
        "message": suspect["reason"],
        "evidence": [_line(item) for item in suspect["evidence"][:4]],
        "hint": suspect["action"],
        "class": suspect["class"],
        "confidence": suspect["confidence"],
    }


def _line(item: t.Mapping[str, t.Any]) -> str:
    """One test as one line of evidence."""
    nodes = item.get("nodes") or []
    who = ", ".join(nodes[:2]) + (f" and {len(nodes) - 2} more" if len(nodes) > 2 else "")
    value, expected = item.get("value"), item.get("expected")
    if value is not None and expected:
        number = f"{value:.1f} of {expected:.1f}"
    elif value is not None:
        number = f"{value:.1f}"
    else:
        number = str(item.get("reason") or item.get("outcome") or "no value")
    log = f", log {item['log']}" if item.get("log") else ""
    return f"wave {item.get('wave', 0)} {item.get('shape', 'test')} of {who or 'nodes'}: {number}{log}"


def conclude_diagnose(category: Category, conclusion: t.Mapping[str, t.Any]) -> JudgedCategory:
    """A category of test scale diagnose as a judged category: its members are what the search concluded."""
    members: dict[str, Member] = {}
    told: list[Finding] = []
    for item in conclusions(conclusion):
        made: Finding = {**concluded_finding(item), "group": None}
        told.append(made)
        if item["node"]:
            members[item["node"]] = {"verdict": item["verdict"], "findings": [made], "isolated": True}
    missing = {str(item.get("node")): str(item.get("why") or item.get("reason") or "") for item in conclusion["coverage"]["not_proven"]}
    for node in (node for group in category["groups"] for node in group["nodes"]):
        lost = finding("Untested", missing.get(node) or "the search ended without proof for this node")
        members.setdefault(node, {"verdict": "untested", "findings": [{**lost, "group": None}]})
    return judged_category(
        category,
        DIAGNOSE_VERDICTS[conclusion["verdict"]],
        conclusion["reason"],
        members=dict(sorted(members.items())),
        criteria=[{"expression": expression} for expression in category["criteria"]],
        isolation={"findings": told, "conclusion": conclusion},
    )
