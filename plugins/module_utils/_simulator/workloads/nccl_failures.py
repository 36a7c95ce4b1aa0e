# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What nccl-tests and NCCL print when a run breaks.

Everything is (rank number, text), as in `nccl_info`. program: the name of the binary.
"""

from __future__ import annotations

from collections.abc import Iterator

from .nccl_info import Line, Log
from .nccl_tests import Rank, collective_of

_ECC = "uncorrectable ECC error encountered"


def no_gpu(host: str, pid: int) -> Iterator[Line]:
    """A process that finds no GPU at all."""
    yield 0, f"{host}: Test CUDA failure common.cu:1203 'no CUDA-capable device is detected'"
    yield 0, f" .. {host} pid {pid}: Test failure common.cu:1092"


def too_few_gpus(wanted: int, found: int) -> list[str]:
    """The complaint on stderr of a process that finds fewer GPUs than it was asked to use."""
    return [
        f"Invalid number of GPUs: {wanted} requested but only {found} were found.",
        "Please check the number of processes and GPUs per process.",
    ]


def failed_at(host: str, pid: int, place: str) -> str:
    """One step of an error's way up through the program."""
    return f" .. {host} pid {pid}: Test failure {place}"


def no_interface(rank: Rank, log: Log) -> Iterator[Line]:
    """NCCL_SOCKET_IFNAME leaves no interface."""
    yield from log.warning(rank, "bootstrap.cc:114", "Bootstrap : no socket interface found")
    yield from log.trace(rank, "init.cc:126", 5)
    yield rank.number, f"{rank.host}: Test NCCL failure common.cu:1550 'invalid usage (run with NCCL_DEBUG=WARN for details) / '"
    yield rank.number, failed_at(rank.host, rank.pid, "common.cu:1454")


def retry_exhausted(rank: Rank, peer: Rank, log: Log, program: str) -> Iterator[Line]:
    """A peer that no longer answers over the network."""
    completion = f"NET/IB: Got completion from peer {peer.ip}<41022> with status=IBV_WC_RETRY_EXC_ERR(12)"
    details = "opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send localGid fe80::1 remoteGidsfe80::2"
    yield from log.warning(rank, "transport/net_ib/p2p.cc:420", f"{completion} {details} hca mlx5_{rank.local}")
    yield from log.trace(rank, "transport/net.cc:1299", 6)
    words = f"'remote process exited or there was a network error / {completion}'"
    yield rank.number, f"{rank.host}: Test NCCL failure common.cu:389 {words}"
    yield from gave_up(rank, program)


def gpu_failed_in_nccl(rank: Rank, log: Log, program: str) -> Iterator[Line]:
    """A GPU with an uncorrectable memory error, noticed by NCCL."""
    yield from log.warning(rank, "enqueue.cc:1643", f"Cuda failure '{_ECC}'")
    yield from log.trace(rank, "enqueue.cc:1643", 1)
    yield rank.number, f"{rank.host}: Test NCCL failure common.cu:389 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '"
    yield from gave_up(rank, program)


def gpu_failed_in_test(rank: Rank, program: str) -> Iterator[Line]:
    """The same, noticed by the test itself."""
    yield rank.number, f"{rank.host}: Test CUDA failure common.cu:389 '{_ECC}'"
    yield from gave_up(rank, program)


def gave_up(rank: Rank, program: str) -> Iterator[Line]:
    """The way of an error up through the test; all that a test says of an error without a name."""
    for place in ("common.cu:597", f"{collective_of(program)}.cu:574", "common.cu:1454"):
        yield rank.number, failed_at(rank.host, rank.pid, place)
