# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Groups that are run several times: a link that is slow now and then is judged as was asked for, also by a run that was killed."""

from __future__ import annotations

import statistics

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.categories import judge_run_category
from ansible_collections.gpu_cluster.readiness.tests.end_to_end.test_killed import CATEGORY, Run

FLAPPING, LIMIT = "gpu-r0-n00", 300


@pytest.mark.simulator
def test_repeats_of_a_flapping_link_are_judged_as_asked_for_and_a_killed_run_makes_those_that_are_missing(start_cluster):
    fault = {"kind": "intermittent", "node": FLAPPING, "p": 0.5, "factor": 0.4}
    cluster = start_cluster(racks=2, nodes_per_rack=2, faults=[fault])
    asked = {"test": "communication/nccl-all-reduce", "test_scale": "intra-rack", "repeat": 3, "isolate": "never"}
    categories = [{**asked, **rule, "criteria": [f"measured.bus_bandwidth >= {LIMIT}"]} for rule in ({}, {"k_of_n": 3})]
    run = Run(cluster, categories=categories)
    run.until_killed("attempt_done", CATEGORY)
    result = run.finish()
    assert "Plan: 4 groups on 4 nodes, 12 runs" in (cluster.work / "play.log").read_text()
    felt = set()
    for category, k in zip(result.report["categories"], (None, 3), strict=True):
        for group in category["groups"]:
            told = group["repeats"]
            values = [item["values"]["bus_bandwidth"] for item in told["each"]]
            good = [value >= LIMIT for value in values]
            felt |= set(good) if FLAPPING in group["nodes"] else set()
            assert told["measured"] == 3 and all(item["attempts"] for item in told["each"])
            assert group["measurement"]["values"]["bus_bandwidth"] == told["ranges"]["bus_bandwidth"]["median"] == statistics.median(values)
            passes = sum(good) >= k if k else statistics.median(values) >= LIMIT
            assert group["verdict"] == ("passed" if passes else "failed"), (k, values)
            logs = [log for attempt in group["attempts"] for log in attempt["logs"]]
            assert len(logs) == len(set(logs)) >= 3
        assert [rack["nodes_measured"] for rack in category["roll_up"]["racks"]] == [2, 2]
    assert felt == {True, False}, "the fault is felt now and then"
    assert "by rack: bus_bandwidth" in result.output and "spread" in result.output
    archive = RunDirectory(run.directory)
    for planned in archive.read_plan()["categories"]:
        assert judge_run_category(archive, planned, dry=True) == archive.read_judged(planned["id"]), "the archive alone gives the same"
