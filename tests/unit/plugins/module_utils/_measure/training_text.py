# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Writes lines of training logs for tests: Megatron steps, torchrun's summary, PyTorch's watchdog, Python tracebacks."""

from __future__ import annotations

START = "using world size: 16, data-parallel size: 2, context-parallel size: 1\n"
END = "[after training is done] datetime: 2026-03-02 10:30:00 \n"


def step(
    iteration: int,
    clock: str = "10:00:00",
    ms: float = 1000.0,
    *,
    total: int = 100,
    tflops: float | None = 310.0,
    loss: str | None = "1.0E+01",
    skipped: int = 0,
    nan: int = 0,
    batch: int = 256,
) -> str:
    """A Megatron step line. clock: of 2026-03-02, with a fraction or without."""
    parts = [f"consumed samples: {iteration * batch:12d}", f"elapsed time per iteration (ms): {ms}"]
    parts += [f"throughput per GPU (TFLOP/s/GPU): {tflops}"] if tflops is not None else []
    parts += ["learning rate: 1.500000E-04", f"global batch size: {batch:5d}"]
    parts += [f"lm loss: {loss}"] if loss is not None else []
    parts += ["loss scale: 1.0", "grad norm: 0.812", f"number of skipped iterations: {skipped:3d}", f"number of nan iterations: {nan:3d}"]
    return f" [2026-03-02 {clock}] iteration {iteration:8d}/{total:8d} | {' | '.join(parts)} |\n"


def summary(rank: int, host: str, exitcode: int, *, others: str = "  <NO_OTHER_FAILURES>\n", message: str = "") -> str:
    """What torchrun prints when a worker failed."""
    told = message or "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    item = (
        f"[0]:\n  time      : 2026-03-02_10:20:00\n  host      : {host}\n  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : {exitcode} (pid: 1301)\n  error_file: <N/A>\n  traceback : {told}\n"
    )
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n" + "=" * 60 + "\npretrain_gpt.py FAILED\n" + "-" * 60
        + f"\nFailures:\n{others}" + "-" * 60 + f"\nRoot Cause (first observed failure):\n{item}" + "=" * 60 + "\n"
    )  # fmt: skip


def other_failure(rank: int, host: str, exitcode: int) -> str:
    """An entry below `Failures:`."""
    return (
        f"[1]:\n  time      : 2026-03-02_10:20:05\n  host      : {host}\n  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : {exitcode} (pid: 1302)\n  error_file: <N/A>\n  traceback : Signal {-exitcode} received by PID 1302\n"
    )


def watchdog(rank: int, *, seconds: int = 600) -> str:
    """PyTorch's NCCL watchdog gives up a collective."""
    return (
        f"[rank{rank}]:[E302 10:19:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={seconds * 1000}) ran for {seconds * 1000 + 29} "
        "milliseconds before timing out.\n"
    )


def traceback(error: str, label: str = "") -> str:
    """An uncaught exception."""
    lines = ["Traceback (most recent call last):", '  File "/workspace/pretrain_gpt.py", line 10, in <module>', "    main()", error]
    return "".join(f"{label}{line}\n" for line in lines)
