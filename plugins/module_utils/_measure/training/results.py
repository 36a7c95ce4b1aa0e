# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Training logs: step time, TFLOP/s, loss, checkpoints and goodput, and why a training failed."""

from __future__ import annotations

import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement, MeasurementFinding
from ..lines import LogLine, lines_of, log_lines
from ..measurement import finding, measurement
from ..metrics import units
from . import goodput
from .events import Step
from .failures import Failure, Kind, in_words, root_cause
from .history import Log, Run, Save, Time, Timer, blocking_seconds, kept_steps, restart_point
from .lines import Wanted, read_line
from .runs import ReadLine, read_runs
from .summary import (
    Summary,
    diverged,
    framework,
    has_ended,
    interval_of,
    no_progress,
    summarize,
    total,
    total_iterations,
    values,
)


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one training job.

    paths:   logs of its pods, first pod first; logs of several attempts in order of time.
    context: exit_code, log_interval, warmup_steps, gpus (that were to take part), and the times goodput needs (see goodput.py).
    """
    return parse((log_lines(path, Wanted()) for path in paths), context)


def parse_text(text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """The same for one log in memory."""
    return parse([lines_of(text)], context or {})


def parse(sources: t.Iterable[t.Iterable[LogLine]], context: t.Mapping[str, t.Any], read: ReadLine = read_line) -> Measurement:
    """Read and judge. Never raises for what a log contains. read: what a line says (a log profile brings its own)."""
    log = read_runs(sources, read)
    summary = summarize(log, context)
    said = goodput.compute(log, context, summary.step_s)
    failure = root_cause(log.runs[-1].failures) if log.runs else None
    verdict, reason = _verdict(log, context, summary, failure)
    findings = _findings(log, verdict, failure)
    if verdict is None and findings:
        verdict, reason = findings[0]["reason"], findings[0]["message"]
    found = {**values(log, summary), **goodput.values_of(said)}
    return measurement(
        "training",
        verdict,
        reason,
        complete=verdict is None or (verdict == "DataCorruption" and has_ended(log)),
        values=found,
        units=units("training", found),
        parsed=_parsed(log),
        findings=findings,
        computed=_computed(log, summary),
        notes=_notes(log, summary, said, failure if verdict is None else None),
        profile=_profile(log, context),
        goodput={key: value for key, value in said.items() if key != "note"},
    )


def _computed(log: Log, summary: Summary) -> dict[str, t.Any]:
    """The averages, None where the log does not tell, and what restarts cost in steps."""
    kept, lost = kept_steps(log.runs)
    return {**summary.computed(), "kept_steps": kept, "lost_steps": lost, "restart_point": restart_point(log.runs)}


# --- verdict -----------------------------------------------------------------------------------------------------


def _verdict(log: Log, context: t.Mapping[str, t.Any], summary: Summary, failure: Failure | None) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    ended = has_ended(log)
    # The patterns of a profile know no last line: there the exit status must do.
    trusted = exit_code == 0 and bool(log.steps) and log.steps[-1].framework == "profile"
    if exit_code:
        reason = _reason_of(exit_code, failure)
        return reason, f"exit {exit_code} after {_progress(log)}" + (
            f": {in_words(failure)}" if failure and failure.reason == reason else ""
        )
    # A pipe behind the program hides how it ended: then its last words must do.
    if failure is not None and failure.kind is not Kind.CONSEQUENCE and not ended and not trusted:
        return failure.reason, f"failed {_reached(log)}: {in_words(failure)}"
    if not log.steps:
        return "NoMeasurement", "no step line in the log"
    if not ended and not trusted:
        return "LogIncomplete", f"the log ends after {_progress(log)}"
    if summary.step_s is None:
        return "NoMeasurement", "no step line after the warm-up carries a time"
    return _unproven(log, context) or (None, _progress(log))


def _reason_of(exit_code: int, failure: Failure | None) -> str:
    """What an exit code says, unless the log says more: 1 is any failure, 134 a crash or a hang, 137 and 143 whatever killed it."""
    reason = log_reason_of(exit_code) or "WorkloadFailed"
    if failure is None or failure.kind is Kind.CONSEQUENCE:
        return reason
    if failure.kind is Kind.CAUSE or failure.reason == "TimedOut":
        return failure.reason
    return failure.reason if reason in ("WorkloadFailed", "LogIncomplete") else reason


def _unproven(log: Log, context: t.Mapping[str, t.Any]) -> tuple[str, str] | None:
    """Why a training that came to its end proves less than it should."""
    stuck = no_progress(log)
    if stuck:
        return "NoMeasurement", stuck
    expected = context.get("gpus")
    if isinstance(expected, int) and log.ranks is not None and log.ranks < expected:
        return "LogIncomplete", f"{log.ranks} of {expected} GPUs took part in the training"
    return None


def _findings(log: Log, verdict: str | None, failure: Failure | None) -> list[MeasurementFinding]:
    """The failure that decided, with the rank and the host it is about; else whether the training diverged."""
    if failure is not None and verdict == failure.reason:
        entity = None if failure.rank is None else f"rank {failure.rank}"
        return [finding(failure.reason, in_words(failure), host=failure.host, entity=entity, evidence=failure.evidence)]
    gone = diverged(log)
    return [finding("DataCorruption", gone)] if gone and verdict in (None, "LogIncomplete") else []


def _reached(log: Log) -> str:
    return f"after {_progress(log)}" if log.steps else "before the first step"


def _progress(log: Log) -> str:
    steps = log.steps
    if not steps:
        return "no step"
    total = steps[-1].total
    return f"iteration {steps[-1].iteration}" + (f" of {total}" if total and total >= steps[-1].iteration else "")


def _notes(log: Log, summary: Summary, said: dict[str, t.Any], survived: Failure | None) -> list[str]:
    notes = [said["note"]] if said["note"] else []
    if said["goodput"] is not None and "not seen" in said["counted_from"]:
        notes.append(f"goodput is counted from {said['counted_from']}")
    if survived is not None:
        notes.append(f"the training went on after: {in_words(survived)}")
    if summary.doubted:
        notes.append(f"step lines with a number that their neighbours contradict, not counted: {', '.join(map(str, summary.doubted[:10]))}")
    folded = sum(step.lines for step in log.steps) - len(log.steps)
    if folded:
        notes.append(f"{folded} step lines are shown together with the next one")
    lost = [iteration for run in log.runs for iteration in run.lost]
    if lost:
        notes.append(f"step lines torn by other output, not counted: {', '.join(map(str, lost[:10]))}")
    bad = [iteration for run in log.runs for iteration in run.bad_losses]
    if bad and framework(log) != "lightning":
        notes.append(f"{len(bad)} step lines with a loss that is not a number, the first at iteration {bad[0]}")
    nan = total(log, "nan_iterations")
    if nan:
        notes.append(f"{nan} iterations with a loss that is not a number")
    skipped = total(log, "skipped_iterations")
    if skipped:
        notes.append(f"{skipped} iterations skipped")
    if log.stragglers:
        notes.append(f"the program reported stragglers: {log.stragglers[-1]}")
    return notes


# --- output ------------------------------------------------------------------------------------------------------


def _parsed(log: Log) -> dict[str, t.Any]:
    many = len(log.runs) > 1
    parsed: dict[str, t.Any] = {
        "steps": [
            _step_row(log, step, time, number if many else None) for number, run in enumerate(log.runs) for step, time in _timed(run)
        ],
        "total_iterations": total_iterations(log),
        "start": _time(log, next((run.training or run.started for run in log.runs if run.training or run.started), None)),
        "ended": _ended(log),
        "checkpoints": [_checkpoint_row(log, run, save) for run in log.runs for save in run.saves.values()],
        "deleted_checkpoints": [iteration for run in log.runs for iteration in run.deleted],
        "lost_steps": [iteration for run in log.runs for iteration in run.lost],
        "runs": len(log.runs),
        "restored_from": next((run.restored_from for run in reversed(log.runs) if run.restored_from is not None), None),
        "restart_point": restart_point(log.runs),
        "stragglers": log.stragglers,
        "timers": {name: _timer_row(timer) for name, timer in log.timers.items()},
    }
    if log.separate_tflops:
        parsed["tflops_from"] = 'separate "Step Time" line printed by rank 0 before the step line'
    return parsed


def _timed(run: Run) -> t.Iterator[tuple[Step, Time]]:
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


def _step_row(log: Log, step: Step, when: Time, run: int | None) -> dict[str, t.Any]:
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
    if step.lines > 1:
        row["lines"] = step.lines
    if step.torn:
        row["torn"] = True
    if run is not None:
        row["run"] = run
    return row


def _checkpoint_row(log: Log, run: Run, save: Save) -> dict[str, t.Any]:
    blocking = blocking_seconds(run, save)
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


def _timer_row(timer: Timer) -> dict[str, t.Any]:
    return {"min_ms": timer.last[0], "max_ms": timer.last[1], "samples": timer.reports}


def _time(log: Log, time: Time) -> str | None:
    """As the log prints times: with a fraction, or without."""
    if time is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S.%f") if log.fractions else str(time)
