# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of Megatron-LM up to core 0.20 and of Megatron-Bridge: steps, checkpoints, starts and ends."""

from __future__ import annotations

import re
import typing as t

from .events import COUNT, MAX_STEP_MS, MAX_TFLOPS, TIME, Event, Step, count, field, number, parse_time, within

# The number of a step and of all steps, from the word on. Every repeat is bounded: reading takes time in the length of the line.
_STEP_COUNT = re.compile(rf"iteration\s{{1,40}}({COUNT})\s{{0,40}}/\s{{0,40}}({COUNT})\s{{0,40}}\|")
_LEADING_TIME = re.compile(rf"\s{{0,40}}\[({TIME})\]")
# A number behind which text of another process may be glued: 20vm:1686 is 20, 2010-0-0-1:1686 is nobody knows what.
_ITERATION = rf"\s{{1,40}}({COUNT})(?![\d.:-])"
_START = re.compile(rf"\busing world size: ({COUNT}), data-parallel size: ")
_CLOCK = re.compile(rf"\[(before|after) ([^\]]{{1,100}})\] datetime: ({TIME})?")
_EXITING = re.compile(r"\[exiting program (?:at iteration|after) [\d.]")
_SAVE = re.compile(rf"\bsaving checkpoint at iteration{_ITERATION} to (\S{{1,4096}})")
_SCHEDULED = re.compile(rf"\bscheduled an async checkpoint save at iteration{_ITERATION} to (\S{{1,4096}})", re.I)
_SAVED = re.compile(rf"\bsuccessfully saved checkpoint from iteration{_ITERATION} to (\S{{1,4096}})", re.I)
_SAVED_LOCAL = re.compile(rf"\bsuccessfully saved local checkpoint from iteration{_ITERATION}", re.I)
_DELETED = re.compile(rf"\bsuccessfully deleted checkpoint from iteration{_ITERATION}", re.I)
_LOAD = re.compile(r"\bloading (?:release )?(?:distributed |local )?checkpoint from (\S{1,4096})", re.I)
_LOADED = re.compile(r"\bsuccessfully loaded checkpoint from (\S{1,4096})", re.I)
_AT_ITERATION = re.compile(rf" at iteration{_ITERATION}")
_SCRATCH = re.compile(r"will not load any checkpoints and will start from random", re.I)
_STEP_TIME = re.compile(r"\bStep Time\s{0,8}:\s{0,8}[\d.]{1,20}s\s{1,8}GPU utilization:\s{0,8}([\d.]{1,20})\s{0,8}MODEL_TFLOP/s/GPU")
_VALIDATION = re.compile(rf"\bvalidation loss at iteration ({COUNT})\b")
# The argument dump of Megatron, and configurations as YAML or JSON.
_SEQUENCE = re.compile(rf"(?<![\w-])seq_length(?: \.{{2,80}} |[\"']?[:=] ?)({COUNT})\b")
_BATCH = re.compile(rf"(?<![\w-])global_batch_size(?: \.{{2,80}} |[\"']?[:=] ?)({COUNT})\b")
# What --log-progress writes to progress.txt, tab-separated.
_PROGRESS = re.compile(rf"({TIME})\tJob ID: [^\t]{{0,200}}\t# GPUs: ({COUNT})\t(Starting job|Saved checkpoint|Saved async checkpoint)\b")
_PROGRESS_ITERATION = re.compile(rf"\tIteration: ({COUNT})(?:\t|$)")

_FIELDS = {
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
LAST_KEY = "number of nan iterations"


def step(text: str, torn: bool) -> Step | Event | None:
    """A step line; the event "lost" for one that was torn before its time."""
    found = _count_of(text)
    if found is None:
        return None
    at, match = found
    iteration, total = int(match.group(1)), int(match.group(2))
    made = Step(iteration, iteration, total, time=_time_before(text, at))
    # A pair without its closing bar may be cut and is left out.
    *pieces, rest = text[match.end() :].split("|")
    fields = made.fields
    timed = False
    key = ""
    for piece in pieces:
        name, colon, value = piece.rpartition(":")
        if not colon:
            continue
        key = name.strip()
        known = _FIELDS.get(key)
        if known is not None:
            fields[known] = field(known, value)
        elif key == "lm loss":
            made.has_loss, made.loss = True, number(value)
        elif key.startswith("elapsed time per iteration"):
            timed = number(value) is not None
            factor = 1000.0 if key.endswith("(s)") else 1.0
            elapsed = within(value, MAX_STEP_MS / factor)
            made.step_ms = None if elapsed is None else elapsed * factor
        elif key.startswith("throughput per GPU"):
            made.tflops = within(value, MAX_TFLOPS)
        elif key.endswith("loss"):
            fields[key.replace(" ", "_")] = number(value)
    if not timed or iteration > total > 0:
        # The line was torn by another process before its time: one sample lost, never the run.
        return Event("lost", iteration, made.time)
    made.last_key = key
    # Other output is often glued behind the last field: the line is whole all the same.
    made.torn = "nan_iterations" not in fields and (torn or not rest.isspace() and rest != "")
    made.fraction = made.time is not None and "." in text[:at]
    if fields.get("grad_norm", 0.0) is None:
        fields["grad_norm_finite"] = False
    return made


def _count_of(text: str) -> tuple[int, re.Match[str]] | None:
    at = text.find("iteration")
    while at >= 0:
        match = _STEP_COUNT.match(text, at)
        if match is not None and not text[at - 1 : at].isalnum():
            return at, match
        at = text.find("iteration", at + 9)
    return None


def _time_before(text: str, at: int) -> t.Any:
    head = text[max(0, at - 80) : at].rstrip()
    return parse_time(head[head.rfind("[") + 1 : -1]) if head.endswith("]") else None


def event(text: str, torn: bool) -> Event | None:
    """Anything but a step. The words are looked for before the patterns, which are slower."""
    if "checkpoint" in text:
        found = _checkpoint(text, torn)
        if found is not None:
            return found
    if "] datetime:" in text and (match := _CLOCK.search(text)):
        return _clock(match)
    if "world size" in text and (match := _START.search(text)):
        return Event("start", time=_time_of(text), number=float(match.group(1)))
    if "exiting program" in text and _EXITING.search(text):
        return Event("ended", time=_time_of(text), word="exiting")
    if "Step Time" in text and (match := _STEP_TIME.search(text)):
        return Event("tflops", number=within(match.group(1), MAX_TFLOPS))
    if "validation loss" in text and (match := _VALIDATION.search(text)):
        return Event("validation", int(match.group(1)), _time_of(text))
    if "# GPUs: " in text and (match := _PROGRESS.match(text)):
        return _progress(match, text)
    for word, what, pattern in (("seq_length", "sequence", _SEQUENCE), ("global_batch_size", "batch", _BATCH)):
        if word in text and (match := pattern.search(text)):
            return Event(what, number=float(match.group(1)))
    return None


def _time_of(text: str) -> t.Any:
    match = _LEADING_TIME.match(text)
    return parse_time(match.group(1)) if match else None


def _clock(match: re.Match[str]) -> Event:
    """`[before the start of training step] datetime: ...` and its fellows, all with the clock of one rank."""
    place, time = f"{match.group(1)} {match.group(2)}", parse_time(match.group(3))
    if place == "after training is done":
        return Event("ended", time=time, word="done")
    return Event("training" if place == "before the start of training step" else "clock", time=time, word=place)


def _checkpoint(text: str, torn: bool) -> Event | None:
    if "# GPUs: " in text and (match := _PROGRESS.match(text)):
        return _progress(match, text)
    time = _time_of(text)
    for what, pattern in (("save", _SAVE), ("scheduled", _SCHEDULED), ("saved", _SAVED)):
        if match := pattern.search(text):
            return Event(what, int(match.group(1)), time, match.group(2))
    # Nothing follows these numbers: at the end of a log that breaks off they may be cut.
    for what, pattern in (("saved", _SAVED_LOCAL), ("deleted", _DELETED)):
        if match := pattern.search(text):
            return None if torn else Event(what, int(match.group(1)), time)
    if match := _LOADED.search(text):
        at = None if torn else _AT_ITERATION.search(text, match.end())
        return Event("loaded", int(at.group(1)), time, match.group(1)) if at else None
    if match := _LOAD.search(text):
        at = None if torn else _AT_ITERATION.match(text, match.end())
        return Event("load", int(at.group(1)) if at else None, time, match.group(1))
    if _SCRATCH.search(text):
        return Event("scratch", time=time)
    return None


def _progress(match: re.Match[str], text: str) -> Event | None:
    time = parse_time(match.group(1))
    if match.group(3) == "Starting job":
        return Event("start", time=time, number=float(match.group(2)))
    at = _PROGRESS_ITERATION.search(text, match.end())
    # "Saved checkpoint" is written when the call returns: of an asynchronous save, the second line is the durable one.
    word = "async" if match.group(3) == "Saved async checkpoint" else ""
    return Event("saved", count(at.group(1)), time, word=word) if at else None
