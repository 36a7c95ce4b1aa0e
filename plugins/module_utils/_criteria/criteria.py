# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Criteria: compiled before anything runs, evaluated on complete measurements only.

A criterion is a CEL expression over `measured.<metric>`, or an entry of NVCRE's `thresholds` map over `value`.
A metric that is missing, null or not finite never reaches an expression: the criterion is then `unmeasured`,
which fails, whatever else the expression says.
"""

from __future__ import annotations

import dataclasses
import math
import typing as t

from .._common.checks import of_type
from .._common.errors import InputError, unknown_value
from .._common.shapes import CriterionResult, Limit
from . import cel, cel_eval, cel_types

# NVCRE's keys, and our metrics for them; the first one the kind declares is taken. Bandwidth is compared at the judged size,
# not at NVCRE's best size: a collapse at large messages must not pass. bus_bandwidth_peak is NVCRE's figure.
THRESHOLD_KEYS: dict[str, tuple[str, ...]] = {
    "busBandwidthGBps": ("bus_bandwidth",),
    "algBandwidthGBps": ("alg_bandwidth",),
    "goodputRatio": ("goodput",),
    "avgTFLOPsPerGPU": ("tflops_per_gpu",),
    "avgStepTimeSec": ("avg_step_time_s",),
}
TYPES = {"number": "double", "double": "double", "float": "double", "int": "int", "string": "string", "bool": "bool", "list": "list:string"}
_LIST_HINT = 'Write a list of expressions, ["measured.bus_bandwidth >= 400"]'
_MAP_HINT = 'Write {busBandwidthGBps: "value >= 400"}'
_FLIP = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


@dataclasses.dataclass(frozen=True)
class Criterion:
    """One compiled criterion.

    expression: the text as given. place: where it was given. key: the NVCRE key, or "".
    metrics:    what it looks at, in order of appearance. units: the unit of each, where known.
    """

    expression: str
    place: str
    key: str
    metrics: tuple[str, ...]
    units: dict[str, str]
    tree: cel.Node

    def as_dict(self) -> dict[str, t.Any]:
        """The criterion as data, with its limits: {metric, op, limit}."""
        limits = [{"metric": name, "op": sign, "limit": limit} for name, sign, limit in _limits(self)]
        shown = {"expression": self.expression, "place": self.place, "metrics": list(self.metrics), "limits": limits}
        return {**shown, "key": self.key or None, "unit": self.units.get(self.metrics[0]) or None}


def compile_criteria(
    criteria: t.Any, thresholds: t.Any, metrics: t.Mapping[str, t.Any], *, place: str = "", open_metrics: bool = False
) -> list[Criterion]:
    """Parse and type-check every criterion.

    criteria:   list of expressions. thresholds: NVCRE's map, {busBandwidthGBps: "value >= 400"}.
    metrics:    name -> a Metric, {type, unit} or a type word, of the kind that will be measured.
    place:      the key path of the category, for error messages.
    open_metrics: metrics that are not declared are allowed (user-defined log profiles).

    Raises InputError for the first one that cannot work: bad syntax, unknown metric, wrong types, not true-or-false,
    or one that looks at no metric and so would prove nothing.
    """
    kinds = {name: _kind(metric) for name, metric in metrics.items()}
    units = {name: _unit(metric) for name, metric in metrics.items()}
    dot = f"{place}." if place else ""
    compiled = []
    for index, expression in enumerate(of_type(criteria or [], list, f"{dot}criteria", _LIST_HINT)):
        where = f"{dot}criteria[{index}]"
        record = cel_types.Record("measured", kinds, open_metrics)
        compiled.append(_compile(expression, where, {"measured": record}, units))
    for key, expression in of_type(thresholds or {}, dict, f"{dot}thresholds", _MAP_HINT).items():
        compiled.append(_compile_threshold(key, expression, f"{dot}thresholds.{key}", kinds, units, open_metrics))
    return compiled


def evaluate(criterion: Criterion, values: t.Mapping[str, t.Any]) -> CriterionResult:
    """Judge one criterion by the `values` of a complete measurement.

    Returns {expression, key, status: passed|failed|unmeasured|error, passed, metric, measured, unit, op, limit, margin,
    limits: [{metric, op, limit, measured, margin}], values, error, message}. `margin` is the distance to the limit as
    a fraction of the limit, negative when it is missed. With several limits the one with the least margin leads.
    """
    missing = [name for name in criterion.metrics if not _measured(values.get(name))]
    used = {name: values.get(name) if _measured(values.get(name)) else None for name in criterion.metrics}
    limits = [_against(name, sign, limit, used[name]) for name, sign, limit in _limits(criterion)]
    status, error = ("unmeasured", f"no value for {', '.join(missing)}") if missing else _run(criterion, used)
    lead = min(limits, key=lambda item: (item["margin"] is None, item["margin"] or 0.0), default=None)
    metric = missing[0] if missing else lead["metric"] if lead else criterion.metrics[0]
    result: CriterionResult = {
        "expression": criterion.expression,
        "key": criterion.key or None,
        "status": status,
        "passed": status == "passed",
        "metric": metric,
        "measured": used[metric],
        "unit": criterion.units.get(metric) or None,
        "op": lead["op"] if lead else None,
        "limit": lead["limit"] if lead else None,
        "margin": lead["margin"] if lead else None,
        "limits": limits,
        "values": used,
        "error": error,
        "message": "",
    }
    result["message"] = _message(result)
    return result


def evaluate_all(criteria: t.Iterable[Criterion], values: t.Mapping[str, t.Any]) -> list[CriterionResult]:
    """`evaluate` for each criterion, in their order."""
    return [evaluate(criterion, values) for criterion in criteria]


def number(value: t.Any) -> str:
    """A measured value for people: four significant decimals at most, no trailing zeros."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, float):
        return f"{value:.4f}".rstrip("0").rstrip(".") if abs(value) >= 0.001 or value == 0 else f"{value:.4g}"
    return str(value)


def _compile(expression: t.Any, where: str, variables: dict[str, cel_types.Type], units: dict[str, str]) -> Criterion:
    tree = _checked(expression, where, variables)
    metrics = tuple(dict.fromkeys(name for name in map(_metric_of, tree.walk()) if name))
    if not metrics:
        raise InputError(
            f"{expression!r} looks at no measured value", place=where, hint="Compare a metric, such as measured.bus_bandwidth >= 400"
        )
    return Criterion(expression, where, "", metrics, {name: units.get(name, "") for name in metrics}, tree)


def _compile_threshold(
    key: str, expression: t.Any, where: str, kinds: dict[str, str], units: dict[str, str], open_metrics: bool
) -> Criterion:
    if key not in THRESHOLD_KEYS:
        raise unknown_value("threshold key", key, THRESHOLD_KEYS, where.rpartition(".")[0])
    names = THRESHOLD_KEYS[key]
    metric = next((name for name in names if name in kinds), names[0] if open_metrics else "")
    if not metric:
        raise InputError(f"this test does not measure {key}", place=where, hint=f"It measures: {', '.join(sorted(kinds)) or 'nothing'}")
    tree = _checked(expression, where, {"value": "double"})
    if not any(node.op == "name" and node.value == "value" for node in tree.walk()):
        raise InputError(f"{expression!r} does not look at value", place=where, hint="Compare it, such as value >= 400")
    return Criterion(expression, where, key, (metric,), {metric: units.get(metric, "")}, tree)


def _checked(expression: t.Any, where: str, variables: dict[str, cel_types.Type]) -> cel.Node:
    """The tree of an expression that is true or false. Raises InputError naming the column."""
    if not isinstance(expression, str):
        raise InputError(f"an expression must be a text, got {expression!r}", place=where, hint="Put it in quotes, such as 'value >= 400'")
    try:
        tree = cel.parse(expression)
        kind = cel_types.check(tree, variables)
        if kind not in ("bool", "dyn"):
            raise cel.CelError(f"the expression must be true or false, it is {kind.partition(':')[0]}", tree.column)
    except cel.CelError as error:
        raise input_error(expression, error, where) from error
    return tree


def input_error(expression: str, error: cel.CelError, where: str) -> InputError:
    """A CelError as the user sees it: message with column, hint, then the expression with a caret below the place."""
    at = f" at column {error.column}" if error.column else ""
    shown = cel.quote(expression, error.column).replace("\n", "\n  ") if expression.strip() else "(empty)"
    hint = f"{error.hint}. " if error.hint else ""
    return InputError(f"{error.message}{at}", place=where, hint=f"{hint}The expression:\n  {shown}")


def _metric_of(node: cel.Node) -> str:
    """The metric a node reads from `measured`, or ""."""
    if node.op not in ("select", "index") or node.args[0].op != "name" or node.args[0].value != "measured":
        return ""
    return str(node.value if node.op == "select" else node.args[1].value)


def _limits(criterion: Criterion) -> list[tuple[str, str, t.Any]]:
    """(metric, operator, number) of every simple comparison that must hold: the tree itself or a part of its && chain."""
    parts = criterion.tree.args if criterion.tree.op == "and" else (criterion.tree,)
    return [limit for limit in (_limit(part, criterion) for part in parts) if limit]


def _limit(node: cel.Node, criterion: Criterion) -> tuple[str, str, t.Any] | None:
    if node.op != "binary" or node.value not in _FLIP:
        return None
    left, right = node.args
    for metric_side, other, sign in ((left, right, node.value), (right, left, _FLIP[node.value])):
        metric = criterion.metrics[0] if criterion.key and metric_side.op == "name" else _metric_of(metric_side)
        constant = _constant(other)
        if metric and constant is not None:
            return metric, sign, constant
    return None


def _constant(node: cel.Node) -> float | None:
    """The number a part without variables stands for."""
    if any(part.op == "name" for part in node.walk()):
        return None
    try:
        value = cel_eval.evaluate(node, {})
    except cel.CelError:
        return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _against(metric: str, sign: str, limit: float, measured: t.Any) -> Limit:
    margin = None
    if isinstance(measured, (int, float)) and not isinstance(measured, bool) and limit != 0:
        distance = limit - measured if sign in ("<", "<=") else measured - limit
        fraction = (-abs(distance) if sign == "==" else distance) / abs(limit)
        margin = round(fraction, 6) + 0.0 if math.isfinite(fraction) else None
    return {"metric": metric, "op": sign, "limit": limit, "measured": measured, "margin": margin}


def _run(criterion: Criterion, used: dict[str, t.Any]) -> tuple[str, str | None]:
    variables: dict[str, t.Any] = {"value": _double(used[criterion.metrics[0]])} if criterion.key else {"measured": used}
    try:
        outcome = cel_eval.evaluate(criterion.tree, variables)
    except cel.CelError as error:
        return "error", error.message
    if not isinstance(outcome, bool):
        return "error", "the expression is not true or false"
    return ("passed" if outcome else "failed"), None


def _message(result: CriterionResult) -> str:
    shown = ", ".join(f"{name} = {number(value)}" for name, value in result["values"].items() if value is not None)
    unit = f" {result['unit']}" if result["unit"] and len(result["values"]) == 1 and shown else ""
    words = {"passed": "met", "failed": "missed", "unmeasured": "cannot be judged", "error": "cannot be evaluated"}[result["status"]]
    text = f"criterion {result['expression']} {words}"
    if result["error"]:
        return f"{text}: {result['error']}"
    margin = f" ({result['margin']:+.1%})" if result["margin"] is not None and len(result["values"]) == 1 else ""
    return f"{text}: measured {shown}{unit}{margin}"


def _measured(value: t.Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _double(value: t.Any) -> t.Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _kind(metric: t.Any) -> str:
    word = metric if isinstance(metric, str) else metric["type"] if isinstance(metric, t.Mapping) else metric.type
    if word not in TYPES:
        raise unknown_value("metric type", word, TYPES)
    return TYPES[word]


def _unit(metric: t.Any) -> str:
    if isinstance(metric, str):
        return ""
    return str(metric.get("unit") or "") if isinstance(metric, t.Mapping) else metric.unit
