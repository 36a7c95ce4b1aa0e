# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How long it takes to read big launcher and training logs, against plain iteration over their lines, and the memory it needs.

    python tests/benchmarks/parse_logs.py [--copies 64]

Prints one line for one log of 8 MB full of NCCL debug output and one for `--copies` of them. Goal: at most four
times the plain iteration, and memory that does not grow with the log. Then the same for Megatron logs, of steps alone and with
timers and other output around them; every step line is taken apart, so the goal is only 15 MB/s.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
import time
import tracemalloc
import typing as t
from pathlib import Path

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import measurement

HOSTS = 64
GPUS = 8
LOG_BYTES = 8 << 20
HEADER = """# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 2147483648 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
"""
TABLE = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1  5684.45  188.89  377.05       0  5699.87  188.38  376.03       0
  2147483648     536870912     float     sum      -1  11299.2  190.06  379.37       0  11352.7  189.16  377.58       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 377.508
#
# Collective test concluded: all_reduce_perf
#
"""


def noise(host: int, gpu: int, channel: int) -> t.Iterator[str]:
    """What one rank prints for one channel, in the proportions of a real log."""
    rank = host * GPUS + gpu
    head = f"gpu-{host:03d}:{4100 + gpu}:{4188 + gpu} [{gpu}] NCCL INFO"
    peer = rank + 1
    if gpu == GPUS - 1:
        peer %= HOSTS * GPUS
        yield f"{head} Channel {channel:02d}/0 : {rank}[{gpu}] -> {peer}[0] [send] via NET/IB/{gpu}(0)/GDRDMA\n"
    else:
        yield f"{head} Channel {channel:02d}/0 : {rank}[{gpu}] -> {peer}[{gpu + 1}] via P2P/CUMEM\n"
    yield f"{head} Channel {channel:02d}/24 : 0 1 2 3 4 5 6 7\n"
    yield f"{head} Trees [0] {rank}/-1/-1->{peer}->{rank} [1] {rank}/-1/-1->{peer}->{rank} [2] -1/-1/-1->{peer}->{rank}\n"
    yield f"{head} Could not get speed from /sys/class/net/eth0/speed. Defaulting to 10 Gbps.\n"
    yield (
        f"{head} NET/IB : GPU Direct RDMA Enabled for HCA {gpu} 'mlx5_{gpu}'\n" if channel == 0 else f"{head} P2P Chunksize set to 131072\n"
    )


def write_log(path: Path) -> int:
    """A launcher log of about 8 MB; returns its lines."""
    lines = 0
    with path.open("w", encoding="utf-8") as out:
        out.write(HEADER)
        for rank in range(HOSTS * GPUS):
            out.write(
                f"#  Rank {rank:2d} Group  0 Pid {4100 + rank:6d} on gpu-{rank // GPUS:03d} device  {rank % GPUS} [0000:18:00] H100\n"
            )
        written, channel = 0, 0
        while written < LOG_BYTES:
            for host in range(HOSTS):
                for gpu in range(GPUS):
                    for line in noise(host, gpu, channel):
                        written += out.write(line)
                        lines += 1
            channel += 1
        out.write(TABLE)
    return lines


def seconds(action: t.Callable[[], t.Any], repeats: int) -> float:
    """CPU time of the best of some runs: other programs on the machine do not count."""
    best = float("inf")
    for _number in range(repeats):
        begun = time.process_time()
        action()
        best = min(best, time.process_time() - begun)
    return best


def iterate(paths: list[str]) -> int:
    """The yardstick: read every line as text and do nothing with it."""
    count = 0
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as handle:
            for _line in handle:
                count += 1
    return count


def parse(paths: list[str]) -> None:
    for path in paths:
        said = measurement.measure("nccl", [path], {"exit_code": 0, "expect_transport": "ib"})
        if said["verdict"] is not None or said["values"]["bus_bandwidth"] != 379.37:
            raise SystemExit(f"{path}: {said['verdict']}: {said['reason']}")


def write_training_log(path: Path, noise: int) -> None:
    """A Megatron log of about 8 MB with so many other lines behind every step line."""
    begun = datetime.datetime(2026, 3, 2)
    with path.open("w", encoding="utf-8") as out:
        written, number = 0, 0
        while written < LOG_BYTES:
            number += 1
            clock = begun + datetime.timedelta(seconds=0.4 * number)
            written += out.write(
                f" [{clock:%Y-%m-%d %H:%M:%S.%f}] iteration {5 * number:8d}/99999999 | consumed samples: {160 * number:12d} | elapsed time "
                f"per iteration (ms): {80 + number % 7:.1f} | throughput per GPU (TFLOP/s/GPU): {103.8 - number % 5:.1f} | learning rate: "
                f"1.000000E-05 | global batch size:    32 | lm loss: {1.5 + number % 3:.6E} | loss scale: 1.0 | grad norm: 0.412 | "
                "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
            )
            for rank in range(noise):
                written += out.write("INFO:megatron.core.timers:(min, max) time across ranks (ms):\n")
                written += out.write(f"    forward-backward ...............................: ({70 + rank}.12, {71 + rank}.30)\n")
                written += out.write(f"[rank{rank}]: UserWarning: barrier(): using the device under current context {rank}\n")


def report_training(name: str, path: Path, repeats: int) -> None:
    parsed = seconds(lambda: measurement.measure("training", [str(path)], {"exit_code": 0}), repeats)
    tracemalloc.start()
    measurement.measure("training", [str(path)], {"exit_code": 0})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{name}: {path.stat().st_size / 1e6 / parsed:.1f} MB/s, peak memory {peak / 1e6:.1f} MB")


def report(name: str, paths: list[str], repeats: int) -> None:
    plain, parsed = seconds(lambda: iterate(paths), repeats), seconds(lambda: parse(paths), repeats)
    tracemalloc.start()
    parse(paths[:1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{name}: iteration {plain:.3f} s, parsing {parsed:.3f} s, ratio {parsed / plain:.2f}, peak memory {peak / 1e6:.1f} MB")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--copies", type=int, default=64, help="logs of the second measurement")
    arguments.add_argument("--repeats", type=int, default=3, help="runs of which the best counts")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launcher.log"
        lines = write_log(path)
        print(f"one log: {path.stat().st_size / 1e6:.1f} MB, {lines} lines of debug output")
        report("1 log", [str(path)], given.repeats)
        report(f"{given.copies} logs", [str(path)] * given.copies, 1)
        for name, noise in (("training, steps alone", 0), ("training, mostly other output", 20)):
            write_training_log(path, noise)
            report_training(name, path, given.repeats)


if __name__ == "__main__":
    main()
