# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What only a genuine control plane can prove: permissions, the audit of a certification, and the controllers of other projects."""

from __future__ import annotations

import collections
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.names import MANAGED_BY, RUN_LABEL
from ansible_collections.gpu_cluster.readiness.tests.control_plane import cases, children, facts, managers

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCHER = "ansible_collections.gpu_cluster.readiness.tests.control_plane"
ACCOUNT = "gpu-cluster-readiness"
USER_AGENT = "gpu_cluster.readiness"
ALL = (
    ("intra-node", ["measured.bus_bandwidth >= 400"]),
    ("intra-rack", ["measured.bus_bandwidth >= 300"]),
    ("full-scale", ["measured.bus_bandwidth >= 300"]),
)
QUICK = {"options": {"max_bytes": "1G", "min_bytes": "64M", "iterations": 20}}
READS = {"get", "list", "watch"}

pytestmark = pytest.mark.control_plane


def use_account(cluster):
    """Applies the documented permissions and makes the cluster's kubeconfig that of their service account."""
    cluster.kubectl("apply", "-f", str(ROOT / "docs" / "rbac.yml"))
    token = cluster.kubectl("create", "token", ACCOUNT, "--duration=1h").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    cluster.kubeconfig.write_text(yaml.safe_dump(config))


def of_ours(events):
    return [event for event in events if event.get("userAgent") == USER_AGENT]


def target(event):
    where = event["objectRef"]
    return where["resource"], where.get("namespace", ""), where.get("name", "")


def labels_at_creation(events):
    """(resource, namespace, name) → labels of every object that anybody created."""
    found = {}
    for event in events:
        if event["verb"] == "create" and event.get("responseStatus", {}).get("code") == 201 and "subresource" not in event["objectRef"]:
            metadata = (event.get("responseObject") or {}).get("metadata") or {}
            resource, namespace, name = target(event)
            found[resource, namespace, name or metadata.get("name", "")] = metadata.get("labels") or {}
    return found


def test_the_documented_permissions_are_enough_and_none_is_refused(start_cluster):
    cluster = start_cluster()
    admin = cluster.kubeconfig.read_text()
    use_account(cluster)
    result = cluster.certify(*ALL, **QUICK)
    assert result.status == 0, result.output
    assert result.report["verdict"] == "passed"
    ours = of_ours(cluster.audit_events())
    assert {event["user"]["username"] for event in ours} == {f"system:serviceaccount:default:{ACCOUNT}"}
    refused = [(event["verb"], target(event)) for event in ours if event["responseStatus"]["code"] in (401, 403)]
    assert refused == []
    cluster.kubeconfig.write_text(admin)
    assert cluster.objects_of_ours() == []


def test_a_missing_permission_ends_the_run_before_anything_exists(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=2)
    admin = cluster.kubeconfig.read_text()
    use_account(cluster)
    limited = cluster.kubeconfig.read_text()
    cluster.kubeconfig.write_text(admin)
    cluster.kubectl("patch", "role", ACCOUNT, "--type=json", '--patch=[{"op": "remove", "path": "/rules/2"}]')
    cluster.kubeconfig.write_text(limited)
    result = cluster.certify(ALL[0], **QUICK)
    assert result.status != 0
    assert "get pods/log in namespace default" in result.output
    created = [event for event in of_ours(cluster.audit_events()) if event["verb"] == "create"]
    assert {event["objectRef"]["resource"] for event in created} <= {"selfsubjectaccessreviews"}


def test_the_audit_log_proves_that_only_objects_of_ours_are_written(start_cluster, record_property, capsys):
    cluster = start_cluster()
    result = cluster.certify(*ALL, **QUICK)
    assert result.status == 0, result.output
    events = cluster.audit_events()
    ours = [event for event in of_ours(events) if event.get("objectRef", {}).get("resource") != "selfsubjectaccessreviews"]
    writes = [event for event in ours if event["verb"] not in READS]
    real = [event for event in writes if "dryRun=All" not in event["requestURI"]]
    assert real, "the audit shows what we wrote"
    assert {event["objectRef"]["resource"] for event in writes} <= {"jobs", "pods", "configmaps", "services", "secrets"}
    created = labels_at_creation(events)
    for event in real:
        labels = created[target(event)]
        assert labels.get("app.kubernetes.io/managed-by") == MANAGED_BY and labels.get(RUN_LABEL), (event["verb"], target(event))
    attempts = sum(len(group["attempts"]) for category in result.report["categories"] for group in category["groups"])
    dry_runs = len(writes) - len(real)
    counts = collections.Counter(event["verb"] for event in ours)
    counts["create"] -= dry_runs
    told = ", ".join(f"{verb} {number / attempts:.1f}" for verb, number in sorted(counts.items()))
    record_property("requests_per_attempt", told)
    with capsys.disabled():
        print(f"\n{attempts} attempts; requests per attempt: {told}; dry runs: {dry_runs}")
    # An attempt: Job, ConfigMap, Service; released by one patch; deleted once. The objects of a category come on top.
    categories = len(result.report["categories"])
    assert counts["create"] <= 3 * attempts + 2 * categories
    assert counts["patch"] == attempts
    assert counts["delete"] <= attempts + 4 * categories
    assert counts["list"] + counts["watch"] + counts["get"] <= 12 * (attempts + categories) + 20


@pytest.fixture(scope="session")
def other_controllers(genuine):
    """The JobSet and Trainer managers; they stay until the session ends."""
    if genuine.plane is None:
        pytest.skip("READINESS_TEST_KUBECONFIG names a cluster whose JobSet and Trainer releases are not ours to choose")
    managers.start(genuine.plane)


@pytest.mark.parametrize("case", sorted(cases.OF_OTHER_CONTROLLERS))
def test_jobset_and_trainer_do_what_was_recorded(start_cluster, genuine, other_controllers, case):
    start_cluster(**facts.DEFINITION)
    found = facts.record(genuine, case)
    recorded = facts.load(case)
    names = [f"{item['kind']}/{item['name']}" for item in found["objects"]]
    assert names == [f"{item['kind']}/{item['name']}" for item in recorded["objects"]]
    for new, old in zip(found["objects"], recorded["objects"], strict=True):
        assert new == old
    assert found["events"] == recorded["events"]


def programs_in(folder):
    """Command lines of living processes that name the folder, other than Python's."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in b" ".join(words) and b"python" not in words[0]:
            found.append(b" ".join(words).decode(errors="replace")[:120])
    return found


def test_an_interruption_that_python_swallowed_still_ends_the_start(monkeypatch):
    """It came in the middle of a fork, whose hooks tell nobody of exceptions; the launcher went on for ever."""
    child = types.SimpleNamespace(ended=lambda: False)
    monkeypatch.setattr(children, "INTERRUPTED", threading.Event())
    children.INTERRUPTED.set()
    with pytest.raises(KeyboardInterrupt):
        children.Child.await_ready(child, lambda: False, 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("moment", ["starting", "ready"])
def test_no_program_survives_the_launcher(tmp_path, number, moment):
    if not pathlib.Path("/proc/self/cmdline").exists():
        pytest.skip("needs /proc")
    definition, log = tmp_path / "definition.yml", tmp_path / "log"
    definition.write_text(yaml.safe_dump({"racks": 1, "nodes_per_rack": 1}))
    command = [sys.executable, "-m", LAUNCHER, "--definition", str(definition), "--kubeconfig", str(tmp_path / "kubeconfig")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with log.open("w") as handle:
        launcher = subprocess.Popen(command, env=environment, stdout=handle, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        wanted = (lambda: programs_in(tmp_path)) if moment == "starting" else (lambda: "KUBECONFIG=" in log.read_text())
        while not wanted():
            assert launcher.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        launcher.send_signal(number)
        launcher.wait(timeout=60)
    finally:
        launcher.kill()
    deadline = time.monotonic() + 10
    while (left := programs_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    if number != signal.SIGKILL:
        assert list(tmp_path.glob("control-plane-*")) == [], "its folder is removed"
