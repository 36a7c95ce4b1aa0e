# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The groups of a batch: what has been tried with each, which come again, and without whom."""

from __future__ import annotations

import typing as t

from .._causes.reasons import reason_of
from .._causes.record import of_repeat
from .._common.shapes import AttemptRecord, Group, NodeState, Untested
from .messages import Batch
from .records import states_before


class Groups:
    """records: by group, its attempts that are over, oldest first. waiting: the groups that are still to be run.

    What an earlier start of the run has finished is not run again.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.records: dict[str, list[AttemptRecord]] = {
            group["name"]: list(batch.finished.get(group["name"], [])) for group in batch.groups
        }
        self.waiting = [group for group in batch.groups if not self.is_final(group, self.records[group["name"]])]
        self._not_before: dict[str, float] = {}  # by group that is to be repeated

    def is_final(self, group: Group, records: t.Sequence[AttemptRecord]) -> bool:
        """Whether a group needs no further attempt."""
        return self.next_repeat(group, records) is None

    def next_repeat(self, group: Group, records: t.Sequence[AttemptRecord]) -> int | None:
        """The repeat that a further attempt of a group belongs to; None: it needs none.

        Too many repeats that could not be measured, for causes that are not its nodes' fault, leave nothing to be proven by the others;
        nor is there anything to run when all members are condemned.
        """
        batch, unmeasured = self._batch, 0
        for repeat in range(1, batch.repeat + 1):
            own = of_repeat(records, repeat)
            in_vain = unmeasured > batch.repeat - (batch.k_of_n or batch.repeat)
            if repeat > 1 and not own and (in_vain or self._all_condemned(group, records)):
                return None
            if not self._is_over(group, own, records):
                return repeat
            unmeasured += _proves_nothing(own[-1])
        return None

    def _all_condemned(self, group: Group, records: t.Sequence[AttemptRecord]) -> bool:
        return set(condemned(records)).issuperset(group["nodes"])

    def _is_over(self, group: Group, own: t.Sequence[AttemptRecord], records: t.Sequence[AttemptRecord]) -> bool:
        """Whether a repeat needs no further attempt. own: its attempts, of those of its group.

        One that was cancelled was never really tried, and uses up no repetition; those that began without a node that was not there have
        repetitions of their own.
        """
        if not own or own[-1]["outcome"] == "cancelled":
            return False
        cause = own[-1]["cause"]
        if cause is None or not (cause["retryable"] or self._has_others(group, own[-1], records)):
            return True
        tried = [record for record in own if record["outcome"] != "cancelled"]
        missed = [record for record in tried if record["outcome"] == "not_started" and _reason(record) == "NodeUnavailable"]
        retries: int = self._batch.bounds["retries"]
        return max(len(missed), len(tried) - len(missed)) > retries

    def _has_others(self, group: Group, last: AttemptRecord, records: t.Sequence[AttemptRecord]) -> bool:
        """Whether an attempt condemned members, and others are left who have proven nothing for somebody else's death."""
        return bool(condemned([last])) and not self._batch.is_search and not self._all_condemned(group, records)

    def due(self, now: float) -> list[Group]:
        """The groups that may begin as far as their own pause goes."""
        return [group for group in self.waiting if now >= self._not_before.get(group["name"], now)]

    def left_out(self, group: Group) -> list[Untested]:
        """The members that an earlier attempt of the group has condemned: the others are tested without them."""
        known = condemned(self.records[group["name"]])
        return [known[node] for node in group["nodes"] if node in known]

    def cut_short(self) -> list[Group]:
        """Nothing new starts any more; returns the groups that would have."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def keep(self, name: str, record: AttemptRecord, now: float, *, going: bool) -> bool:
        """Takes the record of an attempt; whether what it was made for is tried again. going: whether anything new may start."""
        self.records[name].append(record)
        group = next(group for group in self._batch.groups if group["name"] == name)
        repeat = self.next_repeat(group, self.records[name])
        if not going or repeat is None:
            return False
        again, cause = repeat == record.get("repeat", 1), record["cause"]
        self._not_before[name] = now + (reason_of(cause["reason"]).pause_s if cause and again else 0.0)
        self.waiting.append(group)
        return again

    def members(self) -> set[str]:
        """All nodes of all groups."""
        return {name for group in self._batch.groups for name in group["nodes"]}

    def states_before(self) -> dict[str, list[NodeState]]:
        """By node, what it was when each of its tests began."""
        seen = states_before(record for records in self.records.values() for record in records)
        return {name: seen.get(name, []) for name in sorted(self.members())}


def _proves_nothing(record: AttemptRecord) -> bool:
    """Whether an attempt ended without a measurement, for a cause that is not its nodes' fault."""
    cause = record["cause"]
    return record["outcome"] != "succeeded" and cause is not None and reason_of(cause["reason"]).effect == "untested"


def _reason(record: AttemptRecord) -> str | None:
    return record["cause"]["reason"] if record["cause"] else None


def condemned(records: t.Sequence[AttemptRecord]) -> dict[str, Untested]:
    """By node, why an attempt condemned it; the first word counts."""
    found: dict[str, Untested] = {}
    for record in records:
        cause = record["cause"]
        if cause is None or record["outcome"] == "cancelled" or reason_of(cause["reason"]).effect != "convicts":
            continue
        for node in cause["nodes"]:
            words = f"not tested again: attempt {record['attempt']} ended with {cause['reason']} ({cause['message']})"
            found.setdefault(node, {"node": node, "reason": cause["reason"], "message": words})
    return found
