# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict of a group, by its last attempt.

All findings are reported; the first in the order of judgement decides (see `ranks`). Without evidence nothing passes.
"""

from __future__ import annotations

import types
import typing as t

from .._causes.reasons import finding, reason_of
from .._common.hostlist import fold
from .._common.shapes import (
    AttemptRecord,
    CriterionResult,
    Finding,
    Group,
    GroupObservation,
    JudgedGroup,
    Measurement,
    Member,
    Range,
    Verdict,
)
from .._criteria.criteria import number
from .._measure.measurement import is_unstable
from .machines import LastLook, left_out, machine_findings
from .ranks import STATES, VERDICT_ORDER, Rank, failing, rank, unique, worse

# Verdicts of a measurement whose values may be compared with limits all the same.
COMPARABLE = (None, "ThresholdViolation")
# These tests judge themselves: they need no criteria.
SELF_JUDGING = ("dcgm", "gpu_burn", "node_facts")


def judge_group(
    group: Group,
    observation: GroupObservation | None,
    measurement: Measurement | None,
    criteria_results: t.Sequence[CriterionResult] = (),
    *,
    allow_no_criteria: bool = False,
    last_look: LastLook | None = None,
    unseen: bool = False,
    ranges: t.Mapping[str, Range] = types.MappingProxyType({}),
) -> JudgedGroup:
    """Judge one group by its last attempt.

    group: of the plan. observation: its entry of the observation, or None when it never ran. measurement: of the last attempt, or None.
    criteria_results: of `criteria.evaluate_all` on its values. last_look, unseen: see `machines`. ranges: by metric, of the values that the
    measurement stands for, where there are several.
    """
    attempts = observation["attempts"] if observation else []
    findings = _before_criteria(group, attempts, measurement)
    judged = _is_judged(findings, measurement)
    complete = _is_complete(measurement)
    if judged and measurement is not None:
        findings += _criteria_findings(measurement, criteria_results, complete, allow_no_criteria, ranges)
    findings += _correctness_note(measurement) + _repeat_notes(attempts, findings)
    findings = sorted(unique(findings), key=lambda item: (item["note"], rank(item)))
    verdict, members = _group_verdict(findings), _members(group, findings, _group_verdict(findings))
    told = machine_findings(group["nodes"], attempts, last_look, unseen=unseen)
    absent = left_out(attempts)
    explains = any(reason_of(item["reason"]).effect == "convicts" and item["node"] not in absent for item in told)
    if explains and verdict != "passed":
        # The machine explains what its group ended with.
        findings = sorted(unique([*told, *findings]), key=lambda item: (item["note"], rank(item)))
        verdict, members = _group_verdict(findings), _members(group, findings, _group_verdict(findings))
    elif told:
        findings = [*findings, *told]
        verdict, members = max(verdict, _group_verdict(told), key=VERDICT_ORDER.index), _with_machines(members, told, absent)
    return {
        "name": group["name"],
        "nodes": list(group["nodes"]),
        "domain": group["domain"],
        "verdict": verdict,
        "measured": complete,
        "attempts": list(attempts),
        "measurement": measurement,
        "criteria": list(criteria_results) if judged and complete else [],
        "findings": findings,
        "members": members,
    }


def is_comparable(group: Group, observation: GroupObservation | None, measurement: Measurement | None) -> bool:
    """Whether what a group measured may be compared with limits."""
    findings = _before_criteria(group, observation["attempts"] if observation else [], measurement)
    return _is_judged(findings, measurement) and _is_complete(measurement)


def _is_judged(findings: t.Sequence[Finding], measurement: Measurement | None) -> bool:
    return bool(measurement) and not [item for item in failing(findings) if rank(item) < Rank.THRESHOLDS]


def _is_complete(measurement: Measurement | None) -> bool:
    return bool(measurement and measurement["complete"] and measurement["verdict"] in COMPARABLE)


def _before_criteria(group: Group, attempts: t.Sequence[AttemptRecord], measurement: Measurement | None) -> list[Finding]:
    findings = _attempt_findings(group, attempts, measurement)
    if attempts and attempts[-1]["outcome"] == "succeeded" and measurement is None and not failing(findings):
        findings.append(finding("NoMeasurement", "the workload succeeded, but nothing was measured"))
    return findings


def _attempt_findings(group: Group, attempts: t.Sequence[AttemptRecord], measurement: Measurement | None) -> list[Finding]:
    if not attempts:
        return [finding("Untested", "the group was not run")]
    last = attempts[-1]
    measured = _measurement_findings(group, last, measurement) if last["outcome"] not in ("not_started", "cancelled") else []
    causes = _cause_findings(last)
    if last["outcome"] == "succeeded" and measurement and measurement["complete"]:
        # A worker evicted after the result was complete took nothing away from it; nor did a read that failed after the log's end.
        causes = [item for item in causes if item["reason"] not in ("Evicted", "LogUnavailable")]
    if any(item["reason"] == "LogUnavailable" for item in causes):
        measured = [item for item in measured if rank(item) != Rank.COMPLETENESS]  # nothing was read: that is why
    told = {rank(item) for item in failing(measured)} - {Rank.COMPLETENESS}
    if told:
        # The log often knows better than "exit code 1".
        causes = [item for item in causes if item["reason"] != "WorkloadFailed"]
    if told - {Rank.BROKEN}:
        causes = [item for item in causes if item["reason"] != "TimedOut"]
    if any(rank(item) in (Rank.HARDWARE, Rank.CAUSE) for item in causes):
        # And the API knows better than an empty or broken log: evicted, lost or killed explains it.
        explained = (Rank.BROKEN,) if last["outcome"] == "succeeded" else (Rank.BROKEN, Rank.COMPLETENESS)
        measured = [item for item in measured if rank(item) not in explained]
    if any(rank(item) == Rank.BROKEN for item in causes + measured):
        # What crashed or hung leaves a broken log: that is no second fault.
        measured = [item for item in measured if rank(item) != Rank.COMPLETENESS]
    return causes + measured


def _cause_findings(attempt: AttemptRecord) -> list[Finding]:
    """The cause of an attempt's end: one finding per node it names, or one for the group."""
    cause = attempt["cause"]
    if cause is None:
        return []
    evidence = cause["evidence"]
    named = [node for node in cause["nodes"] if node]
    if not named:
        return [finding(cause["reason"], cause["message"], evidence=evidence)]
    result = []
    for node in named:
        own = [line for line in evidence if node in line] or evidence
        message = next((line for line in own if node in line), cause["message"])
        result.append(finding(cause["reason"], message, node=node, evidence=own))
    return result


def _measurement_findings(group: Group, attempt: AttemptRecord, measurement: Measurement | None) -> list[Finding]:
    """What the log proves to be wrong, most specific first. What a measurement without a verdict has to say is a note."""
    if not measurement:
        return []
    verdict = measurement["verdict"]
    result = []
    for item in measurement["findings"]:
        entity = f"{item['entity']}: " if item["entity"] and str(item["entity"]) not in item["message"] else ""
        node = node_of_host(item["host"], group, attempt)
        where = f" (host {item['host']})" if item["host"] and not node else ""
        made = finding(item["reason"], f"{entity}{item['message']}{where}", node=node, evidence=item["evidence"], note=verdict is None)
        if item.get("since"):
            made["since"] = item["since"]
        result.append(made)
    if verdict and not any(item["reason"] == verdict for item in result):
        result.insert(0, finding(verdict, measurement["reason"], node=_only_member(verdict, group)))
    for found in result:
        found["node"] = found["node"] or _only_member(found["reason"], group)
    return result


def _only_member(reason: str, group: Group) -> str | None:
    """A diagnostic of a single node that reports broken hardware names that node."""
    nodes = group["nodes"]
    return nodes[0] if reason_of(reason).effect == "convicts" and len(nodes) == 1 else None


def node_of_host(host: str | None, group: Group, attempt: AttemptRecord) -> str | None:
    """The member a host name in a log means: a node's name, its first label, or the name of a pod on it."""
    if not host:
        return None
    nodes = group["nodes"]
    if host in nodes:
        return host
    short = [node for node in nodes if node.partition(".")[0] == host.partition(".")[0]]
    if len(short) == 1:
        return short[0]
    pods = [pod for pod in attempt["pods"] if pod["node"] and _pod_has_host(pod["name"], host)]
    return pods[0]["node"] if len({pod["node"] for pod in pods}) == 1 else None


def _pod_has_host(pod: str, host: str) -> bool:
    # The host name of an indexed pod is its name without the random suffix, and without the domain.
    label = host.partition(".")[0]
    return pod == label or pod.rpartition("-")[0] == label


def _criteria_findings(
    measurement: Measurement,
    results: t.Sequence[CriterionResult],
    complete: bool,
    allow_no_criteria: bool,
    ranges: t.Mapping[str, Range],
) -> list[Finding]:
    if not complete:
        return [] if measurement["verdict"] not in COMPARABLE else [finding("LogIncomplete", _partial(measurement))]
    if not results:
        return [] if allow_no_criteria or measurement["kind"] in SELF_JUDGING else [finding("NoCriterion", _no_criterion(measurement))]
    return [item for item in (_criterion_finding(result, measurement, ranges) for result in results) if item]


def _criterion_finding(result: CriterionResult, measurement: Measurement, ranges: t.Mapping[str, Range]) -> Finding | None:
    if result["status"] == "passed" and result["passed"] is True:
        return None
    if result["status"] == "unmeasured":
        return finding("NoMeasurement", result["message"])
    if result["status"] != "failed":
        return finding("SetupError", result["message"], hint="Correct the expression")
    values, among = measurement["values"], ranges.get(result["metric"])
    if among and is_unstable(among["spread"], among["samples"]):
        spread = f"{among['samples']} repeats differ by {among['spread']:.0%}"
        told = f"repeats from {number(among['low'])} to {number(among['high'])}"
        return finding("Unstable", f"{result['message']}; {spread}: they convict nobody", evidence=[told])
    if not is_unstable(values.get("spread"), values.get("samples")):
        return finding("ThresholdViolation", result["message"])
    spread = f"{values['samples']} samples differ by {values['spread']:.0%}"
    return finding("Unstable", f"{result['message']}; {spread}: this run convicts nobody", evidence=[_samples(values)])


def _samples(values: t.Mapping[str, t.Any]) -> str:
    low, high = values.get("bus_bandwidth_min"), values.get("bus_bandwidth_max")
    return f"samples from {low} to {high}" if low is not None else f"spread {values.get('spread')}"


def _partial(measurement: Measurement) -> str:
    return f"the measurement is not complete and was not judged: {measurement['reason'] or 'the log breaks off'}"


def _no_criterion(measurement: Measurement) -> str:
    values, units = measurement["values"], measurement["units"]
    lead = next((name for name in ("bus_bandwidth", "alg_bandwidth", *values) if isinstance(values.get(name), (int, float))), None)
    shown = f"; measured {lead} = {number(values[lead])} {units.get(lead, '')}".rstrip() if lead else ""
    return f"no criterion was given: only correctness, transport and completeness were judged{shown}"


def _correctness_note(measurement: Measurement | None) -> list[Finding]:
    """A bandwidth says nothing about the data: where they were not checked, the report says so."""
    if measurement is None or not measurement["complete"] or measurement["values"].get("data_correct", False) is not None:
        return []
    return [finding("Warning", "the data were not checked: whether they are correct is unknown", hint="Run the test with -c 1.")]


def _repeat_notes(attempts: t.Sequence[AttemptRecord], findings: list[Finding]) -> list[Finding]:
    """A pass after an attempt that failed by the nodes' doing is said aloud."""
    if len(attempts) < 2 or failing(findings):
        return []
    notes = []
    for attempt in attempts[:-1]:
        cause = attempt["cause"]
        if cause and reason_of(cause["reason"]).effect in ("suspects", "convicts"):
            ended = f"attempt {attempt['attempt']} ended with {cause['reason']} ({cause['message']})"
            notes.append(finding("Unstable", f"{ended}; attempt {attempts[-1]['attempt']} passed", evidence=cause["evidence"], note=True))
    return notes


def _group_verdict(findings: list[Finding]) -> Verdict:
    deciding = failing(findings)
    return reason_of(deciding[0]["reason"]).verdict if deciding else "passed"


def _members(group: Group, findings: list[Finding], verdict: Verdict) -> dict[str, Member]:
    """What the group's verdict means for each member. Membership alone accuses nobody."""
    nodes = list(group["nodes"])
    bad = failing(findings)
    convicted = {item["node"] for item in bad if reason_of(item["reason"]).effect == "convicts" and item["node"] in nodes}
    named_only = {item["node"] for item in bad if reason_of(item["reason"]).named_only and item["node"] in nodes}
    members: dict[str, Member] = {}
    for node in nodes:
        own = [item for item in findings if item["node"] in (None, node)]
        if verdict == "passed":
            members[node] = {"verdict": "passed", "findings": own}
        elif node in convicted:
            members[node] = {"verdict": "failed", "findings": own}
        elif convicted:
            members[node] = _absolved(findings, convicted, bad)
        elif named_only and reason_of(bad[0]["reason"]).named_only:
            members[node] = {"verdict": "suspect", "findings": own} if node in named_only else _absolved(findings, named_only, bad)
        else:
            accusing = reason_of(bad[0]["reason"]).effect != "untested"
            members[node] = {"verdict": "suspect" if accusing else "untested", "findings": own or _of_others(findings)}
    return members


def _with_machines(members: t.Mapping[str, Member], told: t.Sequence[Finding], absent: t.Collection[str]) -> dict[str, Member]:
    """What became of the machines, beside what the test said of them: it touches only the nodes that it names.

    absent: members that the last attempt began without, of which it says nothing.
    """
    result = dict(members)
    for item in told:
        node = t.cast(str, item["node"])
        known: Member = {"verdict": "passed", "findings": []} if node in absent else result[node]
        verdict = worse(known["verdict"], STATES[reason_of(item["reason"]).effect])
        result[node] = {**known, "verdict": verdict, "findings": [item, *known["findings"]]}
    return result


def _of_others(findings: list[Finding]) -> list[Finding]:
    """What others' findings are for a member none of them names: what its group ended with."""
    return [{**item, "message": f"{item['node']}: {item['message']}"} for item in findings]


def _absolved(findings: list[Finding], culprits: t.Collection[str], bad: list[Finding]) -> Member:
    """A member of a group that was stopped by another node."""
    text = f"its group was stopped by {fold(culprits)} ({bad[0]['reason']}); this node is not accused"
    hint = "Certify this node again without the one named."
    return {"verdict": "untested", "findings": [finding("Untested", text, hint=hint), *(item for item in findings if item["note"])]}
