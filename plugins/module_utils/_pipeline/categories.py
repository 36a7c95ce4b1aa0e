# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A category as it is really run, and its judgement, from the archive alone."""

from __future__ import annotations

import os
import typing as t

from .._archive.run_directory import TERMINATION_SUFFIX, RunDirectory
from .._causes.classify import Said
from .._causes.record import attempt_record
from .._causes.wordings import reason_of_refusal
from .._common.shapes import AttemptRecord, Category, CleanupProof, Group, JudgedCategory, Measurement, Observation, SnapshotNode
from .._criteria.category import criteria_of
from .._criteria.criteria import Criterion
from .._judge.categories import Round, apply_isolation, judge_category
from .._judge.isolation import conclude_diagnose, conclusions
from .._judge.repeats import observed_in
from .._measure.measurement import compared, measure, risen
from .._measure.profiles import files as profile_files
from .._measure.profiles.results import select_logs
from .._plan.settling import without

NOTHING: Observation = {"groups": [], "cleanup": None, "cancelled": ""}
UNTOUCHED: CleanupProof = {"proven": True, "left": [], "message": "nothing was created"}


def effective_category(run: RunDirectory, category_id: str) -> Category:
    """The planned category without the nodes that earlier categories of the run have convicted.

    A node that is known to be broken would only spoil the groups it is in: the others could not be proven. What remains of its
    group is judged by the plan of what it is. A second fact sheet is of all nodes: what came up on a broken one is what it is for.
    """
    category = run.read_category(category_id)
    convicted = {} if category.get("since") else _convicted_before(run, category_id)
    if not convicted:
        return category
    why = {name: f"left out, since {earlier} has already found it at fault" for name, earlier in convicted.items()}
    return without(category, why, run.read_snapshot()["nodes"])


def _convicted_before(run: RunDirectory, category_id: str) -> dict[str, str]:
    """Nodes that earlier categories found at fault, and the first that did."""
    convicted: dict[str, str] = {}
    for earlier in run.read_plan()["categories"]:
        if earlier["id"] == category_id:
            break
        judged = run.read_judged(earlier["id"])
        for name, member in judged["members"].items() if judged else ():
            if member["verdict"] == "failed":
                convicted.setdefault(name, earlier["id"])
    return convicted


def judge_observed(run: RunDirectory, category: Category, observation: Observation) -> JudgedCategory:
    """A category judged by what was observed and what its logs prove; isolation is not looked at."""
    compiled = criteria_of(category, place=f"{run.plan}: {category['id']}")
    groups = {group["name"]: group for group in category["groups"]}
    rows = run.read_snapshot()["nodes"]
    alone = {name: group["nodes"][0] for name, group in groups.items() if len(group["nodes"]) == 1}
    kind, earlier = category["measure"]["kind"], category.get("since")
    before = _measured_before(run, earlier) if earlier else {}
    rounds: list[Round] = []
    for repeat in range(1, category.get("repeat", 1) + 1):
        own: dict[str, list[Criterion]] = {}
        measurements: dict[str, Measurement | None] = {}
        for item in observed_in(observation, repeat)["groups"]:
            group, last = groups[item["name"]], item["attempts"][-1]
            rest = _what_was_left(category, group, last, rows)
            if rest is not None:
                own[item["name"]] = criteria_of(rest, place=f"{run.plan}: {category['id']}") if rest["groups"] else []
                group = rest["groups"][0] if rest["groups"] else group
            measurements[item["name"]] = measure_attempt(run, category, group, last)
        measurements = compared(kind, measurements, alone)
        if earlier:
            measurements = risen(kind, earlier, before, measurements, alone)
        rounds.append(Round(measurements, own))
    request = run.read_request()
    allow = bool(request and request["allow_no_criteria"])
    first, *further = rounds
    return judge_category(category, observation, first.measurements, compiled, own=first.own, further=further, allow_no_criteria=allow)


def _measured_before(run: RunDirectory, category_id: str) -> dict[str, Measurement | None]:
    """By node, what an earlier category of groups of one node has measured, the comparison of its nodes included."""
    category, observation = run.read_category(category_id), run.read_observation(category_id) or NOTHING
    groups = {group["name"]: group for group in category["groups"] if len(group["nodes"]) == 1}
    ran = [item for item in observation["groups"] if item["attempts"] and item["name"] in groups]
    made = {item["name"]: measure_attempt(run, category, groups[item["name"]], item["attempts"][-1]) for item in ran}
    nodes = {name: group["nodes"][0] for name, group in groups.items()}
    return {nodes[name]: found for name, found in compared(category["measure"]["kind"], made, nodes).items()}


def _what_was_left(category: Category, group: Group, attempt: AttemptRecord, rows: t.Sequence[SnapshotNode]) -> Category | None:
    """The plan of what remained of a group that an attempt was made with; None for the whole group. It has no group where nothing of that
    size can be judged."""
    out = {item["node"]: item["message"] for item in attempt.get("excluded") or ()}
    return without({**category, "groups": [group]}, out, rows) if out else None


def judge_run_category(
    run: RunDirectory, category: Category, failure: str = "", *, created: bool = True, dry: bool = False
) -> JudgedCategory:
    """A category of a run as it stands in the archive, isolation included.

    failure: why its batch broke off, when it left no observation; one that says so is then written, unless dry. created: whether that batch
    may have created anything.
    """
    record = run.read_isolation(category["id"])
    concluded = record["conclusion"] if record else None
    if category["test_scale"] == "diagnose":
        if concluded:
            return conclude_diagnose(category, concluded)
        failure = failure or "the search for the component at fault did not end"
    observation = run.read_observation(category["id"])
    if observation is None and failure:
        observation = broken_off(category, failure, None if created else UNTOUCHED)
        if not dry:
            run.write(run.observation(category["id"]), observation)
    judged = judge_observed(run, category, observation or NOTHING)
    if concluded:
        judged = apply_isolation(judged, conclusions(concluded))
        judged["isolation"] = {**(judged["isolation"] or {}), "conclusion": concluded}
    return judged


def broken_off(category: Category, why: str, proof: CleanupProof | None = None) -> Observation:
    """The observation of a batch that could not be run: nobody's fault but ours, and no node was tested.

    proof: of its cleanup; None when nobody could clean up.
    """
    attempt = attempt_record(1, "not_started", Said(reason_of_refusal(None, why), why))
    return {
        "groups": [{"name": group["name"], "nodes": group["nodes"], "attempts": [attempt]} for group in category["groups"]],
        "cleanup": proof or {"proven": False, "left": [], "message": why},
        "cancelled": why,
    }


def measure_attempt(run: RunDirectory, category: Category, group: Group, attempt: AttemptRecord) -> Measurement | None:
    """What the logs of an attempt prove; None when there is none. group: what it was made with."""
    paths = [os.path.join(run.path, log) for log in _logs(category, attempt)]
    if not paths:
        return None
    expected = group.get("expected_transport")
    context = {
        **{key: value for key, value in category["measure"].items() if key not in ("kind", "pods")},
        "exit_code": attempt["exit_code"],
        "nodes": _of_attempt(group, attempt),
        "expect_transport": None if expected == "any" else expected,
        "termination_messages": [said for path in paths if os.path.exists(said := f"{path}{TERMINATION_SUFFIX}")] or None,
    }
    return measure(category["measure"]["kind"], paths, {key: value for key, value in context.items() if value is not None})


def _of_attempt(group: Group, attempt: AttemptRecord) -> list[str]:
    """The members that an attempt was made with."""
    out = {item["node"] for item in attempt.get("excluded") or ()}
    return [node for node in group["nodes"] if node not in out]


def _logs(category: Category, attempt: AttemptRecord) -> list[str]:
    """The logs to read: the launcher's, and whose else the category names; or those that its log profile chooses."""
    how = category["measure"]
    if how["kind"] == "log_profile":
        profile = profile_files.find(how["profile"], how.get("profile_directories") or ())
        return select_logs(profile, t.cast("list[dict[str, t.Any]]", attempt["pods"]))
    logged = [(pod["role"] == "launcher", pod["log"]) for pod in attempt["pods"] if pod["log"]]
    if how.get("pods") == "each":
        return [log for first, log in logged]
    last = [log for first, log in logged[-1:] if how.get("pods") == "ends" and not first]
    return [log for first, log in logged if first] + last
