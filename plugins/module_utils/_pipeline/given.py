# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes that come from a user's own play, completed: what they may leave out gets its default, what they must say is asked for by name."""

from __future__ import annotations

import typing as t

from .._causes.classify import Said
from .._causes.reasons import REASONS
from .._causes.record import attempt_record, pod_record
from .._common.checks import integer, list_of, of_type, one_of
from .._common.errors import InputError
from .._common.shapes import AttemptRecord, Category, Conclusion, Group, Measurement, Observation, Snapshot
from .._measure.measurement import measurement as make_measurement

OUTCOMES = ("succeeded", "failed", "timed_out", "not_started", "cancelled")


def category_given(raw: t.Any, kind: str | None = None) -> Category:
    """A category to be judged: id, test, test_scale, criteria, thresholds, measure, groups, untested.

    kind: of measurement, when the category does not say. Raises InputError.
    """
    category = of_type(raw, dict, "category")
    measure = category.get("measure") or {}
    left_out = [of_type(item, dict, "category.untested") for item in category.get("untested") or []]
    empty: dict[str, t.Any] = {"id": None, "test": None, "test_scale": None, "criteria": [], "thresholds": {}}
    known = {
        "measure": {**measure, "kind": kind or measure.get("kind") or "nccl"},
        "groups": list_of(category.get("groups") or [], "category.groups", _group),
        "untested": [{"reason": "Untested", "message": None, **item} for item in left_out],
    }
    return t.cast(Category, {**empty, **category, **known})


def _group(raw: t.Any, place: str) -> Group:
    group = of_type(raw, dict, place)
    known = {"name": _needed(group, "name", place), "nodes": list(group.get("nodes") or [])}
    return t.cast(Group, {"domain": None, "expected_transport": None, **group, **known})


def observation_given(raw: t.Any) -> Observation | None:
    """An observation: of `workload_batch`, or written by hand; attempts without a cause are classified. Raises InputError."""
    if raw is None:
        return None
    observation = of_type(raw, dict, "observation")
    groups = []
    for index, group in enumerate(of_type(observation.get("groups") or [], list, "observation.groups")):
        place = f"observation.groups[{index}]"
        attempts = list_of(of_type(group, dict, place).get("attempts") or [], f"{place}.attempts", _attempt)
        groups.append({"name": _needed(group, "name", place), "nodes": list(group.get("nodes") or []), "attempts": attempts})
    return t.cast(Observation, {"cleanup": None, "cancelled": "", **observation, "groups": groups})


def _attempt(raw: t.Any, place: str) -> AttemptRecord:
    given = of_type(raw, dict, place)
    if "cause" in given and "pods" in given:
        return t.cast(AttemptRecord, given)
    pods: list[t.Any] = [{**pod_record(""), **of_type(pod, dict, f"{place}.pods")} for pod in given.get("pods") or []]
    health: list[t.Any] = [{"message": "", "evidence": [], **item} for item in given.get("health") or []]
    said = Said(given.get("reason"), str(given.get("message") or ""), tuple(given.get("nodes") or ()))
    kept = {key: given[key] for key in ("created", "started", "finished", "duration_s", "machines", "excluded") if key in given}
    return attempt_record(
        given.get("attempt", 1),
        one_of(given.get("outcome"), OUTCOMES, "outcome", f"{place}.outcome"),
        said,
        repeat=integer(given.get("repeat", 1), f"{place}.repeat", minimum=1),
        name=given.get("name"),
        exit_code=given.get("exit_code"),
        pods=pods,
        events=[str(line) for line in given.get("events") or []],
        health=health,
        **kept,
    )


def measurements_given(raw: t.Any) -> dict[str, Measurement | None]:
    """Measurements by group name, as the filters that read logs give them. Raises InputError."""
    found: dict[str, Measurement | None] = {}
    for name, item in of_type(raw, dict, "measurements").items():
        found[str(name)] = None if item is None else measurement_given(item, f"measurements.{name}")
    return found


def rounds_given(raw: t.Any) -> list[dict[str, Measurement | None]]:
    """Measurements by group name, for each repeat; a group has one, or a list with one for each of its repeats. Raises InputError."""
    lists = {name: item if isinstance(item, list) else [item] for name, item in of_type(raw, dict, "measurements").items()}
    count = max((len(items) for items in lists.values()), default=1)
    return [measurements_given({name: items[index] for name, items in lists.items() if index < len(items)}) for index in range(count)]


def measurement_given(raw: t.Any, place: str = "measurement") -> Measurement:
    """One measurement. Raises InputError when its verdict is no reason of the table."""
    item = of_type(raw, dict, place)
    verdict = item.get("verdict")
    if verdict is not None:
        one_of(verdict, REASONS, "verdict of a measurement (a reason, or null)", f"{place}.verdict")
    empty = make_measurement(str(item.get("kind") or "nccl"), verdict, "", complete=False)
    findings = [{"host": None, "entity": None, "message": "", "evidence": [], **finding} for finding in item.get("findings") or []]
    return t.cast(Measurement, {**empty, **{key: value for key, value in item.items() if value is not None}, "findings": findings})


def snapshot_given(raw: t.Any) -> Snapshot:
    """A snapshot as far as a verdict needs it: nodes with name, target, findings, exclusion. Raises InputError."""
    snapshot = of_type(raw, dict, "snapshot")
    nodes = []
    for index, row in enumerate(of_type(snapshot.get("nodes") or [], list, "snapshot.nodes")):
        node = of_type(row, dict, f"snapshot.nodes[{index}]")
        facts = [{"reason": "HardwareFailureDetected", "message": "", "evidence": [], **fact} for fact in node.get("findings") or []]
        name = _needed(node, "name", f"snapshot.nodes[{index}]")
        nodes.append({"target": False, "exclusion": None, **node, "name": name, "findings": facts})
    return t.cast(Snapshot, {"gpus": [], **snapshot, "nodes": nodes})


def conclusions_given(raw: t.Any) -> list[Conclusion]:
    """Conclusions of isolation. Raises InputError."""
    return list_of(raw, "conclusions", lambda item, place: {"node": None, **of_type(item, dict, place)})


def _needed(mapping: t.Mapping[str, t.Any], key: str, place: str) -> str:
    if not mapping.get(key):
        raise InputError(f"has no {key}", place=place)
    return str(mapping[key])
