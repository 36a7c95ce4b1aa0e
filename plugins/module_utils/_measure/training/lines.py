# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What one line of a training log says: a step, a checkpoint event, a start, an end, or nothing.

Known: Megatron-LM up to core 0.20, Megatron-Bridge, NeMo 1 and 2, Lightning with its tqdm and its Rich bar. Values are
taken only where the line proves that they are whole: a log can be cut at any byte.
"""

from __future__ import annotations

from . import failures, lightning, megatron
from .events import Event, Step

# A line without any of these words says nothing to us. Most lines of a log end here.
_HINTS = (
    *("iteration", "heckpoint", "Epoch ", "datetime:", "world size", "Trainer.fit", "exiting program", "Step Time", "# GPUs: "),
    *("..: (", "/Rnk:", "STRAGGLER", "GLOBAL_RANK", "seq_length", "global_batch_size", "Restoring model"),
)
# What NCCL prints goes straight to the file descriptor: it is glued behind what Python has not ended yet.
_DEBUG_MARKS = (" NCCL INFO ", " NCCL WARN ")


def read_line(text: str, torn: bool = False) -> Step | Event | None:
    """What the line says. torn: the log ends inside the line."""
    if not may_say(text):
        return None
    at = min((at for mark in _DEBUG_MARKS if (at := text.find(mark)) >= 0), default=-1)
    if at < 0:
        return _read(text, torn, torn)
    return _read(text[:at], True, False) or _read(text[at:], torn, torn)


def _read(text: str, torn_step: bool, torn: bool) -> Step | Event | None:
    for reader in (lightning.nemo_step, megatron.step, lightning.progress_bar):
        step = reader(text, torn_step)
        if step is not None:
            return step
    return megatron.event(text, torn) or lightning.event(text, torn)


def may_say(text: str) -> bool:
    """A cheap look at a line, prefixes or not: whether it can say anything."""
    for hint in _HINTS:  # noqa: SIM110 - a loop is faster than any()
        if hint in text:
            return True
    return False


class Wanted:
    """A filter of raw lines: what may say something, or why the training failed. Behind a Rich bar every line may be a
    part of its metrics."""

    def __init__(self) -> None:
        self._rich = False

    def __call__(self, raw: str) -> bool:
        if may_say(raw):
            self._rich = self._rich or ("━" in raw and "it/s" in raw)
            return True
        return self._rich or failures.may_tell(raw)
