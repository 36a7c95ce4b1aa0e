# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of step lines that their neighbours contradict: a digit that was lost or glued makes a time or a rate of another size.

Nothing is doubted for being unusual alone: a slow step is a finding, not a fault of the log. A time is doubted when the clock
or the rate of the same line denies it, a rate when the time of the same line does.
"""

from __future__ import annotations

import statistics
import typing as t

from .history import Run, seconds_between

# How far from its neighbours a number is that must be proven by another one.
FACTOR = 3.0
_ENOUGH = 4


class Doubts(t.NamedTuple):
    """Positions of step lines whose time, or whose rate, is not believed."""

    times: set[int]
    rates: set[int]


def doubtful(run: Run, interval: int | None) -> Doubts:
    """The lines of a run with a number that cannot be."""
    times = [step.step_ms for step in run.steps if step.step_ms is not None]
    rates = [step.tflops for step in run.steps if step.tflops is not None]
    found = Doubts(set(), set())
    if len(times) < _ENOUGH:
        return found
    usual_ms = statistics.median(times)
    usual_rate = statistics.median(rates) if len(rates) >= _ENOUGH else None
    late = _beyond_the_clock(run, interval)
    for number, step in enumerate(run.steps):
        if number < 2 or step.step_ms is None:
            continue  # the start-up
        if step.step_ms > FACTOR * usual_ms and number in late:
            found.times.add(number)
        if step.tflops is None or usual_rate is None:
            continue
        usual_time = 1 / FACTOR < step.step_ms / usual_ms < FACTOR
        near_rate = 0.5 < step.tflops / usual_rate < 2.0
        if usual_time and not 1 / FACTOR < step.tflops / usual_rate < FACTOR:
            found.rates.add(number)
        elif step.step_ms * FACTOR < usual_ms and near_rate:
            found.times.add(number)
    return found


def _beyond_the_clock(run: Run, interval: int | None) -> set[int]:
    """Lines that claim more time than passed since the line before. Empty where the clocks of most lines are of no use."""
    claims: list[int] = []
    known = 0
    for number in range(2, len(run.steps)):
        before, step = run.steps[number - 1], run.steps[number]
        if before.time is None or step.time is None or step.step_ms is None:
            continue
        known += 1
        covered = step.iteration - before.iteration
        covered = covered if interval is None else min(covered, interval * step.lines)
        # Times are printed in whole seconds by many versions.
        if covered * step.step_ms / 1000.0 > 2.0 + 1.5 * max(0.0, seconds_between(before.time, step.time)):
            claims.append(number)
    return set(claims) if 2 * len(claims) < known else set()
