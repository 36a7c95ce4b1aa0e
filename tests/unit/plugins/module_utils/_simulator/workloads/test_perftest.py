# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated pairs of NICs: each pair once, tables as perftest prints them, and the bad NIC of a node shows as that NIC."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.workloads.perftest import partners

from ..world import World

NODES = [f"gpu-r0-n{number:02d}" for number in range(4)]
SAMPLE = Path(__file__).resolve().parents[5] / "vectors" / "cases" / "bugs" / "40-perftest-cpu-util.log"


def script(program: str = "ib_write_bw", more: str = "--report_gbits -D 5 -q 4") -> str:
    return f'. /etc/readiness/files/rail_pairs.sh --program {program} --rounds 7 --cuda false \\\n  --devices "" -- {more}'


def measured(world: World, nodes: t.Sequence[str], folder: Path, text: str = "") -> dict[str, t.Any]:
    paths = []
    for index in range(len(nodes)):
        ran = world.run(nodes, text or script(), index=index)
        paths.append(folder / f"{index}.log")
        paths[-1].write_text("\n".join(ran.lines) + "\n", encoding="utf-8")
    return dict(measure("perftest", [str(path) for path in paths], {"exit_code": 0, "nodes": list(nodes)}))


@pytest.mark.parametrize("nodes", range(2, 12))
def test_no_two_nodes_meet_twice_and_all_do_once(nodes: int) -> None:
    rounds = [partners(number, nodes) for number in range(nodes + nodes % 2 - 1)]
    for met in rounds:
        assert all(met[other] == seat != other for seat, other in met.items()) and len(met) >= nodes - 1
    pairs = [tuple(sorted(item)) for met in rounds for item in met.items() if item[0] < item[1]]
    assert len(pairs) == len(set(pairs)) == nodes * (nodes - 1) // 2


def test_each_nic_pair_of_a_group_is_measured_once(tmp_path: Path) -> None:
    found = measured(World(), NODES, tmp_path)
    assert found["complete"] and found["values"]["pairs"] == 6 * 8 == found["parsed"]["tables"]
    assert found["values"]["bandwidth_gbit"] == pytest.approx(394, abs=1) and found["values"]["pairs_spread"] < 0.01
    assert found["findings"] == []


def test_the_table_has_the_lines_of_perftest() -> None:
    def form(line: str) -> str:
        return re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "0", " ".join(line.split()))

    sample = {form(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines() if "CPU_Util" not in line and "5.07" not in line}
    ran = World(fabric="roce").run(NODES[:2], script(more="--report_gbits -D 5"), index=1)
    own = {form(line) for line in ran.lines if not line.startswith("pair:") and "#bytes" not in line}
    assert {line.replace("0000", "0") for line in own if line} - {line.replace("0000", "0") for line in sample} <= {form(ran.lines[-2])}


@pytest.mark.parametrize(("program", "unit"), [("ib_write_bw", "Gb/s"), ("ib_read_lat", "us")])
def test_the_bad_nic_is_named_by_its_pairs_and_the_slowest_decides(tmp_path: Path, program: str, unit: str) -> None:
    world = World([{"kind": "nic_slow", "node": NODES[2], "factor": 0.5, "nic": 3}])
    found = measured(world, NODES[:3], tmp_path, script(program, "-n 5000" if program.endswith("lat") else "--report_gbits -D 5 -q 4"))
    assert found["values"]["device"] == "mlx5_3" and found["complete"]
    said = [item["message"] for item in found["findings"]]
    assert len(said) == 2 and all("mlx5_3" in text and "job-2" in text and unit in text for text in said)
    assert {item["host"] for item in found["findings"]} == {None}, "which side of a pair is bad nobody knows yet"


def test_a_slow_path_between_two_nodes_shows_in_their_pairs_alone(tmp_path: Path) -> None:
    world = World([{"kind": "pair_slow", "nodes": NODES[:2], "factor": 0.5}])
    found = measured(world, NODES, tmp_path)
    assert found["values"]["bandwidth_gbit"] == pytest.approx(197, abs=1)
    assert len(found["findings"]) == 8 and all("job-1" in item["message"] and "job-0" in item["message"] for item in found["findings"])


def test_a_slow_gpu_or_nvlink_is_not_felt(tmp_path: Path) -> None:
    found = measured(World([{"kind": "node_slow", "node": NODES[0]}]), NODES[:2], tmp_path)
    assert found["values"]["bandwidth_gbit"] == pytest.approx(394, abs=1)


def test_a_pod_without_rdma_devices_is_no_pass_and_no_slow_node(tmp_path: Path) -> None:
    found = measured(World([{"kind": "socket_fallback", "node": NODES[0]}]), NODES[:2], tmp_path)
    assert (found["verdict"], found["complete"]) == ("SetupError", False)
    found = measured(World([{"kind": "socket_fallback", "node": NODES[0]}]), NODES[:3], tmp_path)
    assert found["complete"] is False and "16 of 24 pairs have no result" in found["reason"]
