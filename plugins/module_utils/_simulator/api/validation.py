# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The rules a genuine server enforces beyond types: names, labels, quantities, enumerations, structure and immutability.

check_create and check_update return the causes of a 422 answer. Kinds without rules of their own get those of metadata only.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
import typing as t

from . import quantity
from .errors import FieldError, duplicate, forbidden_field, invalid_value, required, unsupported
from .resources import Resource

Object = dict[str, t.Any]
Errors = list[FieldError]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_ENV_NAME = re.compile(r"[ -<>-~]+")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")

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
_MAX_DATA = 1024 * 1024
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


# --- names and metadata ---------------------------------------------------------------------------------------------------


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


def check_labels(labels: t.Any, field: str) -> Errors:
    """Keys and values of a labels map."""
    errors: Errors = []
    for key, value in (labels or {}).items():
        if problem := key_problem(key):
            errors.append(invalid_value(field, key, problem))
        if problem := label_value_problem(value):
            errors.append(invalid_value(field, value, problem))
    return errors


def _annotations(annotations: t.Any, field: str) -> Errors:
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
    errors += _annotations(metadata.get("annotations"), "metadata.annotations")
    errors += _owner_references(metadata.get("ownerReferences"))
    for finalizer in metadata.get("finalizers") or ():
        if problem := key_problem(finalizer):
            errors.append(invalid_value("metadata.finalizers", finalizer, problem))
    return errors


# --- pods -----------------------------------------------------------------------------------------------------------------


def _one_of(value: t.Any, field: str, allowed: t.Iterable[str]) -> Errors:
    return [] if value is None or value in allowed else [unsupported(field, value, allowed)]


def _at_least(spec: Object, name: str, least: int, field: str) -> Errors:
    value = spec.get(name)
    if value is None or value >= least:
        return []
    text = "must be greater than or equal to 0" if least == 0 else f"must be greater than or equal to {least}"
    return [invalid_value(f"{field}.{name}", value, text)]


def _is_extended(name: str) -> bool:
    return "/" in name and not name.startswith("kubernetes.io/")


def _resources(resources: Object, field: str) -> Errors:
    errors: Errors = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for side, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            where = f"{field}.{side}[{name}]"
            value = quantity.parse(amount)
            if problem := key_problem(name):
                errors.append(invalid_value(where, name, problem))
            elif "/" not in name and not name.startswith("hugepages-") and name not in ("cpu", "memory", "ephemeral-storage"):
                errors.append(invalid_value(where, name, "must be a standard resource for containers"))
            if value is None or value < 0:
                errors.append(invalid_value(where, amount, "must be greater than or equal to 0"))
            elif _is_extended(name) and value != value.to_integral_value():
                errors.append(invalid_value(where, amount, "must be an integer"))
    for name, amount in requests.items():
        errors += _request_against_limit(name, amount, limits.get(name), f"{field}.requests")
    return errors


def _request_against_limit(name: str, amount: t.Any, limit: t.Any, field: str) -> Errors:
    wanted, bound = quantity.parse(amount), quantity.parse(limit) if limit is not None else None
    if wanted is None:
        return []
    if _is_extended(name) or name.startswith("hugepages-"):
        if limit is None:
            return [required(field.replace("requests", "limits"), f"Limit must be set for non overcommitable resources: {name}")]
        return [] if wanted == bound else [invalid_value(field, str(amount), f"must be equal to {name} limit of {limit}")]
    if bound is not None and wanted > bound:
        return [invalid_value(field, str(amount), f"must be less than or equal to {name} limit of {limit}")]
    return []


def _environment(variables: t.Any, field: str) -> Errors:
    errors: Errors = []
    for index, variable in enumerate(variables or ()):
        name, where = variable.get("name", ""), f"{field}[{index}]"
        if not name:
            errors.append(required(f"{where}.name"))
        elif not _ENV_NAME.fullmatch(name):
            errors.append(
                invalid_value(
                    f"{where}.name",
                    name,
                    "a valid environment variable name must consist only of printable ASCII characters other than '='",
                )
            )
        source = variable.get("valueFrom")
        if source is not None:
            if variable.get("value"):
                errors.append(invalid_value(f"{where}.valueFrom", "", "may not be specified when `value` is not empty"))
            if len(source) != 1:
                errors.append(
                    invalid_value(
                        f"{where}.valueFrom", "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
                    )
                )
    return errors


def _ports(ports: t.Any, field: str) -> Errors:
    errors: Errors = []
    names: set[str] = set()
    for index, port in enumerate(ports or ()):
        where = f"{field}[{index}]"
        for key in ("containerPort", "hostPort"):
            number = port.get(key)
            if key == "hostPort" and number in (None, 0):
                continue
            if number is None:
                errors.append(required(f"{where}.{key}"))
            elif not 1 <= number <= 65535:
                errors.append(invalid_value(f"{where}.{key}", number, "must be between 1 and 65535, inclusive"))
        errors += _one_of(port.get("protocol"), f"{where}.protocol", ("SCTP", "TCP", "UDP"))
        name = port.get("name")
        if name:
            if name in names:
                errors.append(duplicate(f"{where}.name", name))
            names.add(name)
            if len(name) > 15 or not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name) or not re.search("[a-z]", name):
                errors.append(invalid_value(f"{where}.name", name, "must be no more than 15 characters of a-z, 0-9 and '-', with a letter"))
    return errors


def _mounts(mounts: t.Any, volumes: set[str], field: str) -> Errors:
    errors: Errors = []
    paths: set[str] = set()
    for index, mount in enumerate(mounts or ()):
        where = f"{field}[{index}]"
        if mount.get("name") not in volumes:
            errors.append(FieldError(f"{where}.name", "FieldValueNotFound", f'"{mount.get("name", "")}"'))
        path = mount.get("mountPath")
        if not path:
            errors.append(required(f"{where}.mountPath"))
        elif path in paths:
            errors.append(invalid_value(f"{where}.mountPath", path, "must be unique"))
        paths.add(path or "")
    return errors


def _container(container: Object, volumes: set[str], field: str) -> Errors:
    errors: Errors = []
    name = container.get("name")
    if not name:
        errors.append(required(f"{field}.name"))
    elif problem := label_problem(name):
        errors.append(invalid_value(f"{field}.name", name, problem))
    image = container.get("image")
    if not image:
        errors.append(required(f"{field}.image"))
    elif image != image.strip():
        errors.append(invalid_value(f"{field}.image", image, "must not have leading or trailing whitespace"))
    errors += _one_of(container.get("imagePullPolicy"), f"{field}.imagePullPolicy", ("Always", "IfNotPresent", "Never"))
    errors += _one_of(container.get("terminationMessagePolicy"), f"{field}.terminationMessagePolicy", ("FallbackToLogsOnError", "File"))
    errors += _ports(container.get("ports"), f"{field}.ports")
    errors += _environment(container.get("env"), f"{field}.env")
    errors += _mounts(container.get("volumeMounts"), volumes, f"{field}.volumeMounts")
    errors += _resources(container.get("resources") or {}, f"{field}.resources")
    return errors


def _containers(spec: Object, field: str, volumes: set[str]) -> Errors:
    errors: Errors = []
    names: set[str] = set()
    if not spec.get("containers"):
        errors.append(required(f"{field}.containers"))
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            where = f"{field}.{group}[{index}]"
            errors += _container(container, volumes, where)
            name = container.get("name")
            if name in names:
                errors.append(duplicate(f"{where}.name", name))
            names.add(name or "")
            allowed = ("Always", "Never", "OnFailure")
            errors += _one_of(container.get("restartPolicy"), f"{where}.restartPolicy", allowed)
    return errors


def _volumes(volumes: t.Any, field: str) -> tuple[set[str], Errors]:
    names: set[str] = set()
    errors: Errors = []
    for index, volume in enumerate(volumes or ()):
        name = volume.get("name", "")
        where = f"{field}[{index}]"
        if not name:
            errors.append(required(f"{where}.name"))
        elif problem := label_problem(name):
            errors.append(invalid_value(f"{where}.name", name, problem))
        if name in names:
            errors.append(duplicate(f"{where}.name", name))
        names.add(name)
        if len([key for key in volume if key != "name"]) > 1:
            errors.append(forbidden_field(where, "may not specify more than 1 volume type"))
    return names, errors


def _tolerations(tolerations: t.Any, field: str) -> Errors:
    errors: Errors = []
    for index, toleration in enumerate(tolerations or ()):
        where = f"{field}[{index}]"
        operator = toleration.get("operator") or "Equal"
        key = toleration.get("key")
        errors += _one_of(operator, f"{where}.operator", ("Equal", "Exists", "Gt", "Lt"))
        errors += _one_of(toleration.get("effect") or None, f"{where}.effect", ("NoExecute", "NoSchedule", "PreferNoSchedule"))
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


def _expressions(items: t.Any, field: str, operators: t.Sequence[str]) -> Errors:
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


def _node_term(term: Object, field: str) -> Errors:
    errors = _expressions(term.get("matchExpressions"), f"{field}.matchExpressions", (*_SELECTOR_OPERATORS, "Gt", "Lt"))
    for index, item in enumerate(term.get("matchFields") or ()):
        where = f"{field}.matchFields[{index}]"
        if item.get("key") != "metadata.name":
            errors.append(invalid_value(f"{where}.key", item.get("key") or "", "not a valid field selector key"))
        if item.get("operator") not in ("In", "NotIn"):
            errors.append(invalid_value(f"{where}.operator", item.get("operator") or "", "not a valid selector operator"))
        elif len(item.get("values") or ()) != 1:
            errors.append(required(f"{where}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"))
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
            errors += label_selector(term.get("labelSelector") or {}, f"{where}.labelSelector")
    return errors


def label_selector(selector: Object, field: str) -> Errors:
    """A LabelSelector object."""
    errors = check_labels(selector.get("matchLabels"), f"{field}.matchLabels")
    return errors + _expressions(selector.get("matchExpressions"), f"{field}.matchExpressions", _SELECTOR_OPERATORS)


def pod_spec(spec: Object, field: str, claims: t.Iterable[str] = ()) -> Errors:
    """A pod spec, in a pod or in a template. claims: volumes that the owner of the template adds."""
    volumes, errors = _volumes(spec.get("volumes"), f"{field}.volumes")
    errors += _containers(spec, field, volumes | set(claims))
    errors += _one_of(spec.get("restartPolicy"), f"{field}.restartPolicy", ("Always", "Never", "OnFailure"))
    errors += _one_of(spec.get("dnsPolicy"), f"{field}.dnsPolicy", ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"))
    errors += _tolerations(spec.get("tolerations"), f"{field}.tolerations")
    errors += check_labels(spec.get("nodeSelector"), f"{field}.nodeSelector")
    errors += _affinity(spec.get("affinity") or {}, f"{field}.affinity")
    errors += _at_least(spec, "activeDeadlineSeconds", 1, field)
    errors += _at_least(spec, "terminationGracePeriodSeconds", 0, field)
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


def _pod(obj: Object) -> Errors:
    return pod_spec(obj["spec"], "spec")


def _template(template: Object, field: str, claims: t.Iterable[str] = ()) -> Errors:
    metadata = template.get("metadata") or {}
    errors = check_labels(metadata.get("labels"), f"{field}.labels")
    errors += _annotations(metadata.get("annotations"), f"{field}.annotations")
    return errors + pod_spec(template.get("spec") or {}, f"{field}.spec", claims)


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


def _pod_update(obj: Object, old: Object) -> Errors:
    errors = _pod(obj)
    gated = bool(old["spec"].get("schedulingGates"))
    if _pod_fixed(obj["spec"], gated) != _pod_fixed(old["spec"], gated):
        errors.append(forbidden_field("spec", _POD_FIXED_TEXT))
    if any(item not in (obj["spec"].get("tolerations") or []) for item in old["spec"].get("tolerations") or []):
        errors.append(forbidden_field("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds"))
    before = [gate["name"] for gate in old["spec"].get("schedulingGates") or ()]
    if any(gate["name"] not in before for gate in obj["spec"].get("schedulingGates") or ()):
        errors.append(forbidden_field("spec.schedulingGates", "only deletion is allowed"))
    return errors


# --- batch ----------------------------------------------------------------------------------------------------------------


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
    errors = _one_of(codes.get("operator") or "", f"{at}.operator", ("In", "NotIn"))
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
        errors += _one_of(action, f"{at}.action", ("Count", "FailIndex", "FailJob", "Ignore"))
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
            errors += _one_of(pattern.get("status") or "", f"{at}.onPodConditions[{number}].status", ("False", "True", "Unknown"))
    return errors


def _job(obj: Object) -> Errors:
    spec = obj["spec"]
    errors: Errors = []
    for name in ("parallelism", "completions", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes", "ttlSecondsAfterFinished"):
        errors += _at_least(spec, name, 0, "spec")
    errors += _at_least(spec, "activeDeadlineSeconds", 0, "spec")
    errors += _one_of(spec.get("completionMode"), "spec.completionMode", ("Indexed", "NonIndexed"))
    errors += _one_of(spec.get("podReplacementPolicy"), "spec.podReplacementPolicy", ("Failed", "TerminatingOrFailed"))
    errors += _indexed(obj)
    errors += _template(spec["template"], "spec.template")
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
    from .selectors import match_labels

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


def _job_update(obj: Object, old: Object) -> Errors:
    errors = _job(obj)
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


# --- other kinds ----------------------------------------------------------------------------------------------------------


def _selected_template(obj: Object) -> Errors:
    """DaemonSet, Deployment, ReplicaSet, StatefulSet: the selector must be set and match the template."""
    from .selectors import match_labels

    spec = obj["spec"]
    errors: Errors = []
    selector = spec.get("selector") or {}
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(required("spec.selector"))
    else:
        errors += label_selector(selector, "spec.selector")
        if not errors and not match_labels(selector, labels):
            errors.append(invalid_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`"))
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or ()]
    errors += _template(spec["template"], "spec.template", claims)
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy != "Always":
        errors.append(unsupported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return errors + _at_least(spec, "replicas", 0, "spec")


def _selected_template_update(obj: Object, old: Object) -> Errors:
    errors = _selected_template(obj)
    if obj["spec"].get("selector") != old["spec"].get("selector"):
        errors.append(invalid_value("spec.selector", obj["spec"].get("selector"), "field is immutable"))
    return errors


def _data_keys(obj: Object, names: t.Sequence[str]) -> Errors:
    errors: Errors = []
    size = 0
    for name in names:
        for key, value in (obj.get(name) or {}).items():
            size += len(value)
            if len(key) > 253 or not _DATA_KEY.fullmatch(key) or key in (".", ".."):
                errors.append(
                    invalid_value(f"{name}[{key}]", key, "a valid config key must consist of alphanumeric characters, '-', '_' or '.'")
                )
    if size > _MAX_DATA:
        errors.append(FieldError("data", "FieldValueTooLong", f"may not be more than {_MAX_DATA} bytes"))
    return errors


def _config_map(obj: Object) -> Errors:
    errors = _data_keys(obj, ("data", "binaryData"))
    for key in (obj.get("data") or {}).keys() & (obj.get("binaryData") or {}).keys():
        errors.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
    return errors


_SECRET_KEYS = {
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}


def _secret(obj: Object) -> Errors:
    errors = _data_keys(obj, ("data",))
    for key in _SECRET_KEYS.get(obj.get("type", ""), ()):
        if key not in (obj.get("data") or {}):
            errors.append(required(f"data[{key}]"))
    return errors


def _immutable_data(check: t.Callable[[Object], Errors]) -> t.Callable[[Object, Object], Errors]:
    def update(obj: Object, old: Object) -> Errors:
        errors = check(obj)
        if old.get("immutable"):
            if not obj.get("immutable"):
                errors.append(forbidden_field("immutable", "field is immutable when `immutable` is set"))
            for name in ("data", "binaryData"):
                if (obj.get(name) or {}) != (old.get(name) or {}):
                    errors.append(forbidden_field(name, "field is immutable when `immutable` is set"))
        if obj.get("type") != old.get("type"):
            errors.append(invalid_value("type", obj.get("type"), "field is immutable"))
        return errors

    return update


def secret_data_problem(obj: Object) -> str:
    """Why the data of a Secret cannot be decoded; empty when it can."""
    for key, value in (obj.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return f"illegal base64 data in data[{key}]"
    return ""


def _service(obj: Object) -> Errors:
    spec = obj["spec"]
    errors = _one_of(spec.get("type"), "spec.type", ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort"))
    errors += check_labels(spec.get("selector"), "spec.selector")
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        errors.append(required("spec.ports"))
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = f"spec.ports[{index}]"
        if not 1 <= port.get("port", 0) <= 65535:
            errors.append(invalid_value(f"{where}.port", port.get("port", 0), "must be between 1 and 65535, inclusive"))
        errors += _one_of(port.get("protocol"), f"{where}.protocol", ("SCTP", "TCP", "UDP"))
        name = port.get("name", "")
        if len(ports) > 1 and not name:
            errors.append(required(f"{where}.name"))
        elif name and (problem := label_problem(name)):
            errors.append(invalid_value(f"{where}.name", name, problem))
        if name and name in names:
            errors.append(duplicate(f"{where}.name", name))
        names.add(name)
    return errors


def _service_update(obj: Object, old: Object) -> Errors:
    errors = _service(obj)
    if obj["spec"].get("clusterIP") != old["spec"].get("clusterIP") and old["spec"].get("type") != "ExternalName":
        errors.append(invalid_value("spec.clusterIP", obj["spec"].get("clusterIP", ""), "may not change once set"))
    return errors


def _node(obj: Object) -> Errors:
    errors: Errors = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        where = f"spec.taints[{index}]"
        if problem := key_problem(taint.get("key") or ""):
            errors.append(invalid_value(f"{where}.key", taint.get("key") or "", problem))
        if problem := label_value_problem(taint.get("value", "")):
            errors.append(invalid_value(f"{where}.value", taint["value"], problem))
        errors += _one_of(taint.get("effect") or "", f"{where}.effect", ("NoExecute", "NoSchedule", "PreferNoSchedule"))
        mark = (taint.get("key", ""), taint.get("effect", ""))
        if mark in seen:
            errors.append(duplicate(where, taint))
        seen.add(mark)
    return errors


def _event(obj: Object) -> Errors:
    involved = obj.get("involvedObject") or {}
    namespace = involved.get("namespace") or "default"
    if namespace != obj["metadata"].get("namespace"):
        return [invalid_value("involvedObject.namespace", involved.get("namespace", ""), "does not match event.namespace")]
    return []


def _lease(obj: Object) -> Errors:
    return _at_least(obj.get("spec") or {}, "leaseDurationSeconds", 1, "spec")


def _claim(obj: Object) -> Errors:
    spec = obj["spec"]
    errors: Errors = []
    modes = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
    if not spec.get("accessModes"):
        errors.append(required("spec.accessModes", "at least 1 access mode is required"))
    for mode in spec.get("accessModes") or ():
        errors += _one_of(mode, "spec.accessModes", modes)
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        errors.append(required("spec.resources[storage]"))
    return errors


def _priority_class(obj: Object) -> Errors:
    name, value = obj["metadata"]["name"], obj.get("value", 0)
    if value > 1000000000 and not name.startswith("system-"):
        return [forbidden_field("value", "maximum allowed value of a user defined priority is 1000000000")]
    if name.startswith("system-") and name not in ("system-node-critical", "system-cluster-critical"):
        return [forbidden_field("metadata.name", "priority class names with 'system-' prefix are reserved for system use only")]
    return []


def _role_reference(obj: Object) -> Errors:
    reference = obj.get("roleRef") or {}
    allowed = ("ClusterRole", "Role") if obj["metadata"].get("namespace") else ("ClusterRole",)
    errors = _one_of(reference.get("kind") or "", "roleRef.kind", allowed)
    if not reference.get("name"):
        errors.append(required("roleRef.name"))
    for index, subject in enumerate(obj.get("subjects") or ()):
        errors += _one_of(subject.get("kind") or "", f"subjects[{index}].kind", ("Group", "ServiceAccount", "User"))
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            errors.append(required(f"subjects[{index}].namespace"))
    return errors


def _role_reference_update(obj: Object, old: Object) -> Errors:
    errors = _role_reference(obj)
    if obj.get("roleRef") != old.get("roleRef"):
        errors.append(invalid_value("roleRef", obj.get("roleRef"), "cannot change roleRef"))
    return errors


_CREATE: dict[tuple[str, str], t.Callable[[Object], Errors]] = {
    ("", "Pod"): _pod,
    ("", "Service"): _service,
    ("", "ConfigMap"): _config_map,
    ("", "Secret"): _secret,
    ("", "Node"): _node,
    ("", "Event"): _event,
    ("", "PersistentVolumeClaim"): _claim,
    ("batch", "Job"): _job,
    ("apps", "DaemonSet"): _selected_template,
    ("apps", "Deployment"): _selected_template,
    ("apps", "ReplicaSet"): _selected_template,
    ("apps", "StatefulSet"): _selected_template,
    ("coordination.k8s.io", "Lease"): _lease,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_reference,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_reference,
}
_UPDATE: dict[tuple[str, str], t.Callable[[Object, Object], Errors]] = {
    ("", "Pod"): _pod_update,
    ("", "Service"): _service_update,
    ("", "ConfigMap"): _immutable_data(_config_map),
    ("", "Secret"): _immutable_data(_secret),
    ("batch", "Job"): _job_update,
    ("apps", "DaemonSet"): _selected_template_update,
    ("apps", "Deployment"): _selected_template_update,
    ("apps", "ReplicaSet"): _selected_template_update,
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_reference_update,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_reference_update,
}


def check_create(resource: Resource, obj: Object) -> Errors:
    """Every rule a new object breaks."""
    errors = check_metadata(resource, obj["metadata"])
    check = _CREATE.get((resource.group, resource.kind))
    return errors + check(obj) if check else errors


def check_update(resource: Resource, obj: Object, old: Object) -> Errors:
    """Every rule a changed object breaks, including the fields that may not change."""
    errors = check_metadata(resource, obj["metadata"])
    kind = (resource.group, resource.kind)
    if kind in _UPDATE:
        return errors + _UPDATE[kind](obj, old)
    return errors + _CREATE[kind](obj) if kind in _CREATE else errors
