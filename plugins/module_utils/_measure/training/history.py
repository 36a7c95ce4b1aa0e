# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of a training job, one per start of the application, and what their checkpoints mean."""

from __future__ import annotations

import dataclasses
import datetime
import typing as t

from .events import Step

Time: t.TypeAlias = datetime.datetime | None


@dataclasses.dataclass
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
    """What happened between one start of the application and the next. Times are UTC, or local without any stamp."""

    started: Time = None
    training: Time = None
    steps: list[Step] = dataclasses.field(default_factory=list)
    times: list[Time] = dataclasses.field(default_factory=list)  # beside steps: when each line came
    saves: dict[int, Save] = dataclasses.field(default_factory=dict)
    deleted: list[int] = dataclasses.field(default_factory=list)
    lost: list[int] = dataclasses.field(default_factory=list)
    loading: bool = False
    restored_from: int | None = None
    ended: str = ""
    ended_at: Time = None
    first_seen: Time = None
    last_seen: Time = None

    @property
    def begun(self) -> bool:
        return bool(self.steps)

    def first_time(self) -> Time:
        """When the application started, as well as the log knows; None when it does not show that."""
        return self.started or self.first_seen or self.training


@dataclasses.dataclass
class Log:
    """All runs of a job, oldest first, and what belongs to no run in particular."""

    runs: list[Run] = dataclasses.field(default_factory=list)
    separate_tflops: bool = False
    timers: dict[str, list[tuple[float, float]]] = dataclasses.field(default_factory=dict)
    stragglers: list[str] = dataclasses.field(default_factory=list)
    validations: int = 0
    lifecycle: bool = False
    fractions: bool = False

    @property
    def steps(self) -> list[Step]:
        return [step for run in self.runs for step in run.steps]


def base_iteration(run: Run) -> int:
    """Iterations that were done before this run began."""
    if run.restored_from is None:
        return 0
    base = run.restored_from + (1 if run.steps and run.steps[0].framework == "nemo" else 0)
    return base if not run.steps or base < run.steps[0].iteration else 0


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
    after = next((number for number, step in enumerate(run.steps) if step.printed > save.iteration), 0)
    if after == 0:
        return None
    earlier, later = run.times[after - 1], run.times[after]
    step = run.steps[after]
    if earlier is None or later is None or step.step_ms is None:
        return None
    expected = (step.iteration - run.steps[after - 1].iteration) * step.step_ms / 1000.0
    # Times are printed in whole seconds by the versions that need this.
    return max(0.0, round(seconds_between(earlier, later) - expected, 1))


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
            restart = max(restart, 0)
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
