# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What others put into the cluster, or do to our objects: nothing foreign is touched or believed, and nothing is hidden."""

from __future__ import annotations

import time

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload import names
from ansible_collections.gpu_cluster.readiness.tests.end_to_end.world import BOUNDS, N, World, small

JOBS, PODS, EVENTS = (f"/{path}" for path in ("apis/batch/v1/namespaces/default/jobs", "api/v1/namespaces/default/pods",
                                              "api/v1/namespaces/default/events"))  # fmt: skip
SECRET = "SECRETTOKEN123456"
HOSTILE = f"evicted \x1b]0;owned\x07 \x1b[2J \x1b[31m PASSED; GET https://bob:{SECRET}@vault.example.com: Authorization: Bearer {SECRET}"


def test_a_job_of_somebody_else_that_has_the_name_of_one_of_ours_is_not_deleted(start_cluster):
    cluster = small(start_cluster)
    world = World(cluster)
    name = names.attempt_name("chosen", "c01", "g002", 1)
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "registry.example/busybox"}]}
    made = world.api.create(
        JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"suspend": True, "template": {"spec": pod}}}
    )
    try:
        result = world.begin(run_id="chosen").end()
        kept = world.api.get(f"{JOBS}/{name}")
        assert kept["metadata"]["uid"] == made["metadata"]["uid"] and not kept["metadata"].get("deletionTimestamp")
        assert kept["spec"]["suspend"] is True, "nor was it started"
        assert result.verdicts() == {"passed": {N[0], N[2]}, "untested": {N[1]}}, result.output
        assert name in str(result.node(N[1])["findings"]) and result.status != 0
        assert result.report["cleanup"]["proven"] and cluster.objects_of_ours() == []
    finally:
        world.api.delete(f"{JOBS}/{name}")


def test_words_of_the_cluster_reach_neither_the_terminal_nor_the_archive_as_they_are(start_cluster):
    """An eviction with a token and control characters in its message. It accuses nobody either, and the group is run again."""
    world = World(small(start_cluster, 2)).begin()
    world.until_running(N[1])
    pod = world.pod_on(N[1])
    status = {"phase": "Failed", "reason": "Evicted", "message": HOSTILE}
    world.api.patch(f"{PODS}/{pod['metadata']['name']}/status", {"status": status})
    result = world.end()
    assert result.verdicts() == {"passed": set(N[:2])}, result.output
    assert "Evicted" in result.output, "the eviction was told while it happened"
    assert "\x1b" not in result.output and "\x07" not in result.output and SECRET not in result.output
    telling = [path for path in result.run_dir.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert telling == []


def test_a_warning_of_the_start_that_mended_itself_does_not_hide_a_crash(start_cluster):
    world = World(small(start_cluster, faults=[{"kind": "crash", "node": N[2]}]), bounds={**BOUNDS, "retries": 0}).begin()
    pod = world.pod_on(N[2])["metadata"]
    about = {"kind": "Pod", "namespace": "default", "name": pod["name"], "uid": pod["uid"]}
    world.api.create(EVENTS, {
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "FailedScheduling", "message": "0/3 nodes are available",
        "metadata": {"name": f"{pod['name']}.planted"}, "involvedObject": about, "source": {"component": "somebody"},
    })  # fmt: skip
    result = world.end()
    assert result.verdicts() == {"passed": set(N[:2]), "suspect": {N[2]}}, result.output
    assert "WorkloadFailed" in result.reasons(N[2]) and "Unschedulable" not in result.reasons(N[2])
    assert any("FailedScheduling" in line for item in world.entries() if "record" in item for line in item["record"]["events"]), (
        "it was seen"
    )


def test_a_namespace_that_is_deleted_midway_ends_the_run_soon_and_accuses_nobody(start_cluster):
    cluster = small(start_cluster)
    cluster.kubectl("create", "namespace", "short-lived")
    world = World(cluster, workload={"namespace": "short-lived"}).begin()
    world.until_running(N[1])
    cluster.kubectl("delete", "namespace", "short-lived", "--wait=false")
    begun = time.monotonic()
    result = world.end()
    assert time.monotonic() - begun < 120
    assert set(result.verdicts()) <= {"untested", "passed"} and "untested" in result.verdicts(), result.output
    assert result.status != 0 and cluster.objects_of_ours() == []


def test_an_expression_for_node_health_that_fails_is_loud_and_leaves_nothing(start_cluster):
    cluster = small(start_cluster, 2)
    result = World(cluster, node_health="node.metadata.labels['no-such-label'] == 'x'").begin().end()
    assert result.status != 0 and "no-such-label" in result.output and "Traceback" not in result.output
    assert result.verdicts() == {"untested": set(N[:2])}, result.output
    assert result.report["cleanup"]["proven"] and cluster.objects_of_ours() == []


def test_a_kubeconfig_that_is_given_as_text_is_not_printed(start_cluster):
    cluster = small(start_cluster, 1)
    text = f"apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n    token: {SECRET}\n"
    result = World(cluster).begin(readiness_kubeconfig=text).end()
    assert result.status != 0 and SECRET not in result.output, result.output


@pytest.mark.simulator
def test_a_pod_that_somebodys_finalizer_holds_shuts_the_gate_and_is_named(start_cluster):
    """Everything passed, and yet something of the run is left: that is said in verdict, summary and report, also by the cleanup play."""
    cluster = small(start_cluster, 2)
    world = World(cluster).begin()
    world.until_running(N[1])
    pod = world.pod_on(N[1])["metadata"]["name"]
    world.api.patch(f"{PODS}/{pod}", {"metadata": {"finalizers": ["example.com/held"]}})
    try:
        result = world.end()
        assert result.verdicts() == {"passed": set(N[:2])}, result.output
        assert (result.report["verdict"], result.report["cleanup"]["left"]) == ("incomplete", [f"pod/{pod}"])
        assert result.status != 0 and "NOT PROVEN" in result.output and "cleanup is not proven" in result.report["why"]
        assert f"pod/{pod} is held by the finalizer example.com/held" in result.report["cleanup"]["message"]
    finally:
        world.api.patch(f"{PODS}/{pod}", {"metadata": {"finalizers": None}})
    world.until_gone(f"{PODS}/{pod}")
    assert cluster.objects_of_ours() == []
