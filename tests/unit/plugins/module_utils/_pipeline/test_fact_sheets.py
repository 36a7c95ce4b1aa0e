# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Fact sheets before and after the tests of a certification: taken twice, of all nodes, and compared from the archive alone."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog, shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record, pod_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster import nodes, snapshot
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.categories import effective_category, judge_run_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.reporting import write_report
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.runs import open_run, plan_of, request_of, resume_run
from ansible_collections.gpu_cluster.readiness.tests.unit.plugins.module_utils._simulator.world import World

DIRECTORIES = [shipped_catalog_dir()]
FACTS, TEST = {"test": "diagnostics/node-facts", "test_scale": "intra-node"}, {"test": "diagnostics/gemm-burn", "test_scale": "intra-node"}
RUN = "exec python3 -u /etc/readiness/files/node_facts.py"
NODES = ["gpu-r0-n00", "gpu-r0-n01"]


def snapshot_of(world: World) -> t.Any:
    catalog = load_catalog(DIRECTORIES)
    objects = world.model.hardware.node_objects()
    for item in objects:
        item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    rows = [(nodes.project(item, catalog), (None, "")) for item in objects]
    return {**snapshot.build_snapshot(rows, catalog), "capabilities": {}, "server": {"version": "v1.36.3"}}


def planned(*categories: dict[str, t.Any], **keys: t.Any) -> list[tuple[str, str | None]]:
    """The categories of a plan with the one that each is compared with."""
    request, entries = request_of({"categories": list(categories)}, DIRECTORIES)
    world = World(**{"racks": 1, "nodes_per_rack": 2, **keys})
    plan = plan_of(request, entries, snapshot_of(world), DIRECTORIES)
    return [(item["id"], item.get("since")) for item in plan["categories"]]


FIRST, BURN = "c01-node-facts-intra-node", ("c02-gemm-burn-intra-node", None)


def test_fact_sheets_are_taken_again_after_the_last_category() -> None:
    assert planned(FACTS, TEST) == [(FIRST, None), BURN, ("c03-node-facts-intra-node", FIRST)]
    assert planned(TEST, FACTS, TEST)[1:] == [
        ("c02-node-facts-intra-node", None),
        ("c03-gemm-burn-intra-node", None),
        ("c04-node-facts-intra-node", "c02-node-facts-intra-node"),
    ]


def test_where_nothing_follows_or_nobody_wants_it_they_are_taken_once() -> None:
    assert planned(FACTS) == [(FIRST, None)]
    assert [since for _id, since in planned(TEST, FACTS)] == [None, None]
    assert planned({**FACTS, "again": False}, TEST) == [(FIRST, None), BURN]
    assert planned({**FACTS, "again": True}) == [(FIRST, None), ("c02-node-facts-intra-node", FIRST)]


def test_sheets_that_the_user_lists_twice_are_compared_and_not_taken_a_third_time() -> None:
    assert planned(FACTS, TEST, FACTS) == [(FIRST, None), BURN, ("c03-node-facts-intra-node", FIRST)]


def test_sheets_of_other_numbers_of_gpus_are_not_compared_lest_gpus_seem_lost() -> None:
    assert planned(FACTS, TEST, {**FACTS, "workload": {"gpus_per_node": 4}})[-1] == ("c03-node-facts-intra-node", None)


def test_each_model_of_gpu_is_compared_with_its_own_first_sheets() -> None:
    pools = [{"gpu": "h100", "racks": 1, "nodes_per_rack": 1}, {"gpu": "h200", "racks": 1, "nodes_per_rack": 1}]
    request, entries = request_of({"categories": [FACTS, TEST]}, DIRECTORIES)
    plan = plan_of(request, entries, snapshot_of(World(gpu=pools)), DIRECTORIES)
    found = [(item["gpu"], item["since"]) for item in plan["categories"] if "since" in item]
    own = {item["gpu"]: item["id"] for item in plan["categories"][:2]}
    assert len(found) == 2 and all(since == own[gpu] for gpu, since in found)


def test_a_test_that_is_not_compared_with_itself_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match="is run once") as caught:
        request_of({"categories": [FACTS, {**TEST, "again": True}]}, DIRECTORIES)
    assert caught.value.place == "certification.categories[1].again"
    with pytest.raises(InputError, match="again"):
        request_of({"categories": [{**FACTS, "again": "perhaps"}]}, DIRECTORIES)


# --- from the archive


class Archive:
    """A certification of fact sheets around one test, on a simulated cluster; its pods leave their logs in the archive."""

    def __init__(self, folder: pathlib.Path, *faults: dict[str, t.Any]) -> None:
        self.world = World(faults, racks=1, nodes_per_rack=2)
        self.run = RunDirectory.create(str(folder), "r1")
        request, entries = request_of({"categories": [FACTS, TEST]}, DIRECTORIES)
        rows = snapshot_of(self.world)
        self.plan = plan_of(request, entries, rows, DIRECTORIES)
        open_run(self.run, "r1", request, rows, self.plan, now=0.0)

    def take(self, number: int, failure: str = "") -> t.Any:
        """Runs a category and judges it. failure: of all its groups, which then convicts their nodes."""
        category = effective_category(self.run, self.plan["categories"][number]["id"])
        groups = []
        for group in category["groups"]:
            (node,) = group["nodes"]
            path = pathlib.Path(self.run.logs(category["short_id"])) / f"{group['name']}-1-0.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in self.world.run([node], RUN).lines) if not failure else "")
            pod = pod_record("p", node=node, index=0, exit_code=1 if failure else 0, log=self.run.relative(str(path)), log_complete=True)
            said = Said(failure, "it was lost", (node,)) if failure and node == NODES[0] else Said("Evicted" if failure else None, "", ())
            attempt = attempt_record(1, "failed" if failure else "succeeded", said, exit_code=pod["exit_code"], pods=[pod])
            groups.append({"name": group["name"], "nodes": [node], "attempts": [attempt]})
        observation: t.Any = {"groups": groups, "cleanup": {"proven": True, "left": []}, "cancelled": ""}
        self.run.write(self.run.observation(category["id"]), observation)
        return self.judge(number)

    def judge(self, number: int) -> t.Any:
        """A category as it stands in the archive."""
        category = effective_category(self.run, self.plan["categories"][number]["id"])
        judged = judge_run_category(self.run, category)
        self.run.write(self.run.judged(category["id"]), judged)
        return judged

    def work(self) -> None:
        for node in NODES:
            self.world.alone(node)


def test_what_rose_stands_beside_a_node_that_another_test_has_failed(tmp_path: pathlib.Path) -> None:
    archive = Archive(tmp_path, {"kind": "nvlink_errors", "node": NODES[0], "gpu": 2, "link": 3})
    archive.take(0)
    archive.work()
    archive.take(1, failure="NodeLost")
    judged = archive.take(2)
    assert sorted(judged["members"]) == NODES, "what came up on the failed node is what the second sheet is for"
    assert judged["verdict"] == "passed"
    report, text, _changed = write_report(archive.run)
    failed = report["nodes"][0]
    assert (failed["name"], failed["verdict"]) == (NODES[0], "failed")
    (rose,) = [item for item in failed["findings"] if item.get("since")]
    assert (rose["since"], rose["category"], rose["note"]) == (FIRST, "c03-node-facts-intra-node", True)
    assert "NVLink 3: CRC errors: 0 -> 1412" in rose["message"] and rose["evidence"][-1] == "NVLink 3: CRC errors: 0 -> 1412"
    block = text.partition("FAILED NODES")[2].partition("-" * 100)[0]
    assert "during this run: GPU2" in block and "CRC errors: 0 -> 1412" in block
    assert not any(item.get("since") for item in report["nodes"][1]["findings"])


def test_hardware_that_broke_under_the_tests_convicts_its_node_alone(tmp_path: pathlib.Path) -> None:
    archive = Archive(tmp_path, {"kind": "memory_error", "node": NODES[1], "gpu": 5})
    assert archive.take(0)["verdict"] == "passed"
    archive.work()
    judged = archive.take(2)
    assert {node: member["verdict"] for node, member in judged["members"].items()} == {NODES[0]: "passed", NODES[1]: "failed"}
    told = [item for item in judged["members"][NODES[1]]["findings"] if item.get("since")]
    assert [item["reason"] for item in told] == ["HardwareFailureDetected", "HardwareFailureDetected", "Warning"]
    assert judged["verdict"] == "failed" and "HardwareFailureDetected" in judged["why"]


def test_a_resumed_run_keeps_its_first_sheets_and_the_archive_alone_gives_the_same(tmp_path: pathlib.Path) -> None:
    archive = Archive(tmp_path, {"kind": "memory_error", "node": NODES[1]}, {"kind": "nic_slow", "node": NODES[0], "nic": 2})
    archive.take(0)
    archive.work()
    resume_run(archive.run, now=1.0)
    made = archive.take(2)
    first = write_report(archive.run)[1]
    assert archive.judge(2) == made and write_report(archive.run)[1] == first
    assert "symbol_error: 0 -> 25" in " ".join(first.split())


def test_a_node_without_a_first_sheet_is_told_so_and_accused_of_nothing(tmp_path: pathlib.Path) -> None:
    archive = Archive(tmp_path, {"kind": "nic_slow", "node": NODES[0]})
    archive.take(0, failure="Evicted")
    archive.work()
    judged = archive.take(2)
    assert judged["verdict"] == "passed"
    said = [item["message"] for member in judged["members"].values() for item in member["findings"]]
    assert said == ["there is no fact sheet of this node from before the tests: nothing is compared"] * 2
