# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""gpu-burn, and a burn with PyTorch that prints the same: progress of every GPU, and a summary.

A node that corrupts data has wrong results on GPU 5 or the last one, a crash kills the process of GPU 0 half-way.
"""

from __future__ import annotations

import math
import typing as t
from collections.abc import Iterator, Sequence

from ..hardware.nodes import Node
from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context, abort_of, gpus_of
from .gpu_identity import gpu_identity

_PROGRAMS = ("gemm_burn.py", "gpu_burn", "gpu-burn")
# Of the BF16 speed that training sustains: what products alone reach in 16 bits, and in 32 bits without tensor cores.
_HALF, _SINGLE = 1.6, 0.115
_FLOP = 2.0 * 8192**3
_START_S, _STEPS = 12.0, 10


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that burns its GPUs; None for others."""
    _before, words = shell.find_command(context.text, lambda name: name in _PROGRAMS)
    if not words:
        return None
    outcome = Outcome(lines=())
    outcome.lines = _lines(context, outcome, words)
    return outcome


def _seconds(words: Sequence[str]) -> int:
    """Of --seconds N, or the last number, as gpu-burn takes it."""
    if "--seconds" in words[:-1]:
        return int(words[words.index("--seconds") + 1])
    return int(words[-1]) if words[-1].isdigit() else 10


def _lines(context: Context, outcome: Outcome, words: Sequence[str]) -> Iterator[LogLine]:
    node, gpus, seconds = context.node, gpus_of(context.pod), _seconds(words)
    if node is None or not gpus:
        yield LogLine(1.0, "No CUDA devices", "stderr")
        outcome.exit_code = 1
        return
    for gpu in range(gpus):
        yield LogLine(1.0, f"GPU {gpu}: {node.gpu.device_name} (UUID: {gpu_identity(context, gpu).uuid})")
    yield LogLine(_START_S, f"Burning for {seconds} seconds.")
    speeds = _speeds(context, node, gpus, _HALF if shell.basename(words[0]) == "gemm_burn.py" else _SINGLE)
    abort, wrong = abort_of([node]), min(5, gpus - 1) if any(fault.corrupts() for fault in node.faults) else None
    for step in range(1, _STEPS + 1):
        now = _START_S + seconds * step / _STEPS
        dead = 0 if abort is not None and step > _STEPS // 2 else None
        if dead is not None and abort is not None and abort.killed:
            outcome.exit_code, outcome.reason, outcome.duration_s = 137, "OOMKilled", now
            return
        if dead is not None and step == _STEPS // 2 + 1:
            yield LogLine(now, "Failure during compute: CUDA error: unspecified launch failure")
        yield LogLine(now, _progress(step, seconds, speeds, wrong, dead))
    yield from (LogLine(now, text) for text in _summary(gpus, {wrong, dead}))


def _speeds(context: Context, node: Node, gpus: int, share: float) -> list[float]:
    """GFLOP/s of each GPU: equal chips differ a little, always alike, and every run differs a little from the one before."""
    hardware = context.hardware
    run = hardware.next_run("burn", [node.name])
    noise = math.exp(hardware.chance("noise", run).gauss(0, hardware.definition.noise / 4))
    chips = [1 - min(0.05, abs(hardware.chance("chip", node.name, gpu).gauss(0, 0.01))) for gpu in range(gpus)]
    return [node.gpu.tflops * 1e3 * share * chip * noise * node.part_share("gpu", gpu) for gpu, chip in enumerate(chips)]


def _progress(step: int, seconds: int, speeds: Sequence[float], wrong: int | None, dead: int | None) -> str:
    work, errors, temperatures = [], [], []
    for gpu, speed in enumerate(speeds):
        products = int(speed * 1e9 * seconds * step / _STEPS / _FLOP)
        work.append("-1 (0 Gflop/s)" if gpu == dead else f"{products} ({speed:.0f} Gflop/s)")
        errors.append("0  (DIED!)" if gpu == dead else f"{17 * step} (WARNING!)" if gpu == wrong else "0")
        temperatures.append(f"{54 + step + gpu % 3} C")
    cells = (" - ".join(column) for column in (work, errors, temperatures))
    return "{:.1f}%  proc'd: {}   errors: {}   temps: {} ".format(100 * step / _STEPS, *cells)


def _summary(gpus: int, faulty: t.Collection[int | None]) -> Iterator[str]:
    yield ""
    yield f"Tested {gpus} GPUs:"
    for gpu in range(gpus):
        yield f"\tGPU {gpu}: {'FAULTY' if gpu in faulty else 'OK'}"
