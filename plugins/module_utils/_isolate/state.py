# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The planner's state: the request and the results so far, nothing else.

Everything the planner knows is recomputed from them, so a run resumes from its last saved state and a replay gives
the same report. A state is plain JSON::

    {schema_version: 1, nodes: [[name, domain]], options: {...}, results: [[wave results], ...]}
"""

from __future__ import annotations

import math
import typing as t

from .._common.checks import integer, known_keys, of_type
from .._common.errors import InputError, unknown_value

SCHEMA_VERSION = 1
OUTCOMES = ("measured", "failed", "unmeasured")
TRANSPORTS = ("net", "nvl")
SHAPES = ("single", "domain-nvl", "domain-net", "cross")

OPTIONS: dict[str, t.Any] = {
    "max_concurrent": 0,
    "min_group_size": 2,
    "mnnvl": False,
    "sigma": None,
    "limits": {},
    "budget": {},
    "soak": False,
    "likely_healthy": False,
    "seed": 0,
    "prior_evidence": [],
}
LIMITS = {"closure_loops": 5, "leaf_waves": 12, "runs_per_test": 4, "unmeasured_runs": 3, "soak_waves": 8}
BUDGET = {"waves": 1000, "tests": None, "node_minutes": None}
RESULT_KEYS = {"id", "outcome", "value", "expected", "passed", "binding", "reason", "log", "minutes", "lost"}
PRIOR_KEYS = RESULT_KEYS | {"shape", "transport", "nodes"}

NODE_KEYS = {"name", "domain", "levels"}

State = dict[str, t.Any]


def new_state(nodes: t.Any, options: t.Any) -> State:
    """A fresh state. Raises InputError for anything that is not as documented in `planner.start`."""
    checked = _nodes(nodes)
    names = {name for name, _domain in checked}
    given = known_keys(options if options is not None else {}, OPTIONS, "options")
    merged = {**OPTIONS, **given}
    merged["max_concurrent"] = integer(merged["max_concurrent"], "options.max_concurrent")
    merged["min_group_size"] = integer(merged["min_group_size"], "options.min_group_size", minimum=1)
    merged["seed"] = of_type(merged["seed"], int, "options.seed")
    for key in ("mnnvl", "soak", "likely_healthy"):
        if not isinstance(merged[key], bool):
            raise InputError(f"{merged[key]!r} is not true or false", place=f"options.{key}")
    if merged["sigma"] is not None:
        merged["sigma"] = of_type(merged["sigma"], float, "options.sigma")
        if not 0 < merged["sigma"] < 1:
            raise InputError(f"{merged['sigma']!r} is not a relative noise", place="options.sigma", hint="Give a share of 1, e.g. 0.02")
    limits = known_keys(merged["limits"] or {}, LIMITS, "options.limits")
    merged["limits"] = {key: integer(value, f"options.limits.{key}", minimum=1) for key, value in {**LIMITS, **limits}.items()}
    budget = known_keys(merged["budget"] or {}, BUDGET, "options.budget")
    merged["budget"] = {
        key: None if value is None else _positive(value, f"options.budget.{key}") for key, value in {**BUDGET, **budget}.items()
    }
    if not isinstance(merged["prior_evidence"], list):
        raise InputError("is not a list", place="options.prior_evidence")
    merged["prior_evidence"] = [_prior(entry, f"options.prior_evidence[{at}]", names) for at, entry in enumerate(merged["prior_evidence"])]
    state = {"schema_version": SCHEMA_VERSION, "nodes": [list(pair) for pair in checked], "options": merged, "results": []}
    levels = _levels(nodes)
    return {**state, "levels": levels} if levels else state


def checked_state(state: t.Any) -> State:
    """The state if it is one of ours; InputError otherwise."""
    if not isinstance(state, dict) or not {"schema_version", "nodes", "options", "results"} <= set(state):
        raise InputError("this is not an isolation state", place="state", hint="Pass the value that isolation_start returned")
    if state["schema_version"] != SCHEMA_VERSION:
        raise InputError(f"schema_version {state['schema_version']!r} is not {SCHEMA_VERSION}", place="state.schema_version")
    return state


def checked_results(results: t.Any, ids: t.Sequence[str], names: t.Collection[str]) -> list[dict[str, t.Any]]:
    """One result for each of `ids`, in that order; a missing one becomes `unmeasured`."""
    if not isinstance(results, list):
        raise InputError("results must be a list", place="results")
    found: dict[str, dict[str, t.Any]] = {}
    for at, entry in enumerate(results):
        place = f"results[{at}]"
        entry = _result(entry, place, RESULT_KEYS, names)
        if entry.get("id") not in ids:
            raise unknown_value("test id", entry.get("id"), ids, f"{place}.id")
        if entry["id"] in found:
            raise InputError(f"two results for test {entry['id']!r}", place=place)
        found[entry["id"]] = entry
    missing = {"outcome": "unmeasured", "reason": "no result came back"}
    return [found.get(name) or {"id": name, **missing} for name in ids]


def _nodes(nodes: t.Any) -> list[tuple[str, str | None]]:
    if not isinstance(nodes, list) or not nodes:
        raise InputError("a non-empty list of nodes is needed", place="nodes", hint="Each entry: {name: ..., domain: ... or null}")
    result: dict[str, str | None] = {}
    for at, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("name"), str) or not node["name"]:
            raise InputError(f"{node!r} has no name", place=f"nodes[{at}]", hint="Each entry: {name: ..., domain: ... or null}")
        domain = node.get("domain")
        if domain is not None and not isinstance(domain, str):
            raise InputError(f"domain {domain!r} is not a string or null", place=f"nodes[{at}].domain")
        if set(node) - NODE_KEYS:
            raise unknown_value("key", sorted(set(node) - NODE_KEYS)[0], sorted(NODE_KEYS), f"nodes[{at}]")
        if node["name"] in result:
            raise InputError(f"node {node['name']!r} is listed twice", place=f"nodes[{at}]")
        result[node["name"]] = domain or None
    return sorted(result.items())


def _levels(nodes: list[dict[str, t.Any]]) -> dict[str, dict[str, str]]:
    """The switches above the domains, as {level: {node: value}}."""
    levels: dict[str, dict[str, str]] = {}
    for at, node in enumerate(nodes):
        given = node.get("levels") or {}
        if not isinstance(given, dict) or not all(isinstance(item, str) for pair in given.items() for item in pair):
            raise InputError(f"{given!r} is not a mapping of names to names", place=f"nodes[{at}].levels")
        for level, value in given.items():
            levels.setdefault(level, {})[node["name"]] = value
    return dict(sorted(levels.items()))


def _prior(entry: t.Any, place: str, names: t.Collection[str]) -> dict[str, t.Any]:
    result = _result(entry, place, PRIOR_KEYS, names)
    if result.get("transport", "net") not in TRANSPORTS:
        raise unknown_value("transport", result["transport"], TRANSPORTS, f"{place}.transport")
    if result.get("shape") not in (None, *SHAPES):
        raise unknown_value("shape", result["shape"], SHAPES, f"{place}.shape")
    members = result.get("nodes")
    if not isinstance(members, list) or not members or not all(isinstance(name, str) for name in members):
        raise InputError("nodes must be a non-empty list of names", place=f"{place}.nodes")
    # Nodes that are not part of this isolation cannot be judged here; such a result is of no use.
    result["usable"] = all(name in names for name in members)
    result.setdefault("transport", "net")
    return result


def _result(entry: t.Any, place: str, allowed: t.Collection[str], names: t.Collection[str]) -> dict[str, t.Any]:
    result = known_keys(entry, allowed, place)
    if result.get("outcome") not in OUTCOMES:
        raise unknown_value("outcome", result.get("outcome"), OUTCOMES, f"{place}.outcome")
    for key in ("value", "expected", "minutes"):
        if result.get(key) is not None:
            result[key] = of_type(result[key], float, f"{place}.{key}")
    if isinstance(result.get("value"), float) and not math.isfinite(result["value"]):
        # NaN is a broken measurement of a run that ended, and JSON has no NaN: keep it as the failure it is.
        result["outcome"], result["value"] = "failed", None
        result["reason"] = result.get("reason") or "the measured value is not a number"
    for key in ("passed", "binding"):
        if result.get(key) not in (None, True, False):
            raise InputError(f"{result[key]!r} is not true, false or null", place=f"{place}.{key}")
    lost = result.get("lost") or []
    if not isinstance(lost, list) or not all(isinstance(name, str) for name in lost):
        raise InputError("lost must be a list of node names", place=f"{place}.lost")
    for name in lost:
        if name not in names:
            raise unknown_value("node", name, names, f"{place}.lost")
    return {key: value for key, value in result.items() if value is not None and value != []}


def _positive(value: t.Any, place: str) -> float:
    number = of_type(value, float, place)
    if math.isnan(number) or number <= 0:
        raise InputError(f"{value!r} is not greater than 0", place=place)
    return number
