# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The shapes that cross rooms are what their page says, and what their makers make."""

from __future__ import annotations

import importlib.util
import pathlib
import typing as t

import pytest
from shape_check import violations

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.reasons import finding
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record, pod_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common import shapes
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.category import criteria_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.categories import judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.certification import roll_up
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import measurement
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import category_given, snapshot_given
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.spec import parse_spec

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_is_written_from_the_shapes() -> None:
    spec = importlib.util.spec_from_file_location("write_data_shapes", ROOT / "tools/write_data_shapes.py")
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (ROOT / "docs/data_shapes.md").read_text(encoding="utf-8") == tool.page(), "run python tools/write_data_shapes.py"


def judged() -> t.Any:
    category = category_given(
        {
            "id": "c01",
            "test": "t",
            "test_scale": "intra-node",
            "criteria": ["measured.bus_bandwidth > 1"],
            "groups": [{"name": "g", "nodes": ["n"]}],
        }
    )
    made = measurement.measurement("nccl", None, "fast", complete=True, values={"bus_bandwidth": 2.0})
    observation: shapes.Observation = {
        "groups": [{"name": "g", "nodes": ["n"], "attempts": [attempt_record(1, "succeeded", exit_code=0)]}],
        "cleanup": {"proven": True, "left": []},
        "cancelled": "",
    }
    return judge_category(category, observation, {"g": made}, criteria_of(category))


MADE = {
    "Request": lambda: parse_spec({"categories": [{"test": "communication/nccl-all-reduce"}]}),
    "AttemptRecord": lambda: attempt_record(
        2, "failed", Said("NodeLost", "gone", ("n1",)), pods=[pod_record("p", node="n1")], events=["Warning x"], health=[]
    ),
    "PodRecord": lambda: pod_record("p"),
    "Finding": lambda: finding("NodeLost", "gone", node="n1", evidence=["line"]),
    "Measurement": lambda: measurement.measurement(
        "nccl", "LogIncomplete", "cut", complete=False, findings=[measurement.finding("LogIncomplete", "cut")]
    ),
    "JudgedCategory": judged,
    "RolledUp": lambda: roll_up(snapshot_given({"nodes": [{"name": "n", "target": True}]}), [judged()]),
}


@pytest.mark.parametrize("name", sorted(MADE))
def test_what_a_maker_makes_has_the_shape(name: str) -> None:
    assert violations(MADE[name](), getattr(shapes, name)) == []


def test_a_wrong_shape_is_seen() -> None:
    record = attempt_record(1, "failed", Said("NodeLost", "gone"))
    assert violations({**record, "outcome": "lost"}, shapes.AttemptRecord) == [
        ".outcome: 'lost' is none of succeeded, failed, timed_out, not_started, cancelled"
    ]
    assert violations({**record, "reason": "NodeLost"}, shapes.AttemptRecord) == [".reason: not in the shape"]
    assert violations({key: value for key, value in record.items() if key != "pods"}, shapes.AttemptRecord) == [".pods: missing"]
    assert violations({**record, "exit_code": "3"}, shapes.AttemptRecord) == [".exit_code: '3' is no int | None"]
