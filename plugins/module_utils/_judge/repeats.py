# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict of a group that is run several times: by the median of all, or by how many of its repeats pass (k_of_n).

Each repeat is judged as a group is; what all of them say is said once. In which order they ended makes no difference.
"""

from __future__ import annotations

import types
import typing as t

from .._causes.reasons import finding
from .._causes.record import of_repeat
from .._common.hostlist import fold
from .._common.shapes import (
    CriterionResult,
    Finding,
    Group,
    GroupObservation,
    JudgedGroup,
    Measurement,
    Member,
    Observation,
    Range,
    Repeats,
    Verdict,
)
from .._criteria.criteria import Criterion, evaluate_all
from .groups import is_comparable, judge_group
from .machines import LastLook, left_out
from .medians import Medians, medians_of
from .ranks import VERDICT_ORDER, Rank, failing, rank, unique, worse

MISSED = ("ThresholdViolation", "Unstable")  # values that miss a criterion
NAMED = 10  # repeats that a finding names


class Repeat(t.NamedTuple):
    """One repeat of a group. observation: with its own attempts alone; None: it never ran. criteria: of the nodes that it was made with."""

    observation: GroupObservation | None
    measurement: Measurement | None
    criteria: t.Sequence[Criterion]


class Judging(t.NamedTuple):
    """How the groups of a category are judged."""

    k_of_n: int | None = None
    allow_no_criteria: bool = False
    last_look: LastLook | None = None
    unseen: bool = False


def observed_in(observation: Observation, repeat: int) -> Observation:
    """What was observed of one repeat of each group; a group that never came to it is left out."""
    groups: list[GroupObservation] = [{**group, "attempts": of_repeat(group["attempts"], repeat)} for group in observation["groups"]]
    return {**observation, "groups": [group for group in groups if group["attempts"]]}


def judge_repeats(group: Group, repeats: t.Sequence[Repeat], how: Judging) -> JudgedGroup:
    """Judge a group by its repeats; those that never ran are among them."""
    alone = [judge_once(group, item, how) for item in repeats]
    good = [index for index, item in enumerate(repeats) if is_comparable(group, item.observation, item.measurement)]
    whole = min((_missing(repeats[index]) for index in good), default=[], key=lambda names: (len(names), names))
    alike = [repeats[index] for index in good if _missing(repeats[index]) == whole]
    medians = medians_of([t.cast(Measurement, item.measurement) for item in alike], _metrics(alike))
    results = evaluate_all(alike[0].criteria, medians.values) if alike else []
    enough = len(alike) >= (how.k_of_n or len(repeats))
    if how.k_of_n is None:
        known = medians if enough else None
        judged = [_by_median(group, item, own, known, results, how) for item, own in zip(repeats, alone, strict=True)]
        made = _fold(group, judged, range(len(repeats)), repeats)
        made = made if enough or len(good) < len(repeats) else _of_unlike(made, repeats)
        made = _with_notes(made, _by_themselves(alone, good))
    else:
        judged = alone
        made = _fold(group, judged, _counted(alone, how.k_of_n), repeats)
    return {
        **made,
        "measured": any(item["measured"] for item in alone),
        "attempts": sorted((attempt for item in alone for attempt in item["attempts"]), key=lambda attempt: attempt["attempt"]),
        "measurement": _shown(made["verdict"], judged, good, medians.measurement(complete=enough)),
        "criteria": results if enough else [],
        "repeats": _summary(repeats, alone, good, medians, how),
    }


def judge_once(group: Group, repeat: Repeat, how: Judging) -> JudgedGroup:
    """Judge a group by one repeat, all there is of it."""
    made = repeat.measurement
    return _judge(group, repeat, made, evaluate_all(repeat.criteria, made["values"]) if made else [], how)


def _by_median(
    group: Group, repeat: Repeat, alone: JudgedGroup, medians: Medians | None, results: t.Sequence[CriterionResult], how: Judging
) -> JudgedGroup:
    """A repeat judged by what all of them measured. medians: None where they have none; then its own values say nothing either."""
    made = repeat.measurement
    if made is None or not is_comparable(group, repeat.observation, made):
        return alone
    if medians is None:
        return _judge(group, repeat, made, (), how._replace(allow_no_criteria=True))
    return _judge(group, repeat, t.cast(Measurement, {**made, "values": medians.values}), results, how, medians.ranges)


def _judge(
    group: Group,
    repeat: Repeat,
    measurement: Measurement | None,
    results: t.Sequence[CriterionResult],
    how: Judging,
    ranges: t.Mapping[str, Range] = types.MappingProxyType({}),
) -> JudgedGroup:
    return judge_group(
        group,
        repeat.observation,
        measurement,
        results,
        allow_no_criteria=how.allow_no_criteria,
        last_look=how.last_look,
        unseen=how.unseen,
        ranges=ranges,
    )


def _missing(repeat: Repeat) -> list[str]:
    """The members that it was made without."""
    return sorted(left_out(repeat.observation["attempts"])) if repeat.observation else []


def _metrics(repeats: t.Sequence[Repeat]) -> list[str]:
    return list(dict.fromkeys(name for item in repeats for criterion in item.criteria for name in criterion.metrics))


def _counted(alone: t.Sequence[JudgedGroup], k: int) -> list[int]:
    """The repeats that decide where k must pass.

    Broken hardware and wrong data are never outvoted. Where what is missing could still make up for what failed, nothing is proven.
    """
    everyone = range(len(alone))
    if any(rank(item) in (Rank.HARDWARE, Rank.DATA) for judged in alone for item in failing(judged["findings"])):
        return list(everyone)
    passed = [index for index in everyone if alone[index]["verdict"] == "passed"]
    if len(passed) >= k:
        return passed
    may_pass = [index for index in everyone if alone[index]["verdict"] != "failed"]
    return may_pass if len(may_pass) >= k else list(everyone)


def _fold(group: Group, judged: t.Sequence[JudgedGroup], counted: t.Sequence[int], repeats: t.Sequence[Repeat]) -> JudgedGroup:
    """What repeats amount to: the worst of those that count, for the group and for each member. What the others say is a note."""
    verdict: Verdict = max((judged[index]["verdict"] for index in counted), key=VERDICT_ORDER.index)
    ran = [index for index, item in enumerate(repeats) if item.observation]
    explained = any(judged[index]["verdict"] != "passed" for index in counted if index in ran)
    told = ran if explained else range(len(judged))  # what never ran is told of where nothing else says why
    findings = _said({index: judged[index]["findings"] for index in told}, len(judged))
    decide = {index for index in counted if judged[index]["verdict"] == verdict != "passed"}
    members: dict[str, Member] = {}
    for node in group["nodes"]:
        own = {index: judged[index]["members"][node] for index in range(len(judged))}
        state = own[counted[0]]["verdict"]
        for index in counted:
            state = worse(state, own[index]["verdict"])
        said = _said({index: own[index]["findings"] for index in told}, len(judged))
        blamed = {index for index in counted if own[index]["verdict"] != "passed"}
        members[node] = {"verdict": state, "findings": _as_notes(said, blamed)}
    return t.cast(
        JudgedGroup,
        {
            "name": group["name"],
            "nodes": list(group["nodes"]),
            "domain": group["domain"],
            "verdict": verdict,
            "findings": sorted(_as_notes(findings, decide), key=lambda item: (item["note"], rank(item))),
            "members": members,
        },
    )


_Said = list[tuple[set[int], Finding]]


def _said(findings: t.Mapping[int, t.Sequence[Finding]], count: int) -> _Said:
    """Each finding with the repeats that have it, which it names unless all of them have it. Missed criteria of several are one finding."""
    known: dict[t.Any, tuple[set[int], Finding]] = {}
    for index, own in findings.items():
        for item in own:
            known.setdefault((item["reason"], item["node"], item["message"], item["note"]), (set(), item))[0].add(index)
    result: _Said = [(who, item) for who, item in known.values() if len(who) == count]
    alike: dict[t.Any, _Said] = {}
    for key, (who, item) in known.items():
        if len(who) < count:
            missed = item["reason"] in MISSED and not item["note"]
            alike.setdefault(key[:2] if missed else key, []).append((who, item))
    return result + [_named(several, count) for several in alike.values()]


def _named(said: _Said, count: int) -> tuple[set[int], Finding]:
    """Findings of the same kind as one that names its repeats."""
    who = set[int]().union(*(indices for indices, _item in said))
    numbers = [str(index + 1) for index in sorted(who)]
    named = f"repeat{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:NAMED])}{' …' if len(numbers) > NAMED else ''} of {count}"
    first = said[0][1]
    if len(said) == 1:
        return who, {**first, "message": f"{named}: {first['message']}"}
    lines = [f"repeat {min(indices) + 1}: {item['message']}" for indices, item in said]
    return who, {**first, "message": f"{named} missed it, the first so: {first['message']}", "evidence": lines}


def _as_notes(said: _Said, deciding: t.Collection[int]) -> list[Finding]:
    """The findings; those of repeats that do not decide change no verdict."""
    return unique({**item, "note": item["note"] or not who.intersection(deciding)} for who, item in said)


def _of_unlike(made: JudgedGroup, repeats: t.Sequence[Repeat]) -> JudgedGroup:
    """Repeats that were not made with the same nodes have no median, so that nothing is said of those that took part in all."""
    without = [f"repeat {number} without {fold(names)}" for number, names in enumerate(map(_missing, repeats), 1) if names]
    text = f"its repeats were not made with the same nodes ({'; '.join(without)}): they have no median"
    found = finding("Untested", text, hint="Certify the group again.")
    members: dict[str, Member] = {
        node: {"verdict": "untested", "findings": [*member["findings"], found]} if member["verdict"] == "passed" else member
        for node, member in made["members"].items()
    }
    verdict: Verdict = max(made["verdict"], "incomplete", key=VERDICT_ORDER.index)  # type: ignore[assignment]
    own: Finding = {**found, "note": made["verdict"] == "failed"}
    return {**made, "verdict": verdict, "findings": [*made["findings"], own], "members": members}


def _by_themselves(alone: t.Sequence[JudgedGroup], good: t.Sequence[int]) -> list[Finding]:
    """Repeats whose own values miss a criterion."""
    missed = {index: [item for item in failing(alone[index]["findings"]) if item["reason"] in MISSED] for index in good}
    return [{**item, "note": True} for _who, item in _said(missed, len(alone))]


def _with_notes(made: JudgedGroup, notes: t.Sequence[Finding]) -> JudgedGroup:
    """With what single repeats miss, unless the median misses it too."""
    if any(rank(item) == Rank.THRESHOLDS for item in failing(made["findings"])):
        return made
    members: dict[str, Member] = {node: {**member, "findings": [*member["findings"], *notes]} for node, member in made["members"].items()}
    return {**made, "findings": [*made["findings"], *notes], "members": members}


def _shown(verdict: Verdict, judged: t.Sequence[JudgedGroup], good: t.Sequence[int], medians: Measurement | None) -> Measurement | None:
    """The medians; of a group that a repeat without comparable values decides, the measurement of that repeat."""
    deciding = [item for index, item in enumerate(judged) if index not in good and item["verdict"] == verdict != "passed"]
    return next((item["measurement"] for item in deciding if item["measurement"]), medians)


def _summary(repeats: t.Sequence[Repeat], alone: t.Sequence[JudgedGroup], good: t.Sequence[int], medians: Medians, how: Judging) -> Repeats:
    return {
        "wanted": len(repeats),
        "k_of_n": how.k_of_n,
        "measured": len(good),
        "passed": sum(judged["verdict"] == "passed" for judged in alone),
        "ranges": dict(medians.ranges),
        "each": [
            {
                "repeat": index + 1,
                "verdict": alone[index]["verdict"],
                "attempts": [attempt["attempt"] for attempt in item.observation["attempts"]] if item.observation else [],
                "values": {name: item.measurement["values"].get(name) for name in medians.ranges} if item.measurement else {},
            }
            for index, item in enumerate(repeats)
        ],
    }
