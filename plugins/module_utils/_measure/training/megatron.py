# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of Megatron-LM up to core 0.20 and of Megatron-Bridge: steps, checkpoints, starts and ends."""

from __future__ import annotations

import re

from .events import TIME, Event, Step, field, number, parse_time

_MEGATRON_STEP = re.compile(rf"(?:\[({TIME})\]\s*)?\biteration\s+(\d+)\s*/\s*(\d+)\s*\|")
_LEADING_TIME = re.compile(rf"\s*\[({TIME})\]")
_START = re.compile(r"\busing world size: \d+, data-parallel size: ")
_DATETIME = re.compile(rf"\[(before the start of training step|after training is done)\] datetime: ({TIME})?")
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
# What --log-progress writes to progress.txt, tab-separated.
_PROGRESS = re.compile(rf"({TIME})\tJob ID: .*?\t# GPUs: \d+\t(Starting job|Saved checkpoint)(?:\tIteration: (\d+)\t)?")
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
_LAST_MEGATRON_KEY = "number of nan iterations"


def step(text: str, torn: bool) -> Step | Event | None:
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
    found = Step(printed, printed, int(match.group(3)), milliseconds * _milli(elapsed[0]), time=parse_time(match.group(1)))
    found.last_key = next(reversed(pairs), "")
    # Other output is often glued behind the last field: the line is whole all the same.
    found.torn = _LAST_MEGATRON_KEY not in pairs and (torn or not whole)
    found.fraction = "." in (match.group(1) or "")
    for key, value in pairs.items():
        if key.startswith("throughput per GPU"):
            found.tflops = number(value)
        elif key == "lm loss":
            found.has_loss, found.loss = True, number(value)
        elif key in _MEGATRON_FIELDS:
            found.fields[_MEGATRON_FIELDS[key]] = field(_MEGATRON_FIELDS[key], value)
        elif key.endswith("loss"):
            found.fields[key.replace(" ", "_")] = number(value)
    if "grad norm" in pairs and number(pairs["grad norm"]) is None:
        found.fields["grad_norm_finite"] = False
    return found


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


def event(text: str, torn: bool) -> Event | None:
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
