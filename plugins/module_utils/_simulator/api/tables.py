# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Objects as table rows: what kubectl prints."""

from __future__ import annotations

import re
import typing as t

from . import clock
from .objects import Object
from .resources import Resource
from .store import Stored

Row = list[t.Any]


def _column(name: str, kind: str = "string", priority: int = 0, form: str = "") -> Object:
    return {"name": name, "type": kind, "format": form, "description": name, "priority": priority}


_NAME = _column("Name", form="name")
_AGE = _column("Age")


def age(stamp: str | None) -> str:
    """The time since a stamp the way kubectl writes ages: 12s, 5m3s, 4h12m, 3d."""
    if not stamp:
        return "<unknown>"
    return duration((clock.now() - clock.parse(stamp)).total_seconds())


def duration(seconds: float) -> str:
    """A duration in at most two units."""
    total = max(0, int(seconds))
    if total < 120:
        return f"{total}s"
    minutes, left = divmod(total, 60)
    if minutes < 10:
        return f"{minutes}m{left}s" if left else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, left = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{left}m" if left else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, left = divmod(hours, 24)
    return f"{days}d{left}h" if days < 8 and left else f"{days}d"


def _conditions(obj: Object) -> dict[str, Object]:
    return {item["type"]: item for item in (obj.get("status") or {}).get("conditions") or ()}


def _address(obj: Object, kind: str) -> str:
    for item in (obj.get("status") or {}).get("addresses") or ():
        if item.get("type") == kind:
            address: str = item.get("address", "<none>")
            return address
    return "<none>"


def _node(obj: Object) -> Row:
    metadata, status = obj["metadata"], obj.get("status") or {}
    ready = _conditions(obj).get("Ready")
    words = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if (obj.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key[len(prefix) :] for key in metadata.get("labels") or {} if key.startswith(prefix) and len(key) > len(prefix))
    info = status.get("nodeInfo") or {}
    return [
        metadata["name"],
        ",".join(words),
        ",".join(roles) or "<none>",
        age(metadata.get("creationTimestamp")),
        info.get("kubeletVersion", ""),
        _address(obj, "InternalIP"),
        _address(obj, "ExternalIP"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def pod_reason(obj: Object) -> str:
    """The STATUS column of a pod."""
    status = obj.get("status") or {}
    reason = status.get("reason") or status.get("phase") or "Unknown"
    gated = _conditions(obj).get("PodScheduled", {}).get("reason") == "SchedulingGated"
    if gated:
        reason = "SchedulingGated"
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            reason = waiting["reason"]
        elif ended is not None:
            reason = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
    if obj["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _pod(obj: Object) -> Row:
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    states = status.get("containerStatuses") or ()
    ready = sum(bool(item.get("ready")) for item in states)
    restarts = sum(item.get("restartCount", 0) for item in states)
    return [
        metadata["name"],
        f"{ready}/{len(spec['containers'])}",
        pod_reason(obj),
        str(restarts),
        age(metadata.get("creationTimestamp")),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def _images(obj: Object) -> tuple[str, str]:
    containers = obj["spec"]["template"]["spec"].get("containers") or ()
    return ",".join(item.get("name", "") for item in containers), ",".join(item.get("image", "") for item in containers)


def _selector(obj: Object) -> str:
    labels = (obj["spec"].get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


def _job(obj: Object) -> Row:
    metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    conditions = _conditions(obj)
    state = next((name for name in ("Complete", "Failed", "Suspended") if conditions.get(name, {}).get("status") == "True"), "Running")
    if state == "Running" and metadata.get("deletionTimestamp"):
        state = "Terminating"
    started, ended = status.get("startTime"), status.get("completionTime")
    took = ""
    if started:
        took = duration(((clock.parse(ended) if ended else clock.now()) - clock.parse(started)).total_seconds())
    wanted = spec.get("completions") or f"1 of {spec.get('parallelism', 1)}"
    done = f"{status.get('succeeded', 0)}/{wanted}"
    return [metadata["name"], state, done, took, age(metadata.get("creationTimestamp")), *_images(obj), _selector(obj)]


def _event(obj: Object) -> Row:
    involved = obj.get("involvedObject") or {}
    last = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp")
    place = f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"
    return [age(last), obj.get("type", ""), obj.get("reason", ""), place, (obj.get("message") or "").strip(), obj["metadata"]["name"]]


def _simple(*paths: t.Callable[[Object], t.Any]) -> t.Callable[[Object], Row]:
    def row(obj: Object) -> Row:
        return [obj["metadata"]["name"], *(path(obj) for path in paths), age(obj["metadata"].get("creationTimestamp"))]

    return row


def _deployment(obj: Object) -> Row:
    status, wanted = obj.get("status") or {}, obj["spec"].get("replicas", 1)
    counts = [f"{status.get('readyReplicas', 0)}/{wanted}", status.get("updatedReplicas", 0), status.get("availableReplicas", 0)]
    return [obj["metadata"]["name"], *counts, age(obj["metadata"].get("creationTimestamp")), *_images(obj), _selector(obj)]


def _daemon_set(obj: Object) -> Row:
    status = obj.get("status") or {}
    names = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable")
    selected = obj["spec"]["template"]["spec"].get("nodeSelector") or {}
    shown = ",".join(f"{key}={value}" for key, value in sorted(selected.items())) or "<none>"
    return [
        obj["metadata"]["name"],
        *(status.get(name, 0) for name in names),
        shown,
        age(obj["metadata"].get("creationTimestamp")),
        *_images(obj),
        _selector(obj),
    ]


def _service(obj: Object) -> Row:
    spec = obj["spec"]
    ports = ",".join(f"{item['port']}/{item.get('protocol', 'TCP')}" for item in spec.get("ports") or ()) or "<none>"
    selector = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items())) or "<none>"
    address = spec.get("clusterIP") or "<none>"
    return [obj["metadata"]["name"], spec["type"], address, "<none>", ports, age(obj["metadata"].get("creationTimestamp")), selector]


_MORE = (_column("Containers", priority=1), _column("Images", priority=1), _column("Selector", priority=1))
_TABLES: dict[tuple[str, str], tuple[list[Object], t.Callable[[Object], Row]]] = {
    ("", "Node"): (
        [
            _NAME,
            _column("Status"),
            _column("Roles"),
            _AGE,
            _column("Version"),
            *(_column(name, priority=1) for name in ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")),
        ],
        _node,
    ),
    ("", "Pod"): (
        [
            _NAME,
            _column("Ready"),
            _column("Status"),
            _column("Restarts"),
            _AGE,
            *(_column(name, priority=1) for name in ("IP", "Node", "Nominated Node", "Readiness Gates")),
        ],
        _pod,
    ),
    ("batch", "Job"): ([_NAME, _column("Status"), _column("Completions"), _column("Duration"), _AGE, *_MORE], _job),
    ("", "Event"): (
        [_column("Last Seen"), _column("Type"), _column("Reason"), _column("Object"), _column("Message"), _column("Name", priority=1)],
        _event,
    ),
    ("", "Namespace"): ([_NAME, _column("Status"), _AGE], _simple(lambda obj: obj["status"]["phase"])),
    ("", "ConfigMap"): (
        [_NAME, _column("Data", "integer"), _AGE],
        _simple(lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {})),
    ),
    ("", "Secret"): (
        [_NAME, _column("Type"), _column("Data", "integer"), _AGE],
        _simple(lambda obj: obj.get("type", ""), lambda obj: len(obj.get("data") or {})),
    ),
    ("", "Service"): (
        [
            _NAME,
            _column("Type"),
            _column("Cluster-IP"),
            _column("External-IP"),
            _column("Port(s)"),
            _AGE,
            _column("Selector", priority=1),
        ],
        _service,
    ),
    ("apps", "Deployment"): (
        [_NAME, _column("Ready"), _column("Up-to-date", "integer"), _column("Available", "integer"), _AGE, *_MORE],
        _deployment,
    ),
    ("apps", "DaemonSet"): (
        [
            _NAME,
            *(_column(name, "integer") for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
            _column("Node Selector"),
            _AGE,
            *_MORE,
        ],
        _daemon_set,
    ),
    ("coordination.k8s.io", "Lease"): (
        [_NAME, _column("Holder"), _AGE],
        _simple(lambda obj: (obj.get("spec") or {}).get("holderIdentity")),
    ),
    ("scheduling.k8s.io", "PriorityClass"): (
        [_NAME, _column("Value", "integer"), _column("Global-Default", "boolean"), _AGE],
        _simple(lambda obj: obj.get("value", 0), lambda obj: bool(obj.get("globalDefault"))),
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): (
        [_NAME, _column("Created At")],
        lambda obj: [obj["metadata"]["name"], obj["metadata"]["creationTimestamp"]],
    ),
}


def _look(value: t.Any, path: str) -> t.Any:
    """A small JSONPath: .a.b, .a[0] and .a[?(@.type=="X")].status, as printer columns use."""
    token = re.compile(r"""\.([A-Za-z0-9_$-]+|\['[^']+'\])|\[(-?\d+)\]|\[\?\(@\.(\w+)\s*==\s*["']([^"']*)["']\)\]""")
    at = 0
    while at < len(path) and value is not None:
        match = token.match(path, at)
        if not match:
            return None
        if match[1] is not None:
            value = value.get(match[1]) if isinstance(value, dict) else None
        elif match[2] is not None:
            index = int(match[2])
            value = value[index] if isinstance(value, list) and -len(value) <= index < len(value) else None
        else:
            value = next((item for item in value or () if isinstance(item, dict) and item.get(match[3]) == match[4]), None)
        at = match.end()
    return value


def _custom_row(columns: list[Object]) -> t.Callable[[Object], Row]:
    def row(obj: Object) -> Row:
        cells: Row = [obj["metadata"]["name"]]
        for column in columns:
            value = _look(obj, column["jsonPath"])
            cells.append(age(value) if column.get("type") == "date" and isinstance(value, str) else value)
        return cells

    return row


def _layout(resource: Resource) -> tuple[list[Object], t.Callable[[Object], Row]]:
    if resource.custom is not None and resource.custom.columns:
        wanted = resource.custom.columns
        columns = [_column(item["name"], item.get("type", "string"), item.get("priority", 0)) for item in wanted]
        return [_NAME, *columns], _custom_row(wanted)
    return _TABLES.get(("" if resource.kind == "Event" else resource.group, resource.kind)) or ([_NAME, _AGE], _simple())


def partial(stored: Stored) -> Object:
    """An object reduced to its metadata."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored.obj["metadata"]}


def table(
    resource: Resource, items: t.Sequence[Stored], metadata: Object, include: str, shown: t.Callable[[Resource, Stored], Object]
) -> Object:
    """Objects as a Table. include: None, Metadata (default) or Object: what travels in each row."""
    columns, cells = _layout(resource)
    rows = []
    for stored in items:
        row: Object = {"cells": cells(stored.obj)}
        if include == "Object":
            row["object"] = shown(resource, stored)
        elif include != "None":
            row["object"] = partial(stored)
        rows.append(row)
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows}
