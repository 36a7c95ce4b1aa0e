# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of a training job, one per start of the application, and what their steps and checkpoints mean.

Memory does not grow with the log: past `MAX_STEPS` step lines of a run, neighbours in its middle are folded into one that says the
same about their sum.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import datetime
import typing as t

from .events import Step
from .failures import Failure

Time: t.TypeAlias = datetime.datetime | None

MAX_STEPS = 4000
# Lines at both ends that are never folded: the warm-up, and what the end of a run is judged by.
ENDS = 1000
# Checkpoints, lost lines, timers and their like: more of them are counted, not kept.
MAX_KEPT = 2000


@dataclasses.dataclass(slots=True)
class Save:
    """One checkpoint of one run. done: the line that says it is durable was seen."""

    iteration: int
    path: str = ""
    started: Time = None
    scheduled: Time = None
    durable: Time = None
    done: bool = False
    asynchronous: bool = False
    duration: float | None = None


@dataclasses.dataclass
class Run:
    """What happened between one start of the application and the next. Times are UTC, or local without any stamp.

    setup: the first time the program printed before its training. bad_losses: step lines whose loss is no number.
    """

    started: Time = None
    setup: Time = None
    training: Time = None
    steps: list[Step] = dataclasses.field(default_factory=list)
    times: list[Time] = dataclasses.field(default_factory=list)  # beside steps: when each line came
    saves: dict[int, Save] = dataclasses.field(default_factory=dict)
    deleted: list[int] = dataclasses.field(default_factory=list)
    lost: list[int] = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    bad_losses: list[int] = dataclasses.field(default_factory=list)
    loading: bool = False
    restored_from: int | None = None
    ended: str = ""
    ended_at: Time = None
    first_seen: Time = None
    last_seen: Time = None
    reports: int = 0  # of timers across ranks
    past_saves: int = 0  # checkpoints that were durable and are not kept
    past_blocked_s: float = 0.0

    @property
    def begun(self) -> bool:
        return bool(self.steps)

    def first_time(self) -> Time:
        """When the application started, as well as the log knows; None when it does not show that."""
        return self.started or self.first_seen or self.setup or self.training

    def counted_from(self) -> str:
        """What `first_time` is the time of."""
        if self.started or self.first_seen:
            return "the start of the application"
        return "the program's first own time" if self.setup else "the start of the training, set-up and loading are not seen"

    def add(self, step: Step, when: Time) -> None:
        """Append a step line; its iteration is higher than that of the last."""
        self.steps.append(step)
        self.times.append(when)
        if step.has_loss and step.loss is None and len(self.bad_losses) < MAX_KEPT:
            self.bad_losses.append(step.iteration)
        if len(self.steps) > MAX_STEPS:
            self._fold()

    def find(self, iteration: int) -> Step | None:
        """The line of an iteration."""
        at = bisect.bisect_left(self.steps, iteration, key=lambda step: step.iteration)
        return self.steps[at] if at < len(self.steps) and self.steps[at].iteration == iteration else None

    def forget_save(self) -> None:
        """Let go of the oldest durable checkpoint: newer ones have made it useless."""
        iteration = next((number for number, save in self.saves.items() if save.done), next(iter(self.saves)))
        save = self.saves.pop(iteration)
        self.past_saves += save.done
        self.past_blocked_s += blocking_seconds(self, save) or 0.0

    def _fold(self) -> None:
        steps, times = self.steps[:ENDS], self.times[:ENDS]
        stop = len(self.steps) - ENDS
        at = ENDS
        while at < stop:
            one = self.steps[at]
            other = self.steps[at + 1] if at + 1 < stop else None
            if other is None or one.fields.get("epoch") != other.fields.get("epoch"):
                steps.append(one)
                times.append(self.times[at])
                at += 1
                continue
            steps.append(_folded(steps[-1].iteration, one, other))
            times.append(self.times[at + 1])
            at += 2
        self.steps, self.times = steps + self.steps[stop:], times + self.times[stop:]


@dataclasses.dataclass
class Timer:
    """Reports of one timer over the ranks of a job: the last one, and sums without the first two of a run."""

    last: tuple[float, float] = (0.0, 0.0)
    reports: int = 0
    low_ms: float = 0.0
    high_ms: float = 0.0


@dataclasses.dataclass
class Log:
    """All runs of a job, oldest first, and what belongs to no run in particular.

    ranks, sequence, batch: as the program printed them; None when it did not.
    """

    runs: list[Run] = dataclasses.field(default_factory=list)
    separate_tflops: bool = False
    timers: dict[str, Timer] = dataclasses.field(default_factory=dict)
    stragglers: list[str] = dataclasses.field(default_factory=list)
    lifecycle: bool = False
    fractions: bool = False
    ranks: int | None = None
    sequence: int | None = None
    batch: int | None = None

    @property
    def steps(self) -> list[Step]:
        return [step for run in self.runs for step in run.steps]


def _folded(before: int, one: Step, other: Step) -> Step:
    """Two lines in a row as one, the later: means are weighted by the iterations each covers, counters are summed."""
    first, second = one.iteration - before, other.iteration - one.iteration
    low = min((value for value in (one.low_ms, one.step_ms, other.low_ms, other.step_ms) if value is not None), default=None)
    high = max((value for value in (one.high_ms, one.step_ms, other.high_ms, other.step_ms) if value is not None), default=None)
    other.tflops = _mean(one.tflops, first * (one.step_ms or 1.0), other.tflops, second * (other.step_ms or 1.0))
    other.step_ms = _mean(one.step_ms, first, other.step_ms, second)
    other.lines += one.lines
    other.low_ms, other.high_ms = low, high
    for name in ("skipped_iterations", "nan_iterations"):
        count = one.fields.get(name)
        if isinstance(count, int):
            other.fields[name] = count + (other.fields.get(name) or 0)
    return other


def _mean(one: float | None, weight: float, other: float | None, other_weight: float) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    total = weight + other_weight
    return (one * weight + other * other_weight) / total if total > 0 else other


def usual_gap(runs: t.Iterable[Run]) -> int | None:
    """Iterations between two step lines, as seen most often; None when no run has two lines."""
    gaps = collections.Counter(
        later.iteration - before.iteration
        for run in runs
        for before, later in zip(run.steps, run.steps[1:], strict=False)
        if later.iteration > before.iteration and later.lines == 1
    )
    return max(gaps, key=lambda gap: (gaps[gap], -gap)) if gaps else None


def base_iteration(run: Run) -> int:
    """Iterations that were done before this run began.

    Where no line tells of a checkpoint (another pod prints those), the first step line does: a run that begins with iteration 61
    has not begun at 0.
    """
    first = run.steps[0].iteration if run.steps else None
    if run.restored_from is not None:
        base = run.restored_from + (1 if run.steps and run.steps[0].framework == "nemo" else 0)
        return base if first is None or base < first else 0
    gap = max((later.iteration - before.iteration for before, later in zip(run.steps[:9], run.steps[1:9], strict=False)), default=None)
    if first is None or gap is None or first <= gap or run.steps[0].framework.startswith("lightning"):
        return 0
    return first - 1 if first % gap else first - gap


def blocking_seconds(run: Run, save: Save) -> float | None:
    """How long a save kept the training from going on; None when the log does not tell.

    Synchronous: from its first line to the line of success. Asynchronous: to the line that it was scheduled. Where
    lines carry no time, or an asynchronous save has no such line: what the steps around it took too long.
    """
    if save.duration is not None:
        return save.duration
    end = save.scheduled if save.asynchronous else save.durable
    if save.started is not None and end is not None:
        return max(0.0, round(seconds_between(save.started, end), 6))
    after = bisect.bisect_right(run.steps, save.iteration, key=lambda step: step.printed)
    if after in (0, len(run.steps)):
        return None
    before, later = run.times[after - 1], run.times[after]
    step = run.steps[after]
    if before is None or later is None or step.step_ms is None:
        return None
    expected = (step.iteration - run.steps[after - 1].iteration) * step.step_ms / 1000.0
    # Times are printed in whole seconds by the versions that need this.
    return max(0.0, round(seconds_between(before, later) - expected, 1))


def kept_steps(runs: list[Run]) -> tuple[int, int]:
    """(steps that count in the end, steps that were done and lost)."""
    trained = [run for run in runs if run.begun]
    kept = done = 0
    for number, run in enumerate(trained):
        base, last = base_iteration(run), run.steps[-1].iteration
        done += last - base
        restart = base_iteration(trained[number + 1]) if number + 1 < len(trained) else last
        if restart < base:
            kept = 0  # everything before was thrown away
            continue
        kept += max(0, min(restart, last) - base)
    return kept, max(0, done - kept)


def restart_point(runs: list[Run]) -> int | None:
    """The newest checkpoint that is durable: where a next run would go on."""
    done = [save.iteration for run in runs for save in run.saves.values() if save.done]
    return max(done, default=None)


def seconds_between(start: datetime.datetime, end: datetime.datetime) -> float:
    """Negative when end lies before start."""
    return (end - start).total_seconds()
