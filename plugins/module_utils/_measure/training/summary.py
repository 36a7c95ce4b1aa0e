# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a training log adds up to: averages after the warm-up, and the values that criteria see.

Averages are weighted by the iterations a line covers and leave the warm-up out: a line is warm-up when it covers
one of the first `warmup_steps` iterations of its run. The first line of a run with a log interval above 1 covers
the start-up and never counts.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from .events import Step
from .history import Log, Run, base_iteration, blocking_seconds

_FRAMEWORKS = {"megatron": "megatron", "nemo": "nemo", "lightning": "lightning", "lightning-rich": "lightning"}


@dataclasses.dataclass(frozen=True)
class _Sample:
    """One step line that counts in the averages."""

    step: Step
    weight: int


def interval_of(log: Log, context: t.Mapping[str, t.Any]) -> int | None:
    """Iterations between two step lines: as told, else the distance seen most often."""
    told = context.get("log_interval")
    if isinstance(told, int) and told > 0:
        return told
    gaps = collections.Counter(
        later.iteration - earlier.iteration
        for run in log.runs
        for earlier, later in zip(run.steps, run.steps[1:], strict=False)
        if later.iteration > earlier.iteration
    )
    return max(gaps, key=lambda gap: (gaps[gap], -gap)) if gaps else None


def _samples(log: Log, context: t.Mapping[str, t.Any]) -> list[_Sample]:
    interval = interval_of(log, context)
    warmup = context.get("warmup_steps")
    return [sample for run in log.runs for sample in _run_samples(run, interval, warmup if isinstance(warmup, int) else None)]


def _run_samples(run: Run, interval: int | None, warmup: int | None) -> t.Iterator[_Sample]:
    base = base_iteration(run)
    previous = base
    for number, step in enumerate(run.steps):
        covered = step.iteration - previous
        previous = step.iteration
        if interval is not None:
            covered = min(covered, interval)  # the lines between were lost: they are no part of this mean
        if step.fields.get("warmup"):
            continue
        if warmup is not None and step.iteration - base <= warmup:
            continue
        if warmup is None and number == 0 and len(run.steps) > 1:
            continue  # nobody said how long the warm-up is: the first line of a run covers its start-up
        if number == 0 and interval is not None and interval > 1 and step.iteration - base < interval:
            continue
        if covered > 0:
            yield _Sample(step, covered)


def summarize(log: Log, context: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Averages after the warm-up; None where nothing was printed."""
    samples = _samples(log, context)
    timed = [(sample.step.step_ms / 1000.0, sample.weight) for sample in samples if sample.step.step_ms is not None]
    flops = [(sample.step.tflops, sample.weight) for sample in samples if sample.step.tflops is not None]
    average = _mean(timed)
    if average is None:
        average = _bar_step_time(log)
    blocked = [seconds for run in log.runs for save in run.saves.values() if (seconds := blocking_seconds(run, save)) is not None]
    summary: dict[str, t.Any] = {
        "steps_after_warmup": len(samples),
        "avg_step_s": _rounded(average, 6),
        "min_step_s": _rounded(min((value for value, _weight in timed), default=None), 6),
        "max_step_s": _rounded(max((value for value, _weight in timed), default=None), 6),
        "avg_tflops": _rounded(_mean(flops), 4),
        "avg_tflops_after_warmup": _rounded(_mean(flops), 4),
        "t_save_s": _rounded(sum(blocked), 6) if blocked else None,
    }
    interval = interval_of(log, context)
    if interval is not None and interval > 1:
        # NVCRE's average: every line at a multiple of the interval, warm-up included, each once.
        lines = [step.tflops for step in log.steps if step.iteration % interval == 0 and step.tflops is not None]
        summary[f"avg_tflops_all_lines_multiple_of_{interval}"] = _rounded(_mean([(value, 1) for value in lines]), 4)
    return summary


def _mean(pairs: t.Sequence[tuple[float, int]]) -> float | None:
    weight = sum(part for _value, part in pairs)
    return sum(value * part for value, part in pairs) / weight if weight else None


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _bar_step_time(log: Log) -> float | None:
    """Step time of a progress bar that prints rates only: its rate is that of the whole epoch so far, so two
    refreshes of one epoch give the time between them, without the start-up."""
    spans: list[tuple[float, int]] = []
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


def total(log: Log, field: str) -> int | None:
    counts = [step.fields[field] for step in log.steps if isinstance(step.fields.get(field), int)]
    return sum(counts) if counts else None


def values(log: Log, summary: dict[str, t.Any]) -> dict[str, t.Any]:
    """What criteria can use: see metrics.METRICS."""
    steps = log.steps
    average, high, low = summary["avg_step_s"], summary["max_step_s"], summary["min_step_s"]
    batch = next((step.fields.get("global_batch_size") for step in reversed(steps) if step.fields.get("global_batch_size")), None)
    losses = [step.loss for step in steps if step.loss is not None]
    return {
        "avg_step_time_s": average,
        "step_time_min_s": low,
        "step_time_max_s": high,
        "step_time_spread": None if not high or low is None else round((high - low) / high, 6),
        "tflops_per_gpu": summary["avg_tflops"],
        "samples_per_second": round(batch / average, 4) if batch and average else None,
        "steps": summary["steps_after_warmup"],
        "iterations": max((step.iteration for step in steps), default=0),
        "total_iterations": total_iterations(log),
        "loss_first": losses[0] if losses else None,
        "loss_last": steps[-1].loss if steps else None,
        "diverged": bool(diverged(log)) if steps else None,
        "nan_iterations": total(log, "nan_iterations"),
        "skipped_iterations": total(log, "skipped_iterations"),
        "checkpoints": sum(save.done for run in log.runs for save in run.saves.values()),
        "checkpoint_save_s": summary["t_save_s"],
        "restarts": max(0, len([run for run in log.runs if run.begun]) - 1),
        "rank_time_ratio": _rank_time_ratio(log),
        "framework": framework(log),
    }


def framework(log: Log) -> str | None:
    """megatron, megatron-bridge, nemo or lightning; None without a step line."""
    if not log.steps:
        return None
    if log.separate_tflops:
        return "megatron-bridge"
    return _FRAMEWORKS.get(log.steps[-1].framework)


def total_iterations(log: Log) -> int | None:
    if framework(log) == "lightning" and any(step.fields.get("epoch") for step in log.steps):
        return None  # a bar counts to the end of its epoch only
    return next((step.total for step in reversed(log.steps) if step.total is not None), None)


def _rank_time_ratio(log: Log) -> float | None:
    """Slowest over fastest rank in the forward and backward pass, where timers across ranks are printed.

    The first two reports of a run cover its start-up.
    """
    pairs = [pair for pair in log.timers.get("forward-backward", [])[2:] if pair[0] > 0]
    low, high = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
    return round(high / low, 6) if low else None
