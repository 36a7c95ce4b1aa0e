# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Training logs: a step time or a goodput read wrong accepts a slow cluster or condemns a fast one."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import lines as reading
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import goodput
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import results as training
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import runs as training_runs

START = "using world size: 16, data-parallel size: 2, context-parallel size: 1\n"


def step(
    iteration: int,
    clock: str = "10:00:00",
    ms: float = 1000.0,
    *,
    total: int = 100,
    loss: str | None = "1.0E+01",
    tflops: float | None = 310.0,
    timed: bool = True,
    nan: int = 0,
    more: str = "",
) -> str:
    """A Megatron step line."""
    parts = [f"consumed samples: {iteration * 256:12d}", f"elapsed time per iteration (ms): {ms}"]
    parts += [f"throughput per GPU (TFLOP/s/GPU): {tflops}"] if tflops is not None else []
    parts += ["learning rate: 1.500000E-04", "global batch size:   256"]
    parts += [f"lm loss: {loss}"] if loss is not None else []
    parts += ["loss scale: 1.0", "grad norm: 0.812", *([more] if more else [])]
    parts += ["number of skipped iterations:   0", f"number of nan iterations: {nan:3d}"]
    stamp = f" [2026-03-02 {clock}]" if timed else ""
    return f"{stamp} iteration {iteration:8d}/{total:8d} | {' | '.join(parts)} |\n"


def stamped(*rows: tuple[str, str]) -> str:
    return "".join(f"2026-03-02T{clock}.000000000Z {text.rstrip(chr(10))}\n" for clock, text in rows)


def read(text: str, **context: t.Any) -> dict[str, t.Any]:
    return training.parse_text(text, context)


def goodput_of(*texts: str, **context: t.Any) -> dict[str, t.Any]:
    return goodput.parse(
        training_runs.read_runs([reading.lines_of(text) for text in texts]), {"log_interval": 10, "warmup_steps": 0, **context}
    )


# --- step lines --------------------------------------------------------------------------------------------------


def test_optional_fields_and_a_missing_loss() -> None:
    """Steps without a loss or a throughput still have a time; iterations with NaN are told."""
    text = START + step(1, loss="1.1E+01", tflops=None, more="num zeros: 3 | params norm: 12.5")
    text += step(10, loss=None, tflops=None, nan=9) + step(20, ms=1002.0, tflops=None)
    said = read(text, log_interval=10, warmup_steps=0)
    rows = said["parsed"]["steps"]
    assert [row["loss"] for row in rows] == [11.0, None, 10.0]
    assert [row["tflops"] for row in rows] == [None, None, None]
    assert (rows[0]["num_zeros"], rows[0]["params_norm"]) == (3, 12.5)
    assert said["values"]["nan_iterations"] == 9
    assert said["values"]["diverged"] is False
    assert any("9 iterations" in note for note in said["notes"])


def test_multi_token_losses_and_skipped_samples_are_kept() -> None:
    row = read(step(10, more="skipped samples: 4 | mtp_1 loss: 9.5E+00"))["parsed"]["steps"][0]
    assert (row["skipped_samples"], row["mtp_1_loss"]) == (4, 9.5)


def test_old_lines_without_a_time_are_accepted() -> None:
    said = read(START + step(10, timed=False) + step(20, timed=False), log_interval=10, warmup_steps=0)
    assert said["values"]["avg_step_time_s"] == 1.0
    assert said["parsed"]["steps"][0]["t"] is None


def test_averages_are_weighted_by_the_steps_a_line_covers() -> None:
    """The last line of a run may cover a few steps only."""
    text = step(10, ms=1000.0, total=22) + step(20, ms=1000.0, total=22) + step(22, ms=2000.0, total=22)
    assert read(text, log_interval=10, warmup_steps=0)["computed"]["avg_step_s"] == pytest.approx((20 * 1.0 + 2 * 2.0) / 22, abs=1e-6)


def test_a_lost_line_does_not_give_the_next_one_more_weight() -> None:
    text = step(10, ms=1000.0) + step(20).partition("| elapsed")[0] + "\n" + step(30, ms=2000.0)
    said = read(text, log_interval=10, warmup_steps=0)
    assert said["parsed"]["lost_steps"] == [20]
    assert said["values"]["avg_step_time_s"] == 1.5


def test_start_up_line_never_counts_with_an_interval() -> None:
    said = read(step(1, ms=30000.0) + step(10) + step(20), log_interval=10, warmup_steps=0)
    assert said["values"]["avg_step_time_s"] == 1.0


def test_warm_up_is_counted_after_every_restart() -> None:
    first = START + step(10, ms=9000.0) + step(20) + "saving checkpoint at iteration      20 to /c in torch_dist format\n"
    first += "  successfully saved checkpoint from iteration      20 to /c [ t 1/8, p 1/1 ]\n"
    second = START + " loading distributed checkpoint from /c at iteration 20\n"
    second += "  successfully loaded checkpoint from /c [ t 1/8, p 1/1 ] at iteration 20\n" + step(30, ms=9000.0) + step(40)
    said = read(first + second, log_interval=10, warmup_steps=10)
    assert said["values"]["avg_step_time_s"] == 1.0
    assert said["values"]["restarts"] == 1
    assert said["parsed"]["restored_from"] == 20


def test_text_glued_behind_the_last_field_changes_nothing() -> None:
    glued = step(10).rstrip("\n") + "Number of parameters in billions: 0.05\n"
    assert read(glued + step(20), log_interval=10)["parsed"]["steps"][0].get("torn") is None


def test_iterations_printed_twice_count_once() -> None:
    text = step(10, "10:00:10") + step(20, "10:00:20") + step(10, "10:00:10") + step(20, "10:00:20") + step(30, "10:00:30")
    said = read(text, log_interval=10, warmup_steps=0)
    assert [row["iteration"] for row in said["parsed"]["steps"]] == [10, 20, 30]
    assert said["values"]["restarts"] == 0


# --- ends --------------------------------------------------------------------------------------------------------


def test_a_log_that_shows_its_start_must_show_its_end() -> None:
    text = START + step(10, total=20) + step(20, total=20)
    assert read(text, log_interval=10, exit_code=0)["verdict"] == "LogIncomplete"
    assert read(text + "[after training is done] datetime: 2026-03-02 10:01:00 \n", log_interval=10, exit_code=0)["verdict"] is None


def test_exit_codes() -> None:
    text = step(10, total=10)
    assert read(text, exit_code=1)["verdict"] == "WorkloadFailed"
    assert read(text, exit_code=124)["verdict"] == "TimedOut"
    assert read(text, exit_code=137)["verdict"] == "LogIncomplete"
    assert read("nothing\n", exit_code=0)["verdict"] == "NoMeasurement"
    assert read(text, exit_code=0)["verdict"] is None


@pytest.mark.parametrize("last", [{"loss": "nan"}, {"loss": None}])
def test_a_diverged_run_is_not_measured_however_fast(last: dict[str, t.Any]) -> None:
    said = read(step(10, total=20) + step(20, total=20, **last), exit_code=0, log_interval=10)
    assert said["verdict"] == "DataCorruption"
    assert said["findings"][0]["reason"] == "DataCorruption"
    assert said["values"]["diverged"] is True


# --- checkpoints -------------------------------------------------------------------------------------------------


def test_interleaved_saves_are_paired_by_iteration() -> None:
    """The save of 200 had not finished when the job died: the next run starts at 100."""
    text = step(100, "10:00:10", total=300) + "[2026-03-02 10:00:10.1] saving checkpoint at iteration     100 to /c in torch_dist format\n"
    text += "  [2026-03-02 10:00:10.6] scheduled an async checkpoint save at iteration     100 to /c\n" + step(200, "10:01:50", total=300)
    text += "[2026-03-02 10:01:50.1] saving checkpoint at iteration     200 to /c in torch_dist format\n"
    text += "  [2026-03-02 10:01:50.5] scheduled an async checkpoint save at iteration     200 to /c\n"
    text += "  [2026-03-02 10:01:55.0] successfully saved checkpoint from iteration     100 to /c [ t 1/8, p 1/1 ]\n"
    said = read(text, log_interval=100)
    first, second = said["parsed"]["checkpoints"]
    assert (first["iteration"], first["completed"], first["blocking_s"]) == (100, True, 0.5)
    assert first["durable_at"] == "2026-03-02 10:01:55"
    assert (second["iteration"], second["completed"], second["durable_at"]) == (200, False, None)
    assert said["parsed"]["restart_point"] == 100


def test_nemo_steps_and_async_checkpoint() -> None:
    lines = [(9, "10.3", "5.1", "212"), (19, "9.1", "1.128", "1.128e+03"), (29, "nan", "1.1", "1129"), (39, "8.0", "1.13", "1127")]
    text = "".join(
        f"[NeMo I 2026-03-02 10:00:{n:02d} nemo_logging:393] Training epoch 0, iteration {i}/99 | lr: 0.0003 | global_batch_size: 512 | "
        f"global_step: {i} | reduced_train_loss: {loss} | train_step_timing in s: {s} | TFLOPS_per_GPU: {f} | consumed_samples: {i * 512}\n"
        for n, (i, loss, s, f) in enumerate(lines)
    )
    path = "/c/gpt--step=39-consumed_samples=20480-last"
    text += "Global Checkpoint Save : Rank: 0 : Iteration: 39 : Start time: 1772445670.123s : Save duration: 0.309s\n"
    text += f"Scheduled async checkpoint save for {path}\nAsync checkpoint save for step 40 ({path}) finalized successfully.\n"
    text += f"Successfully saved checkpoint from iteration      39 to {path}\n"
    said = read(text, log_interval=10, warmup_steps=10)
    assert [row["tflops"] for row in said["parsed"]["steps"]] == [212.0, 1128.0, 1129.0, 1127.0]
    assert [row["loss"] for row in said["parsed"]["steps"]] == [10.3, 9.1, None, 8.0]
    assert said["values"]["avg_step_time_s"] == pytest.approx((1.128 + 1.1 + 1.13) / 3, abs=1e-6)
    assert len(said["parsed"]["checkpoints"]) == 1
    checkpoint = said["parsed"]["checkpoints"][0]
    assert (checkpoint["iteration"], checkpoint["async"], checkpoint["completed"], checkpoint["blocking_s"]) == (39, True, True, 0.309)
    assert said["values"]["diverged"] is False
    assert any("iteration 30" in note for note in said["notes"])


def test_first_pod_and_last_pod_are_read_together(tmp_path: Path) -> None:
    """Rank 0 prints the lifecycle, the last rank prints the steps: two files of one run."""
    (tmp_path / "first").write_text(
        stamped(("10:00:00", START), ("10:00:30", "saving checkpoint at iteration      10 to /c in torch_dist format"))
        + stamped(("10:00:35", "  successfully saved checkpoint from iteration      10 to /c [ t 1/8, p 1/1 ]"))
        + stamped(("10:01:00", "[after training is done] datetime: 2026-03-02 10:01:00 "))
    )
    (tmp_path / "last").write_text(stamped(("10:00:30", step(10, "10:00:30", total=20)), ("10:00:50", step(20, "10:00:50", total=20))))
    context = {"log_interval": 10, "warmup_steps": 0, "exit_code": 0}
    said = training.measure_files([str(tmp_path / "first"), str(tmp_path / "last")], context)
    assert (said["verdict"], said["parsed"]["runs"]) == (None, 1)
    assert said["parsed"]["checkpoints"][0]["blocking_s"] == 5
    assert said["values"]["goodput"] is not None
    alone = training.measure_files([str(tmp_path / "last")], context)
    assert alone["values"]["avg_step_time_s"] == 1.0


@pytest.mark.parametrize("ahead", ["10:00", "09:59", "10:01", "09:58", "10:02"])
def test_clocks_of_two_nodes_that_differ_do_not_cut_a_training_in_two(tmp_path: Path, ahead: str) -> None:
    """The first pod's node goes minutes ahead or behind: the training still began before its first step and ended after its last."""
    (tmp_path / "first").write_text(
        stamped((f"{ahead}:00", START), (f"{ahead}:05", "[before the start of training step] datetime: 2026-03-02 10:00:05 "))
        + stamped((f"{ahead}:52", "[after training is done] datetime: 2026-03-02 10:00:52 "))
    )
    (tmp_path / "last").write_text(stamped(("10:00:30", step(10, "10:00:30", total=20)), ("10:00:50", step(20, "10:00:50", total=20))))
    context = {"log_interval": 10, "warmup_steps": 0, "exit_code": 0}
    said = training.measure_files([str(tmp_path / "first"), str(tmp_path / "last")], context)
    assert (said["verdict"], said["parsed"]["runs"], said["values"]["avg_step_time_s"]) == (None, 1, 1.0)


# --- progress bars -----------------------------------------------------------------------------------------------


def test_rich_bar_with_wrapped_metrics() -> None:
    text = "Epoch 1/1  ━━━━━━━━━ 40/40 0:00:01 • 0:00:00 22.30it/s loss: 0.250      \n"
    text += " " * 60 + "train_step_timing\n" + " " * 60 + "in s: 0.139      \n`Trainer.fit` stopped: `max_epochs=2` reached.\n"
    said = read(text, exit_code=0)
    assert said["verdict"] is None
    assert said["parsed"]["steps"][0]["rate_it_s"] == 22.3
    assert (said["values"]["loss_last"], said["values"]["avg_step_time_s"]) == (0.25, 0.139)


def test_bar_with_rates_only() -> None:
    """Rates are over the whole epoch: two of them give the time without the start-up."""
    bars = [(10, "00:20", "0.50it/s"), (20, "00:30", "1.50s/it"), (40, "00:50", "1.25s/it")]
    text = "".join(f"\rEpoch 0:  10%|█ | {n}/40 [{clock}<00:10, {rate}, v_num=0, train_loss=2.0]" for n, clock, rate in bars)
    said = read(text + "\n`Trainer.fit` stopped: `max_steps=40` reached.\n", exit_code=0)
    assert said["values"]["avg_step_time_s"] == pytest.approx(1.0, abs=1e-3)


# --- stragglers --------------------------------------------------------------------------------------------------


def test_timers_across_ranks_show_a_slow_rank() -> None:
    timer = "INFO:megatron.core.timers:(min, max) time across ranks (ms):\n    forward-backward ...............................: ({}, {})\n"
    text = step(10) + timer.format("700.00", "900.00") + step(20) + timer.format("700.00", "800.00")
    text += step(30) + timer.format("100.00", "150.00") + step(40) + timer.format("100.00", "150.00")
    assert read(text, log_interval=10)["values"]["rank_time_ratio"] == 1.5


# --- goodput -----------------------------------------------------------------------------------------------------

RUN0 = stamped(
    ("10:00:00", START),
    ("10:02:40", step(10, "10:02:40", 10000.0)),
    ("10:04:20", step(20, "10:04:20", 10000.0)),
    ("10:06:00", step(30, "10:06:00", 10000.0)),
    ("10:07:40", step(40, "10:07:40", 10000.0)),
    ("10:08:00", "[rank3]: torch.distributed.DistBackendError"),
)
RUN1 = stamped(
    ("10:10:00", START),
    ("10:10:10", "    will not load any checkpoints and will start from random"),
    ("10:12:40", step(10, "10:12:40", 10000.0)),
    ("10:14:20", step(20, "10:14:20", 10000.0)),
    ("10:14:30", "[after training is done] datetime: 2026-03-02 10:14:30 "),
)
ENDS = {"job_interrupted_at": "2026-03-02T10:08:00Z", "job_succeeded_at": "2026-03-02T10:14:40Z"}


def test_restart_from_scratch_loses_every_step() -> None:
    said = goodput_of(RUN0, RUN1, **ENDS)
    assert said["lost_steps"] == 40
    assert said["productive_steps"]["kept"] == 20
    assert said["terms"]["t_ch"] == 0  # to the letter: no checkpoint, nothing lost
    assert said["corrected_terms"]["t_ch"] == 420
    assert said["goodput"] < said["goodput_nvcre"]
    assert said["consistency"]["consistent"] is True


def test_iteration_that_goes_back_is_a_new_run() -> None:
    text = RUN0 + stamped(("10:12:40", step(10, "10:12:40", 10000.0)), ("10:14:20", step(20, "10:14:20", 10000.0)))
    said = goodput_of(text, job_succeeded_at="2026-03-02T10:14:40Z")
    assert (said["terms"]["interruptions"], said["lost_steps"]) == (1, 40)


def test_a_restart_before_the_first_step_interrupts_nothing() -> None:
    said = goodput_of(stamped(("10:00:00", START), ("10:00:30", "crash")), RUN1, job_succeeded_at="2026-03-02T10:14:40Z")
    assert said["terms"]["interruptions"] == 0
    assert said["lost_steps"] == 0


def test_a_job_that_fails_at_the_end_loses_what_no_checkpoint_holds() -> None:
    said = goodput_of(RUN0, job_failed_at="2026-03-02T10:08:00Z")
    assert said["terms"]["interruptions"] == 1
    assert said["corrected_terms"]["t_ch"] == 420


def test_without_times_goodput_is_unmeasured_not_zero() -> None:
    said = goodput_of(step(10, timed=False) + step(20, timed=False))
    assert said["goodput"] is None
    assert said["goodput_nvcre"] is None
    assert said["verdict"] == "LogIncomplete"


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({"t_w": 100, "t_re": 100}, None),  # nothing left to divide by
        ({"t_w": 100, "t_ch": 80, "t_rm": 30}, None),  # more lost than there was
        ({"t_w": 1000, "t_rm": [10]}, 0.99),
        ({"t_w": 1000, "t_re": -20}, 1.0),  # clock skew
        ({"t_w": 940, "t_ch": 150, "t_rm": [160, 180], "t_re": 120, "t_save": 20}, 0.378049),
    ],
)
def test_formula(terms: dict[str, t.Any], expected: float | None) -> None:
    said = goodput.from_terms(terms)
    assert said["goodput"] == expected
    assert said["measured"] is (expected is not None)


def test_the_end_of_the_job_is_the_anchor() -> None:
    """The last line comes before the end: without the anchor the tail would be missing."""
    early = goodput_of(RUN1)["terms"]["t_w"]
    late = goodput_of(RUN1, job_succeeded_at="2026-03-02T10:15:00Z")["terms"]["t_w"]
    assert (early, late) == (270, 300)


# --- everything --------------------------------------------------------------------------------------------------


def test_values_are_declared() -> None:
    assert set(read(RUN1)["values"]) <= set(METRICS["training"])
    assert set(goodput_of(RUN1)["values"]) <= set(METRICS["goodput"])


WHOLE = START + "".join(step(n, f"10:00:{n:02d}", 1000.0 + n, total=40) for n in (1, 10, 20, 30, 40))
WHOLE += "[2026-03-02 10:00:41] saving checkpoint at iteration      40 to /c in torch_dist format\n"
WHOLE += "  [2026-03-02 10:00:45] successfully saved checkpoint from iteration      40 to /c [ t 1/1, p 1/1 ]\n"
WHOLE += "[after training is done] datetime: 2026-03-02 10:00:46 \n"
NUMBERS = ("avg_step_time_s", "tflops_per_gpu", "steps", "iterations", "loss_last", "diverged", "checkpoints", "goodput")


@settings(max_examples=80, deadline=None)
@given(st.one_of(st.text(max_size=200), st.text(alphabet="iteration 0123456789/|:.[]-\n\r", max_size=200)))
def test_any_text_is_read(text: str) -> None:
    said = read(text, exit_code=0)
    assert said["verdict"] in ("NoMeasurement", "LogIncomplete", None, "DataCorruption")
    assert said["verdict"] is not None or said["values"]["avg_step_time_s"] is not None


@settings(max_examples=80, deadline=None)
@given(st.integers(0, len(WHOLE) - 1))
def test_a_cut_log_is_never_measured_with_another_number(cut: int) -> None:
    whole = read(WHOLE, log_interval=10, warmup_steps=10, exit_code=0)
    said = read(WHOLE[:cut], log_interval=10, warmup_steps=10, exit_code=0)
    assert whole["verdict"] is None
    if said["verdict"] is None:
        same = [name for name in NUMBERS if name != "goodput"]
        assert [said["values"][name] for name in same] == [whole["values"][name] for name in same]
    else:
        assert said["verdict"] in ("LogIncomplete", "NoMeasurement")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_prefixes_and_noise_change_no_number(data: st.DataObject) -> None:
    prefix = data.draw(st.sampled_from(["", "[default0]:", "[1,0]<stdout>:", "[pod/a/b] ", "2026-03-02T10:00:00.1+02:00 "]))
    noise = data.draw(st.lists(st.sampled_from(["h:1:2 [0] NCCL INFO x", "", "warnings.warn(", "iteration of the moon"]), max_size=3))
    lines = WHOLE.rstrip("\n").split("\n")
    text = "".join(f"{prefix}{line}\n" + "".join(f"{prefix}{item}\n" for item in noise) for line in lines)
    plain, said = (read(one, log_interval=10, warmup_steps=10, exit_code=0) for one in (WHOLE, text))
    same = [name for name in NUMBERS if name != "goodput"]
    assert [said["values"][name] for name in same] == [plain["values"][name] for name in same]
    assert said["verdict"] == plain["verdict"]
