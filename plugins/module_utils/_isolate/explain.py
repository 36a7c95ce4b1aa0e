# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The conclusion: what is at fault and why, what is proven, what is not. Written for people and for the report."""

from __future__ import annotations

import math
import statistics
import typing as t

from . import posterior
from .evidence import CLEAR, FAIL
from .node_sets import Nodes
from .search import Finding, Search
from .trial import Trial

ACTIONS = {
    "node": "Drain the node and check its GPUs, NVLink, PCIe and host.",
    "nic": "Drain the node and check its NIC, transceiver, cable and switch port.",
    "node or nic": "Drain the node and check its NIC and cable first, then its GPUs, NVLink, PCIe and host.",
    "nvl": "Drain the node and check its NVLink ports and cables to the NVLink switches.",
    "rack-boundary": "Open a ticket for the switch or the uplinks of this domain; the nodes may stay in service inside it.",
    "pair": "Check the cable, port and route between the two nodes; each of them works with others.",
    "partition": "Check the switch that joins the two sides of this domain; the nodes of each side work with each other.",
    "intermittent": "Drain the node and watch its error counters: it fails now and then, so single tests may pass.",
    "irreproducible": "Nothing to replace yet: repeat with the soak option and look for congestion at the time of the failure.",
    "unresolved": "Repeat with a larger budget, or repair what else is named and repeat.",
}
MOST_EVIDENCE = 12  # entries listed per suspect
MOST_NAMES = 40  # node names listed per evidence entry


def conclude(search: Search) -> dict[str, t.Any]:
    """The conclusion as plain data, see docs/isolation.md. Complete at any moment of a run."""
    unexplained = [] if search.finished and not search.stopped else _open_failures(search)
    findings = [*search.findings, *unexplained, *_forgotten(search, unexplained)]
    suspects = [_suspect(search, finding) for finding in findings]
    suspects.sort(key=lambda item: (-item["confidence"], item["class"], item["nodes"]))
    closed = _proven(search)
    unlinked = _nvlink_unproven(search, findings)
    closed -= set(unlinked)
    missing = _not_proven(search, findings, closed, unlinked)
    hard = [item for item in suspects if item["class"] not in ("irreproducible", "unresolved")]
    if any(item["convicts"] for item in hard):
        verdict = "failed"
    elif suspects or missing or not search.proofs:
        verdict = "inconclusive"
    else:
        verdict = "passed"
    held = {node for finding in findings if finding.kind in ("node", "unresolved", "irreproducible") for node in finding.left}
    return {
        "verdict": verdict,
        "reason": _headline(search, verdict, suspects, missing),
        "suspects": suspects,
        "cleared": [search.names[node] for node in sorted(closed - held)],
        "acquitted": [search.names[node] for node in sorted(_acquitted(search) - closed - held)],
        "proof": _proof(search),
        "coverage": {"proven": len(closed), "target": len(search.names), "not_proven": missing, "notes": _notes(search, findings)},
        "cost": _cost(search, suspects),
    }


# ----- suspects -----


def class_of(search: Search, finding: Finding) -> str:
    """The class shown for a finding."""
    if finding.kind != "node":
        return finding.kind
    node, transport = finding.left[0], finding.transport
    # Once a node has failed, a pass of the same kind means that it fails now and then.
    first = min((trial.wave for trial in finding.witnesses), default=0)
    if finding.kind_of_node in ("nic", "nvl", "") and any(
        trial.wave > first and len(trial.nodes) > 1 and trial.transport == transport and search.evidence.weight(trial) <= CLEAR
        for trial in search.of_node[node]
    ):
        return "intermittent"
    return finding.kind_of_node or ("nic" if transport == "net" else "nvl")


def _suspect(search: Search, finding: Finding) -> dict[str, t.Any]:
    kind = class_of(search, finding)
    nodes = finding.left + finding.right
    failing = [trial for trial in unique(finding.witnesses) if trial.outcome != "unmeasured"]
    controls = unique([*finding.controls, *_passing_controls(search, finding, failing)])
    ratios = sorted(ratio for trial in failing if (ratio := search.evidence.ratio(trial)) is not None)
    confidence = search.sure(finding, kind)
    return {
        "component": component(search, finding, kind),
        "nodes": [search.names[node] for node in nodes],
        "sides": [[search.names[node] for node in side] for side in (finding.left, finding.right)] if finding.right else [],
        "class": kind,
        "transport": finding.transport,
        "confidence": round(confidence, 4),
        "convicts": confidence >= posterior.LEAST,
        "worst": round(ratios[0], 4) if ratios else None,
        "median": round(statistics.median(ratios), 4) if ratios else None,
        "reason": _reason(search, finding, kind, failing, controls),
        "action": ACTIONS[kind],
        "evidence": [entry(search, trial) for trial in [*failing, *controls][:MOST_EVIDENCE]],
    }


def component(search: Search, finding: Finding, kind: str) -> dict[str, t.Any]:
    """What is at fault: {kind: node | pair | boundary | partition | set, name}."""
    names = [search.names[node] for node in finding.left]
    homes = domains_of(search, finding.left)
    if finding.kind == "node":
        return {"kind": "node", "name": names[0]}
    if finding.kind == "pair":
        return {"kind": "pair", "name": f"{names[0]} and {search.names[finding.right[0]]}"}
    if finding.kind == "rack-boundary":
        sides = [_switch(search, side) for side in (finding.left, finding.right) if side]
        return {"kind": "boundary", "name": " and ".join(name for _level, name in sides), "level": sides[0][0]}
    if finding.kind == "partition":
        return {"kind": "partition", "name": f"{homes[0]}: {len(finding.left)} nodes from {len(finding.right)} nodes"}
    return {"kind": "set", "name": f"{len(names)} nodes of {', '.join(homes[:4])}{' …' if len(homes) > 4 else ''}"}


def _switch(search: Search, nodes: Nodes) -> tuple[str, str]:
    """The level and the name of what these nodes share: their domain, or a switch above it."""
    span = set(search.span(nodes))
    for level, groups in search.levels.items():
        for value, members in groups.items():
            if span == set(members):
                return level, f"{level} {value}"
    return "domain", ", ".join(domains_of(search, nodes))


def domains_of(search: Search, nodes: t.Iterable[int]) -> list[str]:
    return [search.units[number].name for number in sorted({search.unit_of[node] for node in nodes})]


def _passing_controls(search: Search, finding: Finding, failing: list[Trial]) -> list[Trial]:
    """For an accused node: passing tests of those who were in its failing tests."""
    if finding.kind != "node":
        return []
    mates = {node for trial in failing for node in trial.nodes} - set(finding.left)
    result = []
    for trial in search.trials:
        if len(trial.nodes) == 1 or trial.transport != finding.transport or finding.left[0] in trial.nodes:
            continue
        if mates & set(trial.nodes) and search.evidence.weight(trial) <= CLEAR:
            result.append(trial)
            mates -= set(trial.nodes)
    return result


def _reason(search: Search, finding: Finding, kind: str, failing: list[Trial], controls: list[Trial]) -> str:
    if finding.note and kind in ("unresolved", "irreproducible"):
        return f"{len(finding.left)} nodes: {finding.note}."
    if kind == "irreproducible":
        size = len(failing[0].nodes) if failing else len(finding.left)
        return f"A test of {size} nodes failed ({_shown(search, failing)}); repeats and random pairs of these nodes named nobody."
    if kind == "unresolved":
        return f"{len(finding.left)} nodes failed together ({_shown(search, failing)}) and nothing smaller explains it."
    if finding.kind == "node":
        return _node_reason(search, finding, kind, failing, controls)
    left, right = finding.left, finding.right
    if kind == "pair":
        one, two = search.names[left[0]], search.names[right[0]]
        return f"{one} and {two} reach {_shown(search, failing)} in {len(failing)} tests together; each of them passes without the other."
    if kind == "partition":
        return (
            f"{len(left)} nodes ({search.names[left[0]]} …) pass among themselves, {len(right)} others ({search.names[right[0]]} …) too; "
            f"together they reach {_shown(search, failing)}."
        )
    where = " and ".join(_switch(search, side)[1] for side in (left, right) if side)
    if right:
        return f"{where} pass alone and reach {_shown(search, failing)} together; which of both boundaries it is cannot be told from here."
    return (
        f"{where} passes alone; with nodes of domains that work with others it reaches {_shown(search, failing)} in {len(failing)} tests."
    )


def _node_reason(search: Search, finding: Finding, kind: str, failing: list[Trial], controls: list[Trial]) -> str:
    name = search.names[finding.left[0]]
    shared = [trial for trial in failing if len(trial.nodes) > 1]
    mates = {node for trial in shared for node in trial.nodes} - set(finding.left)
    parts = []
    if shared:
        smallest = min(shared, key=lambda trial: len(trial.nodes))
        others = sorted(set(smallest.nodes) - set(finding.left))
        with_whom = search.names[others[0]] if len(others) == 1 else f"{len(others)} known-good nodes"
        parts.append(f"{len(smallest.nodes)}-node test of {name} with {with_whom}: {_shown(search, [smallest])}")
        if len(mates) > 1:
            parts.append(f"all {len(mates)} other members of its {len(shared)} failed tests pass without it")
        elif mates:
            parts.append(f"{search.names[min(mates)]} passes without it")
    alone = [trial for trial in [*failing, *controls] if trial.nodes == finding.left]
    if kind == "node" and alone:
        worst = [trial for trial in alone if search.evidence.weight(trial) > 0] or alone
        parts.append(f"alone {name} reaches {_shown(search, worst)}, so it is the node itself")
    elif alone:
        path = "its NVLink path" if finding.transport == "nvl" else "its NIC path"
        verdict = "it fails only now and then" if kind == "intermittent" else f"so it is {path} to the others"
        parts.append(f"alone {name} reaches {_shown(search, alone)}, {verdict}")
    elif kind == "intermittent":
        parts.append(f"{name} also passed such tests, so it fails now and then")
    if finding.note:
        parts.append(finding.note)
    text = "; ".join(parts) or f"{name} failed {len(failing)} tests"
    return f"{text[0].upper() if not text.startswith(name) else text[0]}{text[1:]}."


def _shown(search: Search, trials: t.Sequence[Trial]) -> str:
    """The worst result among trials, for a sentence."""
    ratios = [ratio for trial in trials if (ratio := search.evidence.ratio(trial)) is not None]
    if ratios:
        return f"{round(100 * min(ratios))} % of expected"
    if any(trial.outcome == "failed" for trial in trials):
        return "no result: the run failed"
    if any(trial.passed is False for trial in trials):
        return "less than the criterion asks"
    return "the criterion" if trials else "no result"


def entry(search: Search, trial: Trial) -> dict[str, t.Any]:
    """One test as evidence."""
    ratio = search.evidence.ratio(trial)
    return {
        "wave": trial.wave,
        "id": trial.id,
        "shape": trial.shape,
        "transport": trial.transport,
        "size": len(trial.nodes),
        "nodes": [search.names[node] for node in trial.nodes[:MOST_NAMES]],
        "outcome": trial.outcome,
        "value": trial.value,
        "expected": search.evidence.expected(trial),
        "ratio": None if ratio is None else round(ratio, 4),
        "weight": round(search.evidence.weight(trial), 2),
        "passed": trial.passed,
        "purpose": trial.purpose,
        "reason": trial.reason,
        "log": trial.log,
    }


# ----- what was never explained -----


def _open_failures(search: Search) -> list[Finding]:
    """The run was cut short: every failed group that no finding explains is unresolved."""
    found: list[Finding] = []
    covered = set().union(*(set(f.left) | set(f.right) for f in search.findings)) if search.findings else set()
    for trial in search.trials:
        weight = search.evidence.weight(trial)
        if weight < FAIL or covered & set(trial.nodes):
            continue
        members = [node for node in trial.nodes if node not in search.cleared[trial.transport]] or list(trial.nodes)
        better = search.passed_together(trial.nodes, trial.transport)
        if better is not None and better.wave > trial.wave:
            continue
        covered.update(members)
        note = search.stopped or "the search has not ended yet"
        found.append(Finding("unresolved", trial.transport, tuple(members), strength=0.0, witnesses=[trial], note=note))
    return found


def _forgotten(search: Search, already: list[Finding]) -> list[Finding]:
    """The last safeguard: closing tests know only the network, so no failure over NVLink may stay without explanation."""
    if already or not search.proofs:
        return []
    found: list[Finding] = []
    for trial in search.trials:
        if trial.transport != "nvl" or search.evidence.weight(trial) < FAIL:
            continue
        members = set(trial.nodes)
        touched = any(members & (set(finding.left) | set(finding.right)) for finding in [*search.findings, *found])
        if not touched and search.passed_together(trial.nodes, "nvl") is None:
            note = "failed over NVLink and was never seen to pass as a whole"
            found.append(Finding("unresolved", "nvl", trial.nodes, strength=0.0, witnesses=[trial], note=note))
    return found


# ----- proof and coverage -----


def _proven(search: Search) -> set[int]:
    """Nodes that were in a closing test, if the closing tests passed."""
    return {node for trial in search.proofs for node in trial.nodes}


def _acquitted(search: Search) -> set[int]:
    """Nodes with nothing against them that passed what was run, without a closing proof."""
    good = (search.cleared["net"] | search.cleared["nvl"]) - search.tainted("net") - search.tainted("nvl")
    return {
        node
        for node in good
        if not any(search.evidence.weight(trial) >= FAIL and node not in search.cleared[trial.transport] for trial in search.of_node[node])
    }


def _proof(search: Search) -> dict[str, t.Any] | None:
    if not search.proofs:
        return None
    return {"nodes": len(_proven(search)), "tests": [entry(search, trial) for trial in search.proofs]}


def _nvlink_unproven(search: Search, findings: list[Finding]) -> dict[int, str]:
    """Nodes of NVLink domains that never passed as a whole over NVLink, and why. Closing tests know only the network.

    A domain with a finding over NVLink is told of by that finding.
    """
    result: dict[int, str] = {}
    for number, unit in enumerate(search.units):
        if search.domain_transport(number) != "nvl" or not search.finished:
            continue
        left = [node for node in unit.nodes if node not in search.accused and node not in search.lost and node not in search.untested]
        told = any(finding.transport == "nvl" and set(finding.left + finding.right) & set(unit.nodes) for finding in findings)
        told = told or any(finding.kind_of_node == "node" for node, finding in search.accused.items() if node in unit.nodes)
        if told or len(left) < 2 or search.passed_together(left, "nvl"):
            continue
        if len(unit.nodes) < search.options["min_group_size"]:
            why = f"its {len(unit.nodes)} nodes are fewer than min_group_size {search.options['min_group_size']}"
        else:
            why = next((trial.reason for trial in search.never if set(trial.nodes) >= set(left)), "") or "it never passed as a whole"
        result.update(dict.fromkeys(left, f"NVLink of its domain {unit.name} was not proven: {why}"))
    return result


def _not_proven(search: Search, findings: list[Finding], closed: set[int], unlinked: dict[int, str]) -> list[dict[str, t.Any]]:
    """Every target node outside the closing tests, with a code and a sentence. Accused nodes are listed too."""
    why: dict[int, tuple[str, str]] = {}
    for node, reason in search.lost.items():
        why[node] = ("lost", f"lost during the run: {reason}")
    for node, reason in search.untested.items():
        why.setdefault(node, ("untested", reason))
    for finding in findings:
        kind = class_of(search, finding)
        for node in finding.left + finding.right:
            if finding.kind == "node":
                why[node] = ("accused", f"accused: {kind}")
            elif finding.kind == "unresolved":
                why.setdefault(node, ("unresolved", finding.note or "in a failed group that could not be resolved"))
        if finding.own_boundary:
            for node in search.span(finding.left):
                why.setdefault(node, ("boundary", "traffic across the boundary of its domain is not proven; repeat after the repair"))
    for node in range(len(search.names)):
        if node in closed or node in why:
            continue
        if node in unlinked:
            why[node] = ("untested", unlinked[node])
        elif len(search.names) == 1:
            why[node] = ("untested", "a single node has no partner: nothing between nodes was tested")
        elif search.stopped:
            why[node] = ("budget", search.stopped)
        elif not search.finished:
            why[node] = ("running", "the search has not ended yet")
        elif len(search.names) < search.options["min_group_size"]:
            why[node] = ("untested", f"{len(search.names)} nodes are fewer than min_group_size {search.options['min_group_size']}")
        else:
            why[node] = ("unproven", "no closing test with this node passed")
    return [
        {"node": search.names[node], "code": code, "reason": reason}
        for node, (code, reason) in sorted(why.items())
        if node not in closed or code == "unresolved"
    ]


def _notes(search: Search, findings: list[Finding]) -> list[str]:
    """What else a reader must know about the reach of the proof."""
    notes = list(search.notes)
    if any(not unit.real for unit in search.units):
        count = sum(len(unit.nodes) for unit in search.units if not unit.real)
        notes.append(
            f"{count} nodes have no usable domain label and were grouped by name: a boundary verdict there means a group boundary."
        )
    for finding in findings:
        if finding.own_boundary:
            names = ", ".join(domains_of(search, finding.left))
            notes.append(f"Pairs between {names} and other domains are masked by its boundary; repeat after the repair.")
        elif finding.right:
            sides = f"{search.names[finding.left[0]]} and {search.names[finding.right[0]]}"
            notes.append(f"Between the sides of {sides} nothing else can be shown until the repair.")
    if search.options["mnnvl"]:
        accused = {search.unit_of[node] for node in search.accused}
        notes += [
            f"NVLink of {search.units[number].name}: the remaining nodes passed in parts, not all together; repeat after the repair."
            for number in sorted(accused)
            if not search.passed_together([n for n in search.units[number].nodes if n not in search.accused], "nvl")
        ]
    if any(not trial.binding for trial in search.proofs):
        notes.append("The criterion was not made for the closing test: it was complete and correct, and is compared with its like only.")
    tries = sum(len(trial.unmeasured) for trial in search.trials)
    if tries:
        notes.append(f"{tries} runs could not be measured and were repeated; they count neither for nor against anything.")
    return notes


def _cost(search: Search, suspects: list[dict[str, t.Any]]) -> dict[str, t.Any]:
    """bound: the fewest tests any method needs to single out that many nodes, log2 of the ways to choose them."""
    nodes = len(search.names)
    faults = min(nodes, sum(1 for item in suspects if item["component"]["kind"] in ("node", "pair", "boundary", "partition")))
    return {
        "tests": search.tests,
        "waves": search.wave,
        "node_minutes": round(search.node_minutes, 1),
        "wall_minutes": round(search.wall_minutes, 1),
        "bound": math.ceil(math.log2(math.comb(nodes, faults))),
    }


def _headline(search: Search, verdict: str, suspects: list[dict[str, t.Any]], missing: list[dict[str, t.Any]]) -> str:
    if verdict == "passed":
        return f"All {len(search.names)} nodes passed together; nothing speaks against any of them."
    if verdict == "failed":
        hard = [item for item in suspects if item["convicts"]]
        text = ", ".join(f"{item['component']['name']} ({item['class']})" for item in hard[:6])
        return f"At fault: {text}{' and more' if len(hard) > 6 else ''}."
    why = search.stopped or (suspects[0]["reason"].rstrip(".") if suspects else missing[0]["reason"] if missing else "no closing proof")
    return f"Not decided: {why}."


def unique(trials: t.Iterable[Trial]) -> list[Trial]:
    seen: dict[int, Trial] = {}
    for trial in trials:
        seen.setdefault(id(trial), trial)
    return list(seen.values())
