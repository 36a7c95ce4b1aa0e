# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Logs from anywhere: which hosts they speak of, and which criteria they are judged by."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge import offline
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.categories import judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.certification import roll_up
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measurement as make_measurement


def log(name, kind="nccl", exit_code=None, **measurement):
    base = make_measurement(kind, None, "", complete=True, values={"bus_bandwidth": 450.0})
    return {"name": name, "paths": [f"/x/{name}"], "kind": kind, "exit_code": exit_code, "measurement": {**base, **measurement}}


def test_each_criterion_goes_to_the_kinds_that_measure_it():
    compiled = offline.compile_for_kinds(["nccl", "training"], ["measured.bus_bandwidth > 1", "measured.avg_step_time_s < 9"], {})
    assert {kind: [item.expression for item in items] for kind, items in compiled.items()} == {
        "nccl": ["measured.bus_bandwidth > 1"],
        "training": ["measured.avg_step_time_s < 9"],
    }


@pytest.mark.parametrize(
    ("criteria", "thresholds", "place"),
    [
        (["measured.bus_bandwidth > 1", "measured.nope > 1"], {}, "criteria[1]"),
        ([], {"goodputRatio": "value > "}, "thresholds.goodputRatio"),
        ({"a": 1}, {}, "criteria"),
        ([], ["x"], "thresholds"),
    ],
)
def test_a_criterion_for_no_log_is_refused_with_its_place(criteria, thresholds, place):
    with pytest.raises(InputError) as raised:
        offline.compile_for_kinds(["nccl", "training"], criteria, thresholds)
    assert raised.value.place == place


@pytest.mark.parametrize(
    ("given", "hosts"),
    [
        (log("a.log", parsed={"devices": {"hosts": {"h2": 8, "h1": 8}}}), ["h1", "h2"]),
        (log("a.log", transport={"hosts": {"h1": "ib"}}), ["h1"]),
        (log("a.log", parsed={}, findings=[{"host": "h7"}]), ["h7"]),
        (log("sub/a.log"), ["a.log"]),
        ({**log("a.log", parsed={"devices": {"hosts": {"h1": 8}}}), "nodes": ["n1"]}, ["n1"]),
    ],
)
def test_the_hosts_of_a_log_become_nodes(given, hosts):
    assert offline.hosts_of(given) == hosts


def test_logs_are_judged_like_a_run():
    logs = [log("a.log", parsed={"devices": {"hosts": {"h1": 8}}}), log("b.log", exit_code=3, parsed={"devices": {"hosts": {"h2": 8}}})]
    compiled = offline.compile_for_kinds(["nccl"], ["measured.bus_bandwidth > 400"], {})
    run = offline.run_of_logs(logs, compiled)
    category = run["plan"]["categories"][0]
    judged = judge_category(category, run["observations"][category["id"]], run["measurements"][category["id"]], compiled["nccl"])
    result = roll_up(run["snapshot"], [judged])
    assert {node["name"]: node["verdict"] for node in result["nodes"]} == {"h1": "passed", "h2": "suspect"}


def test_different_kinds_do_not_make_each_others_hosts_untested():
    logs = [log("a.log", parsed={"devices": {"hosts": {"h1": 8}}}), log("d.json", "dcgm", parsed={"hosts": ["h2"]})]
    compiled = offline.compile_for_kinds(["nccl", "dcgm"], ["measured.bus_bandwidth > 400"], {})
    run = offline.run_of_logs(logs, compiled)
    judged = [
        judge_category(category, run["observations"][category["id"]], run["measurements"][category["id"]], compiled[kind])
        for category, kind in zip(run["plan"]["categories"], ["dcgm", "nccl"], strict=True)
    ]
    assert roll_up(run["snapshot"], judged)["verdict"] == "passed"
