# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated burn must read as a real one, and show the faults of a GPU where they are."""

from __future__ import annotations

import gzip
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure

from ..world import Ran, World

NODE = "gpu-r0-n00"
BURN = "exec python3 -u /etc/readiness/files/gemm_burn.py --seconds 120 --datatype float16 --size 8192 --memory-percent 60"
REAL = Path(__file__).resolve().parents[5] / "vectors" / "cases" / "real-h200x2" / "b01-gpu-burn.log.gz"


def measured(ran: Ran, path: Path) -> dict[str, t.Any]:
    path.write_text("\n".join(ran.lines) + "\n", encoding="utf-8")
    return dict(measure("gpu_burn", [str(path)], {"exit_code": ran.outcome.exit_code, "expected_gpus": 8, "nodes": [NODE]}))


def shapes(lines: t.Iterable[str], mark: str) -> set[str]:
    """Lines with that mark, every number a 0, so many GPUs as there may be."""
    plain = {re.sub(r"\d+(\.\d+)?", "0", line.rstrip()) for line in lines if mark in line}
    return {re.sub(r"(0 \(0 Gflop/s\)|0 C|(?<=errors: )0)( - \1)+", r"\1", line) for line in plain}


def test_progress_and_summary_have_the_layout_of_a_real_run() -> None:
    real = gzip.decompress(REAL.read_bytes()).decode().replace("\r", "\n").splitlines()
    ran = World().run([NODE], BURN)
    for mark in ("proc'd:", "Burning for"):
        assert shapes(ran.lines, mark) == shapes(real, mark) != set()
    listed = [re.sub(r"GPU-[0-9a-f-]{36}", "GPU-0", line) for line in ran.lines if "(UUID:" in line]
    assert listed[7] == "GPU 7: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"
    assert "GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000000)" in real


def test_a_healthy_node_is_measured_gpu_by_gpu(tmp_path: Path) -> None:
    found = measured(World(noise=0.02).run([NODE], BURN), tmp_path / "log")
    assert (found["verdict"], found["complete"], found["values"]["errors"], found["values"]["gpus"]) == (None, True, 0, 8)
    assert 0 < found["values"]["gflops_spread"] < 0.1 and found["findings"] == []


def test_the_slow_gpu_inside_a_node_is_named_and_nothing_else_of_the_node_is_slow(tmp_path: Path) -> None:
    world = World([{"kind": "gpu_slow", "node": NODE, "gpu": 3, "factor": 0.7}])
    found = measured(world.run([NODE], BURN), tmp_path / "log")
    assert found["verdict"] is None and found["values"]["gflops_spread"] > 0.25 and found["values"]["slowest_gpu"] == 3
    (said,) = found["findings"]
    assert (said["entity"], said["host"]) == ("GPU3", NODE) and "GPU 3 is slow" in said["message"]
    collective, healthy = world.alone(NODE).peak(), World().alone(NODE).peak()
    assert collective == healthy, "what only copies does not feel it"


def test_wrong_results_convict_the_gpu_and_its_node(tmp_path: Path) -> None:
    found = measured(World([{"kind": "wrong_data", "node": NODE}]).run([NODE], BURN), tmp_path / "log")
    assert found["verdict"] == "DataCorruption" and found["values"]["errors"] == 170
    (said,) = found["findings"]
    assert (said["reason"], said["host"], said["entity"]) == ("HardwareFailureDetected", NODE, "GPU5")


@pytest.mark.parametrize("fault", ["crash", "oom"])
def test_a_process_that_dies_is_no_pass(tmp_path: Path, fault: str) -> None:
    found = measured(World([{"kind": fault, "node": NODE}]).run([NODE], BURN), tmp_path / "log")
    assert found["complete"] is False
    assert found["verdict"] == {"crash": "WorkloadFailed", "oom": "LogIncomplete"}[fault], found["reason"]


def test_gpu_burn_itself_is_known_too(tmp_path: Path) -> None:
    ran = World().run([NODE], 'cd "$(dirname /opt/gpu_burn)" || exit\nexec /opt/gpu_burn -m 60% 30')
    assert "Burning for 30 seconds." in ran.lines and measured(ran, tmp_path / "log")["complete"]


def test_without_gpus_nothing_burns(tmp_path: Path) -> None:
    ran = World().run([NODE], BURN, gpus=0)
    assert ran.outcome.exit_code == 1 and measured(ran, tmp_path / "log")["verdict"] == "SetupError"
