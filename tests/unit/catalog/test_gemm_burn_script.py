# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the burn's own script prints is what its reader reads: counts of the right GPU, speeds of the second half, and who died."""

from __future__ import annotations

import importlib.util
import multiprocessing
import pathlib
import time
import types
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import gpu_burn

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "catalog" / "tests" / "diagnostics" / "gemm_burn.py"
FLOPS = 2.0 * 8192**3
PIPE = multiprocessing.Pipe


@pytest.fixture(name="script")
def _script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The script as a module, whose GPUs have a pipe and no process."""
    spec = importlib.util.spec_from_file_location("gemm_burn", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.multiprocessing, "Process", lambda **_how: types.SimpleNamespace(start=lambda: None, kill=lambda: None))
    monkeypatch.setattr(module.shutil, "which", lambda _name: None)
    return module


class Node:
    """The GPUs of a node, to whose parent tests speak in place of the processes."""

    def __init__(self, script: types.ModuleType, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
        self.script, self.ends = script, []

        def pipe() -> t.Any:
            ours, theirs = PIPE()
            self.ends.append(theirs)
            return ours, types.SimpleNamespace(close=lambda: None)

        with monkeypatch.context() as patch:
            patch.setattr(script.multiprocessing, "Pipe", pipe)
            self.gpus = [script.Gpu(number, None) for number in range(gpus)]

    def say(self, gpu: int, *words: t.Any) -> None:
        self.ends[gpu].send(words)
        self.gpus[gpu].take()

    def measured(self, capsys: pytest.CaptureFixture[str], since: float = 0.0) -> dict[str, t.Any]:
        self.script.show(self.gpus, 100, since, FLOPS)
        self.script.sum_up(self.gpus)
        return dict(gpu_burn.parse(capsys.readouterr().out, {"exit_code": 0, "expected_gpus": len(self.gpus), "nodes": ["n0"]}))


def ready(node: Node) -> Node:
    for number in range(len(node.gpus)):
        node.say(number, "ready", "NVIDIA H200", f"GPU-{number}", 0)
        node.say(number, "work", 500, 1.0, 0)
    return node


def test_a_healthy_burn_is_complete_with_the_speed_of_each_gpu(script, monkeypatch, capsys) -> None:
    found = ready(Node(script, monkeypatch, 4)).measured(capsys)
    assert (found["verdict"], found["complete"], found["values"]["errors"]) == (None, True, 0)
    assert found["values"]["gflops_min"] == pytest.approx(500 * FLOPS / 1e9, rel=1e-5)


def test_wrong_results_are_those_of_their_gpu(script, monkeypatch, capsys) -> None:
    node = ready(Node(script, monkeypatch, 4))
    node.say(2, "work", 500, 1.0, 7)
    found = node.measured(capsys)
    assert found["verdict"] == "DataCorruption" and found["values"]["errors"] == 7
    assert [item["entity"] for item in found["findings"]] == ["GPU2"]


def test_a_first_result_that_the_cpu_does_not_come_to_is_wrong(script, monkeypatch, capsys) -> None:
    """All others are compared with it: a GPU that is always wrong alike would pass."""
    node = ready(Node(script, monkeypatch, 2))
    node.say(1, "ready", "NVIDIA H200", "GPU-1", 3)
    assert node.measured(capsys)["verdict"] == "DataCorruption"


def test_a_gpu_that_fails_at_work_is_named_and_one_that_never_began_is_not_broken_for_that(script, monkeypatch, capsys) -> None:
    node = ready(Node(script, monkeypatch, 3))
    node.say(1, "compute", "CUDA error: uncorrectable ECC error encountered")
    found = node.measured(capsys)
    assert [item["entity"] for item in found["findings"]] == ["GPU1"] and found["verdict"] == "WorkloadFailed"
    node = Node(script, monkeypatch, 1)
    node.say(0, "init", "CUDA driver version is insufficient for CUDA runtime version")
    found = node.measured(capsys)
    assert found["verdict"] == "SetupError" and found["findings"] == []


def test_a_process_that_ends_without_a_word_is_noticed(script, monkeypatch, capsys) -> None:
    node = ready(Node(script, monkeypatch, 2))
    script.show(node.gpus, 50, 0.0, FLOPS)
    node.ends[1].close()
    node.gpus[1].take()
    assert node.measured(capsys)["values"]["faulty_gpus"] == 1


def test_the_speed_is_that_of_the_second_half(script, monkeypatch, capsys) -> None:
    """A GPU that throttles when it is hot was fast at first."""
    node = ready(Node(script, monkeypatch, 2))
    time.sleep(0.01)
    half = time.time()
    node.say(0, "work", 500, 1.0, 0)
    node.say(1, "work", 500, 2.0, 0)
    found = node.measured(capsys, since=half)
    assert found["values"]["gflops_spread"] == pytest.approx(0.5, abs=0.001) and found["values"]["slowest_gpu"] == 1
