# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a node agent tells the API of a pod: its status and events."""

from __future__ import annotations

import asyncio
import logging
import typing as t
from collections.abc import Coroutine

from ..._common.errors import ClusterError
from .api import Api, ApiError, Object, now_rfc3339, resource_path
from .events import EventRecorder
from .informer import key_of
from .pod_state import Container, PodState

log = logging.getLogger(__name__)

_GATHER_S = 0.01


async def guard(name: str, life: Coroutine[t.Any, t.Any, None]) -> None:
    """A task of a pod: refused calls and a lost server end it, and so does a fault in it, which is logged."""
    try:
        await life
    except (ApiError, ClusterError) as exc:
        log.debug("pod %s: %s", name, exc)
    except Exception:
        log.exception("pod %s", name)


class PodReporter:
    """Writes the status of one pod whenever it has changed, and its events."""

    def __init__(self, state: PodState, api: Api, events: EventRecorder, host: str) -> None:
        self._state = state
        self._api = api
        self._events = events
        self._host = host
        self._written: dict[str, Object] = {}  # conditions by type
        self._dirty = False
        self._writer: asyncio.Task[None] | None = None

    def event(self, kind: str, reason: str, message: str, container: Container | None = None) -> None:
        """An Event about the pod or one of its containers."""
        field = f"spec.{'initContainers' if container.init else 'containers'}{{{container.name}}}" if container else ""
        self._events.record(self._state.pod, kind, reason, message, host=self._state.node, field_path=field)

    def touch(self) -> None:
        """Has the status written soon; states that follow each other closely are written once."""
        self._dirty = True
        if self._writer is None and not self._state.over:
            self._writer = asyncio.create_task(guard(self._state.name, self._write()))

    async def _write(self) -> None:
        try:
            while self._dirty and not self._state.over:
                await asyncio.sleep(_GATHER_S)
                self._dirty = False
                await self._patch(self._status())
        finally:
            self._writer = None

    async def write_last(self, rejected: bool) -> None:
        """Writes the status of a pod that is over. rejected: it never was one of this node."""
        if self._writer is not None:
            await asyncio.wait({self._writer})  # an older status must not arrive after the last one
        if rejected and self._state.failure is not None:
            reason, message = self._state.failure
            await self._patch({"phase": "Failed", "reason": reason, "message": message, "startTime": self._state.start_time})
        else:
            await self._patch(self._status())

    def abandon(self) -> None:
        """Writes no more."""
        if self._writer is not None:
            self._writer.cancel()

    async def _patch(self, status: Object) -> None:
        pod = self._state.pod
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        try:
            await self._api.patch(resource_path("pods", *key_of(pod), "status"), body)
        except ApiError as exc:
            if exc.status not in (404, 409, 422):
                raise
            log.debug("status of %s: %s", self._state.name, exc)

    def _status(self) -> Object:
        state, phase = self._state, _phase(self._state)
        status: Object = {
            "phase": phase,
            "startTime": state.start_time,
            "hostIP": self._host,
            "hostIPs": [{"ip": self._host}],
            "podIP": state.pod_ip,
            "podIPs": [{"ip": state.pod_ip}],
            "containerStatuses": [container.status() for container in state.main_containers],
            "conditions": [self._condition(kind, *row) for kind, row in _conditions(state, phase).items()],
        }
        inits = [container.status() for container in state.init_containers]
        if inits:
            status["initContainerStatuses"] = inits
        if state.failure is not None and phase == "Failed":
            status["reason"], status["message"] = state.failure
        return status

    def _condition(self, kind: str, value: str, reason: str, message: str) -> Object:
        before = self._written.get(kind) or {}
        since = before["lastTransitionTime"] if before.get("status") == value else now_rfc3339()
        row: Object = {"type": kind, "status": value, "lastTransitionTime": since}
        for key, text in (("reason", reason), ("message", message)):
            if text:
                row[key] = text
            elif before.get(key):
                row[key] = None  # conditions are merged: what is left out would stay
        self._written[kind] = row
        return row


def _phase(state: PodState) -> str:
    if state.failure is not None and state.over:
        return "Failed"
    if state.over:
        return "Succeeded" if all(container.exit_code == 0 for container in state.main_containers) else "Failed"
    return "Running" if any(container.log is not None for container in state.main_containers) else "Pending"


def _conditions(state: PodState, phase: str) -> dict[str, tuple[str, str, str]]:
    """Type -> (status, reason, message)."""
    ready = _ready(state, phase)
    rows = {
        "PodReadyToStartContainers": ("False" if phase in ("Succeeded", "Failed") else "True", "", ""),
        "Initialized": _initialized(state, phase),
        "Ready": ready,
        "ContainersReady": ready,
    }
    if not any(row["type"] == "PodScheduled" for row in (state.pod.get("status") or {}).get("conditions") or []):
        rows["PodScheduled"] = ("True", "", "")  # bound at its creation: no scheduler has said so
    if state.evicted:
        rows["DisruptionTarget"] = ("True", "TerminationByKubelet", state.failure[1] if state.failure else "")
    return rows


def _ready(state: PodState, phase: str) -> tuple[str, str, str]:
    unready = [container.name for container in state.main_containers if not container.running]
    if phase == "Succeeded":
        return "False", "PodCompleted", ""
    if phase == "Failed":
        return "False", "PodFailed", ""
    if unready:
        return "False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"
    return "True", "", ""


def _initialized(state: PodState, phase: str) -> tuple[str, str, str]:
    waiting = [row.name for row in state.init_containers if row.log is None or (not row.sidecar and row.exit_code != 0)]
    if waiting and not any(container.log for container in state.main_containers):
        return "False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(waiting)}]"
    return "True", "PodCompleted" if phase == "Succeeded" else "", ""
