# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The order in which findings decide: broken hardware, data correctness, the attempt's own cause, transport, completeness, thresholds."""

from __future__ import annotations

import enum
import typing as t

from .._common.shapes import Finding, NodeVerdict, Verdict


class Rank(enum.IntEnum):
    """Place of a reason in the order of judgement."""

    HARDWARE = 0
    DATA = 1
    CAUSE = 2  # every reason that is not named below is a cause of its own
    TRANSPORT = 3
    BROKEN = 4
    COMPLETENESS = 5
    THRESHOLDS = 6


_RANKS = {
    "HardwareFailureDetected": Rank.HARDWARE,
    "NodeLost": Rank.HARDWARE,
    "DataCorruption": Rank.DATA,
    "TransportFallback": Rank.TRANSPORT,
    "WorkloadFailed": Rank.BROKEN,
    "TimedOut": Rank.BROKEN,
    "LogUnavailable": Rank.COMPLETENESS,
    "LogIncomplete": Rank.COMPLETENESS,
    "NoMeasurement": Rank.COMPLETENESS,
    "ThresholdViolation": Rank.THRESHOLDS,
    "Unstable": Rank.THRESHOLDS,
    "NoCriterion": Rank.THRESHOLDS,
}
# Better before worse.
NODE_ORDER: tuple[NodeVerdict, ...] = ("passed", "untested", "suspect", "failed")
# What a finding that names a node makes of it, by the effect of its reason.
STATES: dict[str, NodeVerdict] = {"convicts": "failed", "suspects": "suspect", "untested": "untested"}
VERDICT_ORDER: tuple[Verdict, ...] = ("passed", "incomplete", "error", "failed")


def rank(item: Finding) -> Rank:
    """The place of a finding in the order of judgement."""
    return _RANKS.get(item["reason"], Rank.CAUSE)


def failing(findings: t.Iterable[Finding]) -> list[Finding]:
    """The findings that change a verdict, the deciding one first."""
    return sorted((item for item in findings if not item["note"]), key=rank)


def unique(findings: t.Iterable[Finding]) -> list[Finding]:
    """Each finding once, the first of its like."""
    seen: dict[tuple[t.Any, ...], Finding] = {}
    for item in findings:
        seen.setdefault((item["reason"], item["node"], item["message"], item.get("category"), item.get("group")), item)
    return list(seen.values())


def worse(one: NodeVerdict, other: NodeVerdict) -> NodeVerdict:
    """The worse of two verdicts on a node."""
    return max(one, other, key=NODE_ORDER.index)
