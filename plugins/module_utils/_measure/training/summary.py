# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a training log adds up to: averages after the warm-up, and the values that criteria see.

Times are weighted by the iterations a line covers, rates by the time. A line is warm-up when it covers one of the first
`warmup_steps` iterations of its run. The first line of a run with a log interval above 1 covers the start-up and never
counts; nor does the second line of Megatron where it holds the first one again (see `repeats_first`).
"""

from __future__ import annotations

import dataclasses
import typing as t

from .doubts import doubtful
from .events import Step
from .history import Log, Run, base_iteration, blocking_seconds, seconds_between, usual_gap

_FRAMEWORKS = {"megatron": "megatron", "nemo": "nemo", "lightning": "lightning", "lightning-rich": "lightning"}


@dataclasses.dataclass(frozen=True)
class _Sample:
    """One step line that counts in the averages. step_ms and tflops: None where it has none that is believed."""

    step: Step
    weight: int
    step_ms: float | None
    tflops: float | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """Averages after the warm-up; None where nothing was printed. Times in seconds, rates in TFLOP/s per GPU.

    line_tflops, nvcre_tflops: means over lines, not over time, as NVCRE makes them: without and with the warm-up.
    """

    samples: int
    step_s: float | None
    low_s: float | None
    high_s: float | None
    tflops: float | None
    line_tflops: float | None
    nvcre_tflops: float | None
    save_s: float | None
    interval: int | None
    doubted: tuple[int, ...]  # iterations of lines with a number that their neighbours contradict

    def computed(self) -> dict[str, t.Any]:
        """As the measurement shows it."""
        shown: dict[str, t.Any] = {
            "steps_after_warmup": self.samples,
            "avg_step_s": self.step_s,
            "min_step_s": self.low_s,
            "max_step_s": self.high_s,
            "avg_tflops": self.line_tflops,
            "avg_tflops_after_warmup": self.line_tflops,
            "avg_tflops_over_time": self.tflops,
            "t_save_s": self.save_s,
        }
        if self.interval is not None and self.interval > 1:
            shown[f"avg_tflops_all_lines_multiple_of_{self.interval}"] = self.nvcre_tflops
        return shown


# --- averages ----------------------------------------------------------------------------------------------------


def interval_of(log: Log, context: t.Mapping[str, t.Any]) -> int | None:
    """Iterations between two step lines: as told, else the distance seen most often."""
    told = context.get("log_interval")
    return told if isinstance(told, int) and told > 0 else usual_gap(log.runs)


def repeats_first(run: Run) -> bool:
    """Whether the second line of a run holds its first iteration again.

    Megatron does not reset its timer and counters after the line of the first iteration, older releases did. The second line
    can hold the first only if the time of all its iterations is at least that of the first.
    """
    if len(run.steps) < 2 or run.steps[0].framework != "megatron":
        return False
    base, first, second = base_iteration(run), run.steps[0], run.steps[1]
    if first.iteration != base + 1 or first.step_ms is None or second.step_ms is None:
        return False
    covered = second.iteration - base
    rounding = 0.05 * covered  # times are printed with one decimal
    return covered * (second.step_ms + rounding) >= first.step_ms


def summarize(log: Log, context: t.Mapping[str, t.Any]) -> Summary:
    """Averages after the warm-up."""
    interval = interval_of(log, context)
    warmup = context.get("warmup_steps")
    samples: list[_Sample] = []
    doubted: list[int] = []
    for run in log.runs:
        doubts = doubtful(run, interval)
        doubted += sorted(run.steps[number].iteration for number in doubts.times | doubts.rates)
        samples += _run_samples(run, interval, warmup if isinstance(warmup, int) else None, doubts.times, doubts.rates)
    timed = [(sample.step_ms / 1000.0, sample.weight) for sample in samples if sample.step_ms is not None]
    average = _mean(timed)
    if average is None:
        average = _second_line(log.runs) or _bar_step_time(log)
    flops = [(sample.tflops, sample.weight) for sample in samples if sample.tflops is not None]
    worked = [(sample.tflops, sample.weight * (sample.step_ms or 1.0)) for sample in samples if sample.tflops is not None]
    lines = [step.tflops for step in log.steps if interval and step.iteration % interval == 0 and step.tflops is not None]
    blocked = [seconds for run in log.runs for save in run.saves.values() if (seconds := blocking_seconds(run, save)) is not None]
    blocked += [run.past_blocked_s for run in log.runs if run.past_saves]
    return Summary(
        samples=sum(sample.step.lines for sample in samples),
        step_s=_rounded(average, 6),
        low_s=_rounded(min((_least(sample) for sample in samples if sample.step_ms is not None), default=None), 6),
        high_s=_rounded(max((_most(sample) for sample in samples if sample.step_ms is not None), default=None), 6),
        tflops=_rounded(_mean(worked), 4),
        line_tflops=_rounded(_mean(flops), 4),
        nvcre_tflops=_rounded(_mean([(value, 1) for value in lines]), 4),
        save_s=_rounded(sum(blocked), 6) if blocked else None,
        interval=interval,
        doubted=tuple(doubted),
    )


def _run_samples(
    run: Run, interval: int | None, warmup: int | None, wrong_times: t.Collection[int], wrong_rates: t.Collection[int]
) -> t.Iterator[_Sample]:
    base = base_iteration(run)
    previous = base
    repeated = repeats_first(run) and _slower_start(run)
    for number, step in enumerate(run.steps):
        covered = step.iteration - previous
        previous = step.iteration
        if interval is not None:
            covered = min(covered, interval * step.lines)  # the lines between were lost: they are no part of this mean
        if step.fields.get("warmup") or covered <= 0:
            continue
        if warmup is not None and step.iteration - covered - base < warmup:
            continue
        if warmup is None and number == 0 and len(run.steps) > 1:
            continue  # nobody said how long the warm-up is: the first line of a run covers its start-up
        if number == 0 and interval is not None and interval > 1 and step.iteration - base < interval:
            continue
        if number == 1 and repeated:
            continue
        yield _Sample(step, covered, None if number in wrong_times else step.step_ms, None if number in wrong_rates else step.tflops)


def _slower_start(run: Run) -> bool:
    """Whether the first line is slower than the second: if not, it makes no difference that it is held twice."""
    first, second = run.steps[0].step_ms, run.steps[1].step_ms
    return first is not None and second is not None and first > 1.02 * second


def _second_line(runs: t.Sequence[Run]) -> float | None:
    """Step time of a run of two lines whose second holds the first again, where the clock proves that it does."""
    for run in runs:
        if len(run.steps) != 2 or not repeats_first(run):
            continue
        (first, second), base = run.steps, base_iteration(run)
        if first.step_ms is None or second.step_ms is None or first.time is None or second.time is None or second.iteration - base < 2:
            continue
        whole = (second.iteration - base) * second.step_ms / 1000.0
        rest, passed = whole - first.step_ms / 1000.0, seconds_between(first.time, second.time)
        if 0 < rest <= passed < whole:
            return rest / (second.iteration - base - 1)
    return None


def _least(sample: _Sample) -> float:
    return t.cast(float, sample.step_ms if sample.step.low_ms is None else sample.step.low_ms) / 1000.0


def _most(sample: _Sample) -> float:
    return t.cast(float, sample.step_ms if sample.step.high_ms is None else sample.step.high_ms) / 1000.0


def _mean(pairs: t.Sequence[tuple[float, float]]) -> float | None:
    weight = sum(part for _value, part in pairs)
    return sum(value * part for value, part in pairs) / weight if weight else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _bar_step_time(log: Log) -> float | None:
    """Step time of a progress bar that prints rates only: its rate is that of the whole epoch so far, so two
    refreshes of one epoch give the time between them, without the start-up."""
    spans: list[tuple[float, float]] = []
    last: float | None = None
    epochs: dict[tuple[int, int], list[Step]] = {}
    for number, run in enumerate(log.runs):
        for step in run.steps:
            rate = step.fields.get("rate_it_s")
            if rate and step.printed > 0:
                epochs.setdefault((number, step.fields["epoch"]), []).append(step)
                last = 1.0 / rate
    for steps in epochs.values():
        first, final = steps[0], steps[-1]
        count = final.printed - first.printed
        if count > 0:
            seconds = final.printed / final.fields["rate_it_s"] - first.printed / first.fields["rate_it_s"]
            if seconds > 0:
                spans.append((seconds / count, count))
    return _mean(spans) or last


# --- the end -----------------------------------------------------------------------------------------------------


def has_ended(log: Log) -> bool:
    """Whether the log shows that the training came to its end.

    A log that shows the start of the application must also show its end; without, its last iteration will do.
    """
    if not log.runs or not log.runs[-1].begun:
        return False
    run = log.runs[-1]
    last = run.steps[-1]
    if run.ended:
        return True
    if log.lifecycle or last.torn or last.framework.startswith("lightning"):
        return False
    return last.total is not None and last.iteration >= last.total


def diverged(log: Log) -> str:
    """Why the training diverged, or an empty text. A diverged run can be fast and end with exit 0."""
    whole = [step for step in log.steps if not step.torn]
    if not whole:
        return ""
    last = whole[-1]
    if last.has_loss and last.loss is None:
        return f"training diverged: the loss at iteration {last.iteration} is not a number"
    if last.fields.get("grad_norm_finite") is False:
        return f"training diverged: the gradient norm at iteration {last.iteration} is not a number"
    # Megatron leaves the loss out when its mean is not a number; skipped iterations have none either.
    gone = last.framework == "megatron" and not last.has_loss and not last.fields.get("skipped_iterations")
    if gone and any(step.has_loss for step in whole):
        first = next(step.iteration for step in whole if not step.has_loss)
        return f"training diverged: no loss is printed from iteration {first} on"
    return ""


def no_progress(log: Log) -> str:
    """Why nothing was learnt although steps were printed, or an empty text."""
    steps = [step for step in log.steps if not step.torn]
    counted = [step.fields.get("skipped_iterations") for step in steps]
    if not steps or any(not isinstance(count, int) for count in counted):
        return ""
    previous, covered = 0, 0
    for run in log.runs:
        previous = base_iteration(run) if run.begun else 0
        covered += run.steps[-1].iteration - previous if run.begun else 0
    skipped = total(log, "skipped_iterations") or 0
    if 0 < covered <= skipped:
        return f"no progress: all {covered} iterations were skipped"
    samples = [step.fields.get("consumed_samples") for step in steps]
    if len(samples) > 1 and all(isinstance(count, int) for count in samples) and len(set(samples)) == 1:
        return "no progress: not one sample was consumed between the first and the last step line"
    return ""


# --- values ------------------------------------------------------------------------------------------------------


def total(log: Log, field: str) -> int | None:
    """Sum of a counter over the step lines; what a second line says again of the first iteration counts once."""
    found: int | None = None
    for run in log.runs:
        first, second = (step.fields.get(field) for step in run.steps[:2]) if len(run.steps) > 1 else (None, None)
        if isinstance(first, int) and isinstance(second, int) and first <= second and repeats_first(run):
            found = (found or 0) - first
        for step in run.steps:
            count = step.fields.get(field)
            if isinstance(count, int):
                found = (found or 0) + count
    return found


def values(log: Log, summary: Summary) -> dict[str, t.Any]:
    """What criteria can use: see metrics.METRICS."""
    steps = log.steps
    average, high, low = summary.step_s, summary.high_s, summary.low_s
    batch = next((step.fields.get("global_batch_size") for step in reversed(steps) if step.fields.get("global_batch_size")), log.batch)
    samples_s = batch / average if batch and average else None
    tokens_s = samples_s * log.sequence if samples_s and log.sequence else None
    losses = [step.loss for step in steps if step.loss is not None]
    return {
        "avg_step_time_s": average,
        "step_time_min_s": low,
        "step_time_max_s": high,
        "step_time_spread": None if not high or low is None else round((high - low) / high, 6),
        "tflops_per_gpu": summary.tflops,
        "samples_per_second": _rounded(samples_s, 4),
        "tokens_per_second": _rounded(tokens_s, 4),
        "tokens_per_second_per_gpu": round(tokens_s / log.ranks, 4) if tokens_s and log.ranks else None,
        "ranks": log.ranks,
        "steps": summary.samples,
        "iterations": max((step.iteration for step in steps), default=0),
        "total_iterations": total_iterations(log),
        "loss_first": losses[0] if losses else None,
        "loss_last": steps[-1].loss if steps else None,
        "diverged": bool(diverged(log)) if steps else None,
        "nan_iterations": total(log, "nan_iterations"),
        "skipped_iterations": total(log, "skipped_iterations"),
        "checkpoints": sum(run.past_saves + sum(save.done for save in run.saves.values()) for run in log.runs),
        "checkpoint_save_s": summary.save_s,
        "restarts": max(0, len([run for run in log.runs if run.begun]) - 1),
        "rank_time_ratio": _rank_time_ratio(log),
        "framework": framework(log),
    }


def framework(log: Log) -> str | None:
    """megatron, megatron-bridge, nemo or lightning; None without a step line."""
    steps = log.steps
    if not steps:
        return None
    if log.separate_tflops:
        return "megatron-bridge"
    return _FRAMEWORKS.get(steps[-1].framework)


def total_iterations(log: Log) -> int | None:
    """As the program was asked for; None where a line counts to the end of its epoch only."""
    steps = log.steps
    if framework(log) in ("lightning", "nemo") and any(step.fields.get("epoch") for step in steps):
        return None
    return next((step.total for step in reversed(steps) if step.total is not None), None)


def _rank_time_ratio(log: Log) -> float | None:
    """Slowest over fastest rank in the forward and backward pass, where timers across ranks are printed."""
    timer = log.timers.get("forward-backward")
    return round(timer.high_ms / timer.low_ms, 6) if timer is not None and timer.low_ms else None
