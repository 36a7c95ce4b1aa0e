# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What has become of the nodes when all tests of a certification are over: a category knows its own tests alone.

A node that fails in a later category, or between the last one and the verdict, is not certified by what it measured before.
"""

from __future__ import annotations

import typing as t

from .._causes.reasons import finding
from .._common.shapes import AttemptRecord, FinalLook, Finding, NodeSeen, Observation
from .machines import became


def final_findings(categories: t.Sequence[str], observations: t.Mapping[str, Observation], look: FinalLook | None) -> dict[str, Finding]:
    """By node, what keeps the measurements of the certification from being evidence for it any more.

    categories: ids, in order. observations: of categories and of the waves of their isolations, by id. look: None where nobody was asked
    to look; then only what the tests themselves saw counts.
    """
    found = {}
    for node, tests in sorted(_history(categories, observations).items()):
        nodes = look["nodes"] if look else None
        told = became(node, [(attempt, item) for _category, attempt, item in tests], nodes, _bearing(tests))
        if look and nodes is None and told is None:
            told = finding("NodeUnavailable", f"nobody could look at it when all tests were over: {look['why']}", node=node)
        if told:
            found[node] = told
    return found


_Test = tuple[str, AttemptRecord, NodeSeen]


def _history(categories: t.Sequence[str], observations: t.Mapping[str, Observation]) -> dict[str, list[_Test]]:
    """By node, its tests in order of time, each with its category."""
    tests: dict[str, list[_Test]] = {}
    for category in categories:
        for name, observation in observations.items():
            if name == category or name.startswith(f"{category}-w"):
                for attempt in (attempt for group in observation["groups"] for attempt in group["attempts"]):
                    for item in attempt.get("machines") or ():
                        tests.setdefault(item["node"], []).append((category, attempt, item))
    return {node: sorted(own, key=lambda test: test[1]["created"] or "") for node, own in tests.items()}


def _bearing(tests: t.Sequence[_Test]) -> set[int]:
    """The places of those tests whose measurements count: the last one of each category."""
    return set({category: index for index, (category, _attempt, _item) in enumerate(tests)}.values())
