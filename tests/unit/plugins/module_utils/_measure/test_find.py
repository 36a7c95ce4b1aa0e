# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Logs by path: found, told apart by content, refused with a clear word."""

from __future__ import annotations

import gzip
import time

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.detect import detect_kind
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.find import find_logs

SAMPLES = {
    "nccl": "# nccl-tests version 2.17.8 nccl-headers=22902\n# Using devices\n",
    "dcgm": '{"DCGM Diagnostic": {"test_categories": []}}',
    "training": " iteration        1/     100 | consumed samples:          256 | elapsed time per iteration (ms): 15234.5 |\n",
    "perftest": " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n",
    "fio": '{\n  "fio version" : "fio-3.36",\n',
    "nvbandwidth": "nvbandwidth Version: v0.8\n",
    "gpu_burn": "10.0%  proc'd: 27 (60000 Gflop/s)   errors: 0\nTested 1 GPUs:\n\tGPU 0: OK\n",
}


@pytest.mark.parametrize("kind", sorted(SAMPLES))
@pytest.mark.parametrize("prefix", ["", "2026-03-02T10:00:00.000000000Z ", "[pod/launcher/node] "])
def test_kind_is_told_from_content(tmp_path, kind, prefix):
    if prefix and kind in ("fio", "dcgm"):
        prefix = ""  # documents come without prefixes
    path = tmp_path / "x.log"
    path.write_text("".join(f"{prefix}{line}\n" for line in SAMPLES[kind].splitlines()), encoding="utf-8")
    assert detect_kind([str(path)]) == kind


def test_training_that_prints_nccl_lines_is_training(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("h:1:2 [0] NCCL INFO Using network IB\n" + SAMPLES["training"], encoding="utf-8")
    assert detect_kind([str(path)]) == "training"


@pytest.mark.parametrize(
    "died",
    [
        "using world size: 16, data-parallel size: 16, context-parallel size: 1\n",
        "------------------------ arguments ------------------------\n  accumulate_allreduce_grads_in_fp32 .............. False\n",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n",
        "[rank3]:[E302 10:00:00 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout\n",
        "[NeMo I 2026-03-02 10:00:00 nemo_logging:393] Restoring model weights\n",
        "> building GPT model ...\nAssertionError: micro batch size\n",
    ],
)
@pytest.mark.parametrize("debug", ["", "h:1:2 [0] NCCL INFO Using network IB\n"])
def test_training_that_died_before_its_first_step_is_training(tmp_path, died, debug):
    """Read as an NCCL log its cause of death is lost."""
    path = tmp_path / "x.log"
    path.write_text(debug * 200 + died, encoding="utf-8")
    assert detect_kind([str(path)]) == "training"


def test_telling_the_kind_costs_little(tmp_path):
    """Ten times what reading the log takes, it was."""
    path = tmp_path / "x.log"
    path.write_text(
        "gpu-a1:4100:4188 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n" * 60_000 + SAMPLES["nccl"], encoding="utf-8"
    )
    text = path.read_bytes().decode()
    begun = time.process_time()
    lines = sum(1 for line in text.splitlines() if "#" in line.split("NCCL", 1)[0])
    plain = time.process_time() - begun
    begun = time.process_time()
    assert detect_kind([str(path)]) == "nccl"
    assert (time.process_time() - begun, lines) < (max(5 * plain, 0.2), 60_002)


def test_compressed_logs_are_read(tmp_path):
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(SAMPLES["nccl"].encode()))
    assert detect_kind([str(path)]) == "nccl"


def test_a_directory_gives_its_logs_and_says_what_it_skipped(tmp_path):
    for name, text in {"b.log": "nccl", "sub/a.json": "dcgm"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SAMPLES[text], encoding="utf-8")
    for name in ("notes.txt", "x.yaml", ".hidden.log"):
        (tmp_path / name).write_text("hello", encoding="utf-8")
    found = find_logs(str(tmp_path))
    assert [(log["name"], log["kind"]) for log in found["logs"]] == [("b.log", "nccl"), ("sub/a.json", "dcgm")]
    assert found["notes"] == ["skipped notes.txt: cannot tell what kind of log this is"]


def test_parts_of_one_log_stay_together_in_order(tmp_path):
    paths = [tmp_path / name for name in ("run1.log", "run0.log")]
    for path in paths:
        path.write_text(SAMPLES["training"], encoding="utf-8")
    found = find_logs([str(path) for path in paths], together=True)
    assert [log["paths"] for log in found["logs"]] == [[str(path) for path in paths]]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "does not exist"), ("", "is empty"), ("root:x:0:0", "cannot tell what kind"), (b"\x1f\x8b broken", "cannot be read")],
)
def test_what_is_no_log_is_refused(tmp_path, content, said):
    path = tmp_path / ("x.log.gz" if isinstance(content, bytes) else "x.log")
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said) as raised:
        find_logs(str(path))
    assert raised.value.place == str(path)


@pytest.mark.parametrize(("logs", "kind"), [([], "auto"), (5, "auto"), ("", "auto"), ("x", "nkkl")])
def test_wrong_arguments_are_refused(logs, kind):
    with pytest.raises(InputError):
        find_logs(logs, kind)


def test_an_empty_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no log"):
        find_logs(str(tmp_path))
