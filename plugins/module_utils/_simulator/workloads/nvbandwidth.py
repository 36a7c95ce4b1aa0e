# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nvbandwidth 0.8, text and JSON: copies between the host and each GPU, and between the GPUs of a node.

Not simulated: copies in both directions, latencies, several nodes; such test cases are waived.
"""

from __future__ import annotations

import json
import math
import re
import typing as t
from collections.abc import Iterator, Sequence

from ..hardware.nodes import Node
from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context, gpus_of
from .gpu_identity import gpu_identity

_VERSION = "v0.8"
# GB/s of a PCIe link by the generation of the GPU, and what one pair of GPUs reaches of the all-reduce inside a node.
_PCIE = {"volta": 12.4, "ampere": 25.0, "ada-lovelace": 25.6, "hopper": 55.2, "blackwell": 56.1}
_PAIR_SHARE = 1.06
_HOST = re.compile(r"(host_to_device|device_to_host)_memcpy_(ce|sm)")
_PAIRS = re.compile(r"device_to_device_memcpy_(read|write)_(ce|sm)")
_DEFAULT = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_ce")
_ARROWS = {"host_to_device": "CPU(row) -> GPU(column)", "device_to_host": "CPU(row) <- GPU(column)"}
_PAIR_ARROWS = {"read": "GPU(row) -> GPU(column)", "write": "GPU(row) <- GPU(column)"}
_NOTE = (
    "NOTE: The reported results may not reflect the full capabilities of the platform.",
    "Performance can vary with software drivers, hardware clocks, and system topology.",
)


class _Case(t.NamedTuple):
    """A test case; no rows: waived."""

    name: str
    title: str
    rows: list[list[float | None]]

    @property
    def total(self) -> float:
        return sum(cell for row in self.rows for cell in row if cell is not None)


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that runs nvbandwidth; None for others."""
    runs = [words for words in shell.commands_of(context.text) if _is_run(words)]
    if not runs:
        return None
    outcome = Outcome(lines=())
    outcome.lines = _lines(context, outcome, runs[-1])
    return outcome


def _is_run(words: Sequence[str]) -> bool:
    names = [shell.basename(word) for word in words if word not in ("exec", "!", "then", "do")]
    return bool(names) and names[0] == "nvbandwidth" and "--help" not in words


def _named(words: Sequence[str]) -> list[str]:
    """The words behind -t, up to the next option."""
    start = next((index + 1 for index, word in enumerate(words) if word in ("-t", "--testcase")), len(words))
    end = next((index for index in range(start, len(words)) if words[index].startswith("-")), len(words))
    return list(words[start:end]) or list(_DEFAULT)


def _lines(context: Context, outcome: Outcome, words: Sequence[str]) -> Iterator[LogLine]:
    node, gpus = context.node, gpus_of(context.pod)
    if node is None or not gpus:
        yield LogLine(1.0, "CUDA_ERROR: CUDA_ERROR_NO_DEVICE in expression cuInit(0)", "stderr")
        outcome.exit_code = 1
        return
    run = context.hardware.next_run("nvbandwidth", [node.name])
    cases = [_case(context, node, gpus, name, run) for name in _named(words)]
    devices = [f"{node.gpu.device_name} ({gpu_identity(context, gpu).bus_id[:14]})" for gpu in range(gpus)]
    as_json = {"-j", "--json"} & set(words)
    texts = _json(context, cases, devices) if as_json else _text(context, cases, devices)
    yield from (LogLine(6.0 * len(cases), line) for line in texts)


def _case(context: Context, node: Node, gpus: int, name: str, run: str) -> _Case:
    chance = context.hardware.chance("copies", run, name)
    noise = context.hardware.definition.noise / 4

    def about(speed: float) -> float:
        return speed * math.exp(chance.gauss(0, noise))

    if host := _HOST.fullmatch(name):
        link = _PCIE.get(node.gpu.family, 25.0)
        row: list[float | None] = [about(link * node.part_share("pcie", gpu)) for gpu in range(gpus)]
        return _Case(name, f"memcpy {host.group(2).upper()} {_ARROWS[host.group(1)]} bandwidth (GB/s)", [row])
    if (pair := _PAIRS.fullmatch(name)) and gpus > 1:
        between = node.gpu.ring_gb_s * _PAIR_SHARE
        rows = [[None if row == column else about(between) for column in range(gpus)] for row in range(gpus)]
        return _Case(name, f"memcpy {pair.group(2).upper()} {_PAIR_ARROWS[pair.group(1)]} bandwidth (GB/s)", rows)
    return _Case(name, "", [])


def _text(context: Context, cases: Sequence[_Case], devices: Sequence[str]) -> Iterator[str]:
    software = context.hardware.definition.software
    cuda = int(software.cuda.split(".")[0]) * 1000
    yield from (f"nvbandwidth Version: {_VERSION}", "Built from Git version: unknown", "")
    yield from (f"CUDA Runtime Version: {cuda}", f"CUDA Driver Version: {cuda}", f"Driver Version: {software.driver}", "")
    yield context.pod.host_name
    yield from (f"Device {number}: {device}" for number, device in enumerate(devices))
    yield ""
    for case in cases:
        yield f"Running {case.name}."
        if not case.rows:
            yield from ("WAIVED", "")
            continue
        yield case.title
        yield " " + "".join(f"{column:10d}" for column in range(len(case.rows[0])))
        for number, row in enumerate(case.rows):
            yield f"{number:2d}" + "".join(f"{'N/A' if cell is None else f'{cell:.2f}':>10}" for cell in row)
        yield from ("", f"SUM {case.name} {case.total:.2f}", "")
    yield from _NOTE


def _json(context: Context, cases: Sequence[_Case], devices: Sequence[str]) -> list[str]:
    software = context.hardware.definition.software
    document = {
        "CUDA Runtime Version": int(software.cuda.split(".")[0]) * 1000,
        "Driver Version": software.driver,
        "GPU Device list": [f"{number}: {device}: ({context.pod.host_name})" for number, device in enumerate(devices)],
        "git_version": "unknown",
        "testcases": [_json_case(case) for case in cases],
        "version": _VERSION,
    }
    return json.dumps({"nvbandwidth": document}, indent="\t", separators=(",", " : ")).splitlines()


def _json_case(case: _Case) -> dict[str, t.Any]:
    if not case.rows:
        return {"name": case.name, "status": "Waived"}
    matrix = [["N/A" if cell is None else f"{cell:.4f}" for cell in row] for row in case.rows]
    return {"bandwidth_description": case.title, "bandwidth_matrix": matrix, "name": case.name, "status": "Passed", "sum": case.total}
