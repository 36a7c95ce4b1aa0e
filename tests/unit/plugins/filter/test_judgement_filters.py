# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters as Ansible calls them: with tagged values, with plain results and one kind of error."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.gpu_cluster.readiness.plugins.filter import criteria, measure, report, verdict

ROOT = pathlib.Path(__file__).resolve().parents[4]
FILTERS = {name: function for module in (criteria, measure, report, verdict) for name, function in module.FilterModule().filters().items()}
VALUES = {"bus_bandwidth": 371.25, "bus_bandwidth_peak": 380}
MEASUREMENT = {"kind": "nccl", "verdict": None, "complete": True, "reason": "", "values": VALUES, "units": {}, "findings": []}
PARTIAL = {**MEASUREMENT, "complete": False, "reason": "the footer is missing"}


def tagged(value):
    """The value as ansible-core 2.19 and later hands it to a filter; plain where older ones do."""
    try:
        from ansible.template import trust_as_template
    except ImportError:
        return value
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, dict):
        return {tagged(key): tagged(item) for key, item in value.items()}
    return [tagged(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_every_filter_is_documented(name):
    page = yaml.safe_load((ROOT / f"plugins/filter/{name}.yml").read_text(encoding="utf-8"))
    documentation = page["DOCUMENTATION"]
    assert documentation["name"] == name
    assert documentation["options"]["_input"]["required"] is True
    positional = [item.strip() for item in (documentation.get("positional") or "").split(",") if item.strip()]
    assert set(positional) == set(documentation["options"]) - {"_input"}
    assert f"gpu_cluster.readiness.{name}" in page["EXAMPLES"]
    assert page["RETURN"]["_value"]["description"]


def test_a_limit_that_is_missed_is_false_and_nothing_else():
    result = FILTERS["evaluate_criteria"](tagged(MEASUREMENT), tagged(["measured.bus_bandwidth >= 400"]))
    assert result[0]["passed"] is False
    assert result[0]["margin"] == pytest.approx(-0.071875)
    assert result[0]["expression"].__class__ is str


def test_criteria_and_thresholds_are_judged_together():
    result = FILTERS["evaluate_criteria"](MEASUREMENT, ["measured.bus_bandwidth >= 300"], tagged({"busBandwidthGBps": "value < 400"}))
    assert [item["passed"] for item in result] == [True, True]


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("compile_criteria", [["measured.nope > 1"]], "unknown metric measured.nope"),
        ("compile_criteria", [["measured.nope > 1"], None, "nkkl"], "unknown kind of measurement"),
        ("evaluate_criteria", [PARTIAL, ["measured.bus_bandwidth > 1"]], "the footer is missing"),
        ("evaluate_criteria", [{}, ["measured.bus_bandwidth > 1"]], "expected a measurement"),
        ("report_text", [{}], "expected shape"),
        ("measure_logs", ["/nonexistent/x.log"], "does not exist"),
    ],
)
def test_errors_name_the_filter(name, arguments, said):
    with pytest.raises(AnsibleFilterError, match=said) as raised:
        FILTERS[name](*arguments)
    assert str(raised.value).startswith(f"gpu_cluster.readiness.{name}: ")


def test_a_chain_of_filters_makes_a_report():
    category = {"id": "c01", "test": "t", "test_scale": "s", "untested": [], "criteria": ["measured.bus_bandwidth >= 300"]}
    category["groups"] = [{"name": "g001", "nodes": ["n1"]}]
    observation = {"groups": [{"name": "g001", "attempts": [{"attempt": 1, "outcome": "succeeded"}]}]}
    snapshot = {"nodes": [{"name": "n1", "target": True}]}
    judged = FILTERS["judge_category"](tagged(category), tagged(observation), {"g001": tagged(MEASUREMENT)})
    made = FILTERS["report_model"](FILTERS["roll_up"]([judged], snapshot), {"run_id": "r1", "certification": "x"}, tagged(snapshot))
    assert made["verdict"] == "passed"
    assert json.loads(json.dumps(made))["nodes"][0]["verdict"] == "passed"
    assert "PASSED" in FILTERS["report_text"](made)
    assert FILTERS["report_summary"](made)["verdict"] == "passed"
    accused = FILTERS["apply_isolation"](judged, [{"node": "n1", "verdict": "failed", "message": "slow in every group"}])
    assert accused["members"]["n1"]["verdict"] == "failed"
