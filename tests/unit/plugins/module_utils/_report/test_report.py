# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The report: valid by its schema, the same bytes every time, readable whatever a log or the API said."""

from __future__ import annotations

import json
import pathlib
import random

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.reasons import REASONS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.hostlist import fold
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import compile_criteria
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._isolate import planner
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.categories import judge_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.certification import roll_up
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import (
    category_given,
    measurements_given,
    observation_given,
    snapshot_given,
)
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.model import build_report, render_json, summary
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._report.text import WIDTH, _isolation, render_text, safe

ROOT = pathlib.Path(__file__).resolve().parents[5]
SCHEMA = json.loads((ROOT / "docs/report.schema.json").read_text(encoding="utf-8"))
RUN = {
    "run_id": "r1",
    "started": "2026-03-02T08:00:00Z",
    "finished": "2026-03-02T09:02:03Z",
    "certification": "nightly",
    "version": "0.1.0",
}
METRICS = {"bus_bandwidth": {"type": "number", "unit": "GB/s"}, "transport": "string"}


def nodes(count, rack=0):
    return [f"gpu-r{rack}-n{number:02d}" for number in range(count)]


def snapshot(names, **excluded):
    rows = [{"name": name, "target": True, "findings": [], "versions": {"driver": "580.95.05", "kubelet": "v1.36.3"}} for name in names]
    rows += [
        {"name": name, "target": False, "exclusion": {"reason": reason, "message": f"{name} is out"}} for name, reason in excluded.items()
    ]
    made = {
        "nodes": rows, "platform": {"name": "onprem", "evidence": ["no providerID"]}, "server": {"version": "v1.36.3"},
        "gpus": [{"product": "NVIDIA-H100-80GB-HBM3", "model": "h100", "nodes": len(rows), "gpus_per_node": 8}],
        "taken_at": "2026-03-02T07:59:00Z",
    }  # fmt: skip
    return snapshot_given(made)


def report(values, *, criteria=("measured.bus_bandwidth >= 400",), cleanup=None, text="as it was", excluded=None, reason=None):
    """A report of one category with a group of one node per value."""
    names = nodes(len(values))
    groups = [{"name": f"g{number:03d}", "nodes": [name]} for number, name in enumerate(names)]
    category = {"id": "c01-nccl", "test": "communication/nccl-all-reduce", "test_scale": "intra-node", "groups": groups, "untested": []}
    outcome = {"outcome": "failed", "reason": reason, "message": text} if reason else {"outcome": "succeeded"}
    attempts = [{"attempt": 1, "exit_code": 0, "pods": [{"name": "p", "node": None, "log": "logs/x.log"}], "events": [], **outcome}]
    observation = {"groups": [{"name": group["name"], "attempts": attempts} for group in groups]}
    measurements = {
        group["name"]: {
            "kind": "nccl", "verdict": None, "complete": True, "reason": text, "values": {"bus_bandwidth": value, "transport": "ib"},
            "units": {"bus_bandwidth": "GB/s"}, "transport": {"class": "ib"}, "judged": None, "findings": [],
        }
        for group, value in zip(groups, values, strict=True)
    }  # fmt: skip
    compiled = compile_criteria(list(criteria), {}, METRICS)
    judged = judge_category(category_given(category), observation_given(observation), measurements_given(measurements), compiled)
    seen = snapshot(names, **(excluded or {}))
    return build_report(RUN, seen, {"cost": {"groups": 1, "nodes": 1, "gpu_hours_max": 8.0}}, roll_up(seen, [judged]), cleanup)


def check(made):
    jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(made)
    text = render_text(made)
    assert all(len(line) <= WIDTH for line in text.splitlines()), max(text.splitlines(), key=len)
    return text


def test_the_schema_is_a_schema_and_holds_the_promised_names():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    promised = "schema_version run_id verdict started finished certification cluster coverage categories nodes excluded cleanup"
    assert set(promised.split()) <= set(SCHEMA["required"])


def test_a_passing_report_is_short_and_says_so_first_and_last():
    text = check(report([484.5] * 64))
    assert text.splitlines()[1] == "CLUSTER READINESS: PASSED"
    assert text.splitlines()[-1] == "CLUSTER READINESS: PASSED"
    assert len(text.splitlines()) < 35
    assert "60 more groups passed" in text
    assert "onprem, Kubernetes v1.36.3, 64 GPU nodes: 64 x 8 NVIDIA-H100-80GB-HBM3" in text
    assert "1h 02m 03s" in text


def test_a_failing_report_shows_value_limit_margin_and_remedy():
    text = check(report([484.5, 212.31, 484.5]))
    row = next(line for line in text.splitlines() if line.startswith("  g001"))
    assert row.split() == ["g001", "gpu-r0-n01", "212.31", "GB/s", ">=", "400", "-46.9%", "FAIL", "ThresholdViolation"]
    assert "SUSPECT NODES (1)" in text
    assert "do: " in text
    assert text.index("g001") < text.index("g000"), "the worst comes first"


def test_many_nodes_with_one_story_are_told_once():
    text = check(report([484.5] * 40, reason="ImagePull", text="manifest unknown"))
    assert "gpu-r0-n[00-39] (40 nodes)" in text and "ImagePull in c01-nccl: manifest unknown" in text
    names = nodes(8)
    group = [{"name": "g001", "nodes": names}]
    category = {"id": "c01", "test": "t", "test_scale": "intra-rack", "groups": group, "untested": []}
    judged = judge_category(category_given(category), None, {}, [])
    seen = snapshot(names)
    text = check(build_report(RUN, seen, None, roll_up(seen, [judged]), None))
    assert "gpu-r0-n[00-07] (8 nodes)" in text


def test_a_great_many_failures_stay_readable_and_name_every_node():
    text = check(report([float(number) for number in range(100)]))
    assert len(text.splitlines()) < 250
    assert "60 more groups did not pass" in text
    assert "75 more nodes, ThresholdViolation (see report.json): gpu-r0-n[25-99]" in text


def test_excluded_nodes_and_failed_cleanup_are_said():
    text = check(report([484.5], excluded={"a1": "Cordoned", "a2": "Cordoned"}, cleanup={"proven": False, "left": ["Job default/x"]}))
    assert "CLUSTER READINESS: INCOMPLETE" in text
    assert "a[1-2]: Cordoned: the node is out" in text
    assert "NOT PROVEN, may be left: Job default/x" in text


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_makes_a_valid_report(reason):
    text = check(report([None, 450.0], reason=reason, text=f"the API said {reason}"))
    assert reason == "Warning" or "PASSED" not in text.splitlines()[1]


def test_numbers_are_numbers_and_what_is_not_finite_is_null():
    made = json.loads(render_json(report([float("nan"), 450.123456789])))
    groups = made["categories"][0]["groups"]
    assert groups[0]["measurement"]["values"]["bus_bandwidth"] is None
    assert groups[1]["measurement"]["values"]["bus_bandwidth"] == 450.123456789
    assert groups[1]["criteria"][0]["limit"] == 400
    assert isinstance(made["coverage"]["ratio"], float)


def test_the_same_input_gives_the_same_bytes():
    first = report([484.5, 300.0, None])
    again = json.loads(json.dumps(report([484.5, 300.0, None])))
    shuffled = dict(random.Random(1).sample(list(again.items()), len(again)))
    assert render_json(first) == render_json(shuffled)
    assert render_text(first) == render_text(shuffled)


def test_a_log_cannot_move_the_cursor_or_turn_the_text_around():
    text = check(report([450.0], reason="WorkloadFailed", text="bad\x1b[2J\x1b[1;1Hdone \u202egnp \r\n\tok\x00"))
    assert not set(text) & set("\x1b\u202e\r\x00\t")
    assert "\\x1b[2J" in text
    assert safe("a\tb") == "a    b"


def test_the_summary_stays_small():
    made = report([300.0] * 300)
    short = summary(made)
    assert short["verdict"] == "failed"
    assert len(short["suspect_nodes"]) == 200
    assert short["counts"] == {"passed": 0, "failed": 0, "suspect": 300, "untested": 0, "excluded": 0}


TEXT = st.text(max_size=300)


@given(
    st.lists(st.one_of(st.none(), st.floats(), st.integers()), max_size=12),
    st.lists(
        st.sampled_from(["measured.bus_bandwidth >= 400", "measured.transport == 'ib'", "measured.bus_bandwidth < 1.0e9"]), max_size=3
    ),
    TEXT,
    st.one_of(st.none(), st.sampled_from(sorted(REASONS)), TEXT),
    st.one_of(st.none(), st.fixed_dictionaries({"proven": st.booleans(), "left": st.lists(TEXT, max_size=3)})),
)
def test_no_model_breaks_the_views(values, criteria, text, reason, cleanup):
    check(report(values, criteria=criteria, text=text, reason=reason, cleanup=cleanup))


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (nodes(16), "gpu-r0-n[00-15]"),
        (["n1", "n2", "n4"], "n[1-2,4]"),
        (["a"], "a"),
        (["n07"], "n07"),
        (["n9", "n10", "n08"], "n9, n[08,10]"),
        (["b", "a", "a"], "a, b"),
        ([], ""),
        (["ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal"], "ip-10-0-0-[1-2].ec2.internal"),
    ],
)
def test_node_lists_are_written_short(names, short):
    assert fold(names) == short


@given(st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,3}(\.x2)?", fullmatch=True), max_size=20))
def test_a_short_list_loses_no_node(names):
    def expand(text):
        result = set()
        for part in text.replace(", ", "\n").splitlines():
            head, bracket, rest = part.partition("[")
            if not bracket:
                result.add(part)
                continue
            inside, _bracket, tail = rest.partition("]")
            for span in inside.split(","):
                low, _dash, high = span.partition("-")
                result |= {f"{head}{number:0{len(low)}d}{tail}" for number in range(int(low), int(high or low) + 1)}
        return result

    assert expand(fold(names)) == set(names)


def searched(count, fault):
    """The conclusion of a search among racks of eight; `fault(nodes)` says whether a test of these nodes fails."""
    names = [f"gpu-r{at // 8}-n{at % 8:02d}" for at in range(count)]
    state = planner.start([{"name": name, "domain": name.split("-")[1]} for name in names])
    state, step = planner.next_step(state)
    while "wave" in step:
        results = []
        for test in step["wave"]:
            bad = fault(set(test["nodes"]))
            results.append({"id": test["id"], "outcome": "measured", "value": 200.0 if bad else 400.0, "passed": not bad})
        state, step = planner.next_step(state, results)
    return planner.conclude(state)


def test_the_text_tells_the_search_what_was_known_good_and_who_was_suspected_and_why():
    concluded = searched(64, lambda nodes: {"gpu-r3-n02"} <= nodes and len(nodes) > 1)
    made = report([480.0] * 3)
    made["categories"][0]["isolation"] = {"findings": [], "conclusion": concluded}
    lines = check(made).splitlines()
    start = lines.index("  how isolation searched")
    told = " ".join(" ".join(lines[start + 1 :]).split())
    assert "Wave 1: a domain alone (8 tests): 1 of 8 failed. 56 of 64 nodes known good; suspected: 8 nodes of r3 (failed together" in told
    assert "63 of 64 nodes known good; suspected: gpu-r3-n02 (" in told
    assert told.index("56 of 64 nodes") < told.index("63 of 64 nodes")


def test_the_text_says_that_something_between_nodes_is_suspected_when_each_of_them_is_good():
    concluded = searched(64, lambda nodes: {"gpu-r3-n02", "gpu-r3-n05"} <= nodes)
    made = report([480.0])
    made["categories"][0]["isolation"] = {"findings": [], "conclusion": concluded}
    told = " ".join(check(made).split())
    assert "64 of 64 nodes known good; suspected: something between 8 nodes of r3 (failed together in wave 1, each passed with" in told
    assert "suspected: gpu-r3-n02 and gpu-r3-n05 (pair, " in told


@pytest.mark.parametrize("ends", [("gpu-r3-n02", "gpu-r3-n05"), ("gpu-r3-n02", "gpu-r7-n05")])
def test_the_text_of_a_long_search_tells_its_beginning_and_its_end(ends):
    concluded = searched(512, lambda nodes: set(ends) <= nodes)
    made = report([480.0])
    made["categories"][0]["isolation"] = {"findings": [], "conclusion": {**concluded, "story": concluded["story"] * 4}}
    text = check(made)
    waves = [line for line in text.splitlines() if line.startswith("    Wave ")]
    assert len(waves) == 20 and f"... {4 * len(concluded['story']) - 20} more waves, see report.json" in text


def test_a_search_without_a_story_is_told_by_its_findings_alone():
    made = report([480.0])
    for isolation in ({"findings": []}, {"findings": [], "conclusion": None}, {"findings": [], "conclusion": {"verdict": "passed"}}):
        made["categories"][0]["isolation"] = isolation
        assert "how isolation searched" not in check(made)


def test_what_isolation_says_of_many_nodes_alike_is_said_once():
    same = {"reason": "ThresholdViolation", "class": "unresolved", "confidence": 0.0, "note": False, "message": "they fail together"}
    findings = [{**same, "node": f"n{index:02d}"} for index in range(64)] + [{**same, "node": "x", "class": "nic", "confidence": 0.97}]
    assert _isolation(findings) == [
        "  isolation unresolved on n[00-63] (0% sure): they fail together",
        "  isolation nic on x (97% sure): they fail together",
    ]
