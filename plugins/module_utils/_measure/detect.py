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

# What the first lines do not tell, the last ones do.
HEAD_BYTES, TAIL_BYTES = 1 << 19, 1 << 18
_CHUNK = 1 << 14  # a damaged archive gives what lies before the damage


class Mark(t.NamedTuple):
    """What only the program of one kind prints. words: some of them stand in every text that the pattern matches; they are found fast."""

    kind: str
    words: tuple[str, ...]
    pattern: re.Pattern[str]


def _mark(kind: str, words: str, pattern: str) -> Mark:
    return Mark(kind, tuple(words.split("|")), re.compile(pattern, re.MULTILINE))


# Tried in order; the first kind with a mark wins. NCCL's own debug lines come last: every other program prints them too, and a
# training that died before its first step has nothing else to show than how it was set up and what ended it.
MARKS: tuple[Mark, ...] = (
    _mark("node_facts", "node_facts", r"\"node_facts\"\s{0,8}:"),
    _mark("dcgm", "DCGM|dcgm|diag|Diagnostic|host engine|hostengine|homogeneous|entity_groups|category_name",
          r"DCGM (?:GPU )?Diagnostic\b|Successfully ran diagnostic|\bdcgmi? diag\b"
          r"|\|\s{0,40}Diagnostic\s{0,40}\|\s{0,40}Result|DCGM Version"
          r"|Unable to (?:complete|run|start) (?:the )?diagnostic|connect to (?:the )?host ?engine"
          r"|(?:DCGM|diag).{0,80}\(-\d{1,3}\)|\{\"category_name|\"(?:metadata|runtime_error)\".{0,400}(?:DCGM|diag)|mndiag|host engine"
          r"|homogeneous group of GPUs|\"entity_groups\":"),
    _mark("nvbandwidth", "nvbandwidth|Running ",
          r"nvbandwidth Version|\"nvbandwidth\"|\bRunning (?:host|device)_(?:to|local|bidirectional)_\w"),
    _mark("gpu_burn", "Gflop/s|Tested |Using compare file|Burning for|gpu_burn|gpu-burn|gpuburn",
          r"Gflop/s\)\s{1,8}errors:|\bTested \d{1,4} GPUs:|Using compare file: |Burning for \d{1,9} seconds|gpu[_-]?burn"),
    _mark("perftest", "#bytes|RDMA_|Test|ib_", r"#bytes\s{1,20}#iterations\s{1,20}(?:BW|t_)|RDMA_(?:Write|Read)|Send (?:BW|Latency) Test"
          r"|ib_(?:write|read|send)_(?:bw|lat)"),
    _mark("fio", "fio|IOPS=", r"\"fio version\"|\bfio-\d{1,4}\.\d|\b(?:read|write): IOPS="),
    _mark("nccl", "nccl-tests|nThread|Using devices|Out of bounds|Avg bus|Collective test|out-of-place|out_of_place|algbw|in_place"
          "|bus_bw|busbw|gcr|nccl_version|Test CUDA failure|Test NCCL failure|_perf|: Test failure",
          r"nccl-tests version|#\s{0,8}(?:nThread|Using devices|Out of bounds values|Avg bus bandwidth|Collective test starting)"
          r"|\bnThread:? \d{1,9} nGpus|out-of-place\s{1,80}in-place|\balgbw\s{1,20}busbw\b"
          r"|\"(?:out_of_place|in_place|nccl_version|busbw|bus_bw)\"|Test (?:CUDA|NCCL) failure"
          r"|^gcr\|[A-Zg]|_perf(?:_mpi)?\b.{0,400}(?:common\.cu|: error)"
          r"|: Test failure common\.cu"),
    _mark("training", "iteration|MODEL_TFLOP|train_step_timing|it/s|s/it|consumed|global_step|checkpoint|Starting job",
          r"elapsed time per iteration|iteration\s{1,20}\d{1,12}/\s{0,20}\d{1,12}\s{0,8}\||MODEL_TFLOP|train_step_timing"
          r"|it/s[,\]]|s/it[,\]]"
          r"|consumed[_ ]samples|global_step|\tSaved checkpoint\tIteration:|# GPUs: \d{1,9}\tStarting job"),
    _mark("training", "world size|torch|building |initializing|pretrain_|Megatron|megatron"
          "|NeMo|nemo|ightning|ProcessGroupNCCL|microbatches|arguments ---|GLOBAL_RANK",
          r"using world size: \d|-{8,200} arguments -{8,200}|initializing torch distributed|building \w{1,40} model|setting number of micro"
          r"|\[before the start of training step\]|[Mm]egatron[-_./](?:LM|Bridge|core|training)|pretrain_\w{1,40}\.py"
          r"|\[NeMo [IWED] |nemo_logging"
          r"|torch[./]distributed|torchrun|ChildFailedError|ProcessGroupNCCL|pytorch_lightning|lightning\.pytorch|GLOBAL_RANK: \d"),
    # The API's placeholder for a log that is gone is judged too: as no data.
    _mark("nccl", "NCCL|nccl|unable to retrieve", r"NCCL (?:INFO|WARN)|nccl|unable to retrieve container logs"),
)  # fmt: skip


def detect_kind(paths: t.Sequence[str]) -> str:
    """The kind of measurement the files call for, of `measurement.KINDS`.

    Raises InputError when a file cannot be read, is empty, or nothing in any file is known.
    """
    texts = [_sample(path) for path in paths]
    for mark in MARKS:
        if any(any(word in text for word in mark.words) and mark.pattern.search(text) for text in texts):
            return mark.kind
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
    return (head + b"\n" + rest).replace(b"\0", b"\n").decode("utf-8", errors="replace").replace("\r", "\n")
