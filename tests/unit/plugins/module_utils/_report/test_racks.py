# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report by rack, and the repeats of its groups: short, and with every figure that people ask for."""

from __future__ import annotations

import json
import pathlib

import jsonschema

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.categories import Round, judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.certification import roll_up
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measurement
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import category_given, observation_given, snapshot_given
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.model import build_report
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.text import WIDTH, render_text

SCHEMA = json.loads((pathlib.Path(__file__).parents[5] / "docs" / "report.schema.json").read_text())
CRITERIA = compile_criteria(["measured.bus_bandwidth >= 400"], {}, {"bus_bandwidth": {"type": "number", "unit": "GB/s"}})


def report(racks, k_of_n=None):
    """racks: by name, for each of its nodes the values of its repeats; None: that repeat was evicted."""
    groups, observed, count = [], [], max(len(values) for nodes in racks.values() for values in nodes)
    rounds = [Round({}, {}) for _repeat in range(count)]
    for rack, nodes in racks.items():
        for index, values in enumerate(nodes):
            name = f"{rack}-n{index}"
            attempts = [
                {"attempt": n, "repeat": n, "outcome": "failed" if value is None else "succeeded", "reason": None if value else "Evicted"}
                for n, value in enumerate(values, 1)
            ]
            groups.append({"name": f"g-{name}", "nodes": [name], "domain": rack if rack != "nowhere" else None})
            observed.append({"name": f"g-{name}", "nodes": [name], "attempts": attempts})
            for item, value in zip(rounds, values, strict=False):
                if value is not None:
                    item.measurements[f"g-{name}"] = measurement(
                        "nccl",
                        None,
                        "",
                        complete=True,
                        values={"bus_bandwidth": value, "data_correct": True},
                        units={"bus_bandwidth": "GB/s"},
                    )
    wanted = {"id": "c01", "test": "t", "test_scale": "intra-node", "groups": groups, "repeat": count, "k_of_n": k_of_n}
    observation = observation_given({"groups": observed})
    judged = judge_category(category_given(wanted), observation, rounds[0].measurements, CRITERIA, further=rounds[1:])
    names = sorted(node for group in groups for node in group["nodes"])
    rows = [{"name": name, "target": True, "findings": [], "gpu": {"product": "H100", "allocatable": 8}} for name in names]
    seen = snapshot_given({"nodes": rows, "gpus": []})
    made = build_report({"run_id": "r", "certification": "nightly"}, seen, None, roll_up(seen, [judged]), None)
    jsonschema.Draft202012Validator(SCHEMA).validate(made)
    text = render_text(made)
    assert all(len(line) <= WIDTH for line in text.splitlines())
    return made["categories"][0], text


def test_each_rack_has_its_lowest_median_and_highest_value():
    category, text = report({"r0": [[450.0], [470.0], [460.0]], "r1": [[410.0], [None]], "nowhere": [[440.0]]})
    assert category["roll_up"] == {
        "metric": "bus_bandwidth",
        "unit": "GB/s",
        "racks": [
            {
                "rack": "r0",
                "groups": 3,
                "groups_measured": 3,
                "nodes": 3,
                "nodes_measured": 3,
                "low": 450.0,
                "median": 460.0,
                "high": 470.0,
            },
            {
                "rack": "r1",
                "groups": 2,
                "groups_measured": 1,
                "nodes": 2,
                "nodes_measured": 1,
                "low": 410.0,
                "median": 410.0,
                "high": 410.0,
            },
        ],
    }
    lines = text.splitlines()
    start = lines.index("  by rack: bus_bandwidth (GB/s), lowest, median and highest of its groups")
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["r1", "1", "of", "2", "nodes", "410.00", "410.00", "410.00"],
        ["r0", "3", "of", "3", "nodes", "450.00", "460.00", "470.00"],
    ]


def test_one_rack_is_not_told_in_the_text_and_many_are_told_short():
    category, text = report({"r0": [[450.0], [470.0]]})
    assert "by rack" not in text and len(category["roll_up"]["racks"]) == 1
    assert report({"nowhere": [[450.0]]})[0]["roll_up"] is None
    _category, text = report({f"r{number:03d}": [[450.0 + number]] for number in range(40)})
    assert "... 32 more racks, see report.json" in text and "r039" not in text.split("by rack")[1]
    _category, text = report({"r0": [[None]], "r1": [[None]]})
    assert "by rack: nothing was measured" in text


def test_the_repeats_of_a_group_are_told_with_range_and_spread():
    category, text = report({"r0": [[450.0, 300.0, 410.0]], "r1": [[390.0, 390.0, 395.0]]})
    told = " ".join(text.split())
    assert "3 repeats, 300.00 to 450.00 GB/s, spread 33.3%; 2 passed, the median decides" in told
    assert [(row["rack"], row["median"]) for row in category["roll_up"]["racks"]] == [("r0", 410.0), ("r1", 390.0)]
    assert "repeat 2 of 3: criterion" in told
    category, text = report({"r0": [[450.0, 300.0, None]]}, k_of_n=2)
    assert "2 of 3 repeats measured, 300.00 to 450.00 GB/s, spread 33.3%; 1 passed, 2 must" in " ".join(text.split())
    assert [item["repeat"] for item in category["groups"][0]["attempts"]] == [1, 2, 3]


def test_a_group_that_is_run_once_says_nothing_of_repeats():
    category, text = report({"r0": [[450.0]]})
    assert category["groups"][0]["repeats"] is None and "repeat" not in text
