# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Names and labels of the objects we create. Everything we own carries the run label; nothing else is ever touched."""

from __future__ import annotations

import hashlib
import typing as t

PREFIX = "gpu-cluster.readiness"
RUN_LABEL = f"{PREFIX}/run"
CATEGORY_LABEL = f"{PREFIX}/category"
GROUP_LABEL = f"{PREFIX}/group"
ATTEMPT_LABEL = f"{PREFIX}/attempt"
EXPIRES_ANNOTATION = f"{PREFIX}/expires"
OWNER_ANNOTATION = f"{PREFIX}/owner"
HEARTBEAT_ANNOTATION = f"{PREFIX}/heartbeat"
MANAGED_BY = "gpu-cluster-readiness"
CONTAINER = "node"  # ours in every pod; others may be injected beside it
OUR_VOLUMES = ("dshm", "hostfile", "files", "ssh")
# Labels that we or Kubernetes set on pods, by their beginning.
OUR_LABELS = (f"{PREFIX}/", "batch.kubernetes.io/", "app.kubernetes.io/managed-by", "job-name", "controller-uid")
MAX_NAME = 63
# A Job adds "-<index>-<5 characters>" to a pod's name and "-<index>" to its host name; five digits of index are plenty.
POD_SUFFIX = len("-00000-xxxxx")


def short(text: str, limit: int) -> str:
    """text in at most limit bytes; a longer one keeps its head and gets a hash, so that two never meet."""
    if len(text.encode()) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    head = text.encode()[: limit - 9].decode(errors="ignore").rstrip("-.")
    return f"{head}-{digest}"


def anchor_name(run_id: str, category: str) -> str:
    """The ConfigMap that owns everything of one category of a run."""
    return short(f"readiness-{run_id}-{category}", MAX_NAME)


def fuse_name(run_id: str, category: str, start: str) -> str:
    """The Job whose end takes the anchor along; start tells those of two starts apart."""
    return short(f"readiness-{run_id}-{category}-fuse-{start}", MAX_NAME)


def secret_name(run_id: str, category: str) -> str:
    """The Secret with the ssh key pair of one category of a run."""
    return short(f"readiness-{run_id}-{category}-ssh", MAX_NAME)


def attempt_name(run_id: str, category: str, group: str, attempt: int) -> str:
    """The name of one attempt's objects; category is its short id, such as c01."""
    return short(f"readiness-{run_id}-{category}-{group}-{attempt}", MAX_NAME - POD_SUFFIX)


def category_labels(run_id: str, category: str) -> dict[str, str]:
    """Labels of an object that belongs to a category of a run as a whole."""
    return {
        "app.kubernetes.io/managed-by": MANAGED_BY,
        RUN_LABEL: short(run_id, MAX_NAME),
        CATEGORY_LABEL: short(category, MAX_NAME),
    }


def attempt_labels(run_id: str, category: str, group: str, attempt: int) -> dict[str, str]:
    """Labels of an object that belongs to one attempt."""
    return {**category_labels(run_id, category), GROUP_LABEL: short(group, MAX_NAME), ATTEMPT_LABEL: str(attempt)}


def owner_reference(obj: dict[str, t.Any]) -> dict[str, t.Any]:
    """An ownerReference to an object as the API server returned it."""
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": obj["metadata"]["name"], "uid": obj["metadata"]["uid"]}
