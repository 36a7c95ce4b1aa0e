# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities and selectors, as the API defines them."""

from __future__ import annotations

import decimal
import functools
import typing as t

from .api import Object

_SUFFIXES: dict[str, int | decimal.Decimal] = {
    "": 1, "m": decimal.Decimal("1e-3"), "u": decimal.Decimal("1e-6"), "n": decimal.Decimal("1e-9"),
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def milli(quantity: str | int | float) -> int:
    """A quantity in thousandths, rounded up as the API does: `"100m"` is 100, `"2Gi"` is 2147483648000. ValueError if it is none."""
    text = str(quantity)
    number = text.rstrip("munkMGTPEi")
    if text[len(number) :] not in _SUFFIXES:
        raise ValueError(f"no quantity: {quantity!r}")
    try:
        value = decimal.Decimal(number) * _SUFFIXES[text[len(number) :]] * 1000
    except decimal.InvalidOperation as exc:
        raise ValueError(f"no quantity: {quantity!r}") from exc
    return int(value.to_integral_value(rounding=decimal.ROUND_CEILING))


def add_resources(total: dict[str, int], more: t.Mapping[str, int], sign: int = 1) -> None:
    """Adds (or with `sign=-1` takes away) resources in place."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + sign * value


def pod_requests(pod: Object) -> dict[str, int]:
    """What the scheduler counts for a pod, in thousandths: containers together, or the largest init container, plus overhead, one pod."""
    spec = pod["spec"]
    total: dict[str, int] = {}
    for container in spec["containers"]:
        add_resources(total, _container_requests(container))
    sidecars: dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        needs = _container_requests(container)
        if container.get("restartPolicy") == "Always":  # runs beside the others
            add_resources(sidecars, needs)
            add_resources(total, needs)
            continue
        for name, value in needs.items():
            total[name] = max(total.get(name, 0), value + sidecars.get(name, 0))
    add_resources(total, {name: milli(value) for name, value in (spec.get("overhead") or {}).items()})
    total["pods"] = 1000
    return total


def _container_requests(container: Object) -> dict[str, int]:
    resources = container.get("resources") or {}
    # A limit without a request is the request: the API server sets that, a static object may lack it.
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: milli(value) for name, value in merged.items()}


def matches_labels(selector: Object | None, labels: t.Mapping[str, str]) -> bool:
    """A LabelSelector on labels. None matches nothing, {} everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(matches_expression(rule, labels) for rule in selector.get("matchExpressions") or [])


def matches_expression(rule: Object, labels: t.Mapping[str, str]) -> bool:
    """One requirement of a label selector or of a node selector term."""
    operator, values = rule["operator"], rule.get("values") or []
    value = labels.get(rule["key"])
    if operator == "In":
        return value is not None and value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator in ("Gt", "Lt"):
        try:
            number, bound = int(value or ""), int(values[0])
        except (ValueError, IndexError):
            return False
        return number > bound if operator == "Gt" else number < bound
    return False


def matches_node_term(term: Object, node: Object) -> bool:
    """A node selector term; one without requirements matches nothing."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    labels = node["metadata"].get("labels") or {}
    if not all(matches_expression(rule, labels) for rule in expressions):
        return False
    name = {"metadata.name": node["metadata"]["name"]}
    return all(matches_expression(rule, name) for rule in fields)


def tolerates(tolerations: t.Sequence[Object], taint: Object) -> bool:
    """Whether one of the tolerations covers the taint."""
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint["effect"]:
            continue
        key, operator = toleration.get("key", ""), toleration.get("operator") or "Equal"
        if not key:
            if operator == "Exists":
                return True
            continue
        if key == taint["key"] and (operator == "Exists" or toleration.get("value", "") == taint.get("value", "")):
            return True
    return False
