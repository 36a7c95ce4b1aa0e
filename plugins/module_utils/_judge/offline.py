# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Logs from anywhere in the shape of a run, so that they are judged and reported like one.

Each log becomes a group, its hosts the nodes; logs of one kind form a category.
"""

from __future__ import annotations

import typing as t
from pathlib import PurePath

from .._causes.record import attempt_record, pod_record
from .._common.errors import InputError
from .._common.shapes import GroupObservation
from .._criteria.category import criteria_of
from .._criteria.criteria import Criterion

Row = dict[str, t.Any]


def compile_for_kinds(kinds: t.Iterable[str], criteria: t.Any, thresholds: t.Any) -> dict[str, list[Criterion]]:
    """The criteria that apply to each kind of log: those whose metrics it measures.

    Raises InputError for a criterion that applies to none of them.
    """
    wanted = sorted(set(kinds))
    result: dict[str, list[Criterion]] = {kind: [] for kind in wanted}
    singles: list[tuple[list[t.Any], Row, str]] = [([item], {}, f"criteria[{index}]") for index, item in enumerate(_items(criteria, list))]
    singles += [([], {key: item}, "") for key, item in _items(thresholds, dict).items()]
    for expressions, keys, place in singles:
        failures = []
        for kind in wanted:
            try:
                made = criteria_of({"criteria": expressions, "thresholds": keys, "measure": {"kind": kind}})
            except InputError as error:
                failures.append(InputError(error.message, place=place or error.place, hint=error.hint))
                continue
            result[kind] += made
        if failures and len(failures) == len(wanted):
            raise failures[0]
    return result


def run_of_logs(logs: t.Sequence[t.Mapping[str, t.Any]], criteria: t.Mapping[str, t.Sequence[Criterion]]) -> Row:
    """Snapshot, plan and observations for measured logs.

    logs: [{name, paths, kind, exit_code, measurement}]. Returns {snapshot, plan, observations: {category id: observation},
    measurements: {category id: {group: measurement}}}.
    """
    categories: list[Row] = []
    observations: dict[str, Row] = {}
    measurements: dict[str, Row] = {}
    for number, kind in enumerate(sorted({str(log["kind"]) for log in logs}), start=1):
        own = [log for log in logs if log["kind"] == kind]
        category_id = f"c{number:02d}-{kind}-logs"
        groups = [{"name": log["name"], "nodes": hosts_of(log), "domain": None} for log in own]
        expressions = [criterion.expression for criterion in criteria.get(kind, []) if not criterion.key]
        thresholds = {criterion.key: criterion.expression for criterion in criteria.get(kind, []) if criterion.key}
        category = {"id": category_id, "test": f"logs/{kind}", "test_scale": "logs", "criteria": expressions, "thresholds": thresholds}
        categories.append({**category, "measure": {"kind": kind}, "groups": groups, "untested": []})
        observed = [_observed(log, group) for log, group in zip(own, groups, strict=True)]
        observations[category_id] = {"groups": observed, "cleanup": None, "cancelled": ""}
        measurements[category_id] = {log["name"]: log["measurement"] for log in own}
    names = sorted({node for category in categories for group in category["groups"] for node in group["nodes"]})
    return {
        "snapshot": {"nodes": [{"name": name, "target": True, "findings": []} for name in names], "gpus": [], "platform": None},
        "plan": {"categories": categories, "cost": None},
        "observations": observations,
        "measurements": measurements,
    }


def hosts_of(log: t.Mapping[str, t.Any]) -> list[str]:
    """The hosts a log tells of, sorted; the log's own name when it tells none."""
    if log.get("nodes"):
        return sorted(set(log["nodes"]))
    measurement = log["measurement"]
    parsed, transport = measurement.get("parsed") or {}, measurement.get("transport") or {}
    devices = parsed.get("devices") or {}
    found = devices.get("hosts") if isinstance(devices, dict) else None
    hosts = found or transport.get("hosts") or parsed.get("hosts") or []
    accused = [item.get("host") for item in measurement.get("findings") or []]
    names = {str(host) for host in hosts or accused if isinstance(host, str) and host}
    return sorted(names) or [PurePath(str(log["name"])).name]


def _observed(log: t.Mapping[str, t.Any], group: Row) -> GroupObservation:
    code = log.get("exit_code")
    pods = [pod_record(PurePath(path).name, exit_code=code, log=path) for path in log["paths"]]
    attempt = attempt_record(1, "failed" if code else "succeeded", exit_code=code, pods=pods)
    return {"name": group["name"], "nodes": group["nodes"], "attempts": [attempt]}


def _items(value: t.Any, wanted: type) -> t.Any:
    """value when it is of the type, empty for None; anything else is left to the compiler to refuse."""
    if value is None:
        return wanted()
    if not isinstance(value, wanted):
        given = {"criteria": value} if wanted is list else {"thresholds": value}
        criteria_of({**given, "measure": {"kind": "key_value"}})
    return value
