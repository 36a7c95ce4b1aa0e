# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the burn's own script prints is what its reader reads: counts of the right GPU, speeds of the second half, and who died."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pathlib
import subprocess
import sys
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


# A stand-in for PyTorch on a machine with two GPUs, the second of which fails at a product when it is told to, or differs in a bit.
TORCH = """
import os, time, types
class Tensor:
    def __init__(self, value=0): self.value = value
    def __getattr__(self, name): return lambda *a, **k: self
    def numel(self): return 1
    def element_size(self): return 2
    def sum(self): return Tensor(self.value)
    def __int__(self): return int(self.value)
    def __getitem__(self, key): return self
    def __ne__(self, other): return Tensor(cuda.differs())
    def __iadd__(self, other): return Tensor(self.value + other.value)
    __gt__ = __sub__ = __mul__ = __rmul__ = __or__ = __invert__ = __matmul__ = lambda self, *other: self
class cuda:
    gpu, products = 0, 0
    device_count = staticmethod(lambda: int(os.environ["FAKE_GPUS"]))
    def set_device(device): cuda.gpu = device
    def synchronize(device): pass
    def mem_get_info(device): return 100, 100
    def get_device_properties(gpu): return types.SimpleNamespace(name="Fake GPU", uuid=f"0000-{gpu}")
    def differs(): return 1 if os.environ.get("FAKE") == "differ" and cuda.gpu == 1 and cuda.products > 20 else 0
class Generator:
    def manual_seed(self, seed): return self
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace()))
float16 = int16 = int32 = int64 = None
def device(kind, gpu): return gpu
def tensor(*a, **k): return Tensor()
randn = randint = zeros = empty_like = cat = isfinite = tensor
def matmul(*a, out=None):
    cuda.products += 1
    time.sleep(0.01)
    if os.environ.get("FAKE") == "fail" and cuda.gpu == 1 and cuda.products > 60:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    return Tensor()
"""


def whole(folder: pathlib.Path, gpus: int, fake: str = "") -> tuple[int, dict[str, t.Any]]:
    """The whole script with its processes, on that machine."""
    (folder / "torch.py").write_text(TORCH)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "FAKE_GPUS": str(gpus), "FAKE": fake}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--seconds", "4"], env=env, capture_output=True, text=True, timeout=120, check=False, cwd=folder
    )
    context = {"exit_code": done.returncode, "expected_gpus": gpus, "nodes": ["n0"]}
    return done.returncode, dict(gpu_burn.parse(done.stdout + done.stderr, context))


def test_the_whole_script_burns_every_gpu_in_a_process_of_its_own(tmp_path: pathlib.Path) -> None:
    status, found = whole(tmp_path, 2)
    assert (status, found["verdict"], found["complete"], found["values"]["gpus"]) == (0, None, True, 2), found["reason"]
    assert found["values"]["errors"] == 0 and found["values"]["gflops_min"] > 1000
    assert found["parsed"]["listed"] == {"0": "Fake GPU", "1": "Fake GPU"}


@pytest.mark.parametrize(("fake", "verdict"), [("fail", "WorkloadFailed"), ("differ", "DataCorruption")])
def test_the_whole_script_goes_on_without_the_gpu_that_fails(tmp_path: pathlib.Path, fake: str, verdict: str) -> None:
    status, found = whole(tmp_path, 2, fake)
    assert (status, found["verdict"]) == (0, verdict), found["reason"]
    assert [item["entity"] for item in found["findings"]] == ["GPU1"]
    assert found["parsed"]["gpus"][0]["result"] == "OK"


def test_the_whole_script_says_when_there_is_no_gpu(tmp_path: pathlib.Path) -> None:
    status, found = whole(tmp_path, 0)
    assert (status, found["verdict"]) == (1, "SetupError")
