# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""fio with --output-format=json on a volume that is mounted into the container: one job at the speed of the node's disk.

A directory that no mount covers is not there, but for /tmp.
"""

from __future__ import annotations

import json
import math
import typing as t
from collections.abc import Iterator, Mapping, Sequence

from ..._common.checks import size_bytes
from ..hardware.nodes import Node
from ..hardware.seam import LogLine, Outcome
from . import shell
from .context import Context, mount_paths

# Bytes per second and operations per second of a healthy volume, and the latency of one operation in microseconds.
_MOST = {"read": (6.4e9, 900e3, 90.0), "write": (3.1e9, 400e3, 40.0)}
_RANDOM = 0.7


def claim(context: Context) -> Outcome | None:
    """The outcome of a container that runs fio with JSON output; None for others."""
    _before, words = shell.find_command(context.text, lambda name: name == "fio")
    options = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    if options.get("output-format") != "json":
        return None
    outcome = Outcome(lines=())
    outcome.lines = _lines(context, outcome, options)
    return outcome


def _lines(context: Context, outcome: Outcome, options: Mapping[str, str]) -> Iterator[LogLine]:
    directory = options.get("directory", "")
    if not any(f"{directory}/".startswith(f"{path.rstrip('/')}/") for path in (*mount_paths(context), "/tmp")):
        yield LogLine(1.0, f"fio: {directory} is not a directory", "stderr")
        outcome.exit_code = 1
        return
    seconds = int(options.get("runtime", "0")) or 10
    text = json.dumps(_document(context, options, seconds), indent=2)
    yield from (LogLine(seconds + 4.0, line) for line in text.splitlines())


def _speed(context: Context, node: Node | None, side: str, pattern: str, block: int) -> float:
    """Bytes per second: bound by bandwidth with large blocks, by operations with small ones."""
    hardware = context.hardware
    bandwidth, operations, _latency = _MOST[side]
    noise = math.exp(hardware.chance("noise", hardware.next_run("fio", [context.pod.node])).gauss(0, hardware.definition.noise))
    share = node.part_share("disk") if node else 1.0
    return min(bandwidth, operations * block) * (_RANDOM if pattern.startswith("rand") else 1.0) * share * noise


def _document(context: Context, options: Mapping[str, str], seconds: int) -> dict[str, t.Any]:
    pattern, block = options.get("rw", "read"), size_bytes(options.get("bs", "4K"), "--bs")
    side = "write" if pattern.endswith("write") else "read"
    speed = _speed(context, context.node, side, pattern, block)
    in_flight = int(options.get("numjobs", "1")) * int(options.get("iodepth", "1"))
    latency_us = max(_MOST[side][2], in_flight * block / speed * 1e6)
    job = {
        "jobname": options.get("name", "job"),
        "groupid": 0,
        "error": 0,
        "eta": 0,
        "elapsed": seconds + 3,
        "job options": {key: value for key, value in options.items() if key not in ("output-format", "group_reporting")},
        "read": _side(speed if side == "read" else 0.0, block, seconds, latency_us),
        "write": _side(speed if side == "write" else 0.0, block, seconds, latency_us),
        "trim": _side(0.0, block, 0, 0.0),
        "job_runtime": seconds * 1000 * int(options.get("numjobs", "1")),
        "usr_cpu": 1.9,
        "sys_cpu": 12.4,
    }
    return {"fio version": "fio-3.36", "timestamp": 1772447467, "time": "Mon Mar  2 10:31:07 2026", "jobs": [job]}


def _side(speed: float, block: int, seconds: int, latency_us: float) -> dict[str, t.Any]:
    """Of reads or writes; all zero when there were none."""
    operations = int(speed * seconds / block)
    return {
        "io_bytes": operations * block,
        "io_kbytes": operations * block // 1024,
        "bw_bytes": int(speed),
        "bw": int(speed / 1024),
        "iops": round(speed / block, 6),
        "runtime": seconds * 1000 if operations else 0,
        "total_ios": operations,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": _latency(2_000.0, operations, ()),
        "clat_ns": _latency(latency_us * 1e3, operations, (("50.000000", 0.95), ("99.000000", 2.2), ("99.900000", 3.4))),
        "lat_ns": _latency(latency_us * 1e3 + 2_000, operations, ()),
    }


def _latency(mean_ns: float, count: int, percentiles: Sequence[tuple[str, float]]) -> dict[str, t.Any]:
    scale = mean_ns if count else 0.0
    found = {"min": int(scale * 0.4), "max": int(scale * 9), "mean": round(scale, 6), "stddev": round(scale * 0.2, 6), "N": count}
    shown = {name: int(scale * factor) for name, factor in percentiles}
    return {**found, "percentile": shown} if shown and count else found
