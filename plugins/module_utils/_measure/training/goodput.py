# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Goodput of a training job: useful time over all time, with every term.

`goodput = (t_w - t_ch - sum(t_rm) - t_re - t_save) / (t_w - t_re)`, in seconds:

t_w     wall time: start of the measurement to the end of the job (the anchor)
t_ch    work lost: interruption minus completion of the last durable checkpoint, summed
t_re    rescheduling: start of the next run minus interruption, summed, at least 0; nobody's fault, left out
t_rm    from the start of each run to its first step line, one value per run
t_save  time that saves kept the training from going on, each checkpoint once

Three values are given. `goodput_nvcre` is the formula to the letter, comparable with NVCRE. It counts the useful
work before the first step line as lost: with a log interval of 10 that is ten steps per start;
`goodput_first_step_corrected` takes that out. `goodput` also counts work lost without any checkpoint and a
start-up before the measurement. Counting the steps that were kept is a check on all of them: `productive_steps`.
"""

from __future__ import annotations

import datetime
import typing as t

from ..._common.shapes import Measurement
from ..lines import log_lines
from ..measurement import measurement
from ..metrics import units
from .events import earlier, parse_time
from .history import Log, Run, Time, base_iteration, blocking_seconds, kept_steps, restart_point, seconds_between
from .lines import Wanted
from .runs import read_runs
from .summary import has_ended, summarize, values

# Two ways to count that differ by more than this are shown as a contradiction.
TOLERANCE = 0.05


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """Goodput of all attempts of a job: their logs in order of time.

    context: measurement_started_at, job_interrupted_at (one time or a list), job_succeeded_at or job_failed_at,
    log_interval, warmup_steps, exit_code.
    """
    return parse(read_runs(log_lines(path, Wanted()) for path in paths), context)


def parse(log: Log, context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of kind goodput."""
    summary = summarize(log, context)
    said = compute(log, context, summary.step_s)
    measured = said["goodput"] is not None
    ended = has_ended(log)
    verdict = None if measured and ended else "LogIncomplete" if log.steps else "NoMeasurement"
    reason = said["note"] or (f"goodput from {said['counted_from']} on" if measured else "goodput could not be measured")
    if measured and not ended:
        reason = "the log ends before the training: goodput is provisional"
    found = {**values(log, summary), **values_of(said)}
    return measurement(
        "goodput",
        verdict,
        reason,
        complete=verdict is None,
        values=found,
        units=units("goodput", found),
        parsed=_parsed(log, context),
        **said,
    )


def ratio(
    t_w: float,
    t_ch: float | t.Sequence[float] = 0.0,
    t_rm: float | t.Sequence[float] = 0.0,
    t_re: float | t.Sequence[float] = 0.0,
    t_save: float | t.Sequence[float] = 0.0,
) -> float | None:
    """The formula. Single terms below zero (clock skew) count as zero. None: unmeasured, which is not the same as 0.

    Unmeasured when the denominator is not positive or the numerator is negative.
    """
    lost, resume, waiting, saving = (_total(term) for term in (t_ch, t_rm, t_re, t_save))
    denominator = t_w - waiting
    numerator = t_w - (lost + resume) - waiting - saving
    if denominator <= 0 or numerator < 0:
        return None
    return round(numerator / denominator, 6)


def from_terms(terms: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Goodput from terms alone: t_w and any of t_ch, t_rm, t_re, t_save (numbers, or lists of them).

    Returns the terms with those below zero set to zero, goodput (None: unmeasured) and whether it was measured.
    """
    clamped = {name: _total(terms[name] or 0.0) for name in ("t_ch", "t_rm", "t_re", "t_save") if name in terms}
    value = ratio(float(terms["t_w"]), **clamped)
    return {
        "t_w": terms["t_w"],
        **clamped,
        "goodput": value,
        "measured": value is not None,
        "verdict": None if value is not None else "NoMeasurement",
    }


def _total(term: float | t.Sequence[float]) -> float:
    parts = [term] if isinstance(term, (int, float)) else term
    return sum(max(0.0, float(part)) for part in parts)


def compute(log: Log, context: t.Mapping[str, t.Any], step_s: float | None) -> dict[str, t.Any]:
    """Terms and the three values, from runs with times. Everything None when times are missing."""
    trained = [run for run in log.runs if run.begun]
    interval = context.get("log_interval")
    anchor, anchor_source = _anchor(log, context)
    start = parse_time(context.get("measurement_started_at")) or (log.runs[0].first_time() if log.runs else None)
    missing = _missing(log, anchor, start)
    if missing or anchor is None or start is None:
        return _unmeasured(missing)
    if anchor <= start:
        return _unmeasured("the times of the log run backwards: the job would end before it starts")
    breaks = _interruptions(log.runs, context)
    early = [time for time in (log.runs[0].first_time(), start) if time is not None]
    nvcre_ch = sum(_lost(log.runs, gap, literal=True) for gap in breaks)
    full_ch = sum(_lost(log.runs, gap, literal=False, step_s=step_s) for gap in breaks)
    t_re = sum(gap.waiting for gap in breaks)
    t_save = sum(_blocking_once(log.runs))
    t_rm = [_resume(run) for run in trained]
    corrected_rm = [max(0.0, value - _first_interval(run, interval, step_s)) for run, value in zip(trained, t_rm, strict=True)]
    t_w = seconds_between(start, anchor)
    full_w = seconds_between(min(early), anchor)
    literal = ratio(t_w, nvcre_ch, t_rm, t_re, t_save)
    corrected = ratio(t_w, nvcre_ch, corrected_rm, t_re, t_save)
    full = ratio(full_w, full_ch, corrected_rm, t_re, t_save)
    kept, lost_steps = kept_steps(log.runs)
    productive = _productive(kept, lost_steps, step_s, full_w - t_re)
    corrections: dict[str, t.Any] = {"t_rm": [_number(value) for value in corrected_rm]}
    if full_ch != nvcre_ch:
        corrections["t_ch"] = _number(full_ch)
    if full_w != t_w:
        corrections["t_w"] = _number(full_w)
    share = productive["ratio_over_t_w_minus_t_re"]
    gap = None if share is None or full is None else round(abs(full - share), 6)
    note = "" if gap is None or gap <= TOLERANCE else f"the terms and the steps that were kept disagree by {gap:.2f}"
    return {
        "terms": {
            "t_w": _number(t_w),
            "t_ch": _number(nvcre_ch),
            "t_re": _number(t_re),
            "t_rm": [_number(value) for value in t_rm],
            "t_save": _number(t_save),
            "interruptions": len(breaks),
        },
        "goodput_nvcre": literal,
        "goodput_first_step_corrected": corrected,
        "goodput": full,
        "corrected_terms": corrections,
        "productive_steps": productive,
        "consistency": {"gap": gap, "consistent": None if gap is None else gap <= TOLERANCE, "tolerance": TOLERANCE},
        "restart_point": restart_point(log.runs),
        "lost_steps": lost_steps,
        "anchor": anchor_source,
        "counted_from": _counted_from(log.runs, context),
        "note": note,
    }


def values_of(said: dict[str, t.Any]) -> dict[str, t.Any]:
    """What criteria can use."""
    terms = said["terms"] or {}
    return {
        "goodput": said["goodput"],
        "goodput_nvcre": said["goodput_nvcre"],
        "goodput_consistent": said["consistency"]["consistent"],
        "interruptions": terms.get("interruptions"),
        "lost_steps": said["lost_steps"],
        "wall_time_s": terms.get("t_w"),
    }


def _unmeasured(note: str) -> dict[str, t.Any]:
    return {
        "terms": None,
        "goodput_nvcre": None,
        "goodput_first_step_corrected": None,
        "goodput": None,
        "corrected_terms": None,
        "productive_steps": None,
        "consistency": {"gap": None, "consistent": None, "tolerance": TOLERANCE},
        "restart_point": None,
        "lost_steps": None,
        "anchor": None,
        "counted_from": None,
        "note": note,
    }


def _counted_from(runs: t.Sequence[Run], context: t.Mapping[str, t.Any]) -> str:
    """What the first second of the wall time is; later runs begin with their own."""
    if parse_time(context.get("measurement_started_at")) is not None:
        return "the start of the measurement"
    return next(run.counted_from() for run in runs)


def _missing(log: Log, anchor: Time, start: Time) -> str:
    """What keeps goodput from being measured, or an empty text."""
    trained = [run for run in log.runs if run.begun]
    if not trained:
        return "no step line"
    if anchor is None or any(run.times[0] is None for run in trained):
        return "the lines of the log carry no times"
    # A later run may begin without a sign; the first one decides how much was start-up.
    if start is None or log.runs[0].first_time() is None:
        return "the log does not show when the application started"
    return ""


# --- terms -------------------------------------------------------------------------------------------------------


class _Break(t.NamedTuple):
    """An interruption: after run number `after`, at a time, followed by so many seconds without a run."""

    after: int
    time: datetime.datetime
    waiting: float


def _interruptions(runs: list[Run], context: t.Mapping[str, t.Any]) -> list[_Break]:
    """Ends of runs that were not the end of the job. A restart before the first step interrupts nothing."""
    given = context.get("job_interrupted_at") or context.get("interrupted_at") or []
    times = [parse_time(str(item)) for item in (given if isinstance(given, list) else [given])]
    breaks: list[_Break] = []
    begun = False
    for number, run in enumerate(runs):
        begun = begun or run.begun
        following = next((later for later in runs[number + 1 :] if later.first_time() or later.begun), None)
        failed = parse_time(context.get("job_failed_at")) if following is None else None
        if not run.begun or (following is None and failed is None):
            continue
        time = failed or (times[len(breaks)] if len(breaks) < len(times) else None) or run.last_seen
        if time is None:
            continue
        next_start = None if following is None else following.first_time() or following.times[0]
        waiting = 0.0 if next_start is None else max(0.0, seconds_between(time, next_start))
        breaks.append(_Break(number, time, waiting))
    return breaks


def _lost(runs: list[Run], gap: _Break, *, literal: bool, step_s: float | None = None) -> float:
    """Seconds of work that the interruption undid."""
    durable = [save for run in runs[: gap.after + 1] for save in run.saves.values() if save.done and save.durable is not None]
    following = next((run for run in runs[gap.after + 1 :] if run.begun), None)
    if not literal and following is not None and base_iteration(following) == 0:
        durable = []  # it started from scratch: no checkpoint helped
    if durable:
        return max(0.0, seconds_between(max(t.cast(datetime.datetime, save.durable) for save in durable), gap.time))
    if literal:
        return 0.0
    first = next((run for run in runs[: gap.after + 1] if run.begun), None)
    begun = None if first is None else _first_step_start(first, step_s)
    return 0.0 if begun is None else max(0.0, seconds_between(begun, gap.time))


def _first_step_start(run: Run, step_s: float | None) -> datetime.datetime | None:
    time = run.times[0]
    return None if time is None else earlier(time, _first_interval(run, None, step_s))


def _resume(run: Run) -> float:
    """From the start of the application to its first step line."""
    first = run.times[0]
    begun = run.first_time()
    return 0.0 if first is None or begun is None else max(0.0, seconds_between(begun, first))


def _first_interval(run: Run, interval: int | None, step_s: float | None) -> float:
    """Seconds of useful work that the first step line of a run reports about.

    Its own step time may hold compilation and warm caches: no step counts for more than the mean after the warm-up.
    """
    step = run.steps[0]
    covered = step.iteration - base_iteration(run)
    if isinstance(interval, int) and interval > 0:
        covered = min(covered, interval)
    if step.step_ms is None:
        return 0.0
    own = step.step_ms / 1000.0
    return max(1, covered) * (own if step_s is None else min(own, step_s))


def _blocking_once(runs: list[Run]) -> t.Iterator[float]:
    highest = -1
    for run in runs:
        for save in run.saves.values():
            if save.iteration > highest:
                highest = save.iteration
                yield blocking_seconds(run, save) or 0.0


def _productive(kept: int, lost: int, step_s: float | None, denominator: float) -> dict[str, t.Any]:
    productive = None if step_s is None else round(kept * step_s, 6)
    share = None if productive is None or denominator <= 0 else round(productive / denominator, 6)
    return {"kept": kept, "lost": lost, "step_s": step_s, "productive_s": productive, "ratio_over_t_w_minus_t_re": share}


def _anchor(log: Log, context: t.Mapping[str, t.Any]) -> tuple[datetime.datetime | None, str]:
    for key in ("job_succeeded_at", "job_failed_at", "job_ended_at", "finished"):
        time = parse_time(context.get(key))
        if time is not None:
            return time, key
    if not log.runs:
        return None, ""
    # Without the time of the job: the end of its log, a little early.
    run = log.runs[-1]
    return run.last_seen or run.ended_at, "log"


def _number(value: float) -> int | float:
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


# --- output ------------------------------------------------------------------------------------------------------


def _parsed(log: Log, context: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {
        "application_starts": [_clock(run.first_time()) for run in log.runs],
        "first_step_line": [_clock(run.times[0]) for run in log.runs if run.begun],
        "restored_from": next((run.restored_from for run in reversed(log.runs) if run.restored_from is not None), None),
        "checkpoints": [
            {
                "iteration": save.iteration,
                "durable": _clock(save.durable),
                "blocking_s": None if (seconds := blocking_seconds(run, save)) is None else _number(seconds),
                "async": save.asynchronous,
                "completed": save.done,
            }
            for run in log.runs
            for save in run.saves.values()
        ],
        "restart_point": restart_point(log.runs),
        "steps": [step.iteration for step in log.steps],
        "runs": len(log.runs),
        "log_interval": context.get("log_interval"),
    }


def _clock(time: datetime.datetime | None) -> str | None:
    return None if time is None else time.strftime("%H:%M:%S")
