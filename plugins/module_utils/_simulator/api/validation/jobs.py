# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs: completions, policies, and what may change of a Job that exists."""

from __future__ import annotations

import re

from ..errors import invalid_value, required, unsupported
from ..objects import Object
from ..selectors import match_labels
from .fields import Errors, at_least, one_of
from .metadata import label_problem
from .pods import check_template


def _success_policy(policy: Object, spec: Object) -> Errors:
    where = "spec.successPolicy"
    if spec.get("completionMode") != "Indexed":
        return [invalid_value(where, "successPolicy", "requires indexed completion mode")]
    rules = policy.get("rules") or ()
    errors: Errors = []
    if not rules:
        errors.append(required(f"{where}.rules", "at least one rules must be specified when the successPolicy is specified"))
    for index, rule in enumerate(rules):
        at = f"{where}.rules[{index}]"
        count, indexes = rule.get("succeededCount"), rule.get("succeededIndexes")
        if count is None and indexes is None:
            errors.append(required(at, "at least one of succeededCount or succeededIndexes must be specified"))
        if count is not None and count < 1:
            errors.append(invalid_value(f"{at}.succeededCount", count, "must be greater than or equal to 1"))
        if indexes is not None and not _valid_indexes(indexes, spec.get("completions") or 0):
            errors.append(
                invalid_value(
                    f"{at}.succeededIndexes", indexes, "error parsing succeededIndexes: must be ordered intervals within completions"
                )
            )
    return errors


def _valid_indexes(text: str, completions: int) -> bool:
    """Ordered, separate intervals such as 0,2-4, all below completions."""
    last = -1
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            return False
        low, high = int(match[1]), int(match[2] or match[1])
        if low <= last or (match[2] is not None and high <= low) or high >= completions:
            return False
        last = high
    return True


def _exit_codes(codes: Object, at: str, containers: set[str]) -> Errors:
    errors = one_of(codes.get("operator") or "", f"{at}.operator", ("In", "NotIn"))
    values = codes.get("values") or []
    if not values:
        errors.append(invalid_value(f"{at}.values", values, "at least one value is required"))
    if values != sorted(set(values)):
        errors.append(invalid_value(f"{at}.values", values, "must be ordered and without duplicates"))
    if codes.get("operator") == "In" and 0 in values:
        errors.append(invalid_value(f"{at}.values", 0, "must not be 0 for the In operator"))
    name = codes.get("containerName")
    if name is not None and name not in containers:
        errors.append(invalid_value(f"{at}.containerName", name, "must be one of the container or initContainer names in the pod template"))
    return errors


def _failure_policy(policy: Object, spec: Object) -> Errors:
    where = "spec.podFailurePolicy"
    errors: Errors = []
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") != "Never":
        errors.append(
            invalid_value(
                "spec.template.spec.restartPolicy", pod.get("restartPolicy"), 'only "Never" is supported when podFailurePolicy is specified'
            )
        )
    containers = {c.get("name", "") for group in ("containers", "initContainers") for c in pod.get(group) or ()}
    for index, rule in enumerate(policy.get("rules") or ()):
        at = f"{where}.rules[{index}]"
        action = rule.get("action") or ""
        errors += one_of(action, f"{at}.action", ("Count", "FailIndex", "FailJob", "Ignore"))
        if action == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            errors.append(invalid_value(f"{at}.action", action, "requires the backoffLimitPerIndex to be set"))
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        if bool(codes) == bool(conditions):
            errors.append(invalid_value(at, "", "specifying one of OnExitCodes and OnPodConditions is required"))
        elif codes:
            errors += _exit_codes(codes, f"{at}.onExitCodes", containers)
        for number, pattern in enumerate(conditions or ()):
            if not pattern.get("type"):
                errors.append(required(f"{at}.onPodConditions[{number}].type"))
            errors += one_of(pattern.get("status") or "", f"{at}.onPodConditions[{number}].status", ("False", "True", "Unknown"))
    return errors


def check_job(obj: Object) -> Errors:
    """A Job."""
    spec = obj["spec"]
    errors: Errors = []
    for name in ("parallelism", "completions", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes", "ttlSecondsAfterFinished"):
        errors += at_least(spec, name, 0, "spec")
    errors += at_least(spec, "activeDeadlineSeconds", 0, "spec")
    errors += one_of(spec.get("completionMode"), "spec.completionMode", ("Indexed", "NonIndexed"))
    errors += one_of(spec.get("podReplacementPolicy"), "spec.podReplacementPolicy", ("Failed", "TerminatingOrFailed"))
    errors += _indexed(obj)
    errors += check_template(spec["template"], "spec.template")
    if spec["template"]["spec"].get("restartPolicy") == "Always":
        errors.append(required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    if spec.get("podFailurePolicy") is not None:
        errors += _failure_policy(spec["podFailurePolicy"], spec)
        if spec.get("podReplacementPolicy") == "TerminatingOrFailed":
            errors.append(unsupported("spec.podReplacementPolicy", "TerminatingOrFailed", ("Failed",)))
    if spec.get("successPolicy") is not None:
        errors += _success_policy(spec["successPolicy"], spec)
    if spec.get("manualSelector"):
        errors += _manual_selector(spec)
    return errors


def _indexed(obj: Object) -> Errors:
    spec = obj["spec"]
    errors: Errors = []
    if spec.get("completionMode") != "Indexed":
        for name in ("backoffLimitPerIndex", "maxFailedIndexes"):
            if spec.get(name) is not None:
                errors.append(invalid_value(f"spec.{name}", spec[name], "requires indexed completion mode"))
        return errors
    completions, parallelism = spec.get("completions"), spec.get("parallelism") or 0
    if completions is None:
        return [required("spec.completions", "when completion mode is Indexed")]
    if parallelism > 100000:
        errors.append(
            invalid_value("spec.parallelism", parallelism, "must be less than or equal to 100000 when completion mode is Indexed")
        )
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        errors.append(required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified"))
    # The host name of a pod is <job>-<index>, and a host name is a label of at most 63 characters.
    longest = f"{obj['metadata']['name']}-{max(completions - 1, 0)}"
    if problem := label_problem(longest):
        errors.append(
            invalid_value(
                "metadata.name", obj["metadata"]["name"], f"will not able to create pod with invalid DNS label: {longest}: {problem}"
            )
        )
    return errors


def _manual_selector(spec: Object) -> Errors:
    if not spec.get("selector"):
        return [required("spec.selector")]
    labels = spec["template"]["metadata"].get("labels") or {}
    if not match_labels(spec["selector"], labels):
        return [invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")]
    return []


# Scheduling directives of a template that may change while the Job is suspended and has not started.
_TEMPLATE_MUTABLE = ("affinity", "nodeSelector", "tolerations", "schedulingGates")


def _fixed_template(template: Object, schedulable: bool) -> Object:
    if not schedulable:
        return template
    metadata = {key: value for key, value in (template.get("metadata") or {}).items() if key not in ("labels", "annotations")}
    spec = {key: value for key, value in template["spec"].items() if key not in _TEMPLATE_MUTABLE}
    return {"metadata": metadata, "spec": spec}


def check_job_update(obj: Object, old: Object) -> Errors:
    """A changed Job: what describes its pods is fixed, or may change only while it is suspended."""
    errors = check_job(obj)
    new_spec, old_spec = obj["spec"], old["spec"]
    # A Job started and then suspended again becomes mutable once its start time is cleared.
    schedulable = bool(old_spec.get("suspend")) and not (old.get("status") or {}).get("startTime")
    if _fixed_template(new_spec["template"], schedulable) != _fixed_template(old_spec["template"], schedulable):
        errors.append(invalid_value("spec.template", "template", "field is immutable"))
    for name in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"):
        if new_spec.get(name) != old_spec.get(name):
            errors.append(invalid_value(f"spec.{name}", new_spec.get(name), "field is immutable"))
    elastic = new_spec.get("completionMode") == "Indexed" and new_spec.get("completions") == new_spec.get("parallelism")
    if new_spec.get("completions") != old_spec.get("completions") and not elastic:
        errors.append(invalid_value("spec.completions", new_spec.get("completions"), "field is immutable"))
    return errors
