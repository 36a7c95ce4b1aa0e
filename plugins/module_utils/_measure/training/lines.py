# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What one line of a training log says: a step, a checkpoint event, a start, an end, or nothing.

Known: Megatron-LM up to core 0.20, Megatron-Bridge, NeMo 2, Lightning with its tqdm and its Rich bar. Values are
taken only where the line proves that they are whole: a log can be cut at any byte.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
import typing as t

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf|NAN|INF|NaN|Inf)"
_TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?"


@dataclasses.dataclass
class Step:
    """One step line. iteration counts from 1; printed is what the line says (NeMo counts from 0)."""

    iteration: int
    printed: int
    total: int | None = None
    step_ms: float | None = None
    tflops: float | None = None
    loss: float | None = None
    has_loss: bool = False
    fields: dict[str, t.Any] = dataclasses.field(default_factory=dict)
    time: datetime.datetime | None = None
    fraction: bool = False  # whether the time was printed with a fraction
    torn: bool = False
    framework: str = "megatron"
    last_key: str = ""
    wrapped: str | None = None
    ends: str = ""  # the limit named by a "stopped" message glued to a bar


@dataclasses.dataclass
class Event:
    """Something other than a step.

    what: start, training, ended, save, scheduled, saved, finalized, blocked, load, loaded, scratch, deleted, tflops,
    validation, timer, straggler, lost (a torn step line).
    """

    what: str
    iteration: int | None = None
    time: datetime.datetime | None = None
    path: str = ""
    number: float | None = None
    word: str = ""
    numbers: tuple[float, ...] = ()


# A line without any of these words says nothing to us. Most lines of a log end here.
_HINTS = (
    *("iteration", "checkpoint", "Checkpoint", "datetime", "world size", "Step Time", "Trainer.fit", "exiting program", "states from"),
    *("Restor", "Epoch ", "..: (", "/Rnk:", "STRAGGLER", "GLOBAL_RANK", "Starting job"),
)

# --- Megatron-LM and Bridge --------------------------------------------------------------------------------------

_MEGATRON_STEP = re.compile(rf"(?:\[({_TIME})\]\s*)?\biteration\s+(\d+)\s*/\s*(\d+)\s*\|")
_LEADING_TIME = re.compile(rf"\s*\[({_TIME})\]")
_START = re.compile(r"\busing world size: \d+, data-parallel size: ")
_DATETIME = re.compile(rf"\[(before the start of training step|after training is done)\] datetime: ({_TIME})?")
_EXITING = re.compile(r"\[exiting program (?:at iteration|after) ([\d.]+)")
_SAVE = re.compile(r"\bsaving checkpoint at iteration\s+(\d+) to (\S+)")
_SCHEDULED = re.compile(r"\bscheduled an async checkpoint save at iteration\s+(\d+) to (\S+)", re.I)
_SAVED = re.compile(r"\bsuccessfully saved checkpoint from iteration\s+(\d+) to (\S+)", re.I)
_DELETED = re.compile(r"\bsuccessfully deleted checkpoint from iteration\s+(\d+) ", re.I)
_LOAD = re.compile(r"\bloading (?:release )?(?:distributed )?checkpoint from (\S+)(?: at iteration\s+(\d+)\b)?", re.I)
_LOADED = re.compile(r"\bsuccessfully loaded checkpoint from (\S+).*? at iteration\s+(\d+)\b", re.I)
_SCRATCH = re.compile(r"will not load any checkpoints and will start from random", re.I)
_STEP_TIME = re.compile(r"\bStep Time\s*:\s*([\d.]+)s\s+GPU utilization:\s*([\d.]+)\s*MODEL_TFLOP/s/GPU")
_VALIDATION = re.compile(r"\bvalidation loss at iteration (\d+)")
_TIMER = re.compile(r"\s+([\w/-]+) \.{2,}: \(([\d.]+), ([\d.]+)\)\s*$")
# What --log-progress writes to progress.txt, tab-separated.
_PROGRESS = re.compile(rf"({_TIME})\tJob ID: .*?\t# GPUs: \d+\t(Starting job|Saved checkpoint)(?:\tIteration: (\d+)\t)?")
_STRAGGLER = re.compile(r"\b(M[nx]\w+)/Rnk:\s*([\d.]+)[A-Za-z%]*/(\d+)")
_STRAGGLER_WARNING = re.compile(r"STRAGGLER DETECTION WARNING.*")

_MEGATRON_FIELDS = {
    "consumed samples": "consumed_samples",
    "skipped samples": "skipped_samples",
    "learning rate": "learning_rate",
    "global batch size": "global_batch_size",
    "loss scale": "loss_scale",
    "grad norm": "grad_norm",
    "num zeros": "num_zeros",
    "params norm": "params_norm",
    "number of skipped iterations": "skipped_iterations",
    "number of nan iterations": "nan_iterations",
}
_INTEGERS = {
    "consumed_samples",
    "skipped_samples",
    "global_batch_size",
    "skipped_iterations",
    "nan_iterations",
    "num_zeros",
    "global_step",
}
_LAST_MEGATRON_KEY = "number of nan iterations"

# --- NeMo 2 ------------------------------------------------------------------------------------------------------

_NEMO_STEP = re.compile(r"\bTraining epoch (\d+), iteration (\d+)/(\d+) \| ")
_NEMO_TIME = re.compile(rf"\[NeMo \w ({_TIME}) ")
_NEMO_SAVE = re.compile(r"Global Checkpoint Save : Rank: \d+ : Iteration: (\d+) : Start time: [\d.]+s : Save duration: ([\d.]+)s")
_NEMO_SCHEDULED = re.compile(r"\bScheduled async checkpoint save for (\S+)")
_NEMO_FINALIZED = re.compile(r"\bAsync checkpoint save for step (\d+) \((\S+)\) finalized successfully")
_NEMO_RESTORE = re.compile(r"\bRestoring model weights from (\S+)")
_NEMO_FIELDS = {
    "global_step": "global_step",
    "global_batch_size": "global_batch_size",
    "consumed_samples": "consumed_samples",
    "lr": "learning_rate",
}

# --- Lightning ---------------------------------------------------------------------------------------------------

_TQDM = re.compile(
    r"Epoch (\d+):\s+\d+%\|[^|]*\|\s*(\d+)/(\d+) \[(\d+(?::\d\d)+)<(?:[\d:?]+),\s*(\?|[\d.]+)\s?(it/s|s/it)((?:, [^\]]*)?)\]"
)
_RICH = re.compile(r"Epoch (\d+)/(\d+)\s+[━╸╺ ]+\s(\d+)/(\d+)\s+(\d+(?::\d\d)+) • \S+\s+([\d.]+)it/s(.*)")
_METRIC = re.compile(r"([A-Za-z_][\w ./-]*?)\s*[:=]\s*(" + NUMBER + r")(?=[\s,\]]|$)")
_FIT_STOPPED = re.compile(r"`?Trainer\.fit`? stopped: `?(max_\w+|\w+)=?(\S*?)`? reached")
_LIGHTNING_START = re.compile(r"\bInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/\d+")
_RESTORING = re.compile(r"\bRestoring states from the checkpoint path at (\S+)")
_RESTORED = re.compile(r"\bRestored all states from the checkpoint(?: at)? (\S+)")
_LOSS_NAMES = ("reduced_train_loss", "train_loss", "loss", "train/loss", "train_loss_step", "loss_step")
_STEP_PATH = re.compile(r"step[=_-]?(\d+)")


def read_line(text: str, torn: bool = False) -> Step | Event | None:
    """What the line says. torn: the log ends inside the line."""
    if not may_say(text):
        return None
    for reader in (_nemo_step, _megatron_step, _bar, _megatron_event, _other_event):
        found = reader(text, torn)
        if found is not None:
            return found
    return None


def may_say(text: str) -> bool:
    """A cheap look at a line, prefixes or not: whether it can say anything."""
    return " NCCL INFO " not in text and any(word in text for word in _HINTS)


class Wanted:
    """`may_say` as a filter of raw lines. Behind a Rich bar every line may be a part of its metrics."""

    def __init__(self) -> None:
        self._rich = False

    def __call__(self, raw: str) -> bool:
        self._rich = self._rich or ("━" in raw and "it/s" in raw)
        return self._rich or may_say(raw)


def number(text: str) -> float | None:
    """A finite number, or None: nan, inf and words are not values."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def parse_time(text: str | None) -> datetime.datetime | None:
    """A naive time as printed; an offset is applied, so that stamps of the transport are UTC."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", text.strip())
    if match is None:
        return None
    day, clock, fraction, offset = match.groups()
    try:
        value = datetime.datetime.fromisoformat(f"{day}T{clock}")
    except ValueError:
        return None
    value += datetime.timedelta(microseconds=int((fraction or "0").ljust(6, "0")[:6]))
    if offset and offset != "Z":
        sign = -1 if offset[0] == "-" else 1
        value -= sign * datetime.timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6]))
    return value


def _megatron_step(text: str, torn: bool) -> Step | Event | None:
    match = _MEGATRON_STEP.search(text)
    if match is None:
        return None
    pairs, whole = _pairs(text[match.end() :])
    printed = int(match.group(2))
    elapsed = next(((key, value) for key, value in pairs.items() if key.startswith("elapsed time per iteration")), None)
    milliseconds = number(elapsed[1]) if elapsed else None
    if elapsed is None or milliseconds is None:
        # The line was torn by another process before its time: one sample lost, never the run.
        return Event("lost", printed, parse_time(match.group(1)))
    step = Step(printed, printed, int(match.group(3)), milliseconds * _milli(elapsed[0]), time=parse_time(match.group(1)))
    step.last_key = next(reversed(pairs), "")
    # Other output is often glued behind the last field: the line is whole all the same.
    step.torn = _LAST_MEGATRON_KEY not in pairs and (torn or not whole)
    step.fraction = "." in (match.group(1) or "")
    for key, value in pairs.items():
        if key.startswith("throughput per GPU"):
            step.tflops = number(value)
        elif key == "lm loss":
            step.has_loss, step.loss = True, number(value)
        elif key in _MEGATRON_FIELDS:
            step.fields[_MEGATRON_FIELDS[key]] = _field(_MEGATRON_FIELDS[key], value)
        elif key.endswith("loss"):
            step.fields[key.replace(" ", "_")] = number(value)
    if "grad norm" in pairs and number(pairs["grad norm"]) is None:
        step.fields["grad_norm_finite"] = False
    return step


def _pairs(rest: str) -> tuple[dict[str, str], bool]:
    """The `key: value |` pairs of a step line; a pair without its closing bar may be cut and is left out."""
    pieces = rest.split("|")
    whole = not pieces[-1].strip()
    pairs: dict[str, str] = {}
    for piece in pieces[:-1]:
        key, colon, value = piece.rpartition(":")
        if colon:
            pairs[key.strip()] = value.strip()
    return pairs, whole


def _milli(key: str) -> float:
    return 1000.0 if key.endswith("(s)") else 1.0


def _field(name: str, value: str) -> int | float | None:
    found = number(value)
    return int(found) if found is not None and name in _INTEGERS else found


def _nemo_step(text: str, torn: bool) -> Step | None:
    match = _NEMO_STEP.search(text)
    if match is None:
        return None
    pieces = text[match.end() :].split(" | ")
    pairs = {}
    for piece in pieces[:-1] if torn else pieces:
        key, colon, value = piece.partition(": ")
        if colon:
            pairs[key.strip()] = value.strip()
    printed = int(match.group(2))
    stamp = _NEMO_TIME.search(text)
    step = Step(printed + 1, printed, int(match.group(3)) + 1, framework="nemo", time=parse_time(stamp.group(1) if stamp else None))
    step.last_key = next(reversed(pairs), "")
    seconds = number(pairs.get("train_step_timing in s", ""))
    step.step_ms = None if seconds is None else seconds * 1000.0
    step.tflops = number(pairs.get("TFLOPS_per_GPU", ""))
    step.has_loss = "reduced_train_loss" in pairs
    step.loss = number(pairs.get("reduced_train_loss", ""))
    step.fields = {name: _field(name, pairs[key]) for key, name in _NEMO_FIELDS.items() if key in pairs}
    step.fields["epoch"] = int(match.group(1))
    step.torn = torn
    return step


def _bar(text: str, torn: bool) -> Step | None:
    refreshes = list(_TQDM.finditer(text))
    if refreshes:
        match = refreshes[-1]  # the one that was left standing
        epoch, done, of, elapsed, rate, unit, rest = match.groups()
        step = _bar_step(int(epoch), int(done), int(of), elapsed, _rate(rate, unit), rest)
        stopped = _FIT_STOPPED.search(text, match.end())
        step.ends = stopped.group(1) if stopped else ""
        return step
    rich = _RICH.search(text)
    if rich is not None:
        epoch, _epochs, done, of, elapsed, rate, rest = rich.groups()
        step = _bar_step(int(epoch), int(done), int(of), elapsed, number(rate), "")
        # Rich wraps the metrics over the next lines: the caller joins them.
        step.framework, step.wrapped, step.torn = "lightning-rich", rest, torn
        return step
    return None


def _rate(rate: str, unit: str) -> float | None:
    value = number(rate)
    if value is None or unit == "it/s":
        return value
    return round(1.0 / value, 6) if value else None


def _bar_step(epoch: int, done: int, of: int, elapsed: str, rate: float | None, rest: str) -> Step:
    step = Step(epoch * of + done, done, of, framework="lightning")
    step.fields = {"epoch": epoch, "rate_it_s": rate, "elapsed_s": _clock(elapsed)}
    take_metrics(step, rest)
    return step


def take_metrics(step: Step, text: str) -> None:
    """The metrics beside a bar; also used for the lines Rich wraps them to."""
    for match in _METRIC.finditer(text):
        name, value = match.group(1).strip(), number(match.group(2))
        if name in _LOSS_NAMES:
            step.has_loss, step.loss = True, value
        elif name == "train_step_timing in s":
            step.step_ms = None if value is None else value * 1000.0
        elif name in ("TFLOPS_per_GPU", "tflops_per_gpu"):
            step.tflops = value


def _clock(text: str) -> int:
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


def _megatron_event(text: str, torn: bool) -> Event | None:
    if match := _PROGRESS.match(text):
        time = parse_time(match.group(1))
        if match.group(2) == "Starting job":
            return Event("start", time=time)
        return Event("saved", int(match.group(3)), time) if match.group(3) else None
    time = parse_time(match.group(1)) if (match := _LEADING_TIME.match(text)) else None
    for what, pattern in (("save", _SAVE), ("scheduled", _SCHEDULED), ("saved", _SAVED)):
        if match := pattern.search(text):
            return Event(what, int(match.group(1)), time, match.group(2))
    if match := _DELETED.search(text):
        return Event("deleted", int(match.group(1)), time)
    if match := _LOADED.search(text):
        return None if torn else Event("loaded", int(match.group(2)), time, match.group(1))
    if match := _LOAD.search(text):
        iteration = match.group(2)
        return Event("load", int(iteration) if iteration and not torn else None, time, match.group(1))
    if match := _DATETIME.search(text):
        what = "training" if match.group(1).startswith("before") else "ended"
        return Event(what, time=parse_time(match.group(2)), word="done")
    if _START.search(text):
        return Event("start", time=time)
    if match := _EXITING.search(text):
        return Event("ended", time=time, word="exiting")
    if match := _STEP_TIME.search(text):
        return Event("tflops", number=number(match.group(2)))
    if match := _VALIDATION.search(text):
        return Event("validation", int(match.group(1)), time)
    if _SCRATCH.search(text):
        return Event("scratch", time=time)
    return None


def _other_event(text: str, torn: bool) -> Event | None:
    stamp = _NEMO_TIME.search(text)
    time = parse_time(stamp.group(1)) if stamp else None
    if match := _NEMO_SAVE.search(text):
        return Event("blocked", int(match.group(1)), time, number=number(match.group(2)))
    if match := _NEMO_SCHEDULED.search(text):
        return Event("scheduled", _step_of_path(match.group(1)), time, match.group(1))
    if match := _NEMO_FINALIZED.search(text):
        return Event("finalized", int(match.group(1)), time, match.group(2))
    if match := _NEMO_RESTORE.search(text) or _RESTORING.search(text):
        return Event("load", _step_of_path(match.group(1)), time, match.group(1))
    if match := _RESTORED.search(text):
        return Event("loaded", _step_of_path(match.group(1)), time, match.group(1))
    if match := _FIT_STOPPED.search(text):
        return Event("ended", word=match.group(1))
    if _LIGHTNING_START.search(text):
        return Event("start", time=time, word="lightning")
    if match := _TIMER.match(text):
        return Event("timer", word=match.group(1), numbers=(float(match.group(2)), float(match.group(3)))) if _plain(match) else None
    if match := _STRAGGLER_WARNING.search(text):
        return Event("straggler", word=match.group(0).strip())
    pairs = _STRAGGLER.findall(text)
    if pairs and not torn:
        return Event("straggler", word=" ".join(f"{name}={value}@{rank}" for name, value, rank in pairs))
    return None


def _plain(match: re.Match[str]) -> bool:
    return number(match.group(2)) is not None and number(match.group(3)) is not None


def _step_of_path(path: str) -> int | None:
    """Checkpoint directories carry their step: `...step=39-last`."""
    found = _STEP_PATH.findall(path)
    return int(found[-1]) if found else None
