# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts: of a group, of a category, of the whole certification.

Order of judgement: broken hardware, data correctness, the attempt's own cause, transport, completeness,
thresholds. All findings are reported; the first one decides. Without evidence nothing passes.
"""

from __future__ import annotations

import typing as t

from .._causes.classify import classify_attempt, reason_from_text
from .._causes.reasons import REASONS, finding, reason_of
from .._common.hostlist import fold
from .._criteria import criteria as criteria_room

Finding = dict[str, t.Any]

# Measurement verdicts that say something is wrong, and the reason each stands for.
MEASUREMENT_REASONS = {
    "wrong_data": "DataCorruption",
    "wrong_transport": "TransportFallback",
    "threshold_violated": "ThresholdViolation",
    "incomplete": "LogIncomplete",
    "no_data": "NoMeasurement",
    "run_failed": "WorkloadFailed",
    "timed_out": "TimedOut",
    "setup_error": "SetupError",
    "hardware_fail": "HardwareFailureDetected",
    "hardware_reset": "HardwareFailureDetected",
    "config_fail": "SetupError",
    "retry": "SetupError",
}
# Verdicts whose values may be compared with limits.
COMPARABLE = ("measured", "pass", "warn", "threshold_violated")
# These tests judge themselves: they need no criteria.
SELF_JUDGING = ("dcgm", "gpu_burn")
UNSTABLE_SPREAD, UNSTABLE_SAMPLES = 0.1, 3

# Place of a reason in the order of judgement; every other reason is a cause of its own: _CAUSE.
_HARDWARE, _DATA, _CAUSE, _TRANSPORT, _BROKEN, _COMPLETENESS, _THRESHOLDS = range(7)
_RANK = {
    "HardwareFailureDetected": _HARDWARE,
    "NodeLost": _HARDWARE,
    "DataCorruption": _DATA,
    "TransportFallback": _TRANSPORT,
    "WorkloadFailed": _BROKEN,
    "TimedOut": _BROKEN,
    "LogIncomplete": _COMPLETENESS,
    "NoMeasurement": _COMPLETENESS,
    "ThresholdViolation": _THRESHOLDS,
    "Unstable": _THRESHOLDS,
    "NoCriterion": _THRESHOLDS,
}
_NODE_ORDER = ("passed", "untested", "suspect", "failed")
_VERDICT_ORDER = ("passed", "incomplete", "error", "failed")


# ---------------------------------------------------------------------------------------------- groups


def judge_group(
    group: t.Mapping[str, t.Any],
    observation: t.Mapping[str, t.Any] | None,
    measurement: t.Mapping[str, t.Any] | None,
    criteria_results: t.Sequence[t.Mapping[str, t.Any]] = (),
    *,
    allow_no_criteria: bool = False,
) -> dict[str, t.Any]:
    """Judge one group by its last attempt.

    group: {name, nodes, ...} of the plan. observation: its entry of the observation, or None when it never ran.
    measurement: of the last attempt, or None. criteria_results: of `criteria.evaluate_all` on its values.

    Returns {name, nodes, domain, verdict: passed|failed|incomplete|error, measured: bool, attempts, measurement,
    criteria, findings, members: {node: {verdict, findings}}}.
    """
    attempts = list((observation or {}).get("attempts") or [])
    findings = _attempt_findings(group, attempts, measurement)
    if attempts and attempts[-1].get("outcome") == "succeeded" and measurement is None and not _failing(findings):
        findings.append(finding("NoMeasurement", "the workload succeeded, but nothing was measured"))
    judged = bool(measurement) and not [item for item in _failing(findings) if _rank(item) < _THRESHOLDS]
    complete = bool(measurement and measurement.get("complete") and measurement.get("verdict") in COMPARABLE)
    if judged and measurement is not None:
        findings += _criteria_findings(measurement, criteria_results, complete, allow_no_criteria)
    findings += _correctness_note(measurement) + _repeat_notes(attempts, findings)
    findings = sorted(_unique(findings), key=lambda item: (item["note"], _rank(item)))
    verdict = _group_verdict(findings)
    return {
        "name": group.get("name"),
        "nodes": list(group.get("nodes") or []),
        "domain": group.get("domain"),
        "verdict": verdict,
        "measured": complete,
        "attempts": attempts,
        "measurement": dict(measurement) if measurement else None,
        "criteria": [dict(result) for result in criteria_results] if judged and complete else [],
        "findings": findings,
        "members": _members(group, findings, verdict),
    }


def _attempt_findings(group: t.Mapping[str, t.Any], attempts: list[t.Any], measurement: t.Mapping[str, t.Any] | None) -> list[Finding]:
    if not attempts:
        return [finding("Untested", "the group was not run")]
    last = attempts[-1]
    measured = _measurement_findings(group, last, measurement) if last.get("outcome") not in ("not_started", "cancelled") else []
    causes = _cause_findings(last)
    if last.get("outcome") == "succeeded" and measurement and measurement.get("complete"):
        # A worker evicted after the result was complete took nothing away from it.
        causes = [item for item in causes if item["reason"] != "Evicted"]
    told = {_rank(item) for item in _failing(measured)} - {_COMPLETENESS}
    if told:
        # The log often knows better than "exit code 1".
        causes = [item for item in causes if item["reason"] != "WorkloadFailed"]
    if told - {_BROKEN}:
        causes = [item for item in causes if item["reason"] != "TimedOut"]
    if any(_rank(item) in (_HARDWARE, _CAUSE) for item in causes):
        # And the API knows better than an empty or broken log: evicted, lost or killed explains it.
        measured = [item for item in measured if _rank(item) != _BROKEN]
    if any(_rank(item) == _BROKEN for item in causes + measured):
        # What crashed or hung leaves a broken log: that is no second fault.
        measured = [item for item in measured if _rank(item) != _COMPLETENESS]
    return causes + measured


def _cause_findings(attempt: t.Mapping[str, t.Any]) -> list[Finding]:
    """The API's cause of an attempt's end: one finding per node it names, or one for the group."""
    cause = classify_attempt(attempt)
    if not cause["reason"]:
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


def _measurement_findings(
    group: t.Mapping[str, t.Any], attempt: t.Mapping[str, t.Any], measurement: t.Mapping[str, t.Any] | None
) -> list[Finding]:
    """What the log proves to be wrong, most specific first."""
    if not measurement:
        return []
    verdict = str(measurement.get("verdict"))
    fine = verdict in ("measured", "pass", "warn")
    result = []
    for item in measurement.get("findings") or []:
        entity = f"{item['entity']}: " if item.get("entity") and str(item["entity"]) not in str(item.get("message")) else ""
        node = node_of_host(item.get("host"), group, attempt)
        where = f" (host {item['host']})" if item.get("host") and not node else ""
        reason = (
            item.get("reason")
            if item.get("reason") in REASONS
            else MEASUREMENT_REASONS.get(verdict, "Warning" if fine else "WorkloadFailed")
        )
        message = f"{entity}{item.get('message')}{where}"
        result.append(finding(str(reason), message, node=node, evidence=_lines(item.get("evidence")), note=fine))
    wanted = MEASUREMENT_REASONS.get(verdict, "" if fine else "NoMeasurement")
    if wanted == "WorkloadFailed":
        wanted = reason_from_text(str(measurement.get("reason"))) or wanted
    if wanted and not any(item["reason"] == wanted for item in result):
        result.insert(0, finding(wanted, str(measurement.get("reason") or verdict), node=_only_member(wanted, group)))
    for item in result:
        item["node"] = item["node"] or _only_member(item["reason"], group)
    if verdict == "warn" and not result:
        result.append(finding("Warning", str(measurement.get("reason") or "passed with a warning")))
    return result


def _only_member(reason: str, group: t.Mapping[str, t.Any]) -> str | None:
    """A diagnostic of a single node that reports broken hardware names that node."""
    nodes = group.get("nodes") or []
    return nodes[0] if reason_of(reason).effect == "convicts" and len(nodes) == 1 else None


def node_of_host(host: str | None, group: t.Mapping[str, t.Any], attempt: t.Mapping[str, t.Any]) -> str | None:
    """The member a host name in a log means: a node's name, its first label, or the name of a pod on it."""
    if not host:
        return None
    nodes = group.get("nodes") or []
    if host in nodes:
        return host
    short = [node for node in nodes if node.partition(".")[0] == host.partition(".")[0]]
    if len(short) == 1:
        return short[0]
    pods = [pod for pod in attempt.get("pods") or [] if pod.get("node") and _pod_has_host(str(pod.get("name")), host)]
    return pods[0]["node"] if len({pod["node"] for pod in pods}) == 1 else None


def _pod_has_host(pod: str, host: str) -> bool:
    # The host name of an indexed pod is its name without the random suffix, and without the domain.
    label = host.partition(".")[0]
    return pod == label or pod.rpartition("-")[0] == label


def _criteria_findings(
    measurement: t.Mapping[str, t.Any], results: t.Sequence[t.Mapping[str, t.Any]], complete: bool, allow_no_criteria: bool
) -> list[Finding]:
    if not complete:
        return [] if measurement.get("verdict") not in COMPARABLE else [finding("LogIncomplete", _partial(measurement))]
    if not results:
        return [] if allow_no_criteria or measurement.get("kind") in SELF_JUDGING else [finding("NoCriterion", _no_criterion(measurement))]
    unstable = _is_unstable(measurement.get("values") or {})
    return [item for item in (_criterion_finding(result, measurement, unstable) for result in results) if item]


def _criterion_finding(result: t.Mapping[str, t.Any], measurement: t.Mapping[str, t.Any], unstable: bool) -> Finding | None:
    if result.get("status") == "passed" and result.get("passed") is True:
        return None
    message = str(result.get("message"))
    if result.get("status") == "unmeasured":
        return finding("NoMeasurement", message)
    if result.get("status") != "failed":
        return finding("SetupError", message, hint="Correct the expression")
    if not unstable:
        return finding("ThresholdViolation", message)
    values = measurement.get("values") or {}
    spread = f"{values['samples']} samples differ by {values['spread']:.0%}"
    return finding("Unstable", f"{message}; {spread}: this run convicts nobody", evidence=[_samples(measurement)])


def _is_unstable(values: t.Mapping[str, t.Any]) -> bool:
    spread, samples = values.get("spread"), values.get("samples")
    return isinstance(spread, (int, float)) and isinstance(samples, int) and samples >= UNSTABLE_SAMPLES and spread > UNSTABLE_SPREAD


def _samples(measurement: t.Mapping[str, t.Any]) -> str:
    values = measurement.get("values") or {}
    low, high = values.get("bus_bandwidth_min"), values.get("bus_bandwidth_max")
    return f"samples from {low} to {high}" if low is not None else f"spread {values.get('spread')}"


def _partial(measurement: t.Mapping[str, t.Any]) -> str:
    return f"the measurement is not complete and was not judged: {measurement.get('reason') or 'the log breaks off'}"


def _no_criterion(measurement: t.Mapping[str, t.Any]) -> str:
    values, units = measurement.get("values") or {}, measurement.get("units") or {}
    lead = next((name for name in ("bus_bandwidth", "alg_bandwidth", *values) if isinstance(values.get(name), (int, float))), None)
    shown = f"; measured {lead} = {criteria_room.number(values[lead])} {units.get(lead, '')}".rstrip() if lead else ""
    return f"no criterion was given: only correctness, transport and completeness were judged{shown}"


def _correctness_note(measurement: t.Mapping[str, t.Any] | None) -> list[Finding]:
    """A bandwidth says nothing about the data: where they were not checked, the report says so."""
    values = (measurement or {}).get("values") or {}
    if "data_correct" not in values or values["data_correct"] is not None or not (measurement or {}).get("complete"):
        return []
    return [finding("Warning", "the data were not checked: whether they are correct is unknown", hint="Run the test with -c 1.")]


def _repeat_notes(attempts: list[t.Any], findings: list[Finding]) -> list[Finding]:
    """A pass after an attempt that failed by the nodes' doing is said aloud."""
    if len(attempts) < 2 or _failing(findings):
        return []
    notes = []
    for number, attempt in enumerate(attempts[:-1], start=1):
        cause = classify_attempt(attempt)
        if cause["reason"] and reason_of(cause["reason"]).effect in ("suspects", "convicts"):
            label = attempt.get("attempt", number)
            text = f"attempt {label} ended with {cause['reason']} ({cause['message']}); attempt {attempts[-1].get('attempt')} passed"
            notes.append(finding("Unstable", text, evidence=cause["evidence"], note=True))
    return notes


def _group_verdict(findings: list[Finding]) -> str:
    failing = _failing(findings)
    return reason_of(failing[0]["reason"]).verdict if failing else "passed"


def _members(group: t.Mapping[str, t.Any], findings: list[Finding], verdict: str) -> dict[str, dict[str, t.Any]]:
    """What the group's verdict means for each member. Membership alone accuses nobody."""
    nodes = list(group.get("nodes") or [])
    failing = _failing(findings)
    convicted = {item["node"] for item in failing if reason_of(item["reason"]).effect == "convicts" and item["node"] in nodes}
    named_only = {item["node"] for item in failing if reason_of(item["reason"]).named_only and item["node"] in nodes}
    members: dict[str, dict[str, t.Any]] = {}
    for node in nodes:
        own = [item for item in findings if item["node"] in (None, node)]
        if verdict == "passed":
            members[node] = {"verdict": "passed", "findings": own}
        elif node in convicted:
            members[node] = {"verdict": "failed", "findings": own}
        elif convicted:
            members[node] = _absolved(findings, convicted, failing)
        elif named_only and reason_of(failing[0]["reason"]).named_only:
            members[node] = {"verdict": "suspect", "findings": own} if node in named_only else _absolved(findings, named_only, failing)
        else:
            accusing = reason_of(failing[0]["reason"]).effect != "untested"
            members[node] = {"verdict": "suspect" if accusing else "untested", "findings": own or _of_others(findings)}
    return members


def _of_others(findings: list[Finding]) -> list[Finding]:
    """What others' findings are for a member none of them names: what its group ended with."""
    return [{**item, "message": f"{item['node']}: {item['message']}"} for item in findings]


def _absolved(findings: list[Finding], culprits: set[str], failing: list[Finding]) -> dict[str, t.Any]:
    """A member of a group that was stopped by another node."""
    text = f"its group was stopped by {fold(culprits)} ({failing[0]['reason']}); this node is not accused"
    hint = "Certify this node again without the one named."
    return {"verdict": "untested", "findings": [finding("Untested", text, hint=hint), *(item for item in findings if item["note"])]}


# ---------------------------------------------------------------------------------------------- categories


def judge_category(
    category: t.Mapping[str, t.Any],
    observation: t.Mapping[str, t.Any] | None,
    measurements: t.Mapping[str, t.Mapping[str, t.Any] | None],
    compiled: t.Sequence[criteria_room.Criterion],
    *,
    allow_no_criteria: bool = False,
) -> dict[str, t.Any]:
    """Judge all groups of a category.

    category: of the plan. observation: of `workload_batch`. measurements: by group name, of each last attempt.
    compiled: the category's criteria.

    Returns {id, test, test_scale, verdict, why, criteria, groups, untested, members: {node: {verdict, findings}}}.
    """
    observed = {item.get("name"): item for item in (observation or {}).get("groups") or []}
    groups = []
    for group in category.get("groups") or []:
        measurement = measurements.get(group["name"])
        values = (measurement or {}).get("values") or {}
        results = criteria_room.evaluate_all(compiled, values) if measurement else []
        groups.append(judge_group(group, observed.get(group["name"]), measurement, results, allow_no_criteria=allow_no_criteria))
    judged: dict[str, t.Any] = {
        "id": category.get("id"),
        "test": category.get("test"),
        "test_scale": category.get("test_scale"),
        "criteria": [criterion.as_dict() for criterion in compiled],
        "allow_no_criteria": allow_no_criteria,
        "groups": groups,
        "untested": [dict(item) for item in category.get("untested") or []],
        "isolation": None,
    }
    return _conclude_category(judged, _collect_members(groups, judged["untested"]))


def apply_isolation(judged: t.Mapping[str, t.Any], conclusions: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """The category after isolation: its conclusions replace what membership in a failed group said of a node.

    conclusions: [{node, verdict: failed|passed|suspect, reason, message, evidence[], hint?, nodes?, class?, confidence?}].
    A conclusion without a node (a pair, a boundary, an intermittent fault) is a finding of the category and of the `nodes` it touches; it
    clears and convicts nobody.
    Nodes convicted by their own hardware evidence stay failed.
    """
    members = {name: dict(member) for name, member in judged["members"].items()}
    told: list[Finding] = []
    for item in conclusions:
        note = item.get("verdict") == "passed"
        made = finding(
            str(item.get("reason") or "ThresholdViolation"),
            str(item.get("message") or ""),
            node=item.get("node"),
            evidence=_lines(item.get("evidence")),
            hint=str(item.get("hint") or ""),
            note=note,
        )
        made.update({key: item[key] for key in ("class", "confidence") if item.get(key) is not None})
        told.append(made)
        node = item.get("node")
        if node in members and not _condemned(members[node]):
            own = [made, *([] if note else members[node]["findings"])]
            members[node] = {"verdict": item.get("verdict"), "findings": own, "isolated": True}
        for touched in item.get("nodes") or [] if node is None else []:
            if touched in members:
                members[touched] = {**members[touched], "findings": [made, *members[touched]["findings"]]}
    result = {**judged, "isolation": {"findings": told}}
    return _conclude_category(result, members)


def _condemned(member: t.Mapping[str, t.Any]) -> bool:
    convicting = any(reason_of(item["reason"]).effect == "convicts" and not item["note"] for item in member["findings"])
    return member["verdict"] == "failed" and convicting


def _collect_members(groups: list[dict[str, t.Any]], untested: list[dict[str, t.Any]]) -> dict[str, dict[str, t.Any]]:
    """One entry per node: the worst of its groups, with the findings of all of them."""
    members: dict[str, dict[str, t.Any]] = {}
    for group in groups:
        for node, member in group["members"].items():
            findings = [{**item, "group": group["name"]} for item in member["findings"]]
            known = members.get(node, {"verdict": "passed", "findings": []})
            worst = max(known["verdict"], member["verdict"], key=_NODE_ORDER.index)
            members[node] = {"verdict": worst, "findings": known["findings"] + findings}
    for item in untested:
        reason = str(item.get("reason") or "Untested")
        made = {
            **finding(
                reason if reason in REASONS else "Untested", str(item.get("message") or reason), evidence=_lines(item.get("evidence"))
            ),
            "group": None,
        }
        verdict = "failed" if reason_of(made["reason"]).effect == "convicts" else "untested"
        known = members.get(item["node"], {"verdict": "passed", "findings": []})
        worst = max(known["verdict"], verdict, key=_NODE_ORDER.index)
        members[item["node"]] = {"verdict": worst, "findings": known["findings"] + [made]}
    return dict(sorted(members.items()))


def _conclude_category(judged: dict[str, t.Any], members: dict[str, dict[str, t.Any]]) -> dict[str, t.Any]:
    groups = judged["groups"]
    counts = {word: sum(group["verdict"] == word for group in groups) for word in _VERDICT_ORDER}
    states = {word: [name for name, member in members.items() if member["verdict"] == word] for word in _NODE_ORDER}
    if counts["failed"] or states["failed"] or states["suspect"]:
        verdict = "failed"
    elif not groups or not any(group["measured"] for group in groups):
        verdict = "error"
    elif counts["passed"] < len(groups) or states["untested"]:
        verdict = "incomplete"
    else:
        verdict = "passed"
    why = _category_why(verdict, groups, counts, states)
    return {**judged, "verdict": verdict, "why": why, "members": members}


def _category_why(verdict: str, groups: list[dict[str, t.Any]], counts: dict[str, int], states: dict[str, list[str]]) -> str:
    """One sentence."""
    if verdict == "passed":
        return f"{_count(len(groups), 'group')} passed"
    reasons = _reason_counts(groups)
    parts = []
    if counts["failed"]:
        parts.append(f"{counts['failed']} of {_count(len(groups), 'group')} failed")
    elif groups and verdict != "failed":
        parts.append(f"{counts['passed']} of {_count(len(groups), 'group')} passed")
    elif not groups:
        parts.append("no group could be formed")
    parts += [f"{_count(len(states[word]), 'node')} {word}" for word in ("failed", "suspect", "untested") if states[word]]
    text = ", ".join(parts)
    return f"{text} ({reasons})" if reasons else text


def _reason_counts(groups: list[dict[str, t.Any]]) -> str:
    counts: dict[str, int] = {}
    for group in groups:
        first = next(iter(_failing(group["findings"])), None)
        if first:
            counts[first["reason"]] = counts.get(first["reason"], 0) + 1
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# ---------------------------------------------------------------------------------------------- certification


def roll_up(snapshot: t.Mapping[str, t.Any], categories: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """The certification's verdict: failed before error before incomplete before passed.

    Returns {verdict, why, coverage: {targets, tested, excluded, ratio}, categories, nodes: [{name, verdict, findings:
    [{reason, category, group, message, evidence, hint, note}]}], excluded: [{node, reason, message}], not_selected: [names]}.
    """
    rows = list(snapshot.get("nodes") or [])
    excluded, not_selected = _excluded(rows)
    targets = sorted((row for row in rows if row.get("target")), key=lambda row: str(row.get("name")))
    nodes = [_node(row, categories) for row in targets]
    known = {node["name"] for node in nodes}
    strangers = sorted({name for category in categories for name in category["members"]} - known)
    nodes += [_node({"name": name}, categories) for name in strangers]
    tested = sum(1 for node in nodes if _was_tested(node["name"], categories))
    asked = len(nodes) + len(excluded)
    coverage = {"targets": len(nodes), "tested": tested, "excluded": len(excluded), "ratio": round(tested / asked, 4) if asked else 0.0}
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


def _excluded(rows: list[t.Any]) -> tuple[list[dict[str, t.Any]], list[str]]:
    """What was asked for but left out, with the reason; and the names the user did not ask for."""
    excluded, not_selected = [], []
    for row in rows:
        if row.get("target"):
            continue
        exclusion = row.get("exclusion") or {}
        if exclusion.get("reason") == "NotSelected":
            not_selected.append(str(row.get("name")))
        else:
            message = str(exclusion.get("message") or "no reason was recorded")
            excluded.append({"node": row.get("name"), "reason": exclusion.get("reason") or "Unknown", "message": message})
    return sorted(excluded, key=lambda item: str(item["node"])), sorted(not_selected)


def _node(row: t.Mapping[str, t.Any], categories: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """One target node: the worst over its own facts and all categories, with every finding."""
    name, states = str(row.get("name")), []
    findings: list[Finding] = []
    for item in row.get("findings") or []:
        made = finding(
            str(item.get("reason") or "HardwareFailureDetected"), str(item.get("message")), node=name, evidence=_lines(item.get("evidence"))
        )
        findings.append({**made, "category": None, "group": None})
        states.append("failed" if reason_of(made["reason"]).effect == "convicts" else "suspect")
    for category in categories:
        member = category["members"].get(name)
        if member is not None:
            states.append(member["verdict"])
            findings += [{**item, "category": category["id"], "group": item.get("group")} for item in member["findings"]]
    for wanted in _left_out(name, categories):
        states.append("untested")
        if not findings:
            findings.append({**finding("Untested", f"no group of {wanted} has this node"), "category": None, "group": None})
    if not states:
        states, findings = ["untested"], [{**finding("Untested", "no category was run"), "category": None, "group": None}]
    findings = sorted(_unique(findings), key=_node_finding_order)
    return {"name": name, "verdict": max(states, key=_NODE_ORDER.index), "findings": [_node_finding(item) for item in findings]}


def _left_out(name: str, categories: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """The tests of a certification that have the node in none of their categories.

    A test has one category per GPU model, so a node is in one of them. Logs from anywhere promise no such thing.
    """
    families: dict[str, bool] = {}
    for category in categories:
        if category["test_scale"] != "logs":
            label = f"{category['test']} {category['test_scale']}"
            families[label] = families.get(label, False) or name in category["members"]
    return [label for label, has_node in families.items() if not has_node]


def _node_finding_order(item: Finding) -> tuple[bool, int, int]:
    effects = ("convicts", "suspects", "untested", "note")
    return (item["note"], effects.index(reason_of(item["reason"]).effect), _rank(item))


def _node_finding(item: Finding) -> Finding:
    told = {key: item.get(key) for key in ("reason", "category", "group", "message", "evidence", "hint", "note")}
    return {**told, **{key: item[key] for key in ("class", "confidence") if item.get(key) is not None}}


def _was_tested(name: str, categories: t.Sequence[t.Mapping[str, t.Any]]) -> bool:
    """Whether a complete measurement of a group it was in exists, a test brought it down, or isolation tested it."""
    for category in categories:
        own = category["members"].get(name) or {}
        if own.get("isolated") and own["verdict"] != "untested":
            return True
        for group in category["groups"]:
            member = group["members"].get(name)
            if member and (group["measured"] or member["verdict"] in ("failed", "suspect")):
                return True
    return False


def _certification(
    categories: t.Sequence[t.Mapping[str, t.Any]], nodes: list[dict[str, t.Any]], excluded: list[dict[str, t.Any]]
) -> tuple[str, str]:
    words = [category["verdict"] for category in categories]
    states = {word: sum(node["verdict"] == word for node in nodes) for word in _NODE_ORDER}
    if "failed" in words or states["failed"] or states["suspect"]:
        verdict = "failed"
    elif not categories or not nodes or "error" in words:
        verdict = "error"
    elif "incomplete" in words or states["untested"] or excluded:
        verdict = "incomplete"
    else:
        verdict = "passed"
    return verdict, _certification_why(verdict, words, states, len(nodes), len(excluded))


def _certification_why(verdict: str, words: list[str], states: dict[str, int], targets: int, excluded: int) -> str:
    if not words:
        return "no category was run"
    if not targets:
        return "no node was targeted"
    parts = [f"{words.count(word)} of {_count(len(words), 'category')} {text}" for word, text in _WORDS if word in words]
    if verdict == "passed":
        return f"{_count(len(words), 'category')} passed on {_count(targets, 'node')}"
    parts += [f"{_count(states[word], 'node')} {word}" for word in ("failed", "suspect", "untested") if states[word]]
    parts += [f"{_count(excluded, 'node')} excluded"] if excluded else []
    return "; ".join(parts)


_WORDS = (("failed", "failed"), ("error", "could not be measured"), ("incomplete", "not complete"))


def _count(number: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number} {noun if number == 1 else plural}"


def _failing(findings: t.Iterable[Finding]) -> list[Finding]:
    """The findings that change a verdict, the deciding one first."""
    return sorted((item for item in findings if not item["note"]), key=_rank)


def _unique(findings: list[Finding]) -> list[Finding]:
    seen: dict[tuple[t.Any, ...], Finding] = {}
    for item in findings:
        seen.setdefault((item["reason"], item["node"], item["message"], item.get("category"), item.get("group")), item)
    return list(seen.values())


def _rank(item: Finding) -> int:
    return _RANK.get(item["reason"], _CAUSE)


def _lines(value: t.Any) -> list[str]:
    if not value:
        return []
    return [str(line) for line in value] if isinstance(value, (list, tuple)) else [str(value)]
