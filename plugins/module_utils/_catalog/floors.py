# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Floors: what a healthy group reaches at least, by test, GPU, path and size. Each row says where its figure is from."""

from __future__ import annotations

import os
import typing as t

from .schemas import read_checked


def load_floors(directories: t.Sequence[str]) -> list[dict[str, t.Any]]:
    """Rows of floors.yml, a user's directory before the shipped one: {test, gpus, gpus_per_node, path, nodes_max, criteria, source}.

    Raises InputError with file and line.
    """
    rows: list[dict[str, t.Any]] = []
    for directory in directories:
        path = os.path.join(directory, "floors.yml")
        if not os.path.isfile(path):
            continue
        file = read_checked(path, "floors")
        rows += [{**row, "nodes_max": row.get("nodes_max")} for row in file.data["floors"]]
    return rows


def floors_for(floors: t.Sequence[t.Mapping[str, t.Any]], *, test: str, gpu: str | None, gpus_per_node: int) -> list[dict[str, t.Any]]:
    """The rows for a test on one GPU; which of them holds depends on the group."""
    return [dict(row) for row in floors if row["test"] == test and gpu in row["gpus"] and row["gpus_per_node"] == gpus_per_node]


def floor_of_group(floors: t.Sequence[t.Mapping[str, t.Any]], path: str | None, nodes: int) -> t.Mapping[str, t.Any] | None:
    """The first of these rows that holds for a group of this many nodes, or None: then there is no calibrated floor."""
    return next((row for row in floors if row["path"] == path and (row["nodes_max"] is None or nodes <= row["nodes_max"])), None)
