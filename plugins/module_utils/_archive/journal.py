# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The journal of a run: one JSON object per line, on disk before the step it announces is taken."""

from __future__ import annotations

import json
import os
import threading
import typing as t

from .._common.shapes import AttemptRecord, JournalEvent
from .._common.times import utc
from .files import redact


class Journal:
    """Appends entries; safe to use from several threads."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._lock = threading.Lock()
        self._muted = False
        self._handle = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, event: JournalEvent, at: float, **fields: t.Any) -> None:
        """One entry, on disk when this returns."""
        line = json.dumps(redact({"at": utc(at), "event": event, **fields}), sort_keys=True)
        with self._lock:
            if self._muted:
                return
            self._handle.write(line + "\n")
            self._handle.flush()
            os.fsync(self._handle.fileno())

    def mute(self) -> None:
        """From now on nothing is written: the journal is another process's."""
        with self._lock:
            self._muted = True

    def close(self) -> None:
        """After this nothing can be written."""
        self._handle.close()


def read_journal(path: str) -> list[dict[str, t.Any]]:
    """All whole entries; a line torn by a kill is left out. An absent journal is an empty one."""
    entries = []
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            for line in handle:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    entries.append(entry)
    except FileNotFoundError:
        return []
    return entries


def open_batches(entries: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """Batches that began and did not come to their end, and so not to their cleanup; sorted short ids."""
    last = {str(entry.get("category")): entry["event"] for entry in entries if entry.get("event") in ("batch_start", "batch_end")}
    return sorted(batch for batch, event in last.items() if event == "batch_start")


def finished_attempts(entries: t.Iterable[t.Mapping[str, t.Any]], category: str) -> dict[str, list[AttemptRecord]]:
    """Records of attempts that ended, by group, in order: what an earlier start of the run has already done.

    One whose accusation was taken back later, because most nodes fell silent or ill with the accused, counts as it was corrected.
    """
    done: dict[str, list[AttemptRecord]] = {}
    for entry in entries:
        if entry.get("event") not in ("attempt_done", "attempt_acquitted") or entry.get("category") != category:
            continue
        records = done.setdefault(entry["group"], [])
        record = entry["record"]
        known = next((index for index, item in enumerate(records) if item.get("attempt") == record.get("attempt")), None)
        if entry["event"] == "attempt_acquitted" and known is not None:
            records[known] = record
        else:
            records.append(record)
    return done
