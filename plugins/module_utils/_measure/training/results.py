# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Training logs: step time, TFLOP/s, loss, checkpoints and goodput.

Averages are weighted by the iterations a line covers and leave the warm-up out: a line is warm-up when it covers
one of the first `warmup_steps` iterations of its run. The first line of a run with a log interval above 1 covers
the start-up and never counts.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement
from ..lines import LogLine, lines_of, log_lines
from ..measurement import finding, measurement
from ..metrics import units
from . import goodput
from . import runs as training_runs
from .lines import Step, Wanted, read_line
from .runs import Log, Run, Save

_FRAMEWORKS = {"megatron": "megatron", "nemo": "nemo", "lightning": "lightning", "lightning-rich": "lightning"}


@dataclasses.dataclass(frozen=True)
class _Sample:
    """One step line that counts in the averages."""

    step: Step
    weight: int


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one training job.

    paths:   logs of its pods, first pod first; logs of several attempts in order of time.
    context: exit_code, log_interval, warmup_steps, gpus, and the times goodput needs (see goodput.py).
    """
    return parse((log_lines(path, Wanted()) for path in paths), context)


def parse_text(text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """The same for one log in memory."""
    return parse([lines_of(text)], context or {})


def parse(
    sources: t.Iterable[t.Iterable[LogLine]], context: t.Mapping[str, t.Any], read: training_runs.ReadLine = read_line
) -> Measurement:
    """Read and judge. Never raises for what a log contains. read: what a line says (a log profile brings its own)."""
    log = training_runs.read_runs(sources, read)
    summary = summarize(log, context)
    said = goodput.compute(log, context, summary["avg_step_s"])
    verdict, reason = _verdict(log, context, summary)
    diverged = _diverged(log)
    findings = [finding("DataCorruption", diverged)] if diverged and verdict in (None, "LogIncomplete") else []
    if findings and verdict is None:
        verdict, reason = "DataCorruption", diverged
    found = {**values(log, context, summary), **goodput.values_of(said)}
    return measurement(
        "training",
        verdict,
        reason,
        complete=verdict in (None, "DataCorruption"),
        values=found,
        units=units("training", found),
        parsed=_parsed(log, context),
        findings=findings,
        computed=_computed(log, summary),
        notes=_notes(log, said),
        profile=_profile(log, context),
        goodput={key: value for key, value in said.items() if key != "note"},
    )


def _computed(log: Log, summary: dict[str, t.Any]) -> dict[str, t.Any]:
    """The averages, None where the log does not tell, and what restarts cost in steps."""
    kept, lost = goodput.kept_steps(log.runs)
    return {**summary, "kept_steps": kept, "lost_steps": lost, "restart_point": goodput.restart_point(log.runs)}


# --- averages ----------------------------------------------------------------------------------------------------


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
    base = goodput.base_iteration(run)
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
    blocked = [seconds for run in log.runs for save in run.saves.values() if (seconds := goodput.blocking_seconds(run, save)) is not None]
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


# --- verdict -----------------------------------------------------------------------------------------------------


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


def _verdict(log: Log, context: t.Mapping[str, t.Any], summary: dict[str, t.Any]) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    if exit_code:
        return log_reason_of(exit_code), f"exit {exit_code} after {_progress(log)}"
    if not log.steps:
        return "NoMeasurement", "no step line in the log"
    # The patterns of a profile know no last line: there the exit status must do.
    if not has_ended(log) and not (exit_code == 0 and log.steps[-1].framework == "profile"):
        return "LogIncomplete", f"the log ends after {_progress(log)}"
    if summary["avg_step_s"] is None:
        return "NoMeasurement", "no step line after the warm-up carries a time"
    return None, _progress(log)


def _progress(log: Log) -> str:
    steps = log.steps
    if not steps:
        return "no step"
    total = steps[-1].total
    return f"iteration {steps[-1].iteration}" + (f" of {total}" if total and total >= steps[-1].iteration else "")


def _diverged(log: Log) -> str:
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


def _notes(log: Log, said: dict[str, t.Any]) -> list[str]:
    notes = [said["note"]] if said["note"] else []
    lost = [iteration for run in log.runs for iteration in run.lost]
    if lost:
        notes.append(f"step lines torn by other output, not counted: {', '.join(map(str, lost[:10]))}")
    bad = [step for step in log.steps if step.has_loss and step.loss is None and not step.framework.startswith("lightning")]
    if bad:
        notes.append(f"{len(bad)} step lines with a loss that is not a number, the first at iteration {bad[0].iteration}")
    nan = _total(log, "nan_iterations")
    if nan:
        notes.append(f"{nan} iterations with a loss that is not a number")
    skipped = _total(log, "skipped_iterations")
    if skipped:
        notes.append(f"{skipped} iterations skipped")
    if log.stragglers:
        notes.append(f"the program reported stragglers: {log.stragglers[-1]}")
    return notes


def _total(log: Log, field: str) -> int | None:
    counts = [step.fields[field] for step in log.steps if isinstance(step.fields.get(field), int)]
    return sum(counts) if counts else None


# --- output ------------------------------------------------------------------------------------------------------


def values(log: Log, context: t.Mapping[str, t.Any], summary: dict[str, t.Any]) -> dict[str, t.Any]:
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
        "total_iterations": _total_iterations(log),
        "loss_first": losses[0] if losses else None,
        "loss_last": steps[-1].loss if steps else None,
        "diverged": bool(_diverged(log)) if steps else None,
        "nan_iterations": _total(log, "nan_iterations"),
        "skipped_iterations": _total(log, "skipped_iterations"),
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


def _total_iterations(log: Log) -> int | None:
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


def _parsed(log: Log, context: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    many = len(log.runs) > 1
    parsed: dict[str, t.Any] = {
        "steps": [
            _step_row(log, step, time, number if many else None) for number, run in enumerate(log.runs) for step, time in _timed(run)
        ],
        "total_iterations": _total_iterations(log),
        "start": _time(log, next((run.training or run.started for run in log.runs if run.training or run.started), None)),
        "ended": _ended(log),
        "checkpoints": [_checkpoint_row(log, run, save) for run in log.runs for save in run.saves.values()],
        "deleted_checkpoints": [iteration for run in log.runs for iteration in run.deleted],
        "lost_steps": [iteration for run in log.runs for iteration in run.lost],
        "runs": len(log.runs),
        "restored_from": next((run.restored_from for run in reversed(log.runs) if run.restored_from is not None), None),
        "restart_point": goodput.restart_point(log.runs),
        "stragglers": log.stragglers,
        "timers": {name: _timer_row(pairs) for name, pairs in log.timers.items()},
    }
    if log.separate_tflops:
        parsed["tflops_from"] = 'separate "Step Time" line printed by rank 0 before the step line'
    return parsed


def _timed(run: Run) -> t.Iterator[tuple[Step, training_runs.Time]]:
    return zip(run.steps, run.times, strict=True)


def _profile(log: Log, context: t.Mapping[str, t.Any]) -> str | None:
    name = framework(log)
    if name == "lightning":
        return "lightning bar"
    if name != "megatron":
        return name
    warmup, interval = context.get("warmup_steps"), interval_of(log, context)
    return ", ".join([name, *([f"log interval {interval}"] if interval else []), *([f"warm-up {warmup}"] if warmup else [])])


def _ended(log: Log) -> bool | str:
    run = log.runs[-1] if log.runs else None
    if run is not None and run.ended.startswith("max_"):
        return run.ended
    return has_ended(log)


def _step_row(log: Log, step: Step, when: training_runs.Time, run: int | None) -> dict[str, t.Any]:
    if step.framework.startswith("lightning"):
        row: dict[str, t.Any] = {"n": step.printed, "of": step.total, **step.fields, "loss": step.loss}
        row["step_s"] = None if step.step_ms is None else round(step.step_ms / 1000.0, 9)
        row["tflops"] = step.tflops
    else:
        row = {
            "iteration": step.printed,
            "step_ms": step.step_ms,
            "tflops": step.tflops,
            "loss": step.loss,
            "t": _time(log, step.time or when),
        }
        if step.framework == "nemo":
            row["step_s"] = None if step.step_ms is None else round(step.step_ms / 1000.0, 9)
        row.update(step.fields)
    if step.torn:
        row["torn"] = True
    if run is not None:
        row["run"] = run
    return row


def _checkpoint_row(log: Log, run: Run, save: Save) -> dict[str, t.Any]:
    blocking = goodput.blocking_seconds(run, save)
    row: dict[str, t.Any] = {
        "iteration": save.iteration,
        "async": save.asynchronous,
        "save_started_at": _time(log, save.started),
        "scheduled_at": _time(log, save.scheduled),
        "durable_at": _time(log, save.durable),
        "completed": save.done,
        "blocking_s": blocking,
        "path": save.path,
    }
    if save.started is None and save.scheduled is None and save.durable is None:
        row["timestamp_source"] = "transport prefix or neighbouring step lines"
    return row


def _timer_row(pairs: list[tuple[float, float]]) -> dict[str, t.Any]:
    last = pairs[-1]
    return {"min_ms": last[0], "max_ms": last[1], "samples": len(pairs)}


def _time(log: Log, time: training_runs.Time) -> str | None:
    """As the log prints times: with a fraction, or without."""
    if time is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S.%f") if log.fractions else str(time)
