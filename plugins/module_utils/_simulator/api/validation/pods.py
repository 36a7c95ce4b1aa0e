# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pods and pod templates: where they may run, and what may change once they exist."""

from __future__ import annotations

import typing as t

from ..errors import forbidden_field, invalid_value, required
from ..objects import Object
from .containers import check_containers, check_volumes
from .fields import Errors, at_least, one_of
from .metadata import (
    SELECTOR_OPERATORS,
    check_annotations,
    check_expressions,
    check_label_selector,
    check_labels,
    key_problem,
    label_problem,
    subdomain_problem,
)


def _tolerations(tolerations: t.Any, field: str) -> Errors:
    errors: Errors = []
    for index, toleration in enumerate(tolerations or ()):
        where = f"{field}[{index}]"
        operator = toleration.get("operator") or "Equal"
        key = toleration.get("key")
        errors += one_of(operator, f"{where}.operator", ("Equal", "Exists", "Gt", "Lt"))
        errors += one_of(toleration.get("effect") or None, f"{where}.effect", ("NoExecute", "NoSchedule", "PreferNoSchedule"))
        if key and (problem := key_problem(key)):
            errors.append(invalid_value(f"{where}.key", key, problem))
        if not key and operator != "Exists":
            errors.append(
                invalid_value(
                    f"{where}.operator",
                    operator,
                    'operator must be Exists when `key` is empty, which means "match all values and all keys"',
                )
            )
        if operator == "Exists" and toleration.get("value"):
            errors.append(invalid_value(f"{where}.operator", toleration, "value must be empty when `operator` is 'Exists'"))
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            errors.append(
                invalid_value(f"{where}.effect", toleration.get("effect", ""), "effect must be 'NoExecute' when `tolerationSeconds` is set")
            )
    return errors


def _node_term(term: Object, field: str) -> Errors:
    errors = check_expressions(term.get("matchExpressions"), f"{field}.matchExpressions", (*SELECTOR_OPERATORS, "Gt", "Lt"))
    for index, item in enumerate(term.get("matchFields") or ()):
        where = f"{field}.matchFields[{index}]"
        if item.get("key") != "metadata.name":
            errors.append(invalid_value(f"{where}.key", item.get("key") or "", "not a valid field selector key"))
        if item.get("operator") not in ("In", "NotIn"):
            errors.append(invalid_value(f"{where}.operator", item.get("operator") or "", "not a valid selector operator"))
        elif len(item.get("values") or ()) != 1:
            errors.append(required(f"{where}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
        elif item.get("key") == "metadata.name" and (problem := subdomain_problem(item["values"][0])):
            errors.append(invalid_value(f"{where}.values[0]", item["values"][0], problem))
    return errors


def _affinity(affinity: Object, field: str) -> Errors:
    errors: Errors = []
    node = affinity.get("nodeAffinity") or {}
    must = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    where = f"{field}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    if must is not None and not must.get("nodeSelectorTerms"):
        errors.append(required(f"{where}.nodeSelectorTerms", "must have at least one node selector term"))
    for index, term in enumerate((must or {}).get("nodeSelectorTerms") or ()):
        errors += _node_term(term, f"{where}.nodeSelectorTerms[{index}]")
    for index, item in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        where = f"{field}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        if not 1 <= item.get("weight", 0) <= 100:
            errors.append(invalid_value(f"{where}.weight", item.get("weight", 0), "must be in the range 1-100"))
        errors += _node_term(item.get("preference") or {}, f"{where}.preference")
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = (affinity.get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for index, term in enumerate(terms):
            where = f"{field}.{kind}.requiredDuringSchedulingIgnoredDuringExecution[{index}]"
            if not term.get("topologyKey"):
                errors.append(required(f"{where}.topologyKey", "can not be empty"))
            errors += check_label_selector(term.get("labelSelector") or {}, f"{where}.labelSelector")
    return errors


def check_pod_spec(spec: Object, field: str, claims: t.Iterable[str] = ()) -> Errors:
    """A pod spec, in a pod or in a template. claims: volumes that the owner of the template adds."""
    volumes, errors = check_volumes(spec.get("volumes"), f"{field}.volumes")
    errors += check_containers(spec, field, volumes | set(claims))
    errors += one_of(spec.get("restartPolicy"), f"{field}.restartPolicy", ("Always", "Never", "OnFailure"))
    errors += one_of(spec.get("dnsPolicy"), f"{field}.dnsPolicy", ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"))
    errors += _tolerations(spec.get("tolerations"), f"{field}.tolerations")
    errors += check_labels(spec.get("nodeSelector"), f"{field}.nodeSelector")
    errors += _affinity(spec.get("affinity") or {}, f"{field}.affinity")
    errors += at_least(spec, "activeDeadlineSeconds", 1, field)
    errors += at_least(spec, "terminationGracePeriodSeconds", 0, field)
    for key in ("hostname", "subdomain"):
        if spec.get(key) and (problem := label_problem(spec[key])):
            errors.append(invalid_value(f"{field}.{key}", spec[key], problem))
    for key in ("serviceAccountName", "nodeName", "priorityClassName", "schedulerName", "runtimeClassName"):
        if spec.get(key) and (problem := subdomain_problem(spec[key])):
            errors.append(invalid_value(f"{field}.{key}", spec[key], problem))
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        if problem := key_problem(gate.get("name", "")):
            errors.append(invalid_value(f"{field}.schedulingGates[{index}]", gate.get("name", ""), problem))
    if spec.get("schedulingGates") and spec.get("nodeName"):
        errors.append(forbidden_field(f"{field}.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return errors


def check_pod(obj: Object) -> Errors:
    """A Pod."""
    return check_pod_spec(obj["spec"], "spec")


def check_template(template: Object, field: str, claims: t.Iterable[str] = ()) -> Errors:
    """A pod template. claims: volumes that its owner adds."""
    metadata = template.get("metadata") or {}
    errors = check_labels(metadata.get("labels"), f"{field}.labels")
    errors += check_annotations(metadata.get("annotations"), f"{field}.annotations")
    return errors + check_pod_spec(template.get("spec") or {}, f"{field}.spec", claims)


# What of a pod may change once it exists; the rest of its spec is fixed.
_POD_MUTABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
_POD_FIXED_TEXT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _pod_fixed(spec: Object, gated: bool) -> Object:
    fixed = {key: value for key, value in spec.items() if key not in _POD_MUTABLE}
    for group in ("initContainers", "containers"):
        if fixed.get(group):
            fixed[group] = [{**container, "image": ""} for container in fixed[group]]
    if gated:
        fixed.pop("nodeSelector", None)
        fixed.pop("affinity", None)
    return fixed


def check_pod_update(obj: Object, old: Object) -> Errors:
    """A changed Pod: all but a few fields of its spec are fixed."""
    errors = check_pod(obj)
    gated = bool(old["spec"].get("schedulingGates"))
    if _pod_fixed(obj["spec"], gated) != _pod_fixed(old["spec"], gated):
        errors.append(forbidden_field("spec", _POD_FIXED_TEXT))
    if any(item not in (obj["spec"].get("tolerations") or []) for item in old["spec"].get("tolerations") or []):
        errors.append(forbidden_field("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"))
    before = [gate["name"] for gate in old["spec"].get("schedulingGates") or ()]
    if any(gate["name"] not in before for gate in obj["spec"].get("schedulingGates") or ()):
        errors.append(forbidden_field("spec.schedulingGates", "only deletion is allowed"))
    return errors
