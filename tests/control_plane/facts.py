# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the genuine JobSet and Trainer controllers make of a few small jobs: objects, labels, owners, conditions, events.

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

from . import managers
from .backend import Backend, open_backend
from .launcher import ControlPlane

Object = dict[str, t.Any]
FOLDER = pathlib.Path(__file__).resolve().parent / "facts"
DEFINITION = {"racks": 1, "nodes_per_rack": 4, "time_scale": 3600}
_SPACE = "namespaces/default"
_LIMIT_S = 120.0
_SETTLE_S = 2.0  # events are written a little after what they tell
_JOBSETS, _TRAINJOBS = f"apis/{managers.JOBSET.group_version}/{_SPACE}/jobsets", f"apis/{managers.TRAINER.group_version}/{_SPACE}/trainjobs"
_COLLECTED = (
    _TRAINJOBS,
    _JOBSETS,
    f"apis/batch/v1/{_SPACE}/jobs",
    f"api/v1/{_SPACE}/pods",
    f"api/v1/{_SPACE}/services",
    f"api/v1/{_SPACE}/configmaps",
    f"api/v1/{_SPACE}/secrets",
)


def _pods(script: str) -> Object:
    container = {"name": "node", "image": "example.com/tests:1", "command": ["/bin/sh", "-c", script]}
    return {"spec": {"restartPolicy": "Never", "containers": [container]}}


def _jobset(name: str, script: str) -> Object:
    job = {"spec": {"parallelism": 2, "completions": 2, "backoffLimit": 0, "template": _pods(script)}}
    return {
        "apiVersion": managers.JOBSET.group_version,
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "workers", "template": job}]},
    }


def _trainjob(name: str, runtime: str, trainer: Object) -> Object:
    return {
        "apiVersion": managers.TRAINER.group_version,
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": {"name": runtime}, "trainer": {"image": "example.com/tests:1", **trainer}},
    }


def _shell(script: str) -> Object:
    return {"command": ["/bin/sh", "-c", script], "numNodes": 2}


_MPIRUN = ["mpirun", "--allow-run-as-root", "-np", "16", "-N", "8", "all_reduce_perf_mpi", "-b", "1G", "-e", "1G", "-g", "1"]
_GPUS = {"requests": {"nvidia.com/gpu": 8}, "limits": {"nvidia.com/gpu": 8}}
# name → (collection, object, condition that must come)
CASES: dict[str, tuple[str, Object, str]] = {
    "jobset-complete": (_JOBSETS, _jobset("jobset-complete", "echo done"), "Completed"),
    "jobset-failed": (_JOBSETS, _jobset("jobset-failed", "exit 3"), "Failed"),
    "trainjob-torch": (_TRAINJOBS, _trainjob("trainjob-torch", "torch-distributed", _shell("echo done")), "Complete"),
    "trainjob-failed": (_TRAINJOBS, _trainjob("trainjob-failed", "torch-distributed", _shell("exit 3")), "Failed"),
    "trainjob-mpi": (
        _TRAINJOBS,
        _trainjob(
            "trainjob-mpi", "deepspeed-distributed", {"command": _MPIRUN, "numNodes": 2, "numProcPerNode": 8, "resourcesPerNode": _GPUS}
        ),
        "Complete",
    ),
}


def record(backend: Backend, name: str) -> Object:
    """Runs one case to its end and returns its facts; removes it afterwards. AssertionError when the end does not come."""
    collection, wanted, end = CASES[name]
    url = f"{backend.url}/{collection}"
    answer = backend.http.post(url, json=wanted, timeout=30)
    assert answer.status_code == 201, answer.text
    try:
        seen = _await_end(backend, f"{url}/{name}", name, end)
        time.sleep(_SETTLE_S)
        return _collect(backend, name, seen)
    finally:
        backend.http.delete(f"{url}/{name}", json={"propagationPolicy": "Foreground"}, timeout=30)
        deadline = time.monotonic() + _LIMIT_S
        while backend.http.get(f"{url}/{name}", timeout=30).status_code != 404 and time.monotonic() < deadline:
            time.sleep(0.2)


def _await_end(backend: Backend, url: str, name: str, end: str) -> dict[str, Object]:
    """Everything of the case by uid, as it was seen last: a controller may delete some of it before or at the end."""
    seen: dict[str, Object] = {}
    deadline = time.monotonic() + _LIMIT_S
    while True:
        seen |= _present(backend, name)
        found = backend.http.get(url, timeout=30).json()
        conditions = found.get("status", {}).get("conditions") or []
        if any(row["type"] == end and row["status"] == "True" for row in conditions):
            return seen
        assert time.monotonic() < deadline, f"{name} did not become {end}: {conditions}"
        time.sleep(0.1)


def _present(backend: Backend, name: str) -> dict[str, Object]:
    items = (item for path in _COLLECTED for item in _items(backend, path))
    return {item["metadata"]["uid"]: item for item in items if _belongs(item, name)}


def _items(backend: Backend, path: str) -> list[Object]:
    answer = backend.http.get(f"{backend.url}/{path}", timeout=30)
    answer.raise_for_status()
    found = answer.json()
    kind = found["kind"].removesuffix("List")
    return [{**item, "kind": kind} for item in found["items"]]


def _belongs(item: Object, name: str) -> bool:
    metadata = item["metadata"]
    return metadata["name"] == name or metadata["name"].startswith(f"{name}-") or (metadata.get("labels") or {}).get("job-name") == name


def _collect(backend: Backend, name: str, seen: dict[str, Object]) -> Object:
    left = _present(backend, name)
    names = {item["metadata"]["name"] for item in (seen | left).values()}
    events = [event for event in _items(backend, f"api/v1/{_SPACE}/events") if event["involvedObject"]["name"] in names]
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
        "field_managers": sorted({f"{row['manager']}: {row['operation']}" for row in metadata.get("managedFields") or []}),
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
    if item["kind"] == "Job":
        spec = {key: value for key, value in spec.items() if key != "template"}
    elif item["kind"] == "JobSet":
        spec = {key: value for key, value in spec.items() if key != "replicatedJobs"}
    return {**found, "spec": spec}


def _condition(row: Object) -> Object:
    return {key: row.get(key) for key in ("type", "status", "reason", "message")}


def _pod_facts(spec: Object, status: Object) -> Object:
    containers = [
        {
            "name": container["name"],
            "command": container.get("command") or [],
            "args": container.get("args") or [],
            "env": container.get("env") or [],
            "resources": container.get("resources") or {},
            "volume_mounts": [mount for mount in container.get("volumeMounts") or [] if not mount["name"].startswith("kube-api-access")],
        }
        for container in spec["containers"]
    ]
    return {
        "host_name": spec.get("hostname"),
        "subdomain": spec.get("subdomain"),
        "restart_policy": spec["restartPolicy"],
        "phase": status.get("phase"),
        "containers": containers,
        "volumes": [volume for volume in spec.get("volumes") or [] if not volume["name"].startswith("kube-api-access")],
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
    return yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8"))


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
