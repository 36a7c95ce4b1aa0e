# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated nvbandwidth prints what the real one prints, text and JSON, and shows the narrow link of one GPU."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure

from ..world import Ran, World

NODE = "gpu-r0-n00"
RUN = (
    "json=--json\nnvbandwidth --help 2>/dev/null | grep -q -- --json || json=\n"
    "exec nvbandwidth $json -b 512 -i 3 -t host_to_device_memcpy_ce device_to_host_memcpy_ce device_to_device_memcpy_read_ce"
)
TEXT = "nvbandwidth -t host_to_device_memcpy_ce device_to_host_memcpy_ce"
REAL = Path(__file__).resolve().parents[5] / "vectors" / "cases" / "real-h200x2"


def measured(ran: Ran, path: Path, gpus: int = 8) -> dict[str, t.Any]:
    path.write_text("\n".join(ran.lines) + "\n", encoding="utf-8")
    tests = ["host_to_device_memcpy_ce", "device_to_host_memcpy_ce"]
    context = {"exit_code": ran.outcome.exit_code, "expected_gpus": gpus, "required_tests": tests, "nodes": [NODE]}
    return dict(measure("nvbandwidth", [str(path)], context))


def form(line: str) -> str:
    """A line without its numbers, names and columns."""
    plain = re.sub(r"^Device \d+: NVIDIA [\w ]+ \([0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\)$", "Device", line.rstrip())
    plain = re.sub(r"\d+(\.\d+)*", "0", plain)
    return re.sub(r"^ +0( +0)*$", " 0", plain)


def test_the_text_has_the_lines_of_a_real_run() -> None:
    real = (REAL / "n01-nvbandwidth.log").read_text(encoding="utf-8").splitlines()
    ends = [line for line in real if line.startswith(("NOTE:", "Performance can"))]
    real = [line for line in real[: real.index("Running host_to_all_memcpy_ce.")] if line != "vm"] + ends
    ran = World().run([NODE], TEXT)
    lines = [form(line) for line in ran.lines if line != "job-0"]
    assert list(dict.fromkeys(lines)) == list(dict.fromkeys(map(form, real)))


def test_the_document_has_the_keys_of_a_real_one() -> None:
    def keys(node: t.Any) -> t.Any:
        if isinstance(node, dict):
            return {key: keys(value) for key, value in node.items()}
        return [keys(node[0])] if isinstance(node, list) else type(node)

    real = json.loads((REAL / "n02-nvbandwidth-json.log").read_text(encoding="utf-8"))
    assert keys(json.loads("\n".join(World().run([NODE], RUN).lines))) == keys(real)


def test_a_healthy_node_is_measured_link_by_link(tmp_path: Path) -> None:
    found = measured(World(noise=0.02).run([NODE], RUN), tmp_path / "log")
    assert found["complete"] and found["values"]["gpus"] == 8 and found["values"]["host_spread"] < 0.1
    assert found["values"]["device_to_device"] > 5 * found["values"]["host_to_device"] > 200 and found["findings"] == []


def test_the_gpu_with_a_narrow_link_is_named(tmp_path: Path) -> None:
    world = World([{"kind": "pcie_slow", "node": NODE, "gpu": 6, "factor": 0.5}])
    found = measured(world.run([NODE], RUN), tmp_path / "log")
    assert found["values"]["host_spread"] == pytest.approx(0.5, abs=0.01) and found["verdict"] is None
    assert {item["entity"] for item in found["findings"]} == {"GPU6"} and found["findings"][0]["host"] == NODE
    assert world.alone(NODE).peak() == World().alone(NODE).peak(), "NVLink does not feel it"


def test_a_node_of_one_gpu_has_no_pairs(tmp_path: Path) -> None:
    found = measured(World(gpu="gh200").run([NODE], RUN), tmp_path / "log", gpus=1)
    assert found["complete"] and found["values"]["device_to_device"] is None and found["values"]["skipped"] == 1


def test_without_gpus_nothing_is_measured(tmp_path: Path) -> None:
    assert measured(World().run([NODE], RUN, gpus=0), tmp_path / "log")["complete"] is False
