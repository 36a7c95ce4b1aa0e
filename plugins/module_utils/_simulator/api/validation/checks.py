# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of each kind: names, labels, quantities, enumerations, structure, and what may not change.

Kinds without rules of their own get those of metadata only.
"""

from __future__ import annotations

import typing as t

from ..objects import Object
from ..resources import Resource
from . import other_kinds
from .fields import Errors
from .jobs import check_job, check_job_update
from .metadata import check_metadata
from .pods import check_pod, check_pod_update

_CREATE: dict[tuple[str, str], t.Callable[[Object], Errors]] = {
    ("", "Pod"): check_pod,
    ("", "Service"): other_kinds.check_service,
    ("", "ConfigMap"): other_kinds.check_config_map,
    ("", "Secret"): other_kinds.check_secret,
    ("", "Node"): other_kinds.check_node,
    ("", "Event"): other_kinds.check_event,
    ("", "PersistentVolumeClaim"): other_kinds.check_claim,
    ("batch", "Job"): check_job,
    ("apps", "DaemonSet"): other_kinds.check_selected_template,
    ("apps", "Deployment"): other_kinds.check_selected_template,
    ("apps", "ReplicaSet"): other_kinds.check_selected_template,
    ("apps", "StatefulSet"): other_kinds.check_selected_template,
    ("coordination.k8s.io", "Lease"): other_kinds.check_lease,
    ("scheduling.k8s.io", "PriorityClass"): other_kinds.check_priority_class,
    ("rbac.authorization.k8s.io", "RoleBinding"): other_kinds.check_role_reference,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): other_kinds.check_role_reference,
}
_UPDATE: dict[tuple[str, str], t.Callable[[Object, Object], Errors]] = {
    ("", "Pod"): check_pod_update,
    ("", "Service"): other_kinds.check_service_update,
    ("", "ConfigMap"): other_kinds.immutable_data_check(other_kinds.check_config_map),
    ("", "Secret"): other_kinds.immutable_data_check(other_kinds.check_secret),
    ("batch", "Job"): check_job_update,
    ("apps", "DaemonSet"): other_kinds.check_selected_template_update,
    ("apps", "Deployment"): other_kinds.check_selected_template_update,
    ("apps", "ReplicaSet"): other_kinds.check_selected_template_update,
    ("rbac.authorization.k8s.io", "RoleBinding"): other_kinds.check_role_reference_update,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): other_kinds.check_role_reference_update,
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
