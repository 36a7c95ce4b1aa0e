# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a snapshot a certification is about. Nobody is dropped in silence: every exclusion has a reason."""

from __future__ import annotations

import copy
import difflib
import typing as t
from collections import Counter
from collections.abc import Mapping, Sequence

from .._common.errors import InputError, unknown_value
from .leaving import wanted_all_the_same
from .nodes import number

Row = dict[str, t.Any]
# Exclusions that say the same of all nodes they hold for.
_OF_ALL = ("DevicePlugin", "SameOnMostNodes")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
# Kubernetes sets these itself for states that have an exclusion of their own.
_OWN_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


def select(
    nodes: Sequence[Row], target: Mapping[str, t.Any] | None = None, *, tolerations: Sequence[Mapping[str, t.Any]] | None = None
) -> list[Row]:
    """The rows again, with target and exclusion set for this request.

    nodes:  rows of a snapshot.
    target: {node_selector, match_expressions, node_names, include_cordoned, gpu}, all optional; all given ones must hold.
            gpu is a model (h100) or a product label.
    tolerations: those of the pods to come; a node with another NoSchedule or NoExecute taint is excluded (Tainted).
            None: pods tolerate everything.

    Raises InputError for an unknown node name or operator, and when no node is left, with the counts of why.
    """
    target = target or {}
    names = list(target.get("node_names") or [])
    _check_names(names, nodes)
    rows = copy.deepcopy(list(nodes))
    for row in rows:
        reason = _not_selected(row, target, names)
        if reason:
            _exclude(row, "OtherGpuModel" if reason.startswith("its GPU") else "NotSelected", reason)
            continue
        if row["exclusion"] and (
            (row["exclusion"]["reason"] == "Cordoned" and target.get("include_cordoned"))
            or (row["exclusion"]["reason"] == "Leaving" and wanted_all_the_same(row.get("leaving") or [], tolerations))
        ):
            row["target"], row["exclusion"] = True, None
        taint = _untolerated(row, tolerations) if row["target"] else None
        if taint:
            _exclude(row, "Tainted", f"no toleration for its taint {taint}")
    if not any(row["target"] for row in rows):
        raise _nothing_left(rows)
    return rows


def _exclude(row: Row, reason: str, message: str) -> None:
    row["target"] = False
    row["exclusion"] = {"reason": reason, "message": message}


def _check_names(names: Sequence[str], nodes: Sequence[Row]) -> None:
    known = [node["name"] for node in nodes]
    unknown = [name for name in names if name not in set(known)]
    if unknown:
        near = [match for name in unknown for match in difflib.get_close_matches(name, known, n=2)]
        hint = f"Near: {', '.join(dict.fromkeys(near))}." if near else f"The cluster has {len(known)} GPU nodes."
        raise InputError(f"no GPU node is called {', '.join(map(repr, unknown))}", place="target.node_names", hint=hint)


def _not_selected(row: Row, target: Mapping[str, t.Any], names: Sequence[str]) -> str:
    """Why the request does not mean this node, or ""."""
    if names and row["name"] not in names:
        return "not among node_names"
    for key, value in (target.get("node_selector") or {}).items():
        if row["labels"].get(key) != str(value):
            return f"label {key} is {row['labels'].get(key)!r}, not {str(value)!r}"
    for index, expression in enumerate(target.get("match_expressions") or []):
        if not _holds(row["labels"], expression, f"target.match_expressions[{index}]"):
            values = ", ".join(map(str, expression.get("values") or []))
            return f"does not match {expression.get('key')} {expression.get('operator')} {values}".rstrip()
    wanted = target.get("gpu")
    if wanted and str(wanted).lower() not in {str(row["gpu"]["model"]).lower(), str(row["gpu"]["product"]).lower()}:
        return f"its GPU is {row['gpu']['product'] or 'unknown'}, not {wanted}"
    return ""


def _holds(labels: Mapping[str, str], expression: Mapping[str, t.Any], place: str) -> bool:
    """A match expression, with the meaning Kubernetes gives it: NotIn also holds for a node without the label."""
    key, operator = str(expression.get("key", "")), expression.get("operator")
    values = [str(value) for value in expression.get("values") or []]
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator in ("Exists", "DoesNotExist"):
        return bool((key in labels) == (operator == "Exists"))
    if operator in ("Gt", "Lt"):
        have, limit = number(labels.get(key)), number(values[0] if values else None)
        return have is not None and limit is not None and (have > limit if operator == "Gt" else have < limit)
    raise unknown_value("operator", operator, OPERATORS, place)


def _untolerated(row: Row, tolerations: Sequence[Mapping[str, t.Any]] | None) -> str | None:
    if tolerations is None:
        return None
    for taint in row["taints"]:
        if taint["effect"] not in ("NoSchedule", "NoExecute") or taint["key"].startswith(_OWN_TAINTS):
            continue
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            value = f"={taint['value']}" if taint["value"] else ""
            return f"{taint['key']}{value}:{taint['effect']}"
    return None


def _tolerates(toleration: Mapping[str, t.Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint["key"]
    return toleration.get("key") == taint["key"] and str(toleration.get("value") or "") == taint["value"]


def _nothing_left(rows: Sequence[Row]) -> InputError:
    counts = Counter(row["exclusion"]["reason"] for row in rows if row["exclusion"])
    why = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
    message = f"none of {len(rows)} GPU nodes can be tested: {why}" if rows else "the cluster has no GPU node"
    told = dict.fromkeys(row["exclusion"]["message"] for row in rows if row["exclusion"] and row["exclusion"]["reason"] in _OF_ALL)
    hint = "; ".join([*list(told)[:3], "see the exclusions of the snapshot (playbook discover)"])
    return InputError(message, place="target", hint=f"{hint[0].upper()}{hint[1:]}.")
