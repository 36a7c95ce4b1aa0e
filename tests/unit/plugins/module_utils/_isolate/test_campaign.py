# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A small, seeded part of the isolation campaign: the limits an operator can rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.tests.benchmarks import isolation_campaign

CELLS = [
    cell
    for cell in isolation_campaign.cells()
    # The noisiest cells and the intermittent ones need many worlds for a mean; the script prints them.
    if cell.table not in ("noise 10%", "intermittent nic, N 64") and not cell.name.startswith("N 4096, d 16")
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.table}: {cell.name}")
def test_limits(cell: isolation_campaign.Cell) -> None:
    assert isolation_campaign.run_cell(cell, 10, seed=20260302)["missed"] == []


def test_random_worlds() -> None:
    """No silent pass, and both models of NVCRE's method do worse on the same worlds."""
    data = isolation_campaign.run_random(200, seed=20260302)
    assert data["silent_passes"] == 0 and data["weak_accusations"] == 0
    assert data["worlds_with_false_accusation"] <= 1 and data["unresolved_worlds"] <= 2
    assert data["faults_found"] >= 0.99 * data["faults"]
    for other in (data["other"], data["documented"]):
        assert other["silent_passes"] > 10 and other["faults_found"] < 0.6 * other["faults"]


def test_command_line_writes_the_documented_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "campaign.json"
    status = isolation_campaign.main(["--worlds", "1", "--seed", "5", "--only", "random", "--output", str(output)])
    data = json.loads(output.read_text())
    keys = {
        "worlds",
        "silent_passes",
        "worlds_with_false_accusation",
        "faults",
        "faults_found",
        "mean_tests",
        "mean_waves",
        "mean_node_minutes",
    }
    assert keys <= set(data) and keys <= set(data["other"]) and data["worlds"] == 25
    assert status == 0 and "this collection" in capsys.readouterr().out
