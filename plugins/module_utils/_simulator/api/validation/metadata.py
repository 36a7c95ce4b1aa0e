# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What all kinds share: names, labels, annotations, owners, finalizers, and the selectors of labels."""

from __future__ import annotations

import functools
import re
import typing as t

from ..errors import FieldError, forbidden_field, invalid_value, required
from ..objects import Object
from ..resources import Resource
from .fields import Errors

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric"
    " character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'example.com', regex used for validation is"
    " '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an"
    " alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an"
    " alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    " '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
    " (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_MAX_ANNOTATIONS = 256 * 1024
SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


# --- names ----------------------------------------------------------------------------------------------------------------


def label_problem(value: str) -> str:
    """Why a value is not an RFC 1123 label; empty when it is one."""
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL.fullmatch(value) else _LABEL_TEXT


def _label_1035_problem(value: str) -> str:
    if len(value) > 63:
        return "must be no more than 63 characters"
    return "" if _LABEL_1035.fullmatch(value) else _LABEL_1035_TEXT


def subdomain_problem(value: str) -> str:
    """Why a value is not an RFC 1123 subdomain; empty when it is one."""
    if len(value) > 253:
        return "must be no more than 253 characters"
    return "" if all(_LABEL.fullmatch(part) for part in value.split(".")) else _SUBDOMAIN_TEXT


def _path_problem(value: str) -> str:
    if value in (".", "..") or "/" in value or "%" in value:
        return "may not be '.' or '..' and may not contain '/' or '%'"
    return ""


# The same few thousand keys and values come again with every node.
@functools.lru_cache(maxsize=16384)
def key_problem(key: str) -> str:
    """Why a label or annotation key, a taint key or an extended resource is not a qualified name."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or subdomain_problem(prefix)):
        return f"prefix part {subdomain_problem(prefix) or 'must be non-empty'}"
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 characters"
    return "" if _QUALIFIED.fullmatch(name) else _KEY_TEXT


@functools.lru_cache(maxsize=16384)
def label_value_problem(text: str) -> str:
    """Why a value is not a label value; empty when it is one."""
    if len(text) > 63:
        return "must be no more than 63 characters"
    return "" if not text or _QUALIFIED.fullmatch(text) else _VALUE_TEXT


_NAME_RULES: dict[str, t.Callable[[str], str]] = {
    "Namespace": label_problem,
    "Service": _label_1035_problem,
    "Role": _path_problem,
    "RoleBinding": _path_problem,
    "ClusterRole": _path_problem,
    "ClusterRoleBinding": _path_problem,
}


# --- metadata -------------------------------------------------------------------------------------------------------------


def check_labels(labels: t.Any, field: str) -> Errors:
    """Keys and values of a labels map."""
    errors: Errors = []
    for key, value in (labels or {}).items():
        if problem := key_problem(key):
            errors.append(invalid_value(field, key, problem))
        if problem := label_value_problem(value):
            errors.append(invalid_value(field, value, problem))
    return errors


def check_annotations(annotations: t.Any, field: str) -> Errors:
    """Keys of an annotations map, and its size."""
    errors: Errors = []
    size = 0
    for key, value in (annotations or {}).items():
        size += len(key) + len(value)
        if problem := key_problem(key.lower()):
            errors.append(invalid_value(field, key, problem))
    if size > _MAX_ANNOTATIONS:
        errors.append(FieldError(field, "FieldValueTooLong", f"may not be more than {_MAX_ANNOTATIONS} bytes"))
    return errors


def _owner_references(references: t.Any) -> Errors:
    errors: Errors = []
    controllers = 0
    for index, reference in enumerate(references or ()):
        for key in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(key):
                errors.append(invalid_value(f"metadata.ownerReferences[{index}].{key}", "", f"{key} must not be empty"))
        controllers += bool(reference.get("controller"))
    if controllers > 1:
        errors.append(invalid_value("metadata.ownerReferences", "ownerReferences", "Only one reference can have Controller set to true"))
    return errors


def check_metadata(resource: Resource, metadata: Object) -> Errors:
    """Name, labels, annotations, owners and finalizers."""
    errors: Errors = []
    problem = _NAME_RULES.get(resource.kind, subdomain_problem)(metadata["name"])
    if problem:
        errors.append(invalid_value("metadata.name", metadata["name"], problem))
    errors += check_labels(metadata.get("labels"), "metadata.labels")
    errors += check_annotations(metadata.get("annotations"), "metadata.annotations")
    errors += _owner_references(metadata.get("ownerReferences"))
    for finalizer in metadata.get("finalizers") or ():
        if problem := key_problem(finalizer):
            errors.append(invalid_value("metadata.finalizers", finalizer, problem))
    return errors


# --- selectors ------------------------------------------------------------------------------------------------------------


def check_expressions(items: t.Any, field: str, operators: t.Sequence[str]) -> Errors:
    """The matchExpressions of a selector: operators with their numbers of values, and keys."""
    errors: Errors = []
    for index, item in enumerate(items or ()):
        where = f"{field}[{index}]"
        operator, values = item.get("operator"), item.get("values") or ()
        if operator not in operators:
            errors.append(invalid_value(f"{where}.operator", operator or "", "not a valid selector operator"))
        elif operator in ("In", "NotIn") and not values:
            errors.append(required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
        elif operator in ("Exists", "DoesNotExist") and values:
            errors.append(forbidden_field(f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"))
        elif operator in ("Gt", "Lt") and len(values) != 1:
            errors.append(required(f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))
        if problem := key_problem(item.get("key") or ""):
            errors.append(invalid_value(f"{where}.key", item.get("key") or "", problem))
    return errors


def check_label_selector(selector: Object, field: str) -> Errors:
    """A LabelSelector object."""
    errors = check_labels(selector.get("matchLabels"), f"{field}.matchLabels")
    return errors + check_expressions(selector.get("matchExpressions"), f"{field}.matchExpressions", SELECTOR_OPERATORS)
