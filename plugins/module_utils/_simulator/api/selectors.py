# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors."""

from __future__ import annotations

import functools
import re
import typing as t

from .errors import bad_request
from .objects import Object

Test = t.Callable[[Object], bool]

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?(?:/[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s+\(([^()]*)\)$")
_EQUAL = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*({_VALUE})$")
_COMPARE = re.compile(rf"^({_KEY})\s*([<>])\s*(-?\d+)$")
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")

# Which fields a kind can be selected by, beside metadata.name and metadata.namespace.
_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (
        "spec.nodeName",
        "spec.schedulerName",
        "spec.restartPolicy",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    ("", "Node"): ("spec.unschedulable",),
    ("", "Namespace"): ("status.phase",),
    ("", "Secret"): ("type",),
    ("", "ReplicationController"): ("status.replicas",),
    ("apps", "ReplicaSet"): ("status.replicas",),
    ("batch", "Job"): ("status.successful",),
    ("", "Service"): ("spec.clusterIP", "spec.type"),
    ("", "Event"): (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    ("events.k8s.io", "Event"): (
        "regarding.kind",
        "regarding.namespace",
        "regarding.name",
        "regarding.uid",
        "regarding.apiVersion",
        "regarding.resourceVersion",
        "regarding.fieldPath",
        "reason",
        "reportingController",
        "type",
    ),
    ("resource.k8s.io", "ResourceSlice"): ("spec.nodeName", "spec.driver"),
}
_ALIASES = {"source": "source.component", "status.successful": "status.succeeded"}
_NUMBERS = {"status.successful", "status.replicas"}
_BOOLEANS = {"spec.unschedulable", "spec.hostNetwork"}


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth, current = [], 0, ""
    for character in text:
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
            continue
        depth += (character == "(") - (character == ")")
        current += character
    parts.append(current.strip())
    return parts


def _requirement(text: str) -> tuple[str, str, tuple[str, ...]]:
    """One requirement of a label selector as (key, operator, values)."""
    if match := _SET.match(text):
        values = tuple(value.strip() for value in match[3].split(","))
        if all(re.fullmatch(_VALUE, value) for value in values):
            return match[1], match[2], values
    elif match := _EQUAL.match(text):
        return match[1], "notin" if match[2] == "!=" else "in", (match[3],)
    elif match := _COMPARE.match(text):
        return match[1], match[2], (match[3],)
    elif match := _EXISTS.match(text):
        return match[2], "absent" if match[1] else "exists", ()
    raise bad_request(f"unable to parse requirement: found '{text}', expected: a label requirement")


def _label_test(key: str, operator: str, values: tuple[str, ...]) -> Test:
    wanted = frozenset(values)
    if operator == "in":
        return lambda labels: labels.get(key) in wanted
    if operator == "notin":
        return lambda labels: labels.get(key) not in wanted
    if operator == "exists":
        return lambda labels: key in labels
    if operator == "absent":
        return lambda labels: key not in labels
    bound = int(values[0])

    def compare(labels: Object) -> bool:
        value = labels.get(key)
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        return int(value) > bound if operator == ">" else int(value) < bound

    return compare


@functools.lru_cache(maxsize=1024)
def label_selector(text: str) -> Test | None:
    """A test of a labels dict from the text of labelSelector; None when everything matches. Raises 400."""
    if not text.strip():
        return None
    tests = tuple(_label_test(*_requirement(part)) for part in _split(text))
    if len(tests) == 1:
        return tests[0]
    return lambda labels: all(test(labels) for test in tests)


def match_labels(selector: Object | None, labels: t.Mapping[str, str]) -> bool:
    """Whether labels match a LabelSelector object (matchLabels and matchExpressions). None matches nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    for item in selector.get("matchExpressions") or ():
        test = _label_test(item["key"], operators[item["operator"]], tuple(item.get("values") or ()))
        if not test(dict(labels)):
            return False
    return True


def field_value(obj: Object, path: str) -> str:
    """The text of a field as field selectors compare it; a missing one is the empty string."""
    value: t.Any = obj
    for part in _ALIASES.get(path, path).split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return "0" if path in _NUMBERS else "false" if path in _BOOLEANS else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@functools.lru_cache(maxsize=4096)
def field_selector(text: str, group: str, kind: str, extra: tuple[str, ...] = ()) -> Test | None:
    """A test of an object from the text of fieldSelector. extra: the selectable fields of a custom kind. Raises 400."""
    if not text.strip():
        return None
    allowed = ("metadata.name", "metadata.namespace", *_FIELDS.get((group, kind), ()), *extra)
    terms = [_field_term(part, allowed) for part in text.split(",") if part.strip()]
    return lambda obj: all((field_value(obj, path) == value) is equal for path, equal, value in terms)


def _field_term(part: str, allowed: tuple[str, ...]) -> tuple[str, bool, str]:
    match = re.fullmatch(r"\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*", part)
    if not match:
        raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
    if match[1] not in allowed:
        raise bad_request(f"field label not supported: {match[1]}")
    return match[1].lstrip("."), match[2] != "!=", match[3]


def field_terms(text: str) -> dict[str, str]:
    """The fields a selector fixes to one value."""
    terms = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([^=!\s]+)\s*(==|=)\s*(.*?)\s*", part)
        if match:
            terms[match[1]] = match[3]
    return terms
