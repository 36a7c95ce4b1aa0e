# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The groups of a category by the rack that they stand in: how many were measured, and where their values lie."""

from __future__ import annotations

import typing as t

from .._common.shapes import JudgedCategory, JudgedGroup, RackRow, RollUp
from .._criteria.lead import is_number, lead_metric, range_of
from .._judge.machines import left_out


def roll_up_of(category: JudgedCategory) -> RollUp | None:
    """One row per rack, sorted by its name, over the category's main metric; None: no group stands in one rack."""
    racks: dict[str, list[JudgedGroup]] = {}
    for group in category["groups"]:
        if group["domain"] is not None:
            racks.setdefault(str(group["domain"]), []).append(group)
    if not racks:
        return None
    looked_at = [name for criterion in category["criteria"] for name in criterion.get("metrics") or ()]
    measurements = [group["measurement"] for group in category["groups"] if group["measurement"]]
    metric = next((name for made in measurements if (name := lead_metric(looked_at, made["values"]))), None)
    unit = next((made["units"][metric] for made in measurements if metric in made["units"]), None) if metric else None
    return {"metric": metric, "unit": unit, "racks": [_row(rack, racks[rack], metric) for rack in sorted(racks)]}


def _row(rack: str, groups: t.Sequence[JudgedGroup], metric: str | None) -> RackRow:
    measured = [(group, value) for group in groups if (value := _value(group, metric)) is not None]
    there = {node for group in groups for node in group["nodes"]}
    tested = {node for group, _value_of_it in measured for node in set(group["nodes"]) - left_out(group["attempts"])}
    found = range_of([value for _group, value in measured]) if measured else None
    return {
        "rack": rack,
        "groups": len(groups),
        "groups_measured": len(measured),
        "nodes": len(there),
        "nodes_measured": len(tested),
        "low": found["low"] if found else None,
        "median": found["median"] if found else None,
        "high": found["high"] if found else None,
    }


def _value(group: JudgedGroup, metric: str | None) -> float | None:
    """The group's value, of a complete measurement."""
    made = group["measurement"]
    value = made["values"].get(metric) if made and made["complete"] and metric else None
    return value if is_number(value) else None
