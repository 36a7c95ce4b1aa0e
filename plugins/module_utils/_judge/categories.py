# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict of a category: of its groups together, and once more after isolation."""

from __future__ import annotations

import types
import typing as t

from .._causes.reasons import REASONS, finding, reason_of
from .._common.shapes import (
    Category,
    Conclusion,
    Finding,
    GroupObservation,
    JudgedCategory,
    JudgedGroup,
    Measurement,
    Member,
    NodeVerdict,
    Observation,
    Untested,
    Verdict,
)
from .._common.words import counted
from .._criteria.criteria import Criterion
from .ranks import NODE_ORDER, VERDICT_ORDER, failing, worse
from .repeats import Judging, Repeat, judge_once, judge_repeats, observed_in


class Round(t.NamedTuple):
    """One repeat of all groups, by group name. own: criteria of groups of which members were left out."""

    measurements: t.Mapping[str, Measurement | None]
    own: t.Mapping[str, t.Sequence[Criterion]]


def judge_category(
    category: Category,
    observation: Observation | None,
    measurements: t.Mapping[str, Measurement | None],
    compiled: t.Sequence[Criterion],
    *,
    own: t.Mapping[str, t.Sequence[Criterion]] = types.MappingProxyType({}),
    further: t.Sequence[Round] = (),
    allow_no_criteria: bool = False,
) -> JudgedCategory:
    """Judge all groups of a category.

    category: of the plan. observation: of `workload_batch`. measurements: by group name, of each last attempt.
    compiled: the category's criteria. own: by group name, those of a group of which members were left out.
    further: the same two of each repeat after the first.
    """
    look = observation.get("last_look") if observation else None
    unseen = look is None and observation is not None and "last_look" in observation
    how = Judging(category.get("k_of_n"), allow_no_criteria, look, unseen)
    rounds = [Round(measurements, own), *further]
    rounds += [Round({}, {})] * (category.get("repeat", 1) - len(rounds))
    seen = [_by_group(observation, number) for number in range(1, len(rounds) + 1)]
    groups = []
    for group in category["groups"]:
        name = group["name"]
        repeats = [
            Repeat(observed.get(name), item.measurements.get(name), item.own.get(name, compiled))
            for observed, item in zip(seen, rounds, strict=True)
        ]
        groups.append(judge_repeats(group, repeats, how) if len(repeats) > 1 else judge_once(group, repeats[0], how))
    groups = _without_witnesses(category, groups)
    members = _collect_members(groups, category["untested"])
    verdict, why = _verdict(groups, members)
    criteria = [criterion.as_dict() for criterion in compiled]
    return judged_category(category, verdict, why, members=members, groups=groups, criteria=criteria, allow_no_criteria=allow_no_criteria)


def _by_group(observation: Observation | None, repeat: int) -> dict[str, GroupObservation]:
    return {item["name"]: item for item in observed_in(observation, repeat)["groups"]} if observation else {}


def _without_witnesses(category: Category, groups: list[JudgedGroup]) -> list[JudgedGroup]:
    """What a group says of a node that only completed it counts unless that node has passed in the group that tests it."""
    completes = {group["name"]: group.get("witnesses", []) for group in category["groups"]}
    passed = {
        node
        for group in groups
        for node, member in group["members"].items()
        if node not in completes[group["name"]] and member["verdict"] == "passed"
    }
    result = []
    for group in groups:
        excused: dict[str, Member] = {node: {"verdict": "passed", "findings": []} for node in completes[group["name"]] if node in passed}
        result.append({**group, "members": {**group["members"], **excused}})
    return t.cast("list[JudgedGroup]", result)


def apply_isolation(judged: JudgedCategory, conclusions: t.Iterable[Conclusion]) -> JudgedCategory:
    """The category after isolation: its conclusions replace what membership in a failed group said of a node.

    conclusions: [{node, verdict: failed|passed|suspect, reason, message, evidence[], hint?, nodes?, class?, confidence?}].
    A conclusion without a node (a pair, a boundary, an intermittent fault) is a finding of the category and of the `nodes` it touches; it
    clears and convicts nobody.
    Nodes convicted by their own hardware evidence stay failed.
    """
    members = dict(judged["members"])
    told: list[Finding] = []
    for item in conclusions:
        made = concluded_finding(item)
        told.append(made)
        node = item["node"]
        if node in members and not _condemned(members[node]):
            own = [made, *([] if made["note"] else members[node]["findings"])]
            members[node] = {"verdict": item["verdict"], "findings": own, "isolated": True}
        for touched in item.get("nodes") or [] if node is None else []:
            if touched in members:
                members[touched] = {**members[touched], "findings": [made, *members[touched]["findings"]]}
    verdict, why = _verdict(judged["groups"], members)
    return {**judged, "verdict": verdict, "why": why, "members": members, "isolation": {"findings": told}}


def concluded_finding(item: Conclusion) -> Finding:
    """A conclusion of isolation as a finding; what clears a node is a note."""
    made = finding(
        str(item.get("reason") or "ThresholdViolation"),
        str(item.get("message") or ""),
        node=item["node"],
        evidence=_lines(item.get("evidence")),
        hint=str(item.get("hint") or ""),
        note=item["verdict"] == "passed",
    )
    extra = {key: item[key] for key in ("class", "confidence") if item.get(key) is not None}  # type: ignore[literal-required]
    return t.cast(Finding, {**made, **extra})


def _condemned(member: Member) -> bool:
    convicting = any(reason_of(item["reason"]).effect == "convicts" and not item["note"] for item in member["findings"])
    return member["verdict"] == "failed" and convicting


def _collect_members(groups: t.Sequence[JudgedGroup], untested: t.Sequence[Untested]) -> dict[str, Member]:
    """One entry per node: the worst of its groups, with the findings of all of them."""
    members: dict[str, Member] = {}

    def add(node: str, verdict: NodeVerdict, findings: list[Finding]) -> None:
        known = members.get(node, {"verdict": "passed", "findings": []})
        members[node] = {"verdict": worse(known["verdict"], verdict), "findings": known["findings"] + findings}

    for group in groups:
        for node, member in group["members"].items():
            add(node, member["verdict"], [{**item, "group": group["name"]} for item in member["findings"]])
    for item in untested:
        reason = item["reason"] if item["reason"] in REASONS else "Untested"
        made: Finding = {**finding(reason, item["message"] or reason, evidence=_lines(item.get("evidence"))), "group": None}
        add(item["node"], "failed" if reason_of(reason).effect == "convicts" else "untested", [made])
    return dict(sorted(members.items()))


def judged_category(
    category: Category,
    verdict: Verdict,
    why: str,
    *,
    members: dict[str, Member],
    groups: t.Sequence[JudgedGroup] = (),
    criteria: t.Sequence[dict[str, t.Any]] = (),
    allow_no_criteria: bool = False,
    isolation: dict[str, t.Any] | None = None,
) -> JudgedCategory:
    """The one maker of a judged category (docs/data_shapes.md)."""
    return {
        "id": category["id"],
        "test": category["test"],
        "test_scale": category["test_scale"],
        "verdict": verdict,
        "why": why,
        "criteria": list(criteria),
        "allow_no_criteria": allow_no_criteria,
        "groups": list(groups),
        "untested": list(category["untested"]),
        "members": members,
        "isolation": isolation,
    }


def _verdict(groups: t.Sequence[JudgedGroup], members: t.Mapping[str, Member]) -> tuple[Verdict, str]:
    """What groups and members amount to, and why."""
    counts = {word: sum(group["verdict"] == word for group in groups) for word in VERDICT_ORDER}
    states = {word: [name for name, member in members.items() if member["verdict"] == word] for word in NODE_ORDER}
    verdict: Verdict = "passed"
    if counts["failed"] or states["failed"] or states["suspect"]:
        verdict = "failed"
    elif not groups or not any(group["measured"] for group in groups):
        verdict = "error"
    elif counts["passed"] < len(groups) or states["untested"]:
        verdict = "incomplete"
    return verdict, _category_why(verdict, groups, counts, states)


def _category_why(
    verdict: Verdict, groups: t.Sequence[JudgedGroup], counts: t.Mapping[Verdict, int], states: t.Mapping[NodeVerdict, list[str]]
) -> str:
    """One sentence."""
    if verdict == "passed":
        return f"{counted(len(groups), 'group')} passed"
    reasons = _reason_counts(groups)
    parts = []
    if counts["failed"]:
        parts.append(f"{counts['failed']} of {counted(len(groups), 'group')} failed")
    elif groups and verdict != "failed":
        parts.append(f"{counts['passed']} of {counted(len(groups), 'group')} passed")
    elif not groups:
        parts.append("no group could be formed")
    told: tuple[NodeVerdict, ...] = ("failed", "suspect", "untested")
    parts += [f"{counted(len(states[word]), 'node')} {word}" for word in told if states[word]]
    text = ", ".join(parts)
    return f"{text} ({reasons})" if reasons else text


def _reason_counts(groups: t.Sequence[JudgedGroup]) -> str:
    counts: dict[str, int] = {}
    for group in groups:
        first = next(iter(failing(group["findings"])), None)
        if first:
            counts[first["reason"]] = counts.get(first["reason"], 0) + 1
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _lines(value: t.Any) -> list[str]:
    if not value:
        return []
    return [str(line) for line in value] if isinstance(value, (list, tuple)) else [str(value)]
