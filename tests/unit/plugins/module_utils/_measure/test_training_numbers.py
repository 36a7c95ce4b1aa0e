# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of training logs: one that holds the start-up condemns a fast cluster, one that is no number passes a slow one."""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import lines as reading
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import goodput
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import results as training
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training.lines import read_line
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training.runs import read_runs

sys.path.insert(0, str(Path(__file__).parent))

import training_text as text

INFO = "vm:1686:1712 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"


def read(log: str, **context: t.Any) -> dict[str, t.Any]:
    return training.parse_text(log, context)


def lines(times: t.Iterable[tuple[int, float]], total: int = 100) -> str:
    return "".join(text.step(iteration, ms=ms, total=total, tflops=None) for iteration, ms in times)


# --- the start-up ------------------------------------------------------------------------------------------------


def test_the_second_line_of_megatron_does_not_put_the_start_up_into_the_average() -> None:
    """Its timer runs on after the first line: 5 x 353.1 = 1420.9 + 4 x 86."""
    said = read(lines([(1, 1420.9), (5, 353.1), (10, 80.0), (15, 80.0)]))
    assert said["values"]["avg_step_time_s"] == 0.08


def test_the_second_line_after_a_resume_does_not_either() -> None:
    resumed = " loading distributed checkpoint from /c at iteration 60\n" + lines([(61, 1420.9), (65, 353.1), (70, 80.0), (75, 80.0)])
    assert read(resumed)["values"]["avg_step_time_s"] == 0.08
    steps_only = lines([(61, 1420.9), (65, 353.1), (70, 80.0), (75, 80.0)])  # another pod printed the load
    assert read(steps_only)["values"]["avg_step_time_s"] == 0.08


def test_a_line_that_covers_a_step_of_the_warm_up_does_not_count() -> None:
    """The interval is longer than the warm-up: line 5 covers iterations 2 to 5."""
    said = read(lines([(1, 1420.9), (5, 353.1), (10, 80.0), (15, 80.0)]), warmup_steps=2)
    assert said["values"]["avg_step_time_s"] == 0.08
    assert read(lines([(4, 90.0), (8, 90.0), (12, 90.0), (16, 80.0)]), warmup_steps=10)["values"]["avg_step_time_s"] == 0.08


def test_an_older_megatron_that_resets_its_timer_loses_no_line() -> None:
    """15 s for the first iteration do not fit into 10 x 1012 ms."""
    assert read(lines([(1, 15234.5), (10, 1012.0), (20, 1000.0)]))["computed"]["steps_after_warmup"] == 2


def test_two_lines_give_a_number_only_where_the_clock_proves_it() -> None:
    first, second = text.step(1, "10:00:01.000000", 1000.0), text.step(10, "10:00:01.720000", 172.0)
    assert read(first + second)["values"]["avg_step_time_s"] == 0.08
    unproven = read(lines([(1, 1000.0), (10, 172.0)], total=10), exit_code=0)
    assert (unproven["values"]["avg_step_time_s"], unproven["verdict"]) == (None, "NoMeasurement")


def test_iterations_of_the_first_line_are_counted_once() -> None:
    log = text.step(1, ms=1400.0, skipped=1, nan=1) + text.step(5, ms=353.0, skipped=3, nan=1) + text.step(10, ms=80.0)
    said = read(log)
    assert (said["values"]["skipped_iterations"], said["values"]["nan_iterations"]) == (3, 1)


@settings(max_examples=100, deadline=None)
@given(st.floats(200, 90_000), st.floats(20, 2000), st.integers(2, 50), st.booleans(), st.integers(0, 3))
def test_the_average_is_the_step_time_whatever_the_start_up_costs(
    start: float, step_ms: float, interval: int, resets: bool, resumed: int
) -> None:
    base = resumed * interval * 10
    head = f" loading distributed checkpoint from /c at iteration {base}\n" if base else ""
    first = max(start, step_ms)
    second = step_ms if resets else (first + (interval - 1) * step_ms) / interval
    rows = [(base + 1, first), (base + interval, second), *((base + interval * number, step_ms) for number in (2, 3, 4))]
    said = read(head + lines([(iteration, round(ms, 1)) for iteration, ms in rows], total=100_000))
    # Where nobody tells whether the timer was reset, the second line is left out: the average stays.
    assert said["values"]["avg_step_time_s"] == pytest.approx(step_ms / 1000, rel=0.03, abs=1e-4)


# --- rates -------------------------------------------------------------------------------------------------------


def test_throughput_is_work_over_time() -> None:
    log = text.step(10, ms=80.0, tflops=100.0) + text.step(20, ms=800.0, tflops=10.0) + text.step(30, ms=800.0, tflops=10.0)
    assert read(log, log_interval=10, warmup_steps=0)["values"]["tflops_per_gpu"] == pytest.approx(14.2857, abs=1e-3)


def test_tokens_per_second_need_batch_and_sequence_length() -> None:
    rows = "".join(text.step(number, ms=500.0) for number in (10, 20, 30))
    assert read(rows)["values"]["tokens_per_second"] is None
    dump = "  decoder_seq_length .............................. None\n  seq_length ...................................... 4096\n"
    said = read(text.START + dump + rows)["values"]
    assert (said["samples_per_second"], said["tokens_per_second"]) == (512.0, 512.0 * 4096)
    assert (said["ranks"], said["tokens_per_second_per_gpu"]) == (16, 512.0 * 4096 / 16)
    assert read("model:\n  seq_length: 4096\n" + rows)["values"]["tokens_per_second"] == 512.0 * 4096


# --- numbers that are none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-348.0, 0.0, 1e300, float("nan"), float("inf")])
def test_a_time_or_rate_that_cannot_be_is_none(wrong: float) -> None:
    said = read("".join(text.step(number, ms=wrong, tflops=wrong, total=30) for number in (10, 20, 30)), exit_code=0)
    assert (said["values"]["avg_step_time_s"], said["values"]["tflops_per_gpu"]) == (None, None)
    assert said["verdict"] == "NoMeasurement"


def test_a_digit_glued_to_a_rate_or_lost_from_a_time_counts_for_nothing() -> None:
    rows = [text.step(number, f"10:00:{number // 2:02d}.000000", 500.0, tflops=100.0) for number in range(10, 110, 10)]
    rows[5] = rows[5].replace("GPU): 100.0", "GPU): 9100.0")
    rows[7] = rows[7].replace("(ms): 500.0", "(ms): 50.0")
    rows[8] = rows[8].replace("(ms): 500.0", "(ms): 95000.0")
    said = read("".join(rows))
    assert (said["values"]["tflops_per_gpu"], said["values"]["avg_step_time_s"]) == (100.0, 0.5)
    assert any("contradict" in note and "60, 80, 90" in note for note in said["notes"])


def test_a_slow_step_is_no_fault_of_the_log() -> None:
    """It is what a straggler looks like: clock and rate agree with it."""
    rows = [text.step(number, f"10:00:{number // 2:02d}.000000", 500.0, tflops=100.0) for number in range(10, 60, 10)]
    rows += [text.step(60, "10:01:25.000000", 6000.0, tflops=8.3), text.step(70, "10:01:30.000000", 500.0, tflops=100.0)]
    assert read("".join(rows))["values"]["step_time_max_s"] == 6.0


def test_an_iteration_beyond_the_last_is_a_torn_line() -> None:
    said = read(text.step(10) + text.step(9920) + text.step(30))
    assert (said["values"]["iterations"], said["values"]["restarts"], said["parsed"]["lost_steps"]) == (30, 0, [9920])


def test_times_that_run_backwards_give_no_goodput() -> None:
    log = read_runs([reading.lines_of(text.START + text.step(10, "10:00:10") + text.step(20, "10:00:20"))])
    said = goodput.parse(log, {"measurement_started_at": "2026-03-02T10:00:00Z", "job_succeeded_at": "2026-03-02T09:00:00Z"})
    assert (said["goodput"], said["values"]["wall_time_s"]) == (None, None)


# --- work that was not done --------------------------------------------------------------------------------------


def test_gpus_that_took_no_part_are_no_pass() -> None:
    log = text.START + "".join(text.step(number) for number in range(10, 110, 10)) + text.END
    assert read(log, exit_code=0, gpus=16)["verdict"] is None
    said = read(log, exit_code=0, gpus=32)
    assert (said["verdict"], said["complete"]) == ("LogIncomplete", False)
    assert "16 of 32 GPUs" in said["reason"]


def test_iterations_that_were_all_skipped_are_no_training() -> None:
    log = "".join(text.step(number, loss=None, skipped=10) for number in range(10, 110, 10))
    assert read(log, exit_code=0, log_interval=10)["verdict"] == "NoMeasurement"
    some = "".join(text.step(number, skipped=1) for number in range(10, 110, 10))
    assert read(some, exit_code=0, log_interval=10)["verdict"] is None


def test_samples_that_are_not_consumed_are_no_training() -> None:
    log = "".join(text.step(number, batch=0) for number in range(10, 110, 10))
    assert read(log, exit_code=0, log_interval=10)["verdict"] == "NoMeasurement"


# --- goodput without stamps of the container ---------------------------------------------------------------------

SETUP = "[before library-setup] datetime: 2026-03-02 10:00:00.000000\n[before megatron-init] datetime: 2026-03-02 10:00:40.000000\n"
TRAINING = "[before the start of training step] datetime: 2026-03-02 10:01:00.000000 \n"


def goodput_of(*parts: str) -> dict[str, t.Any]:
    return goodput.parse(read_runs([reading.lines_of(part) for part in parts]), {"log_interval": 10, "warmup_steps": 0})


def test_the_set_up_that_the_program_stamps_counts_as_start_up() -> None:
    """A slow start is part of goodput, also where no container stamp shows it."""
    steps = text.step(10, "10:01:10", total=20) + text.step(20, "10:01:20", total=20)
    with_setup, without = goodput_of(text.START + SETUP + TRAINING + steps), goodput_of(text.START + TRAINING + steps)
    assert (with_setup["terms"]["t_w"], without["terms"]["t_w"]) == (80, 20)
    assert with_setup["goodput"] < without["goodput"]
    assert "own time" in with_setup["counted_from"]
    assert "set-up and loading are not seen" in without["counted_from"]
    assert any("set-up" in note for note in read(text.START + TRAINING + steps, log_interval=10)["notes"])


def test_loading_after_a_restart_is_start_up_not_rescheduling() -> None:
    first = text.START + SETUP + TRAINING + text.step(10, "10:01:10", total=20)
    second = text.START + SETUP.replace("10:0", "10:1") + TRAINING.replace("10:01", "10:11") + text.step(20, "10:11:10", total=20)
    said = goodput_of(first, second)
    assert said["terms"]["t_re"] == 10 * 60 - 70
    assert said["terms"]["t_rm"][1] == 70


# --- lines with other output behind them, and words of checkpoints ----------------------------------------------


def test_debug_output_behind_a_line_takes_nothing_away() -> None:
    log = text.START + "".join(text.step(number, total=30).rstrip("\n") + INFO + "\n\n" for number in (10, 20, 30))
    log += "[2026-03-02 10:01:00] saving checkpoint at iteration      30 to /c in torch_dist format" + INFO + "\n"
    log += "  [2026-03-02 10:01:05] successfully saved checkpoint from iteration      30 to /c [ t 1/1, p 1/1 ]" + INFO + "\n"
    said = read(log + text.END.rstrip() + INFO + "\n", exit_code=0, log_interval=10)
    assert (said["verdict"], said["values"]["iterations"], said["values"]["checkpoints"]) == (None, 30, 1)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_debug_output_at_any_place_changes_no_number(data: st.DataObject) -> None:
    line = text.step(20, ms=1234.5).rstrip("\n")
    cut = data.draw(st.integers(0, len(line)))
    said = read_line(line[:cut] + INFO)
    assert said is None or getattr(said, "step_ms", None) in (None, 1234.5)


@pytest.mark.parametrize(
    "line",
    [
        "  [2026-03-02 10:01:05] successfully saved local checkpoint from iteration      20",
        "  successfully saved local checkpoint from iteration      20" + INFO,
        "2026-03-02 10:01:05\tJob ID: \t# GPUs: 2\tSaved async checkpoint\tIteration: 20",
        "2026-03-02 10:01:05\tJob ID: 77\t# GPUs: 2\tSaved checkpoint\tIteration: 20\tJob throughput: 3.2 TFLOP/s/GPU",
        "Successfully saved checkpoint from iteration      20 to /c",
    ],
)
def test_words_of_a_durable_checkpoint(line: str) -> None:
    said = read(text.step(10) + text.step(20) + line + "\n" + text.step(30))
    assert (said["values"]["checkpoints"], said["parsed"]["restart_point"]) == (1, 20)


def test_a_number_glued_to_a_host_of_digits_is_not_believed() -> None:
    assert read_line("successfully saved local checkpoint from iteration      2010-0-0-1:1686:1712 [0] NCCL INFO x") is None


# --- bars and epochs ---------------------------------------------------------------------------------------------


def test_bars_of_nemo_1_without_a_rate() -> None:
    bars = [
        f"Epoch 0: : {n * 2}%|███| {n}/50 [0{n // 10}:00<01:00, v_num=0, reduced_train_loss={9 - n / 10}, train_step_timing in s=2.0]"
        for n in (10, 20, 50)
    ]
    said = read("\r".join(bars) + "`Trainer.fit` stopped: `max_steps=50` reached.\n", exit_code=0)
    assert (said["verdict"], said["values"]["iterations"], said["values"]["avg_step_time_s"]) == (None, 50, 2.0)


def test_a_new_epoch_of_nemo_2_is_no_restart() -> None:
    rows = [
        f"Training epoch {n // 4}, iteration {n % 4}/3 | lr: 1e-05 | global_batch_size: 512 | global_step: {n} | "
        f"reduced_train_loss: {9 - n} | train_step_timing in s: 2.0 | consumed_samples: {512 * (n + 1)}\n"
        for n in range(8)
    ]
    saved = "Scheduled async checkpoint save for /c/m--step=5-last.ckpt\nAsync checkpoint save for step 6 finalized successfully.\n"
    said = read("".join(rows) + saved + "`Trainer.fit` stopped: `max_steps=8` reached.\n", exit_code=0)
    assert (said["values"]["iterations"], said["values"]["restarts"], said["values"]["checkpoints"]) == (8, 0, 1)
    without_steps = [row.replace(f"global_step: {n} | ", "") for n, row in enumerate(rows)]
    assert read("".join(without_steps))["values"]["iterations"] == 8
