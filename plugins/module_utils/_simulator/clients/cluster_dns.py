# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Names of pods and Services, as the DNS and the environment of a cluster give them."""

from __future__ import annotations

import collections

from ..hardware.seam import Peers, PodView
from .api import Object
from .informer import Informer
from .pod_state import PodState


class ClusterDns:
    """Finds pods by name. `services` follows the Services."""

    def __init__(self, services: Informer) -> None:
        self._services = services
        self._pods: dict[str, PodState] = {}
        self._by_host: dict[tuple[str, str], list[PodState]] = collections.defaultdict(list)

    def add(self, state: PodState) -> None:
        """A pod that may be found while it runs."""
        self._pods[state.pod["metadata"]["uid"]] = state
        self._by_host[_host_key(state.pod)].append(state)

    def remove(self, state: PodState) -> None:
        """The pod is gone."""
        self._pods.pop(state.pod["metadata"]["uid"], None)
        key = _host_key(state.pod)
        self._by_host[key].remove(state)
        if not self._by_host[key]:
            del self._by_host[key]

    def service_variables(self, namespace: str) -> dict[str, str]:
        """The docker-style variables of Services with an address."""
        env: dict[str, str] = {}
        for (where, name), service in self._services.items.items():
            address = service["spec"].get("clusterIP", "None")
            ports = service["spec"].get("ports") or []
            if where == namespace and address not in ("None", "") and ports:
                prefix = name.upper().replace("-", "_")
                env[f"{prefix}_SERVICE_HOST"] = address
                env[f"{prefix}_SERVICE_PORT"] = str(ports[0]["port"])
        return env

    def peers_of(self, asking: PodState) -> Peers:
        """The DNS as seen from a pod."""

        def find(name: str) -> PodView | None:
            found = self._resolve(name, asking)
            return found.view if found is not None and found.is_running() else None

        return find

    def _resolve(self, name: str, asking: PodState) -> PodState | None:
        namespace, own = _host_key(asking.pod)
        if name in (own, "localhost", "127.0.0.1"):
            return asking
        parts = name.removesuffix(".").removesuffix(".cluster.local").split(".")
        if len(parts) > 2 and parts[-1] == "svc":
            parts.pop()
        if len(parts) == 4 and all(part.isdigit() for part in parts):
            return next((state for state in self._pods.values() if state.pod_ip == name and state.is_running()), None)
        for length in (1, 2):  # service[.namespace], host.service[.namespace]
            if len(parts) in (length, length + 1):
                where = parts[length] if len(parts) > length else namespace
                found = self._by_service(parts[0], where) if length == 1 else self._by_subdomain(parts[0], parts[1], where)
                if found is not None:
                    return found
        return None

    def _by_service(self, service: str, namespace: str) -> PodState | None:
        selector = self._selector(service, namespace)
        if not selector:
            return None
        states = (state for state in self._pods.values() if state.pod["metadata"]["namespace"] == namespace)
        return next((state for state in states if state.is_running() and _selected(selector, state.pod)), None)

    def _by_subdomain(self, host: str, subdomain: str, namespace: str) -> PodState | None:
        selector = self._selector(subdomain, namespace)
        for state in reversed(self._by_host.get((namespace, host), [])):
            if state.is_running() and state.pod["spec"].get("subdomain") == subdomain and selector and _selected(selector, state.pod):
                return state
        return None

    def _selector(self, service: str, namespace: str) -> dict[str, str]:
        item = self._services.items.get((namespace, service))
        return (item["spec"].get("selector") or {}) if item else {}


def _host_key(pod: Object) -> tuple[str, str]:
    """(namespace, host name) of a pod."""
    return pod["metadata"]["namespace"], pod["spec"].get("hostname") or pod["metadata"]["name"]


def _selected(selector: dict[str, str], pod: Object) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selector.items())
