# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From the lines of training logs to runs: one run per start of the application, with its steps and checkpoints."""

from __future__ import annotations

import datetime
import typing as t

from ..lines import LogLine
from .events import Event, Step, parse_time
from .history import Log, Run, Save, Time
from .lightning import take_metrics
from .lines import read_line

# Rich wraps metrics into a column at the right: at least this far from the margin.
_WRAP_INDENT = " " * 20


class _Item(t.NamedTuple):
    """A line that said something."""

    what: Step | Event
    when: Time


class _Pod(t.NamedTuple):
    """One file: its items, and the times of its first and last line."""

    items: list[_Item]
    first: Time
    last: Time

    def has(self, kind: str) -> bool:
        if kind == "step":
            return any(isinstance(item.what, Step) for item in self.items)
        return any(isinstance(item.what, Event) and item.what.what in ("start", "training") for item in self.items)


# What a line says, given its text and whether the log ends inside it.
ReadLine: t.TypeAlias = t.Callable[[str, bool], Step | Event | None]


def read_runs(sources: t.Iterable[t.Iterable[LogLine]], read: ReadLine = read_line) -> Log:
    """Read files in order. A file with steps only continues a file before it that has the lifecycle only: the
    first pod prints starts and checkpoints, the last pod prints steps."""
    pods = [_read_pod(source, read) for source in sources]
    log = Log()
    builder = _Builder(log)
    for group in _groups([pod for pod in pods if pod.items]):
        builder.feed_pod(group)
    builder.finish()
    return log


def _read_pod(lines: t.Iterable[LogLine], read: ReadLine) -> _Pod:
    items: list[_Item] = []
    first_stamp = last_stamp = None
    wrapped: tuple[Step, list[str]] | None = None
    for line in lines:
        if line.timestamp:
            first_stamp = first_stamp or line.timestamp
            last_stamp = line.timestamp
        if wrapped is not None and line.text.startswith(_WRAP_INDENT) and line.text.strip() and not line.torn:
            wrapped[1].append(line.text.strip())
            continue
        said = read(line.text, line.torn)
        if said is None:
            if wrapped is not None and line.text.strip():
                take_metrics(wrapped[0], " ".join(wrapped[1]))
                wrapped = None
            continue
        if isinstance(said, Step) and said.wrapped is not None:
            if wrapped is not None:
                take_metrics(wrapped[0], " ".join(wrapped[1]))
            wrapped = (said, [said.wrapped.strip()])
        items.append(_Item(said, parse_time(line.timestamp) or (said.time if isinstance(said, (Step, Event)) else None)))
    if wrapped is not None:
        take_metrics(wrapped[0], " ".join(wrapped[1]))
    stamps = [item.when for item in items if item.when is not None]
    first = parse_time(first_stamp)  # the first stamp of a container is its start; the first printed time is not
    last = parse_time(last_stamp) or (stamps[-1] if stamps else None)
    return _Pod(items, first, last)


def _groups(pods: list[_Pod]) -> t.Iterator[_Pod]:
    """Files that belong to the same run become one."""
    held: _Pod | None = None
    for pod in pods:
        if held is not None and held.has("start") and not held.has("step") and pod.has("step") and not pod.has("start"):
            yield _together(held, pod)
            held = None
            continue
        if held is not None:
            yield held
        held = pod
    if held is not None:
        yield held


def _together(first: _Pod, second: _Pod) -> _Pod:
    items = first.items + second.items
    if all(item.when is not None for item in items):
        items = sorted(items, key=lambda item: t.cast(datetime.datetime, item.when))
    ends = [end for end in (first.last, second.last) if end is not None]
    return _Pod(items, first.first or second.first, max(ends, default=None))


class _Builder:
    """Sorts items into runs."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tflops: float | None = None

    def feed_pod(self, pod: _Pod) -> None:
        if self._log.runs and not pod.has("start") and pod.has("step") and self._log.runs[-1].ended:
            self._new_run()
        before = len(self._log.runs)
        for item in pod.items:
            self._feed(item)
        if self._log.runs:
            run = self._log.runs[-1]
            run.last_seen = pod.last or run.last_seen
            if len(self._log.runs) > before and self._log.runs[before].first_seen is None:
                self._log.runs[before].first_seen = pod.first

    def finish(self) -> None:
        for run in self._log.runs:
            _mark_torn(run)
            last = next((time for time in reversed(run.times) if time is not None), None)
            run.last_seen = run.last_seen or run.ended_at or last

    def _run(self) -> Run:
        return self._log.runs[-1] if self._log.runs else self._new_run()

    def _new_run(self) -> Run:
        self._log.runs.append(Run())
        self._tflops = None
        return self._log.runs[-1]

    def _feed(self, item: _Item) -> None:
        if isinstance(item.what, Step):
            self._step(item.what, item.when)
            return
        event = item.what
        handler = getattr(self, f"_on_{event.what}", None)
        if handler is not None:
            handler(event, item.when)

    def _step(self, step: Step, when: Time) -> None:
        run = self._run()
        self._log.fractions = self._log.fractions or step.fraction
        if step.framework.startswith("lightning"):
            self._bar(step, when)
            return
        last = run.steps[-1] if run.steps else None
        if last is not None and step.iteration <= last.iteration:
            same = next((known for known in run.steps if known.iteration == step.iteration), None)
            if same is not None and (same.time, same.step_ms, same.loss) == (step.time, step.step_ms, step.loss):
                return  # the same line was read twice
            run = self._new_run()
        if step.tflops is None and self._tflops is not None:
            step.tflops = self._tflops
            self._log.separate_tflops = True
        self._tflops = None
        run.steps.append(step)
        run.times.append(when)

    def _bar(self, step: Step, when: Time) -> None:
        """A bar is drawn again and again: the last drawing of a step has its metrics, that of step 0 has old ones."""
        run = self._run()
        epoch = step.fields["epoch"]
        fresh = step.loss is None and step.step_ms is None
        if run.begun and epoch == 0 and step.printed == 0 and fresh and run.steps[-1].iteration > 0:
            run = self._new_run()
        if step.ends:
            run.ended, run.ended_at = step.ends, when
        if step.printed == 0 and run.begun:
            return
        for at in range(len(run.steps) - 1, -1, -1):
            known = run.steps[at]
            if known.fields.get("epoch") == epoch and known.printed == step.printed:
                run.steps[at], run.times[at] = step, when
                return
            if known.iteration < step.iteration:
                break
        run.steps.append(step)
        run.times.append(when)

    def _on_start(self, event: Event, when: Time) -> None:
        run = self._run()
        if event.word and run.started is not None and not run.begun:
            return  # several ranks print it
        if run.begun or run.started is not None or run.loading:
            run = self._new_run()
        run.started = when
        self._log.lifecycle = self._log.lifecycle or not event.word

    def _on_training(self, _event: Event, when: Time) -> None:
        run = self._run()
        if run.begun:
            run = self._new_run()
        run.training = when
        self._log.lifecycle = True

    def _on_ended(self, event: Event, when: Time) -> None:
        run = self._run()
        run.ended, run.ended_at = event.word, when

    def _on_load(self, event: Event, _when: Time) -> None:
        run = self._run()
        if run.begun:
            run = self._new_run()  # restarted inside the process
        run.loading = True
        if event.iteration is not None:
            run.restored_from = event.iteration

    def _on_loaded(self, event: Event, when: Time) -> None:
        self._on_load(event, when)

    def _on_scratch(self, _event: Event, _when: Time) -> None:
        self._run().restored_from = None

    def _on_save(self, event: Event, when: Time) -> None:
        run = self._run()
        iteration = t.cast(int, event.iteration)
        run.saves[iteration] = Save(iteration, event.path, started=when)

    def _on_scheduled(self, event: Event, when: Time) -> None:
        save = self._save(event.iteration, event.path)
        if save is not None:
            save.scheduled, save.asynchronous = when, True

    def _on_saved(self, event: Event, when: Time) -> None:
        save = self._save(event.iteration, event.path)
        if save is not None and not save.done:
            save.durable, save.done = when, True
            steps = self._run().steps
            # Steps went on before it was durable. NeMo's step lines count one more than its checkpoints.
            if save.started is not None and steps and steps[-1].printed > save.iteration:
                save.asynchronous = True

    def _on_finalized(self, event: Event, when: Time) -> None:
        """The line names the number of steps done, which is one more than the iteration of the checkpoint."""
        known = self._run().saves
        done = t.cast(int, event.iteration)
        iteration = next((number for number in (done - 1, done) if number in known), done - 1)
        self._on_saved(Event("saved", iteration, path=event.path), when)
        known[iteration].asynchronous = True

    def _on_blocked(self, event: Event, when: Time) -> None:
        save = self._save(event.iteration, event.path)
        if save is not None:
            save.duration = event.number
            if save.started is None and when is not None and event.number is not None:
                save.started = when - datetime.timedelta(seconds=event.number)

    def _save(self, iteration: int | None, path: str) -> Save | None:
        """The save a line belongs to: by iteration, since several can be under way at once."""
        run = self._run()
        if iteration is None:
            return next((save for save in reversed(run.saves.values()) if not save.done), None)
        if iteration not in run.saves:
            run.saves[iteration] = Save(iteration, path)
        run.saves[iteration].path = run.saves[iteration].path or path
        return run.saves[iteration]

    def _on_deleted(self, event: Event, _when: Time) -> None:
        self._run().deleted.append(t.cast(int, event.iteration))

    def _on_lost(self, event: Event, _when: Time) -> None:
        self._run().lost.append(t.cast(int, event.iteration))

    def _on_tflops(self, event: Event, _when: Time) -> None:
        self._tflops = event.number

    def _on_validation(self, _event: Event, _when: Time) -> None:
        self._log.validations += 1

    def _on_timer(self, event: Event, _when: Time) -> None:
        if self._log.runs and self._log.runs[-1].begun:
            self._log.timers.setdefault(event.word, []).append((event.numbers[0], event.numbers[1]))

    def _on_straggler(self, event: Event, _when: Time) -> None:
        if len(self._log.stragglers) < 100:
            self._log.stragglers.append(event.word)


def _mark_torn(run: Run) -> None:
    """A step line that ends with another key than its fellows was cut between two of its fields."""
    keys = [step.last_key for step in run.steps if step.last_key and not step.torn]
    if not keys:
        return
    usual = max(dict.fromkeys(keys), key=keys.count)
    for step in run.steps:
        if step.last_key and step.last_key not in (usual, "number of nan iterations"):
            step.torn = True
