# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A report from an archive alone, also of a run that was killed."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import write_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.categories import judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import (
    category_given,
    measurement_given,
    observation_given,
)
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.model import render_json
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.rebuild import report_from_archive
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.text import render_text

CRITERIA = ["measured.bus_bandwidth >= 400"]


@pytest.fixture
def run_dir(tmp_path):
    """A run of two categories of which only the first was run."""
    groups = [{"name": "g001", "nodes": ["n1"]}]
    keys = {
        "test_scale": "intra-node",
        "criteria": CRITERIA,
        "thresholds": {},
        "measure": {"kind": "nccl"},
        "groups": groups,
        "untested": [],
    }
    planned = [category_given({"id": f"c0{n}", "test": f"t{n}", **keys}) for n in (1, 2)]
    plan = {"name": "nightly", "cost": {"groups": 2}, "categories": planned}
    attempt = {"attempt": 1, "outcome": "succeeded", "finished": "2026-03-02T08:05:00Z", "pods": []}
    observation = observation_given({"groups": [{"name": "g001", "attempts": [attempt]}], "cleanup": {"proven": True, "left": []}})
    measurement = measurement_given({"kind": "nccl", "complete": True, "values": {"bus_bandwidth": 450.0}})
    compiled = compile_criteria(CRITERIA, {}, {"bus_bandwidth": "number"})
    judged = judge_category(plan["categories"][0], observation, {"g001": measurement}, compiled)
    files = {
        "run": {"run_id": "r1", "started": "2026-03-02T08:00:00Z"},
        "snapshot": {"gpus": [], "nodes": [{"name": "n1", "target": True, "findings": []}]},
        "plan": plan,
        "observations/c01": observation,
        "judged/c01": judged,
    }
    for name, data in files.items():
        write_json(tmp_path / f"{name}.json", data)
    return RunDirectory(tmp_path)


def test_a_category_that_was_not_run_is_reported_and_nothing_passes(run_dir):
    report = report_from_archive(run_dir)
    assert [(category["id"], category["verdict"]) for category in report["categories"]] == [("c01", "passed"), ("c02", "error")]
    assert report["verdict"] == "error"
    assert report["nodes"][0]["verdict"] == "untested"
    assert report["finished"] == "2026-03-02T08:05:00Z"
    assert report["cleanup"] == {"proven": True, "left": [], "message": ""}


def test_rebuilding_gives_the_same_bytes(run_dir):
    assert render_json(report_from_archive(run_dir)) == render_json(report_from_archive(run_dir))


def test_cleanup_is_proven_only_when_every_batch_is(run_dir):
    write_json(
        run_dir.observation("c02"),
        {"groups": [], "cleanup": {"proven": False, "left": ["Job x"]}, "cancelled": "the deadline is over"},
    )
    report = report_from_archive(run_dir)
    assert report["cleanup"] == {"proven": False, "left": ["Job x"], "message": ""}
    assert report["notes"] == ["the run was cut short: the deadline is over"]


def test_why_a_cleanup_is_not_proven_is_said(run_dir):
    """ "NOT PROVEN, may be left: unknown objects" was all."""
    why = "pods cannot be listed: pods is forbidden"
    write_json(run_dir.observation("c02"), {"groups": [], "cleanup": {"proven": False, "left": [], "message": why}, "cancelled": ""})
    report = report_from_archive(run_dir)
    assert report["cleanup"]["message"] == why
    assert why in " ".join(render_text(report).split())


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="run.json"):
        report_from_archive(RunDirectory(tmp_path))
