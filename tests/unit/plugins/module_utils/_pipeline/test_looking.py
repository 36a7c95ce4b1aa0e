# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The last look of a run asks in little patience and again, for as long as the API server may be away, and says what it heard."""

from __future__ import annotations

import pathlib
import types
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import category_given, snapshot_given
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.looking import look_at_all
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.runs import open_run
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.spec import parse_spec

REQUEST = parse_spec({"categories": [{"test": "t/key-value", "test_scale": "intra-node", "criteria": []}], "bounds": {"api_outage_s": 1}})
BEFORE = {"uid": "u", "boot_id": "b", "gpus": 8, "trouble": None}


def run_of_one_node(tmp_path: pathlib.Path) -> RunDirectory:
    """A run of one node whose tests are over."""
    run = RunDirectory.create(str(tmp_path), "r1")
    groups = [{"name": "g001", "nodes": ["n1"]}]
    category = category_given({"id": "c01", "test": "t/key-value", "test_scale": "intra-node", "groups": groups})
    category["template"] = {"namespace": "default", "tolerations": []}
    plan = {"bounds": REQUEST["bounds"], "categories": [category], "cost": {}, "health_conditions": []}
    snapshot = snapshot_given({"nodes": [{"name": "n1", "target": True, "gpu": {"allocatable": 8}, "versions": {}}], "gpus": []})
    open_run(run, "r1", REQUEST, snapshot, plan, now=0.0)
    machines = [{"node": "n1", "before": BEFORE, "after": BEFORE, "fewest_gpus": 8}]
    tested = [{**group, "attempts": [attempt_record(1, "succeeded", machines=machines)]} for group in groups]
    run.write(run.observation("c01"), {"groups": tested, "cleanup": None, "cancelled": ""})
    return run


def test_a_server_that_does_not_answer_is_asked_in_little_patience_and_told(tmp_path: pathlib.Path) -> None:
    """With the patience of any other request, each look at a server that hung took a minute, whatever api_outage_s said."""
    asked = []

    def list_result(path: str, **_options: t.Any) -> t.NoReturn:
        asked.append(path)
        raise ClusterError("read timed out", place=f"GET {path}")

    run = run_of_one_node(tmp_path)
    look = look_at_all(run, types.SimpleNamespace(hurried=lambda: types.SimpleNamespace(list_result=list_result)))
    assert look["nodes"] is None and "read timed out" in look["why"] and run.read_last_look() == look
    assert len(asked) > 1, "it may have been away for a moment"
