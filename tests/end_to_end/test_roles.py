# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One test as a role inside a play of one's own: what follows in the play knows what was found, and a closed gate ends it."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

pytestmark = pytest.mark.simulator  # what the roles share, other tests ask a genuine control plane
PLAY = [
    {
        "hosts": "localhost",
        "gather_facts": False,
        "tasks": [
            {
                "name": f"Test with {role}",
                "ansible.builtin.import_role": {"name": f"gpu_cluster.readiness.{role}"},
                "vars": {f"{role}_runs_dir": "runs", f"{role}_options": options, **extra},
            }
            for role, options, extra in (
                ("dcgm", {}, {"dcgm_level": "{{ level }}", "gate_incomplete_fails": True}),
                (
                    "nccl",
                    {"min_bytes": "64M", "max_bytes": "1G", "iterations": 5},
                    {"nccl_criteria": ["measured.bus_bandwidth >= 300"], "nccl_repeat": 2, "nccl_k_of_n": 2},
                ),
                ("training", {"steps": 10}, {"training_test_scale": "full-scale"}),
            )
        ]
        + [{"name": "Go on", "ansible.builtin.debug": {"msg": "READY {{ report_summary.verdict }} {{ certification_run.run_id }}"}}],
    }
]


def run(cluster, *arguments):
    path = cluster.work / "bring-up.yml"
    path.write_text(yaml.safe_dump(PLAY))
    command = ["ansible-playbook", "-i", "localhost,", "-c", "local", str(path), *arguments]
    done = subprocess.run(command, cwd=cluster.work, env=cluster.environment(), capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


def test_each_role_runs_its_test_and_the_play_goes_on_with_the_verdict(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=2)
    status, output = run(cluster, "-e", "level=1")
    assert status == 0, output
    assert output.count("CLUSTER READINESS: PASSED") == 6  # head and foot of three reports
    assert "READY passed" in output
    reports = [json.loads(path.read_text()) for path in sorted((cluster.work / "runs").glob("*/report.json"))]
    tests = {report["categories"][0]["test"] for report in reports}
    assert tests == {"diagnostics/dcgm-level1", "communication/nccl-all-reduce", "training/smoke"}
    repeated = {report["categories"][0]["test"]: bool(report["categories"][0]["groups"][0]["repeats"]) for report in reports}
    assert repeated == {test: test == "communication/nccl-all-reduce" for test in tests}
    assert cluster.objects_of_ours() == []


def test_a_role_whose_test_finds_a_fault_ends_the_play(start_cluster):
    cluster = start_cluster(racks=1, nodes_per_rack=2, faults=[{"kind": "wrong_data", "node": "gpu-r0-n01"}])
    status, output = run(cluster, "-e", "level=2")
    assert status != 0 and "HardwareFailureDetected" in output and "READY" not in output.replace("CLUSTER READINESS", "")
    status, output = run(cluster, "-e", "level=7")
    assert status != 0 and "dcgm_level" in output and "Traceback" not in output
