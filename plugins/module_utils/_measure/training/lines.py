# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What one line of a training log says: a step, a checkpoint event, a start, an end, or nothing.

Known: Megatron-LM up to core 0.20, Megatron-Bridge, NeMo 2, Lightning with its tqdm and its Rich bar. Values are
taken only where the line proves that they are whole: a log can be cut at any byte.
"""

from __future__ import annotations

from . import lightning, megatron
from .events import Event, Step

# A line without any of these words says nothing to us. Most lines of a log end here.
_HINTS = (
    *("iteration", "checkpoint", "Checkpoint", "datetime", "world size", "Step Time", "Trainer.fit", "exiting program", "states from"),
    *("Restor", "Epoch ", "..: (", "/Rnk:", "STRAGGLER", "GLOBAL_RANK", "Starting job"),
)


def read_line(text: str, torn: bool = False) -> Step | Event | None:
    """What the line says. torn: the log ends inside the line."""
    if not may_say(text):
        return None
    for reader in (lightning.nemo_step, megatron.step, lightning.progress_bar, megatron.event, lightning.event):
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
