# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which kind of log a file is, by what only that program prints. For logs that come without a plan."""

from __future__ import annotations

import gzip
import re
import typing as t
import zlib
from pathlib import Path

from .._common.errors import InputError

HEAD_BYTES, TAIL_BYTES = 1 << 20, 1 << 18
_CHUNK = 1 << 14  # a damaged archive gives what lies before the damage

# Tried in order; the first kind with a mark wins. NCCL's own debug lines come last: every other program prints them too.
MARKS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern, re.MULTILINE))
    for kind, pattern in (
        ("dcgm", r"\"DCGM (GPU )?Diagnostic\"|Successfully ran diagnostic|\bdcgmi? diag\b|\|\s*Diagnostic\s*\|\s*Result|DCGM Version"
                 r"|Unable to (complete|run|start) (the )?diagnostic|connect to (the )?host ?engine|\"DCGM Diagnostic"
                 r"|(DCGM|diag).{0,80}\(-\d{1,3}\)|^\{\"category_name|\"(metadata|runtime_error)\".{0,400}(DCGM|diag)|mndiag|host engine"
                 r"|homogeneous group of GPUs|^\s*\"entity_groups\":"),
        ("nvbandwidth", r"nvbandwidth Version|\"nvbandwidth\"|\bRunning (host|device)_(to|local|bidirectional)_\w+"),
        ("gpu_burn", r"Gflop/s\)\s+errors:|\bTested \d+ GPUs:|Using compare file: |Burning for \d+ seconds|gpu[_-]burn"),
        ("perftest", r"#bytes\s+#iterations\s+(BW|t_)|RDMA_(Write|Read)|Send (BW|Latency) Test|ib_(write|read|send)_(bw|lat)"),
        ("fio", r"\"fio version\"|\bfio-\d+\.\d+|\b(read|write): IOPS="),
        ("nccl", r"nccl-tests version|^.*#\s*(nThread|Using devices|Out of bounds values|Avg bus bandwidth|Collective test starting)"
                 r"|^gcr\|[A-Zg]|out-of-place\s+in-place|\balgbw\s+busbw\b|\"(out_of_place|in_place|nccl_version|busbw|bus_bw)\""
                 r"|Test (CUDA|NCCL) failure|_perf(_mpi)?\b.*(common\.cu|: error)|: Test failure common\.cu"),
        ("training", r"elapsed time per iteration|iteration\s+\d+/\s*\d+\s*\||MODEL_TFLOP|train_step_timing|it/s[,\]]|s/it[,\]]"
                     r"|consumed[_ ]samples|global_step|\tSaved checkpoint\tIteration:|# GPUs: \d+\tStarting job"),
        # The API's placeholder for a log that is gone is judged too: as no data.
        ("nccl", r"NCCL (INFO|WARN)|nccl|unable to retrieve container logs"),
    )
)  # fmt: skip


def detect_kind(paths: t.Sequence[str]) -> str:
    """The kind of measurement the files call for, of `measurement.KINDS`.

    Raises InputError when a file cannot be read, is empty, or nothing in any file is known.
    """
    texts = [_sample(path) for path in paths]
    for kind, mark in MARKS:
        if any(mark.search(text) for text in texts):
            return kind
    place = paths[0] if paths else "logs"
    if not any(text.strip() for text in texts):
        raise InputError("the log is empty", place=place, hint="Give the log of the pod that prints the result, usually the launcher")
    raise InputError(
        "cannot tell what kind of log this is",
        place=place,
        hint="Name it, for example kind=nccl, dcgm, training, perftest, fio or nvbandwidth",
    )


def _sample(path: str) -> str:
    """The beginning and the end of a file, as text."""
    head = rest = b""
    try:
        opener = gzip.open if str(path).endswith(".gz") else open
        with opener(path, "rb") as stream:
            for chunk in iter(lambda: stream.read1(_CHUNK), b""):
                head += chunk
                if len(head) >= HEAD_BYTES:
                    break
            while chunk := stream.read(1 << 20):
                rest = (rest + chunk)[-TAIL_BYTES:]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not head:
            raise InputError(f"cannot be read: {error}", place=str(Path(path))) from error
    except OSError as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", place=str(Path(path))) from error
    return (head + b"\n" + rest).decode("utf-8", errors="replace").replace("\r", "\n")
