# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of NeMo 1 and 2 and of Lightning with its tqdm and its Rich bar, and timers and stragglers of any program."""

from __future__ import annotations

import datetime
import re
import typing as t

from .events import COUNT, MAX_SAVE_S, MAX_STEP_MS, MAX_TFLOPS, TIME, Event, Step, field, number, parse_time, within

# --- NeMo 2 ------------------------------------------------------------------------------------------------------

_NEMO_STEP = re.compile(rf"\bTraining epoch (\d{{1,9}}), iteration ({COUNT})/({COUNT}) \| ")
_NEMO_TIME = re.compile(rf"\[NeMo \w ({TIME}) ")
_NEMO_SAVE = re.compile(
    rf"Global Checkpoint Save : Rank: \d{{1,9}} : Iteration: ({COUNT}) : Start time: [\d.]{{1,30}}s : Save duration: ([\d.]{{1,30}})s"
)
_NEMO_SCHEDULED = re.compile(r"\bScheduled async checkpoint save for (\S{1,4096})")
# Older releases name no path.
_NEMO_FINALIZED = re.compile(rf"\bAsync checkpoint save for step ({COUNT})(?: \((\S{{1,4096}})\))? finalized successfully")
_NEMO_RESTORE = re.compile(r"\bRestoring model weights from (\S{1,4096})")
_NEMO_FIELDS = {
    "global_step": "global_step",
    "global_batch_size": "global_batch_size",
    "consumed_samples": "consumed_samples",
    "lr": "learning_rate",
}

# --- Lightning ---------------------------------------------------------------------------------------------------

# NeMo 1 prints a second colon behind the epoch and no rate.
_TQDM = re.compile(
    rf"Epoch (\d{{1,9}}):(?: ?:)? {{1,6}}(?:\d{{1,3}}%)?\|[^|]{{0,400}}\| {{0,12}}({COUNT})/({COUNT})"
    r" \[(\d{1,6}(?::\d\d){1,2})<[\d:?]{1,20}(?:, {0,6}(\?|[\d.]{1,20}) ?(it/s|s/it))?((?:, [^\]\[]{0,4000})?)\]"
)
_RICH = re.compile(
    rf"Epoch (\d{{1,9}})/-?\d{{1,9}} {{1,4}}[━╸╺ ]{{1,200}} ({COUNT})/({COUNT}) {{1,4}}(\d{{1,6}}(?::\d\d){{1,2}})"
    r" • \S{1,20} {1,8}([\d.]{1,20})it/s(.*)"
)
_FIT_STOPPED = re.compile(r"`?Trainer\.fit`? stopped: `?(max_\w{1,40}|\w{1,40})=?[^\s`]{0,100}`? reached")
_LIGHTNING_START = re.compile(rf"\bInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/({COUNT})")
_RESTORING = re.compile(r"\bRestoring states from the checkpoint path at (\S{1,4096})")
_RESTORED = re.compile(r"\bRestored all states from the checkpoint(?: at)? (\S{1,4096})")
_LOSS_NAMES = ("reduced_train_loss", "train_loss", "loss", "train/loss", "train_loss_step", "loss_step")
_STEP_PATH = re.compile(rf"step[=_-]?({COUNT})(?!\d)")

# --- any program -------------------------------------------------------------------------------------------------

_TIMER = re.compile(r"\A {1,40}([\w/-]{1,80}) \.{2,80}: \(([\d.]{1,20}), ([\d.]{1,20})\)\s{0,8}$")
_STRAGGLER = re.compile(r"\b(M[nx]\w{1,40})/Rnk: {0,8}([\d.]{1,20})[A-Za-z%]{0,20}/(\d{1,9})")
_STRAGGLER_WARNING = "STRAGGLER DETECTION WARNING"


def nemo_step(text: str, torn: bool) -> Step | None:
    """A step line of NeMo 2. Its iterations begin anew in every epoch, its global steps do not."""
    match = _NEMO_STEP.search(text) if "Training epoch" in text else None
    if match is None:
        return None
    pieces = text[match.end() :].split(" | ")
    pairs: dict[str, str] = {}
    for piece in pieces[:-1] if torn else pieces:
        key, colon, value = piece.partition(": ")
        if colon:
            pairs[key.strip()] = value.strip()
    fields = {name: field(name, pairs[key]) for key, name in _NEMO_FIELDS.items() if key in pairs}
    epoch, in_epoch, last = (int(group) for group in match.groups())
    done = fields.get("global_step")
    printed = done if isinstance(done, int) and 0 <= done < 10**15 else epoch * (last + 1) + in_epoch
    stamp = _NEMO_TIME.search(text)
    made = Step(printed + 1, printed, last + 1, framework="nemo", time=parse_time(stamp.group(1) if stamp else None))
    made.last_key = next(reversed(pairs), "")
    seconds = within(pairs.get("train_step_timing in s", ""), MAX_STEP_MS / 1000.0)
    made.step_ms = None if seconds is None else seconds * 1000.0
    made.tflops = within(pairs.get("TFLOPS_per_GPU", ""), MAX_TFLOPS)
    made.has_loss = "reduced_train_loss" in pairs
    made.loss = number(pairs.get("reduced_train_loss", ""))
    made.fields = {**fields, "epoch": epoch}
    made.torn = torn
    return made


def progress_bar(text: str, torn: bool) -> Step | None:
    """A drawing of a progress bar."""
    if "Epoch " not in text:
        return None
    refreshes = list(_TQDM.finditer(text))
    if refreshes:
        match = refreshes[-1]  # the one that was left standing
        epoch, done, of, elapsed, rate, unit, rest = match.groups()
        made = _bar_step(int(epoch), int(done), int(of), elapsed, None if rate is None else _rate(rate, unit), rest)
        stopped = _FIT_STOPPED.search(text, match.end())
        made.ends = stopped.group(1) if stopped else ""
        return made
    rich = _RICH.search(text)
    if rich is not None:
        epoch, done, of, elapsed, rate, rest = rich.groups()
        made = _bar_step(int(epoch), int(done), int(of), elapsed, within(rate, 1e9), "")
        # Rich wraps the metrics over the next lines: the caller joins them.
        made.framework, made.wrapped, made.torn = "lightning-rich", rest, torn
        return made
    return None


def _rate(rate: str, unit: str) -> float | None:
    value = within(rate, 1e9)
    if value is None or unit == "it/s":
        return value
    return round(1.0 / value, 6) or None


def _bar_step(epoch: int, done: int, of: int, elapsed: str, rate: float | None, rest: str) -> Step:
    made = Step(epoch * of + done, done, of, framework="lightning")
    made.fields = {"epoch": epoch, "rate_it_s": rate, "elapsed_s": _clock(elapsed)}
    take_metrics(made, rest)
    return made


def take_metrics(step: Step, text: str) -> None:
    """The metrics beside a bar (`, name=value`); also used for the lines Rich wraps them to (`name: value`)."""
    for name, value in _named_numbers(text):
        if name in _LOSS_NAMES:
            step.has_loss, step.loss = True, number(value)
        elif name == "train_step_timing in s":
            seconds = within(value, MAX_STEP_MS / 1000.0)
            step.step_ms = None if seconds is None else seconds * 1000.0
        elif name in ("TFLOPS_per_GPU", "tflops_per_gpu"):
            step.tflops = within(value, MAX_TFLOPS)
        elif name == "global_batch_size":
            step.fields["global_batch_size"] = field(name, value)


def _named_numbers(text: str) -> t.Iterator[tuple[str, str]]:
    if "=" in text:
        for part in text.split(","):
            name, equals, value = part.rpartition("=")
            if equals:
                yield name.strip(), value.strip()
        return
    spoken: list[str] = []
    words = iter(text.split())
    for word in words:
        spoken.append(word.rstrip(":"))
        if word.endswith(":"):
            yield " ".join(spoken), next(words, "")
            spoken = []


def _clock(text: str) -> int:
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


def event(text: str, torn: bool) -> Event | None:
    """Checkpoints, starts and ends of NeMo and Lightning; timers and stragglers. Words are looked for before patterns."""
    if "heckpoint" in text or "Restoring model" in text:
        stamp = _NEMO_TIME.search(text)
        return _checkpoint(text, parse_time(stamp.group(1)) if stamp else None)
    if "Trainer.fit" in text and (match := _FIT_STOPPED.search(text)):
        return Event("ended", word=match.group(1))
    if "GLOBAL_RANK" in text and (match := _LIGHTNING_START.search(text)):
        return Event("start", word="lightning", number=float(match.group(1)))
    if "..: (" in text and (match := _TIMER.match(text)):
        low, high = number(match.group(2)), number(match.group(3))
        return None if low is None or high is None else Event("timer", word=match.group(1), numbers=(low, high))
    return _straggler(text, torn)


def _checkpoint(text: str, time: datetime.datetime | None) -> Event | None:
    if match := _NEMO_SAVE.search(text):
        seconds = number(match.group(2))
        return Event("blocked", int(match.group(1)), time, number=seconds if seconds is not None and seconds <= MAX_SAVE_S else None)
    if match := _NEMO_SCHEDULED.search(text):
        return Event("scheduled", _step_of_path(match.group(1)), time, match.group(1))
    if match := _NEMO_FINALIZED.search(text):
        return Event("finalized", int(match.group(1)), time, match.group(2) or "")
    if match := _NEMO_RESTORE.search(text) or _RESTORING.search(text):
        return Event("load", _step_of_path(match.group(1)), time, match.group(1))
    if match := _RESTORED.search(text):
        return Event("loaded", _step_of_path(match.group(1)), time, match.group(1))
    return None


def _straggler(text: str, torn: bool) -> Event | None:
    if (at := text.find(_STRAGGLER_WARNING)) >= 0:
        return Event("straggler", word=text[at : at + 500].strip())
    pairs = [] if torn or "/Rnk:" not in text else _STRAGGLER.findall(text)
    return Event("straggler", word=" ".join(f"{name}={value}@{rank}" for name, value, rank in pairs[:50])) if pairs else None


def _step_of_path(path: str) -> int | None:
    """Checkpoint directories carry their step: `...step=39-last`."""
    found = _STEP_PATH.findall(path)
    return int(found[-1]) if found else None
