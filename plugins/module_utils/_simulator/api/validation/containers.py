# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Containers and volumes, in a pod or in a template."""

from __future__ import annotations

import re
import typing as t

from .. import quantity
from ..errors import FieldError, duplicate, forbidden_field, invalid_value, required
from ..objects import Object
from .fields import Errors, one_of
from .metadata import key_problem, label_problem

_ENV_NAME = re.compile(r"[ -<>-~]+")


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
        errors += one_of(port.get("protocol"), f"{where}.protocol", ("SCTP", "TCP", "UDP"))
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
    errors += one_of(container.get("imagePullPolicy"), f"{field}.imagePullPolicy", ("Always", "IfNotPresent", "Never"))
    errors += one_of(container.get("terminationMessagePolicy"), f"{field}.terminationMessagePolicy", ("FallbackToLogsOnError", "File"))
    errors += _ports(container.get("ports"), f"{field}.ports")
    errors += _environment(container.get("env"), f"{field}.env")
    errors += _mounts(container.get("volumeMounts"), volumes, f"{field}.volumeMounts")
    errors += _resources(container.get("resources") or {}, f"{field}.resources")
    return errors


def check_containers(spec: Object, field: str, volumes: set[str]) -> Errors:
    """Init containers and containers of a pod spec. volumes: the names that they may mount."""
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
            errors += one_of(container.get("restartPolicy"), f"{where}.restartPolicy", allowed)
    return errors


def check_volumes(volumes: t.Any, field: str) -> tuple[set[str], Errors]:
    """The names of the volumes, and what is wrong with them."""
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
