# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated fio writes fio's document, feels a slow disk, and has no directory that nobody mounted."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure

from ..world import Ran, World

NODE = "gpu-r0-n00"
SAMPLE = Path(__file__).resolve().parents[5] / "vectors" / "cases" / "bugs" / "50-fio-client-stats.log"


def fio(pattern: str = "read", block: str = "1M") -> str:
    return (
        f'place=/data/readiness-fio-$HOSTNAME\nfio --output-format=json --name={pattern} --directory="$place" --rw={pattern} --bs={block} '
        "--size=4G --numjobs=4 --iodepth=16 --ioengine=libaio --direct=1 --runtime=30 --time_based --group_reporting &\nwait $!"
    )


def measured(ran: Ran, path: Path) -> dict[str, t.Any]:
    path.write_text("\n".join(ran.lines) + "\n", encoding="utf-8")
    return dict(measure("fio", [str(path)], {"exit_code": ran.outcome.exit_code}))


def run(script: str, *faults: dict[str, t.Any]) -> Ran:
    return World(faults).run([NODE], script, mounts=["/data"])


def test_the_document_has_the_keys_of_fio() -> None:
    sample = json.loads(SAMPLE.read_text(encoding="utf-8"))["client_stats"][0]
    (job,) = json.loads("\n".join(run(fio()).lines))["jobs"]
    assert set(sample) - {"hostname", "port"} <= set(job)
    for side in ("read", "write"):
        assert set(sample[side]) <= set(job[side])
    assert set(sample["read"]["clat_ns"]) <= set(job["read"]["clat_ns"])


@pytest.mark.parametrize("pattern", ["read", "write", "randread", "randwrite"])
def test_only_the_side_that_was_asked_for_is_measured(tmp_path: Path, pattern: str) -> None:
    found = measured(run(fio(pattern)), tmp_path / "log")
    side, other = ("write", "read") if pattern.endswith("write") else ("read", "write")
    assert found["complete"] and found["values"][f"{side}_bandwidth"] > 1 and found["values"][f"{other}_bandwidth"] is None


def test_small_blocks_are_bound_by_operations(tmp_path: Path) -> None:
    values = measured(run(fio("randread", "4K")), tmp_path / "log")["values"]
    assert values["read_iops"] == pytest.approx(0.7 * 900e3, rel=0.01) and values["read_bandwidth"] < 3


def test_a_slow_disk_is_slow_here_and_nowhere_else(tmp_path: Path) -> None:
    fault = {"kind": "disk_slow", "node": NODE, "factor": 0.25}
    healthy, slow = (measured(run(fio(), *faults), tmp_path / "log")["values"] for faults in ((), (fault,)))
    assert slow["read_bandwidth"] == pytest.approx(0.25 * healthy["read_bandwidth"], rel=1e-4)
    assert slow["read_latency_us"] > 3 * healthy["read_latency_us"]
    assert World([fault]).alone(NODE).peak() == World().alone(NODE).peak()


def test_a_directory_that_nobody_mounted_is_a_fault_of_the_set_up(tmp_path: Path) -> None:
    found = measured(World().run([NODE], fio(), mounts=["/database"]), tmp_path / "log")
    assert found["verdict"] == "SetupError" and "/data" in found["reason"]
