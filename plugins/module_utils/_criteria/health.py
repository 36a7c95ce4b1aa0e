# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Node health: a CEL expression over `node` that is true when the node is unhealthy.

An expression that cannot be evaluated is reported as an error, never as a healthy node.
"""

from __future__ import annotations

import dataclasses
import typing as t

from .._causes.evidence import quote_taint
from .._common.errors import InputError
from . import cel, cel_eval, cel_types, criteria

# Not Ready. What speaks against the hardware is not asked here: the table of evidence says it, for every expression. A cordon is an
# operator's decision and says nothing of the hardware: whoever wants it to end a test writes node.spec.unschedulable into an
# expression of their own.
DEFAULT_EXPRESSION = "!node.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')"

_DEFAULTS: dict[str, dict[str, t.Any]] = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {"taints": [], "unschedulable": False},
    "status": {"conditions": [], "addresses": [], "capacity": {}, "allocatable": {}},
}


@dataclasses.dataclass(frozen=True)
class HealthCheck:
    """A compiled node-health expression."""

    expression: str
    tree: cel.Node


def compile_health(expression: t.Any = DEFAULT_EXPRESSION, place: str = "node_health") -> HealthCheck:
    """Parse and type-check. Raises InputError; an expression that never looks at `node` is one."""
    if not isinstance(expression, str):
        raise InputError(f"an expression must be a text, got {expression!r}", place=place)
    try:
        tree = cel.parse(expression)
        kind = cel_types.check(tree, {"node": "map"})
        if kind not in ("bool", "dyn"):
            raise cel.CelError(f"the expression must be true or false, it is {kind.partition(':')[0]}", tree.column)
    except cel.CelError as error:
        raise criteria.input_error(expression, error, place) from error
    if not any(part.op == "name" and part.value == "node" for part in tree.walk()):
        raise InputError(f"{expression!r} never looks at node", place=place, hint="Write for example node.spec.unschedulable == true")
    return HealthCheck(expression, tree)


def evaluate_health(check: HealthCheck, node: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Judge one Node object (plain, as the API server sends it; quantities are texts).

    Returns {unhealthy: bool|None, error: str|None, message, evidence: [...]}; `unhealthy` is None when the
    expression could not be evaluated: the caller must say so and must not take the node for healthy.
    """
    filled = with_defaults(node)
    name = filled["metadata"].get("name", "the node")
    try:
        unhealthy = cel_eval.evaluate(check.tree, {"node": filled})
        if not isinstance(unhealthy, bool):
            raise cel.CelError("the expression is not true or false")
    except cel.CelError as error:
        message = f"node-health expression cannot be evaluated on {name}: {error.message}"
        return {"unhealthy": None, "error": message, "message": message, "evidence": [check.expression]}
    if not unhealthy:
        return {"unhealthy": False, "error": None, "message": "", "evidence": []}
    evidence = _evidence(filled) or [f"true: {check.expression}"]
    return {"unhealthy": True, "error": None, "message": f"{name}: {evidence[0]}", "evidence": evidence}


def with_defaults(node: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The node with the parts an expression may always name: labels, annotations, taints, conditions, ..."""
    result = dict(node)
    for part, defaults in _DEFAULTS.items():
        given = node.get(part)
        present = {key: value for key, value in given.items() if value is not None} if isinstance(given, t.Mapping) else {}
        result[part] = {**defaults, **present}
    result["spec"]["taints"] = [{"value": "", **taint} for taint in result["spec"]["taints"]]
    return result


def _evidence(node: dict[str, t.Any]) -> list[str]:
    """What on the node is not as it should be, in its own words."""
    conditions = node["status"]["conditions"]
    lines = [_condition(item) for item in conditions if _bad_condition(item)]
    if not any(item.get("type") == "Ready" for item in conditions):
        lines.append("the node reports no Ready condition")
    lines += [f"taint {quote_taint(taint)}" for taint in node["spec"]["taints"] if str(taint.get("key")).startswith("node.kubernetes.io/")]
    if node["spec"]["unschedulable"]:
        lines.append("node is cordoned (spec.unschedulable: true)")
    return lines


def _bad_condition(item: t.Mapping[str, t.Any]) -> bool:
    """Whether a condition reports trouble: those named healthy or ready should be True, all others False."""
    name, status = str(item.get("type")), item.get("status")
    good_when_true = name == "Ready" or name.lower().endswith(("healthy", "ready")) and "unhealthy" not in name.lower()
    return status != ("True" if good_when_true else "False")


def _condition(item: t.Mapping[str, t.Any]) -> str:
    said = " ".join(str(item[key]) for key in ("reason", "message") if item.get(key))
    return f"condition {item.get('type')}={item.get('status')}" + (f": {said}" if said else "")
