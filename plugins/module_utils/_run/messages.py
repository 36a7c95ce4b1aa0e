# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What reaches the engine's loop: a batch to run, then what watches saw and what steps came to."""

from __future__ import annotations

import dataclasses
import enum
import typing as t

from .._archive.owners import this_owner
from .._common.shapes import AttemptRecord, Group, NodeState, Owner, Template

API_OUTAGE_S = 300.0


class Step(enum.Enum):
    """What a thread of the pool does for an attempt."""

    CREATE = "create"
    POLL_LOG = "poll the log"
    ASK_REFUSAL = "ask why no pod comes"
    ASK_NOW = "ask how its pods and nodes are"
    COLLECT = "collect"
    REMOVE = "remove"


@dataclasses.dataclass(frozen=True)
class Seen:
    """A watch saw something. event: ADDED, MODIFIED, DELETED, SYNCED (facts None), STRANGE or ERROR (facts: a text)."""

    kind: str
    event: str
    facts: t.Any


@dataclasses.dataclass(frozen=True)
class Taken:
    """A step of an attempt, by object name, has ended: with a result or with an error."""

    step: Step
    attempt: str
    result: t.Any = None
    error: Exception | None = None


@dataclasses.dataclass
class Batch:
    """What to run. bounds: max_concurrent, attempt_timeout_s, queue_timeout_s, start_grace_s, node_grace_s, api_outage_s, retries."""

    run_id: str
    run_dir: str
    category: str  # short id, part of object names: c01
    title: str  # for people: "c01 nccl-all-reduce intra-node"
    template: Template
    groups: list[Group]
    bounds: dict[str, t.Any]
    deadline_at: float  # wall clock seconds
    planned: dict[str, NodeState] = dataclasses.field(default_factory=dict)  # by node: what it was when the run was planned
    finished: dict[str, list[AttemptRecord]] = dataclasses.field(default_factory=dict)  # by group: records of an earlier start
    owner: Owner = dataclasses.field(default_factory=this_owner)  # of the run directory, and so of the anchor
    repeat: int = 1  # how often each group is run
    k_of_n: int | None = None  # how many of these must be good; None: all
    is_search: bool = False  # its groups are questions: without a member one would be another question, and is not repeated

    @property
    def api_outage_s(self) -> float:
        """How long the API server may be away."""
        return api_outage_s(self.bounds)


def api_outage_s(bounds: t.Mapping[str, t.Any]) -> float:
    """How long the API server may be away, as the bounds of a plan say; those of an older archive do not."""
    return float(bounds.get("api_outage_s", API_OUTAGE_S))
