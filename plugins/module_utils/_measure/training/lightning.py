# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of NeMo 2 and of Lightning with its tqdm and its Rich bar."""

from __future__ import annotations

import re

from .events import NUMBER, TIME, Event, Step, field, number, parse_time

_NEMO_STEP = re.compile(r"\bTraining epoch (\d+), iteration (\d+)/(\d+) \| ")
_NEMO_TIME = re.compile(rf"\[NeMo \w ({TIME}) ")
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
_TIMER = re.compile(r"\s+([\w/-]+) \.{2,}: \(([\d.]+), ([\d.]+)\)\s*$")
_STRAGGLER = re.compile(r"\b(M[nx]\w+)/Rnk:\s*([\d.]+)[A-Za-z%]*/(\d+)")
_STRAGGLER_WARNING = re.compile(r"STRAGGLER DETECTION WARNING.*")

_LOSS_NAMES = ("reduced_train_loss", "train_loss", "loss", "train/loss", "train_loss_step", "loss_step")
_STEP_PATH = re.compile(r"step[=_-]?(\d+)")


def nemo_step(text: str, torn: bool) -> Step | None:
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
    step.fields = {name: field(name, pairs[key]) for key, name in _NEMO_FIELDS.items() if key in pairs}
    step.fields["epoch"] = int(match.group(1))
    step.torn = torn
    return step


def progress_bar(text: str, torn: bool) -> Step | None:
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


def event(text: str, torn: bool) -> Event | None:
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
