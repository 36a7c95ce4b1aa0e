# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The analyze playbook: a verdict that can be trusted by its exit status, and a report beside it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import jsonschema
import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.manifest import verify_manifest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs/report.schema.json").read_text(encoding="utf-8"))
LOG = """\
# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 1073741824 maxBytes 1073741824 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1201 on     gpu-a device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1201 on     gpu-a device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   3986.7  269.33  471.33       0   3995.0  268.77  470.35       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 470.84
#
# Collective test concluded: all_reduce_perf
"""

pytestmark = [pytest.mark.end_to_end, pytest.mark.simulator]


def analyze(directory, **variables):
    """(exit status, output, report or None) of the playbook."""
    (directory / "x.log").write_text(LOG, encoding="utf-8")
    given = {"logs": str(directory / "x.log"), "runs_dir": str(directory / "runs"), "run_id": "r1", **variables}
    command = [str(pathlib.Path(sys.executable).parent / "ansible-playbook"), "gpu_cluster.readiness.analyze", "-e", json.dumps(given)]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False)
    path = directory / "runs/r1/report.json"
    return done.returncode, done.stdout + done.stderr, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@pytest.mark.parametrize(
    ("variables", "verdict"),
    [
        ({"criteria": ["measured.bus_bandwidth >= 400"]}, "passed"),
        ({"criteria": "measured.bus_bandwidth >= 400", "exit_code": 0, "expected_sizes": [1073741824]}, "passed"),
        ({"thresholds": {"busBandwidthGBps": "value >= 471.33"}}, "passed"),
        ({"criteria": ["measured.bus_bandwidth >= 472"]}, "failed"),
        ({"criteria": ["measured.latency_us > 0", "measured.gdr == 'all'"], "expected_sizes": [1073741824, 2147483648]}, "error"),
        ({}, "incomplete"),
    ],
)
def test_the_exit_status_tells_the_verdict(tmp_path, variables, verdict):
    status, output, report = analyze(tmp_path, **variables)
    assert report["verdict"] == verdict, output
    assert (status == 0) is (verdict == "passed"), output
    assert f"CLUSTER READINESS: {verdict.upper()}" in output
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    assert verify_manifest(tmp_path / "runs/r1") == []
    assert (tmp_path / "runs/latest/report.txt").read_text(encoding="utf-8").strip() in output


@pytest.mark.parametrize("name", ["measurement_context", "context"])
def test_what_is_known_of_the_logs_counts_by_its_new_and_its_old_name(tmp_path, name):
    status, output, report = analyze(
        tmp_path, criteria=["measured.bus_bandwidth >= 400"], **{name: {"expected_sizes": [1073741824, 2147483648]}}
    )
    assert status != 0
    assert report["verdict"] == "error", output


def test_the_new_name_beats_the_old_one(tmp_path):
    known = {"measurement_context": {"expected_sizes": [1073741824]}, "context": {"expected_sizes": [2147483648]}}
    status, output, report = analyze(tmp_path, criteria=["measured.bus_bandwidth >= 400"], **known)
    assert (status, report["verdict"]) == (0, "passed"), output


def test_an_inventory_that_names_a_cluster_judges_logs_as_well(tmp_path):
    """`context` as text is the kubeconfig's, for the other playbooks; it is said that logs need none."""
    status, output, report = analyze(tmp_path, criteria=["measured.bus_bandwidth >= 400"], context="production")
    assert (status, report["verdict"]) == (0, "passed"), output
    assert "measurement_context" in output


def test_incomplete_can_be_accepted(tmp_path):
    status, output, report = analyze(tmp_path, gate_incomplete_fails=False)
    assert (status, report["verdict"]) == (0, "incomplete"), output


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"criteria": ["measured.bus_bandwith >= 400"]}, "Did you mean bus_bandwidth"),
        ({"logs": "/nonexistent.log"}, "/nonexistent.log: does not exist"),
        ({"kind": "nkkl"}, "unknown kind of measurement"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, variables, said):
    status, output, report = analyze(tmp_path, **variables)
    assert status != 0
    assert said in output
    assert report is None
    assert not (tmp_path / "runs").exists()
