# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Why a training failed: a cause that is not read sends people to the wrong machine, one that is misread accuses a healthy one."""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import results as training

sys.path.insert(0, str(Path(__file__).parent))

import training_text as text

BEGUN = text.START + text.step(1) + text.step(10) + text.step(20)


def read(log: str, **context: t.Any) -> dict[str, t.Any]:
    return training.parse_text(log, context)


def place(said: dict[str, t.Any]) -> tuple[str, str | None, str | None]:
    assert len(said["findings"]) == 1
    found = said["findings"][0]
    return found["reason"], found["host"], found["entity"]


def test_the_host_that_torchrun_names_is_in_the_findings() -> None:
    said = read(BEGUN + text.summary(5, "gpu-3", -9), exit_code=1)
    assert (said["verdict"], place(said)) == ("WorkloadFailed", ("WorkloadFailed", "gpu-3", "rank 5"))
    assert "SIGKILL" in said["reason"]
    assert "rank 5 on gpu-3" in said["reason"]


def test_a_hang_that_ends_by_abort_is_a_hang() -> None:
    """Every rank that waits aborts in the end: the exit status is that of a crash."""
    log = BEGUN + text.watchdog(3) + text.watchdog(5) + text.summary(5, "gpu-3", -6, others=text.other_failure(3, "gpu-2", -6))
    for exit_code in (1, 134, 137):
        said = read(log, exit_code=exit_code)
        assert (said["verdict"], said["findings"][0]["reason"]) == ("TimedOut", "TimedOut")
    assert place(said) == ("TimedOut", "gpu-2", "rank 3")
    assert "ALLREDUCE" in said["reason"]
    assert any("Watchdog" in line for line in said["findings"][0]["evidence"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB", "SetupError"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "HardwareFailureDetected"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "WorkloadFailed"),
        ("RuntimeError: CUDA error: invalid device ordinal", "SetupError"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "SetupError"),
        ("RuntimeError: No CUDA GPUs are available", "SetupError"),
        ("ModuleNotFoundError: No module named 'megatron'", "SetupError"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.idx'", "SetupError"),
        ("AssertionError: micro batch size must be given", "WorkloadFailed"),
        ("AssertionError: world size (16) is not divisible by 3", "SetupError"),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", "OOMKilled"),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's workers are out of"
         " shared memory. Please try to raise your shared memory limit.", "SetupError"),
        ("RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly", "WorkloadFailed"),
        ("torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled system error", "WorkloadFailed"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "LauncherFailed"),
        ("RuntimeError: Rank 5, node gpu-3, device 5, iteration 21: Unexpected result nan (message='found NaN in local forward loss')",
         "DataCorruption"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("begun", ["", BEGUN])
def test_the_words_of_an_exception_give_the_reason(line: str, reason: str, begun: str) -> None:
    """Also when it ends before the first step: then nothing else is in the log."""
    said = read(begun + text.traceback(line, "[rank5]: ") + text.summary(5, "gpu-3", 1), exit_code=1)
    assert said["verdict"] == reason
    assert place(said) == (reason, "gpu-3", "rank 5")
    assert line.strip()[:60] in said["reason"]


def test_the_rank_that_crashed_is_named_not_those_that_lost_their_peer() -> None:
    log = BEGUN + text.traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    log += text.traceback("torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error")
    log += text.summary(9, "gpu-2", -15) + text.summary(5, "gpu-3", 1) + text.summary(1, "gpu-1", -15)
    assert place(read(log, exit_code=1)) == ("HardwareFailureDetected", "gpu-3", "rank 5")


def test_nobody_is_named_who_was_only_told_to_end() -> None:
    """A node whose workers got SIGTERM is healthy."""
    said = read(BEGUN + text.summary(9, "gpu-2", -15), exit_code=143)
    assert (said["verdict"], said["findings"]) == ("LogIncomplete", [])


def test_a_pipe_that_hides_the_exit_status_hides_no_failure() -> None:
    said = read(BEGUN + text.traceback("ValueError: no") + text.summary(5, "gpu-3", 1), exit_code=0)
    assert place(said) == ("WorkloadFailed", "gpu-3", "rank 5")
    assert said["complete"] is False


def test_a_failure_that_was_survived_is_a_note() -> None:
    first = BEGUN + text.traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered") + text.summary(5, "gpu-3", 1)
    said = read(first + text.START + "".join(text.step(number) for number in range(10, 110, 10)) + text.END, exit_code=0)
    assert (said["verdict"], said["findings"]) == (None, [])


def test_warnings_and_handled_errors_in_a_good_log_change_nothing() -> None:
    noise = "UserWarning: barrier(): using the device\n" + text.traceback("ImportError: cannot import name 'x'") + "Error: none\n"
    good = text.START + noise + "".join(text.step(number) for number in range(10, 110, 10)) + text.END
    said = read(good, exit_code=0)
    assert (said["verdict"], said["findings"]) == (None, [])


def test_usage_errors_before_the_start_are_set_up() -> None:
    said = read(
        "usage: pretrain_gpt.py [-h]\npretrain_gpt.py: error: unrecognized arguments: --foo\n" + text.summary(0, "gpu-1", 2), exit_code=1
    )
    assert said["verdict"] == "SetupError"


def test_the_cause_is_read_through_a_file_too(tmp_path: Path) -> None:
    """Files are filtered before they are read."""
    path = tmp_path / "log"
    path.write_text(BEGUN + "noise\n" * 100 + text.watchdog(3) + text.summary(3, "gpu-2", -6))
    said = measure("training", [str(path)], {"exit_code": 1})
    assert place(said) == ("TimedOut", "gpu-2", "rank 3")


@pytest.mark.parametrize(
    ("line", "reason", "rank"),
    [
        ("[rank3]:[E1129 17:02:10.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread "
         "terminated with exception: CUDA error: an illegal memory access was encountered", "WorkloadFailed", "rank 3"),
        ("  what():  [PG 0 Rank 3] Process group watchdog thread ended with exception: CUDA error: uncorrectable ECC error encountered",
         "HardwareFailureDetected", "rank 3"),
        ("[rank3]:[F1129 ProcessGroupNCCL.cpp:1367] [PG 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without progress",
         "TimedOut", "rank 3"),
        ("Fatal Python error: Segmentation fault", "WorkloadFailed", None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.", "OOMKilled", None),
        ("gpu-1:10:20 [0] alloc.h:30 NCCL WARN Cuda failure 'out of memory'", "SetupError", None),
        ("E1129 17:01:30.3 1261 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -11) local_rank: 2 (pid: 1301)",
         "WorkloadFailed", None),
    ],
)  # fmt: skip
def test_words_outside_of_a_traceback(line: str, reason: str, rank: str | None) -> None:
    """A log that is cut before torchrun's summary still tells why."""
    for begun in ("", BEGUN):
        assert place(read(begun + line + "\n", exit_code=137)) == (reason, None, rank)
        assert place(read(begun + line + "\n")) == (reason, None, rank)


def test_a_log_without_a_word_of_why_keeps_the_meaning_of_its_exit_status() -> None:
    assert read(BEGUN, exit_code=1)["verdict"] == "WorkloadFailed"
    assert read(BEGUN, exit_code=137)["verdict"] == "LogIncomplete"
    assert read(BEGUN, exit_code=127)["verdict"] == "SetupError"


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from((text.summary(5, "gpu-3", -9) + text.watchdog(3) + text.traceback("ValueError: x")).splitlines()), max_size=30)
)
def test_any_order_of_lines_is_read(lines: list[str]) -> None:
    said = read("\n".join(lines), exit_code=1)
    assert said["verdict"] is not None
    assert said["complete"] is False


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 400), st.text(max_size=30))
def test_a_summary_that_breaks_off_names_no_one_else(cut: int, noise: str) -> None:
    whole = text.summary(5, "gpu-3", -9)
    said = read(BEGUN + whole[:-cut] + noise if cut else BEGUN + whole, exit_code=1)
    assert {item["host"] for item in said["findings"]} <= {"gpu-3", None}
