# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Around the server: its program, its kubeconfig, what kubectl prints, custom schemas and protobuf bodies."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import requests

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api import gc, protobuf, structural, tables
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.options import Options
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.registry import Registry
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.api.schema import built_in_types
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.kubeconfig import write_kubeconfig

Object = dict[str, t.Any]
PACKAGE = "ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator"


# --- the program ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_serves_until_told_to_stop(tmp_path: Path, number: int) -> None:
    path = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", f"{PACKAGE}.api", "--kubeconfig", str(path), "--version", "v1.34.2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"KUBECONFIG={path}\n"
        url = json.loads(path.read_text())["clusters"][0]["cluster"]["server"]
        assert requests.get(url + "/readyz", timeout=10).text == "ok"
        assert requests.get(url + "/version", timeout=10).json()["minor"] == "34"
        # A watch in progress must not hold up the end.
        with requests.get(url + "/api/v1/nodes?watch=1", stream=True, timeout=10) as watch:
            assert watch.status_code == 200
            process.send_signal(number)
            _out, errors = process.communicate(timeout=10)
        assert process.returncode == 0, errors
    finally:
        process.kill()


def test_every_file_loads_without_the_simulators_packages() -> None:
    """Tools that import every file of the collection run without them; starting the server must say what is missing."""
    script = f"""
import importlib, pathlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("aiohttp", "orjson", "jsonschema_rs", "kubernetes_validate", "celpy", "uvloop"):
            raise ImportError("No module named " + name)
sys.meta_path.insert(0, Block())
package = importlib.import_module("{PACKAGE}")
for file in pathlib.Path(package.__path__[0]).rglob("*.py"):
    inner = file.relative_to(package.__path__[0]).with_suffix("")
    importlib.import_module(".".join(["{PACKAGE}", *inner.parts]).removesuffix(".__init__"))
from {PACKAGE}.api.server import ApiServer
try:
    ApiServer()
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("InputError") and "pip install" in done.stdout


def test_a_kubeconfig_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kubeconfig"
    write_kubeconfig(str(path), "http://127.0.0.1:1", "secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["current-context"] == "simulated"
    assert [item.name for item in path.parent.iterdir()] == ["kubeconfig"]


# --- pods of lost nodes ---------------------------------------------------------------------------------------------------


def test_pods_of_vanished_nodes_do_not_terminate_forever() -> None:
    registry = Registry(built_in_types("v1.36.3"), 100)

    def create(plural: str, namespace: str, body: Object) -> None:
        resource = registry.table.find("", "v1", plural)
        assert resource is not None
        registry.create(resource, namespace, body, Options())

    create("namespaces", "", {"metadata": {"name": "ns"}})
    create("nodes", "", {"metadata": {"name": "alive"}})
    pods = registry.table.find("", "v1", "pods")
    assert pods is not None
    for name, node in (("a", "alive"), ("b", "lost")):
        create("pods", "ns", {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})
        stored, gone = registry.delete(pods, "ns", name, {"gracePeriodSeconds": 30})
        assert not gone
        past = {**stored.obj, "metadata": {**stored.obj["metadata"], "deletionTimestamp": "2020-01-01T00:00:00Z"}}
        registry.store.write(pods.storage, past, stored)
    gc.collect_lost_pods(registry)
    assert [item.name for item in registry.store.collection(pods.storage).ordered("ns")] == ["a"]


# --- tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (303, "5m3s"),
        (3600, "60m"),
        (4 * 3600 + 720, "4h12m"),
        (86400, "24h"),
        (260000, "3d"),
        (-5, "0s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert tables.duration(seconds) == text


def state(**content: t.Any) -> Object:
    return {"status": {"phase": "Running", "containerStatuses": [{"state": content}]}, "metadata": {}}


def test_the_status_column_of_a_pod() -> None:
    assert tables.pod_reason(state(running={})) == "Running"
    assert tables.pod_reason(state(waiting={"reason": "ImagePullBackOff"})) == "ImagePullBackOff"
    assert tables.pod_reason(state(terminated={"exitCode": 137, "reason": "OOMKilled"})) == "OOMKilled"
    assert tables.pod_reason(state(terminated={"exitCode": 3})) == "ExitCode:3"
    assert tables.pod_reason({**state(running={}), "metadata": {"deletionTimestamp": "x"}}) == "Terminating"


# --- custom schemas -------------------------------------------------------------------------------------------------------

TREE: Object = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "list": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1, "maximum": 5}},
                        "x-kubernetes-validations": [{"rule": "self.count >= oldSelf.count", "message": "count may only grow"}],
                    },
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                "maybe": {"type": "string", "nullable": True},
            },
        }
    },
}
VERSION = structural.CustomVersion({"schema": {"openAPIV3Schema": TREE}}, built_in_types("v1.36.3"))


def custom(**spec: t.Any) -> Object:
    return {"metadata": {"name": "x"}, "spec": spec}


def test_pruning_keeps_what_the_schema_leaves_open() -> None:
    obj = custom(list=[{"name": "a", "extra": 1}], free={"any": {"thing": 1}}, map={"k": 1}, other=1)
    assert set(VERSION.clean(obj)) == {("spec", "list", 0, "extra"), ("spec", "other")}
    assert obj["spec"] == {"list": [{"name": "a", "count": 1}], "free": {"any": {"thing": 1}}, "map": {"k": 1}}


def test_nulls_stay_only_where_allowed() -> None:
    obj = custom(list=[{"name": "a", "count": None}], maybe=None)
    VERSION.clean(obj)
    assert obj["spec"] == {"list": [{"name": "a", "count": 1}], "maybe": None}
    assert VERSION.check(obj, None) == []


def test_items_are_compared_with_their_old_selves() -> None:
    old = custom(list=[{"name": "a", "count": 2}, {"name": "b", "count": 3}])
    grown = custom(list=[{"name": "b", "count": 3}, {"name": "a", "count": 4}, {"name": "c", "count": 1}])
    assert VERSION.check(grown, old) == []
    shrunk = custom(list=[{"name": "b", "count": 1}])
    assert [(error.field, error.reason) for error in VERSION.check(shrunk, old)] == [("spec.list[0]", "FieldValueInvalid")]


def test_violations_name_their_field() -> None:
    assert [error.field for error in VERSION.check(custom(list=[{"name": "a", "count": 9}]), None)] == ["spec.list[0].count"]
    assert [error.reason for error in VERSION.check(custom(list=[{"name": "a"}, {"name": "a"}]), None)] == ["FieldValueDuplicate"]
    assert [error.field for error in VERSION.check(custom(map={"k": "x"}), None)] == ["spec.map.k"]


# --- protobuf -------------------------------------------------------------------------------------------------------------


def part(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def envelope(kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + part(1, part(1, b"v1") + part(2, kind.encode())) + part(2, raw)


def test_protobuf_bodies() -> None:
    metadata = part(1, part(1, b"n") + part(2, b"") + part(11, part(1, b"k") + part(2, b"v")))
    assert protobuf.decode(envelope("Namespace", metadata)) == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "n", "labels": {"k": "v"}},
    }
    options = bytes([1 << 3, 0]) + part(4, b"Background")
    decoded = protobuf.decode(envelope("DeleteOptions", options))
    assert decoded is not None and decoded["gracePeriodSeconds"] == 0 and decoded["propagationPolicy"] == "Background"
    assert protobuf.decode(envelope("Pod", b"")) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"k8s\x00\x0a", b"k8s\x00\x0a\x7f", b"k8s\x00\xff", envelope("Namespace", b"\x0b")])
def test_broken_protobuf_is_an_error_of_the_client(data: bytes) -> None:
    with pytest.raises(ValueError):
        protobuf.decode(data)
