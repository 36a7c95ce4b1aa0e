# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What genuine controllers make of a few small jobs (cases.py): objects, labels, owners, conditions, events.

`python -m ansible_collections.gpu_cluster.readiness.tests.control_plane.facts` writes facts/*.yml from a fresh control plane; a test
records them again and compares. What changes from run to run (uids, random suffixes, hashes, times) becomes a word in angle brackets.
"""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile
import time
import typing as t

import yaml

from . import cases, managers
from .backend import Server, open_backend
from .launcher import ControlPlane

Object = dict[str, t.Any]
FOLDER = pathlib.Path(__file__).resolve().parent / "facts"
DEFINITION = {"racks": 1, "nodes_per_rack": 4, "time_scale": 3600}
CASES = {**cases.PLAIN_JOBS, **cases.OF_OTHER_CONTROLLERS}
_LIMIT_S = 120.0
_SETTLE_S = 2.0  # events are written a little after what they tell
_BY_KUBELET = {"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"}
_COLLECTED = (
    cases.TRAINJOBS,
    cases.JOBSETS,
    cases.JOBS,
    *(f"api/v1/{cases.SPACE}/{plural}" for plural in ("pods", "services", "configmaps", "secrets")),
)


def record(server: Server, name: str) -> Object:
    """Runs one case to its end and returns its facts; removes it afterwards. AssertionError when the end does not come."""
    collection, wanted, end = CASES[name]
    url = f"{server.url}/{collection}"
    answer = server.http.post(url, json=wanted, timeout=30)
    assert answer.status_code == 201, answer.text
    try:
        seen = _await_end(server, f"{url}/{name}", name, end)
        time.sleep(_SETTLE_S)
        return _collect(server, name, seen)
    finally:
        server.http.delete(f"{url}/{name}", json={"propagationPolicy": "Foreground"}, timeout=30)
        deadline = time.monotonic() + _LIMIT_S
        while server.http.get(f"{url}/{name}", timeout=30).status_code != 404 and time.monotonic() < deadline:
            time.sleep(0.2)


def _await_end(server: Server, url: str, name: str, end: str) -> dict[str, Object]:
    """Everything of the case by uid, as it was seen last: a controller may delete some of it before or at the end."""
    seen: dict[str, Object] = {}
    deadline = time.monotonic() + _LIMIT_S
    while True:
        seen |= _present(server, name)
        found = server.http.get(url, timeout=30).json()
        pods = [item for item in seen.values() if item["kind"] == "Pod"]
        conditions = [row for item in (found, *pods) for row in item.get("status", {}).get("conditions") or []]
        if any(end == (row["type"] if row["status"] == "True" else row.get("reason")) for row in conditions):
            return seen
        assert time.monotonic() < deadline, f"{name} did not become {end}: {conditions}"
        time.sleep(0.1)


def _present(server: Server, name: str) -> dict[str, Object]:
    items = (item for path in _COLLECTED for item in _items(server, path))
    return {item["metadata"]["uid"]: item for item in items if _belongs(item, name)}


def _items(server: Server, path: str) -> list[Object]:
    answer = server.http.get(f"{server.url}/{path}", timeout=30)
    if answer.status_code == 404:  # a kind that nobody serves here
        return []
    answer.raise_for_status()
    found = answer.json()
    kind = found["kind"].removesuffix("List")
    return [{**item, "kind": kind} for item in found["items"]]


def _belongs(item: Object, name: str) -> bool:
    metadata = item["metadata"]
    return metadata["name"] == name or metadata["name"].startswith(f"{name}-") or (metadata.get("labels") or {}).get("job-name") == name


def _collect(server: Server, name: str, seen: dict[str, Object]) -> Object:
    left = _present(server, name)
    names = {item["metadata"]["name"] for item in (seen | left).values()}
    events = [event for event in _items(server, f"api/v1/{cases.SPACE}/events") if event["involvedObject"]["name"] in names]
    clean = _Cleaner()
    objects = [clean.tree(_facts(item, uid not in left)) for uid, item in (seen | left).items()]
    return {
        "objects": sorted(objects, key=lambda row: (row["kind"], row["name"])),
        # Events of the kubelet are those of our own node agents.
        "events": sorted({clean.text(_event(event)) for event in events if event.get("source", {}).get("component") != "kubelet"}),
    }


def _facts(item: Object, gone: bool) -> Object:
    """What identifies and describes an object, without what the API server adds by itself.

    gone: a controller has deleted it meanwhile, so that its last status and finalizers are a matter of chance.
    """
    metadata, status, spec = item["metadata"], item.get("status") or {}, item.get("spec") or {}
    owners = [
        f"{owner['kind']}/{owner['name']}{' (controller)' if owner.get('controller') else ''}"
        for owner in metadata.get("ownerReferences") or []
    ]
    found: Object = {
        "kind": item["kind"],
        "name": metadata["name"],
        "owners": owners,
        "labels": metadata.get("labels") or {},
        "annotations": metadata.get("annotations") or {},
        "gone": gone,
    }
    if gone:
        status = {}
    if item["kind"] == "Pod":
        return {**found, **_pod_facts(spec, status)}
    if item["kind"] in ("ConfigMap", "Secret"):
        data = item.get("data") or {}
        # A secret's values are random; the snapshot of a runtime repeats what Trainer ships.
        shown = {key: data[key] if key == "hostfile" else "<text>" for key in data}
        return {**found, "immutable": item.get("immutable", False), "type": item.get("type", ""), "data": shown}
    if item["kind"] == "Service":
        return {**found, "spec": {key: spec.get(key) for key in ("clusterIP", "publishNotReadyAddresses", "selector", "ports")}}
    conditions = [_condition(row) for row in status.get("conditions") or []]
    rest = {key: value for key, value in status.items() if key != "conditions" and not key.endswith("Time")}
    found["status"] = {"conditions": conditions, **rest}
    if item["kind"] == "JobSet":
        spec = {key: value for key, value in spec.items() if key != "replicatedJobs"}
    return {**found, "spec": spec}


def _condition(row: Object) -> Object:
    return {key: row.get(key) for key in ("type", "status", "reason", "message")}


def _pod_facts(spec: Object, status: Object) -> Object:
    """The whole specification, as admission left it; of the status, what was not the kubelet's to say."""
    conditions = [_condition(row) for row in status.get("conditions") or [] if row["type"] not in _BY_KUBELET]
    return {
        "spec": {key: value for key, value in spec.items() if key != "nodeName"},
        "phase": status.get("phase"),
        "conditions": conditions,
    }


def _event(event: Object) -> str:
    target = event["involvedObject"]
    source = event.get("reportingComponent") or event.get("source", {}).get("component", "")
    return f"{target['kind']}/{target['name']} {event['type']} {event['reason']} ({source}): {event.get('message', '')}"


class _Cleaner:
    """Replaces what differs between two runs of the same case."""

    _RULES = (
        (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uid>"),
        (re.compile(r"\b[0-9a-f]{40}\b"), "<sha1>"),
        (re.compile(r"-([0-9])-[a-z0-9]{5}\b"), r"-\1-<random>"),
        (re.compile(r"\bkube-api-access-[a-z0-9]{5}\b"), "kube-api-access-<random>"),
        (re.compile(r"\b\d{4}-\d{2}-\d{2}T[0-9:.]+Z"), "<time>"),
        (re.compile(r"\bgpu-r\d+-n\d+\b"), "<node>"),
    )

    def text(self, value: str) -> str:
        for pattern, word in self._RULES:
            value = pattern.sub(word, value)
        return value

    def tree(self, value: t.Any) -> t.Any:
        if isinstance(value, dict):
            return {self.text(key): self.tree(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return self.text(value) if isinstance(value, str) else value


def load(name: str) -> Object:
    """The recorded facts of a case."""
    facts: Object = yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8"))
    return facts


class _Dumper(yaml.SafeDumper):
    """Indents lists, as the linters of this project want it."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _page(facts: Object) -> str:
    return yaml.dump(facts, Dumper=_Dumper, sort_keys=True, width=80, explicit_start=True)


def main() -> int:
    plane = ControlPlane()
    with open_backend(plane) as backend, tempfile.TemporaryDirectory() as folder:
        managers.start(plane)
        definition = pathlib.Path(folder) / "definition.yml"
        definition.write_text(yaml.safe_dump(DEFINITION))
        backend.attach(definition, pathlib.Path(folder))
        for name in CASES:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{name}.yml").write_text(_page(record(backend, name)), encoding="utf-8")
            print(f"{name}: recorded", flush=True)
        backend.reset()
    return 0


if __name__ == "__main__":
    sys.exit(main())
