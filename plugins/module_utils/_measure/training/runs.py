# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From the lines of training logs to runs: one run per start of the application, with its steps and checkpoints.

Lines are read once and in order; what is kept is what `history` keeps.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ..lines import LogLine
from . import failures
from .events import Event, Step, earlier, parse_time
from .failures import Failure
from .history import MAX_KEPT, Log, Run, Save, Time, Timer
from .lightning import take_metrics
from .lines import read_line
from .megatron import LAST_KEY

# Rich wraps metrics into a column at the right: at least this far from the margin.
_WRAP_INDENT = " " * 20
# Events of a pod that has not printed a step yet. A first pod prints starts and checkpoints only.
_MAX_HELD = 100_000

# Events of the lifecycle after which a training goes on or not.
_BOUNDS = ("start", "training", "load", "ended")

# What a line says, given its text and whether the log ends inside it.
ReadLine: t.TypeAlias = t.Callable[[str, bool], Step | Event | None]


class _Item(t.NamedTuple):
    """A line that said something."""

    what: Step | Event | Failure
    when: Time


@dataclasses.dataclass
class _Stamps:
    """Times of the first and the last line of a file, by the transport."""

    first: str | None = None
    last: str | None = None


def read_runs(sources: t.Iterable[t.Iterable[LogLine]], read: ReadLine = read_line) -> Log:
    """Read files in order. A file with steps only continues a file before it that has the lifecycle only: the
    first pod prints starts and checkpoints, the last pod prints steps."""
    builder = _Builder()
    for source in sources:
        stamps = _Stamps()
        pod = _Pod(builder, stamps)
        for item in _items(source, read, stamps):
            pod.take(item)
        pod.finish()
    return builder.finish()


def _items(lines: t.Iterable[LogLine], read: ReadLine, stamps: _Stamps) -> t.Iterator[_Item]:
    reader = failures.Reader()
    wrapped: tuple[_Item, list[str]] | None = None
    for line in lines:
        if line.timestamp:
            stamps.first = stamps.first or line.timestamp
            stamps.last = line.timestamp
        if wrapped is not None and line.text.startswith(_WRAP_INDENT) and line.text.strip() and not line.torn:
            wrapped[1].append(line.text.strip())
            continue
        said: Step | Event | Failure | None = read(line.text, line.torn)
        if said is None:
            if wrapped is not None and line.text.strip():
                yield _unwrapped(*wrapped)
                wrapped = None
            said = reader.see(line.text, parse_time(line.timestamp))
            if said is None:
                continue
        if wrapped is not None and isinstance(said, Step):
            yield _unwrapped(*wrapped)
            wrapped = None
        item = _Item(said, parse_time(line.timestamp) or said.time)
        if isinstance(said, Step) and said.wrapped is not None:
            wrapped = (item, [said.wrapped.strip()])
        else:
            yield item
    if wrapped is not None:
        yield _unwrapped(*wrapped)


def _word(item: _Item) -> str:
    """What an event of the lifecycle is; "" for a step or a failure."""
    return item.what.what if isinstance(item.what, Event) else ""


def _unwrapped(item: _Item, pieces: list[str]) -> _Item:
    take_metrics(t.cast(Step, item.what), " ".join(pieces))
    return item


class _Pod:
    """One file on its way to the builder. Nothing is passed on before its first step: until then it may belong to the file before."""

    def __init__(self, builder: _Builder, stamps: _Stamps) -> None:
        self._builder = builder
        self._stamps = stamps
        self._held: list[_Item] = []
        self._starts = False
        self._flows = False
        self._partner: collections.deque[_Item] = collections.deque()  # the lifecycle of the file before, still to come
        self._end: _Item | None = None  # of the training, as the partner tells it last
        self._before = 0

    def take(self, item: _Item) -> None:
        if self._flows:
            self._pass(item)
            return
        if isinstance(item.what, Event):
            self._starts = self._starts or item.what.what in ("start", "training")
            if item.what.what == "timer":
                return  # of the set-up
        if isinstance(item.what, Step) or len(self._held) >= _MAX_HELD:
            self._open()
            self._pass(item)
        else:
            self._held.append(item)

    def _open(self) -> None:
        waiting = self._builder.waiting
        self._builder.waiting = None
        if waiting is not None and not self._starts:
            self._partner = collections.deque(waiting.items)
            self._stamps.first = waiting.first or self._stamps.first
            self._builder.saw(parse_time(waiting.last))
        elif waiting is not None:
            self._builder.feed_all(waiting)
        self._before = self._builder.begin(continues=self._starts or bool(self._partner))
        self._flows = True
        self._lead_in()
        held, self._held = self._held, []
        for item in held:
            self._pass(item)

    def _lead_in(self) -> None:
        """The training begins before its first step and ends after its last, whatever the clocks of two nodes say."""
        said = [_word(item) for item in self._partner]
        begins = next((said.index(what) for what in ("training", "start") if what in said), None)
        if begins is not None:
            for _turn in range(begins + 1):
                self._builder.feed(self._partner.popleft())
        last = max((at for at, item in enumerate(self._partner) if _word(item) in _BOUNDS), default=None)
        if last is not None and _word(self._partner[last]) == "ended":
            self._end = self._partner[last]
            del self._partner[last]

    def _pass(self, item: _Item) -> None:
        while self._partner and (item.when is None or (when := self._partner[0].when) is None or when <= item.when):
            self._builder.feed(self._partner.popleft())
        self._builder.feed(item)

    def finish(self) -> None:
        builder = self._builder
        if self._flows:
            for item in [*self._partner, *([self._end] if self._end else [])]:
                builder.feed(item)
            builder.end(self._before, self._stamps.first, self._stamps.last)
        elif self._held:
            pod = _Lifecycle(self._held, self._stamps.first, self._stamps.last)
            if builder.waiting is not None:
                builder.feed_all(builder.waiting)
            builder.waiting = pod
            if not self._starts:
                builder.feed_all(pod)
                builder.waiting = None


class _Lifecycle(t.NamedTuple):
    """A file without a step."""

    items: list[_Item]
    first: str | None
    last: str | None


class _Builder:
    """Sorts items into runs."""

    def __init__(self) -> None:
        self._log = Log()
        self._tflops: float | None = None
        self._latest: Time = None  # what this file tells of its end
        self.waiting: _Lifecycle | None = None

    def begin(self, *, continues: bool) -> int:
        """A file begins; returns how many runs there are. continues: it shows its own start."""
        if self._log.runs and not continues and self._log.runs[-1].ended:
            self._new_run()
        return len(self._log.runs)

    def end(self, before: int, first: str | None, last: str | None) -> None:
        """A file ends. The first stamp of a container is its start; the first printed time is not."""
        if not self._log.runs:
            return
        run = self._log.runs[-1]
        if last is not None:
            self.saw(parse_time(last))
        run.last_seen = self._latest or run.last_seen
        self._latest = None
        if len(self._log.runs) > before and self._log.runs[before].first_seen is None:
            self._log.runs[before].first_seen = parse_time(first)

    def feed_all(self, pod: _Lifecycle) -> None:
        before = len(self._log.runs)
        for item in pod.items:
            self.feed(item)
        self.end(before, pod.first, pod.last)

    def finish(self) -> Log:
        if self.waiting is not None:
            self.feed_all(self.waiting)
        for run in self._log.runs:
            _mark_torn(run)
            last = next((time for time in reversed(run.times) if time is not None), None)
            run.last_seen = run.last_seen or run.ended_at or last
        return self._log

    def saw(self, time: Time) -> None:
        """A time of the file that is being read."""
        if time is not None and (self._latest is None or time > self._latest):
            self._latest = time

    def feed(self, item: _Item) -> None:
        self.saw(item.when)
        if isinstance(item.what, Step):
            self._step(item.what, item.when)
            return
        run = self._run()
        if isinstance(item.what, Failure):
            failures.keep(run.failures, item.what)
            return
        handler = getattr(self, f"_on_{item.what.what}", None)
        if handler is not None:  # a validation or a profile's own word changes nothing
            handler(item.what, item.when)

    def _run(self) -> Run:
        return self._log.runs[-1] if self._log.runs else self._new_run()

    def _new_run(self) -> Run:
        self._log.runs.append(Run())
        self._tflops = None
        return self._log.runs[-1]

    # --- steps ---

    def _step(self, step: Step, when: Time) -> None:
        run = self._run()
        self._log.fractions = self._log.fractions or step.fraction
        if step.framework.startswith("lightning"):
            self._bar(step, when)
            return
        last = run.steps[-1] if run.steps else None
        if last is not None and step.iteration <= last.iteration:
            if self._read_before(run, step):
                return
            run = self._new_run()
        if step.tflops is None and self._tflops is not None:
            step.tflops = self._tflops
            self._log.separate_tflops = True
        self._tflops = None
        run.add(step, when)

    def _read_before(self, run: Run, step: Step) -> bool:
        """Whether this line was read already: two windows of a log can overlap."""
        same = run.find(step.iteration)
        if same is not None and same.lines == 1:
            return (same.time, same.step_ms, same.loss) == (step.time, step.step_ms, step.loss)
        folded = any(known.lines > 1 for known in run.steps)
        last = run.steps[-1].time
        return folded and step.time is not None and last is not None and step.time <= last

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
        run.add(step, when)

    def _on_lost(self, event: Event, _when: Time) -> None:
        _append(self._run().lost, event.iteration)

    def _on_tflops(self, event: Event, _when: Time) -> None:
        self._tflops = event.number

    # --- starts and ends ---

    def _on_start(self, event: Event, when: Time) -> None:
        if event.number:
            self._log.ranks = max(self._log.ranks or 0, int(event.number))
        run = self._run()
        if event.word and run.started is not None and not run.begun:
            return  # several ranks print it
        if run.begun or run.started is not None or run.loading:
            run = self._new_run()
        run.started = when
        self._log.lifecycle = self._log.lifecycle or not event.word

    def _on_clock(self, event: Event, _when: Time) -> None:
        """The set-up prints its times when it is over, not in order."""
        run = self._run()
        if event.time is not None and not run.begun and (run.setup is None or event.time < run.setup):
            run.setup = event.time

    def _on_training(self, _event: Event, when: Time) -> None:
        run = self._run()
        if run.begun:
            run = self._new_run()
        run.training = when
        self._log.lifecycle = True

    def _on_ended(self, event: Event, when: Time) -> None:
        run = self._run()
        run.ended, run.ended_at = event.word, when

    # --- checkpoints ---

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
        save = self._save(event.iteration, "")
        if save is not None:
            fresh = Save(save.iteration, event.path, started=when)
            self._run().saves[save.iteration] = fresh

    def _on_scheduled(self, event: Event, when: Time) -> None:
        save = self._save(event.iteration, event.path)
        if save is not None:
            save.scheduled, save.asynchronous = when, True

    def _on_saved(self, event: Event, when: Time) -> None:
        save = self._save(event.iteration, event.path)
        if save is None or (save.done and not event.word):
            return
        save.durable, save.done = when, True
        steps = self._run().steps
        # Steps went on before it was durable. NeMo's step lines count one more than its checkpoints.
        if event.word or (save.started is not None and steps and steps[-1].printed > save.iteration):
            save.asynchronous = True

    def _on_finalized(self, event: Event, when: Time) -> None:
        """The line names the number of steps done, which is one more than the iteration of the checkpoint."""
        known = self._run().saves
        done = t.cast(int, event.iteration)
        iteration = next((number for number in (done - 1, done) if number in known), done - 1)
        self._on_saved(Event("saved", iteration, path=event.path), when)
        if iteration in known:
            known[iteration].asynchronous = True

    def _on_blocked(self, event: Event, when: Time) -> None:
        save = self._save(event.iteration, event.path)
        if save is not None:
            save.duration = event.number
            if save.started is None and when is not None and event.number is not None:
                save.started = earlier(when, event.number)

    def _save(self, iteration: int | None, path: str) -> Save | None:
        """The save a line belongs to: by iteration, since several can be under way at once."""
        run, saves = self._run(), self._run().saves
        if iteration is None:
            return next((save for save in reversed(saves.values()) if not save.done), None)
        if iteration not in saves:
            if len(saves) >= MAX_KEPT:
                run.forget_save()
            saves[iteration] = Save(iteration, path)
        saves[iteration].path = saves[iteration].path or path
        return saves[iteration]

    def _on_deleted(self, event: Event, _when: Time) -> None:
        _append(self._run().deleted, event.iteration)

    # --- the rest ---

    def _on_sequence(self, event: Event, _when: Time) -> None:
        self._log.sequence = int(event.number or 0) or self._log.sequence

    def _on_batch(self, event: Event, _when: Time) -> None:
        self._log.batch = int(event.number or 0) or self._log.batch

    def _on_timer(self, event: Event, _when: Time) -> None:
        """The first two reports of a run hold its start-up."""
        run = self._run()
        if not run.begun or (event.word not in self._log.timers and len(self._log.timers) >= MAX_KEPT):
            return
        timer = self._log.timers.setdefault(event.word, Timer())
        timer.last = (event.numbers[0], event.numbers[1])
        timer.reports += 1
        if event.word == "forward-backward":
            run.reports += 1
            if run.reports > 2 and event.numbers[0] > 0:
                timer.low_ms += event.numbers[0]
                timer.high_ms += event.numbers[1]

    def _on_straggler(self, event: Event, _when: Time) -> None:
        if len(self._log.stragglers) < 100:
            self._log.stragglers.append(event.word)


def _append(numbers: list[int], number: int | None) -> None:
    if number is not None and len(numbers) < MAX_KEPT:
        numbers.append(number)


def _mark_torn(run: Run) -> None:
    """A step line that ends with another key than its fellows was cut between two of its fields."""
    keys = [step.last_key for step in run.steps if step.last_key and not step.torn]
    if not keys:
        return
    counts: dict[str, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    usual = max(counts, key=lambda key: counts[key])
    for step in run.steps:
        if step.last_key and step.last_key not in (usual, LAST_KEY):
            step.torn = True
