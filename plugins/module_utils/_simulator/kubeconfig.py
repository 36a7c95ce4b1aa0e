# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Writing a kubeconfig for the simulated API server."""

from __future__ import annotations

import json
import os
import typing as t


def kubeconfig(url: str, token: str) -> dict[str, t.Any]:
    """A kubeconfig with one cluster, one user and one context called "simulated"."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "simulated", "cluster": {"server": url}}],
        "users": [{"name": "simulated", "user": {"token": token}}],
        "contexts": [{"name": "simulated", "context": {"cluster": "simulated", "user": "simulated", "namespace": "default"}}],
        "current-context": "simulated",
        "preferences": {},
    }


def write_kubeconfig(path: str, url: str, token: str) -> None:
    """Write the kubeconfig, readable by its owner only, whole or not at all. JSON is YAML, so no YAML library is needed."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    temporary = os.path.join(directory, f".{os.path.basename(path)}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        json.dump(kubeconfig(url, token), handle, indent=2)
        handle.write("\n")
    os.replace(temporary, path)
