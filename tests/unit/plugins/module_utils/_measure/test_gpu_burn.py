# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""gpu-burn: whose cell is whose, who did no work, and what is the set-up's fault."""

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import gpu_burn


def progress(done: t.Sequence[int], errors: t.Sequence[int], percent: float = 100.0, speeds: t.Sequence[str] | None = None) -> str:
    """A progress line as the program's source writes it: no blank behind a note."""
    speeds = speeds or [str(40000 + index) if batches else "0" for index, batches in enumerate(done)]
    work = "- ".join(f"{batches} ({speed} Gflop/s) " for batches, speed in zip(done, speeds, strict=True))
    notes = [" (DIED!)" if done[index] == -1 else " (WARNING!)" if count else "" for index, count in enumerate(errors)]
    counts = "- ".join(f"{count} {note}" for count, note in zip(errors, notes, strict=True))
    temperatures = "- ".join("60 C " for _batches in done)
    return f"\r{percent:.1f}%  proc'd: {work}  errors: {counts}  temps: {temperatures}\n"


def summary(results: t.Sequence[str]) -> str:
    lines = "".join(f"\tGPU {index}: {result}\n" for index, result in enumerate(results))
    return f"Killing processes with SIGTERM (soft kill)\ndone\n\nTested {len(results)} GPUs:\n{lines}"


def listed(count: int) -> str:
    return "".join(f"GPU {index}: NVIDIA H200 (UUID: GPU-{index})\n" for index in range(count)) + "Burning for 600 seconds.\n"


def burn(lines: str, results: t.Sequence[str], **context: t.Any) -> t.Any:
    return gpu_burn.parse(listed(len(results)) + lines + summary(results), {"exit_code": 0, "nodes": ["n1"], **context})


def accused(said: t.Any) -> list[str]:
    return [found["entity"] for found in said["findings"] if found["reason"] == "HardwareFailureDetected"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 1, 7, 1536, -5]), min_size=1, max_size=16))
def test_a_wrong_result_is_held_against_the_gpu_that_computed_it(errors: list[int]) -> None:
    """Behind a note no blank precedes the dash: read by pattern, the cells after it shift and a healthy neighbour is convicted."""
    said = burn(progress([7000] * len(errors), errors), ["FAULTY" if count else "OK" for count in errors])
    assert accused(said) == [f"GPU{index}" for index, count in enumerate(errors) if count]
    assert said["verdict"] == ("DataCorruption" if any(errors) else None)


@pytest.mark.parametrize("speed", ["-nan", "inf", "nan", "-3", "99999999999999"])
def test_a_speed_that_is_no_number_shifts_no_neighbour(speed: str) -> None:
    said = burn(progress([500, 500, 500], [0, 0, 9], speeds=["41000", speed, "43000"]), ["OK", "OK", "FAULTY"])
    assert accused(said) == ["GPU2"]
    assert [gpu["gflops"] for gpu in said["parsed"]["gpus"]] == [41000.0, None, 43000.0]


def test_a_line_into_which_another_process_wrote_proves_nothing() -> None:
    """Nobody knows whose cell is whose: counted by position, the fault of one would be its neighbour's."""
    torn = progress([500, 500, 500], [0, 7, 0]).replace("0 - 7", "0 gpu-3 7")
    said = burn(torn + progress([600, 600, 600], [0, 0, 0]), ["OK", "OK", "OK"])
    assert accused(said) == []


def test_gpus_that_did_no_work_do_not_pass() -> None:
    said = burn(progress([0, 478, 0], [0, 0, 0]), ["OK", "OK", "OK"])
    assert (said["verdict"], said["complete"], accused(said)) == ("LogIncomplete", False, [])
    assert "GPU0, GPU2" in said["reason"]


def test_a_gpu_that_hangs_while_the_others_work_does_not_pass() -> None:
    """Its last speed is still printed in every line, and the summary calls it OK."""
    lines = progress([100, 100], [0, 0], 1.0) + "".join(progress([100 + 100 * step, 100], [0, 0], step) for step in range(1, 40))
    said = burn(lines, ["OK", "OK"])
    assert said["verdict"] == "LogIncomplete"
    assert "GPU1 stopped working" in said["reason"]


def test_gpus_are_counted_against_what_was_expected() -> None:
    lines = progress([100] * 7, [0] * 7)
    assert burn(lines, ["OK"] * 7, expected_gpus=8)["verdict"] == "LogIncomplete"
    assert burn(lines, ["OK"] * 7, expected_gpus=7)["verdict"] is None
    assert burn(lines, ["OK"] * 6)["verdict"] == "LogIncomplete"


@pytest.mark.parametrize(
    "error",
    [
        'Error in "load module": CUDA_ERROR_NO_BINARY_FOR_GPU',
        "Error (gpu_burn-drv.cpp:112): invalid device ordinal",
        "Error (gpu_burn-drv.cpp:98): all CUDA-capable devices are busy or unavailable",
        "Error (gpu_burn-drv.cpp:98): system not yet initialized",
        "Error (gpu_burn-drv.cpp:98): out of memory",
    ],
)
def test_a_set_up_error_convicts_no_gpu(error: str) -> None:
    """The count behind DIED is what was in memory; the summary calls the GPU faulty for it."""
    died = progress([-1, 500], [1641686072, 0])
    for text in (f"Couldn't init a GPU test: {error}\n", f"Failure during compute: {error}\n"):
        said = gpu_burn.parse(listed(2) + text + died + summary(["FAULTY", "OK"]), {"exit_code": 0, "nodes": ["n1"]})
        assert (said["verdict"], accused(said)) == ("SetupError", [])
        assert said["values"]["errors"] == 0


def test_a_gpu_that_breaks_during_the_test_is_named() -> None:
    lines = progress([500, 500], [0, 0], 40.0) + "Failure during compute: Error (x:1): uncorrectable ECC error encountered\n"
    said = burn(lines + progress([900, -1], [0, -12]), ["OK", "FAULTY"])
    assert (said["verdict"], accused(said)) == ("WorkloadFailed", ["GPU1"])
    said = gpu_burn.parse(listed(2) + "Couldn't init a GPU test: Error: GPU is lost\n" + progress([900, -1], [0, 3]), {"exit_code": 123})
    assert accused(said) == ["GPU1"]


def test_a_single_process_is_named_by_the_gpu_it_was_given() -> None:
    """gpu_burn -i 3 calls its only process GPU 0."""
    said = burn(progress([500], [3]) + "Initialized device 3 with 143155 MB of memory\n", ["FAULTY"])
    assert accused(said) == ["GPU3"]


def test_every_run_of_a_log_must_have_passed() -> None:
    good = listed(2) + progress([500, 500], [0, 0]) + summary(["OK", "OK"])
    bad = listed(2) + progress([500, 500], [0, 4]) + summary(["OK", "FAULTY"])
    cut = listed(2) + progress([500, 500], [0, 0])
    assert gpu_burn.parse(good + good, {"exit_code": 0})["verdict"] is None
    assert accused(gpu_burn.parse(bad + good, {"exit_code": 0})) == ["GPU1"]
    assert gpu_burn.parse(cut + good, {"exit_code": 0})["verdict"] == "LogIncomplete"
    slow = listed(2) + progress([500, 500], [0, 0], speeds=["40000", "3000"]) + summary(["OK", "OK"])
    assert gpu_burn.parse(slow + good, {"exit_code": 0})["values"]["gflops_min"] == 3000.0


def test_errors_that_a_summary_set_back_to_zero_are_not_forgotten() -> None:
    lines = progress([500, 500], [0, 9], 20.0) + "\tSummary at:   Sun Nov 29\n" + progress([900, 900], [0, 0])
    said = burn(lines, ["OK", "FAULTY"])
    assert (accused(said), said["values"]["errors"]) == (["GPU1"], 9)
