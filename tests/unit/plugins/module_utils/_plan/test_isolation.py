# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What judged groups tell the planner, and what its conclusion does to nodes: nobody is accused by a cause that is not theirs."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.reasons import finding
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.isolation import conclusions
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan import isolation

TEMPLATE = {"env": [{"name": "NCCL_MNNVL_ENABLE", "value": "0"}]}


def group(*findings, verdict="failed", value=None, limit=400.0, op=">="):
    criteria = []
    if value is not None:
        limits = [{"metric": "bus_bandwidth", "op": op, "limit": limit}]
        criteria = [{"measured": value, "limit": limit, "limits": limits, "passed": value >= limit}]
    pods = [{"role": "launcher", "log": "logs/c01/g001-1-0.log"}]
    return {
        "attempts": [{"pods": pods, "duration_s": 30.0}],
        "findings": list(findings),
        "verdict": verdict,
        "criteria": criteria,
        "measurement": {},
    }


def test_a_missed_criterion_is_a_measurement_and_keeps_its_value():
    told = isolation.result_of(group(finding("ThresholdViolation", "missed"), value=281.0))
    assert (told["outcome"], told["value"], told["passed"]) == ("measured", 281.0, False)
    assert "expected" not in told, "a floor is not what a healthy group reaches"
    assert told["log"] == "logs/c01/g001-1-0.log" and told["minutes"] == 0.5


def test_a_pass_is_a_measurement():
    assert isolation.result_of(group(verdict="passed", value=480.0)) == {
        "log": "logs/c01/g001-1-0.log", "minutes": 0.5, "outcome": "measured", "passed": True, "value": 480.0,
    }  # fmt: skip


def test_of_an_upper_limit_only_the_side_counts():
    told = isolation.result_of(group(finding("ThresholdViolation", "too slow"), value=30.0, limit=20.0, op="<="))
    assert told["passed"] is False and "value" not in told


@pytest.mark.parametrize("reason", ["DataCorruption", "TransportFallback", "WorkloadFailed", "TimedOut", "OOMKilled"])
def test_what_no_bandwidth_makes_up_for_fails_at_full_strength(reason):
    told = isolation.result_of(group(finding(reason, "bad"), value=480.0))
    assert told["outcome"] == "failed" and told["reason"].startswith(reason)


@pytest.mark.parametrize("reason", ["ImagePull", "Quota", "Unschedulable", "Cancelled", "SetupError", "LogIncomplete", "Evicted"])
def test_what_is_not_the_nodes_fault_is_no_evidence(reason):
    assert isolation.result_of(group(finding(reason, "not theirs"), verdict="error"))["outcome"] == "unmeasured"


def test_a_lost_node_is_named_and_its_group_says_nothing_of_the_others():
    told = isolation.result_of(group(finding("NodeLost", "gone", node="n3")))
    assert (told["outcome"], told["lost"]) == ("unmeasured", ["n3"])


def judged_alone(*names, reason="ThresholdViolation"):
    member = {"verdict": "suspect", "findings": [finding(reason, "failed alone")]}
    return {"groups": [{"nodes": [name]} for name in names], "members": {name: member for name in names}}


@pytest.mark.parametrize(
    "first, result, kind, verdict",
    [
        ("ThresholdViolation", {"outcome": "measured", "passed": False, "value": 200.0}, "node", "failed"),
        ("DataCorruption", {"outcome": "failed", "reason": "DataCorruption: wrong"}, "node", "failed"),
        ("ThresholdViolation", {"outcome": "measured", "passed": True, "value": 401.0}, "intermittent", "suspect"),
        ("DataCorruption", {"outcome": "measured", "passed": True, "value": 480.0}, "intermittent", "failed"),
        ("ThresholdViolation", {"outcome": "unmeasured", "reason": "ImagePull: no image"}, "unresolved", "suspect"),
    ],
)
def test_a_node_that_failed_alone_is_convicted_by_a_second_failure_or_by_wrong_data(first, result, kind, verdict):
    spec = {"bounds": {"max_concurrent": 4}, "topology_key": None, "isolation": {"min_group_size": 2, "soak": False, "budget": {}}}
    record = isolation.advance(isolation.start({"template": TEMPLATE}, judged_alone("n0", reason=first), [], spec), None)
    assert [test["nodes"] for test in record["tests"]] == [["n0"]]
    record = isolation.advance(record, [{"id": record["tests"][0]["id"], **result}])
    (told,) = conclusions(record["conclusion"])
    assert (told["node"], told["verdict"], told["class"]) == ("n0", verdict, kind)
    words = {"node": "1 failed again", "intermittent": "1 passed", "unresolved": "1 could not be measured"}
    assert record["conclusion"]["story"][0].endswith(f"(1 tests): {words[kind]}.")


def test_isolation_is_for_suspects_and_only_when_wanted():
    judged = judged_alone("n0")
    assert isolation.must_isolate({"isolate": "auto"}, judged)
    assert not isolation.must_isolate({"isolate": "never"}, judged)
    assert not isolation.must_isolate({"isolate": "auto"}, {"groups": [], "members": {"n0": {"verdict": "untested"}}})


def fallen_back(*nodes, blame=()):
    transport = {"hosts": {name: {} for name in nodes}, "blame": list(blame)}
    told = {"nodes": list(nodes), "measurement": {"transport": transport}, "members": {}}
    return {**group(finding("TransportFallback", "tcp")), **told}


def test_a_fallback_of_every_host_alike_is_not_searched_for():
    """A wrong image or setting looks the same in every smaller group: the search would spend its whole budget to say nothing."""
    wanted = {"isolate": "auto"}
    members = {name: {"verdict": "suspect"} for name in ("n0", "n1", "n2", "n3")}
    alike = [fallen_back("n0", "n1"), fallen_back("n2", "n3")]
    assert not isolation.must_isolate(wanted, {"groups": alike, "members": members})
    one_host = [alike[0], fallen_back("n2", "n3", blame=[{"host": "n3", "why": "no device", "line": ""}])]
    assert isolation.must_isolate(wanted, {"groups": one_host, "members": members})
    one_group = [alike[0], {**group(verdict="passed", value=480.0), "nodes": ["n2", "n3"], "members": {}}]
    assert isolation.must_isolate(wanted, {"groups": one_group, "members": members})


def test_those_whose_test_a_dead_node_stopped_are_proven_without_it():
    """One node of a rack dies: the others are not accused, but without another test they would stay untested."""
    members = {"n0": {"verdict": "untested"}, "n1": {"verdict": "failed"}, "n2": {"verdict": "untested"}}
    lost = {**group(finding("NodeLost", "gone", node="n1")), "name": "g001", "nodes": list(members), "members": members}
    judged = {"groups": [lost], "members": members}
    assert isolation.must_isolate({"isolate": "auto"}, judged)
    assert not isolation.must_isolate({"isolate": "never"}, judged)
    category = {"template": TEMPLATE, "isolate": "auto"}
    rows = [{"name": name, "domains": {"clique": None, "rack": "r0", "block": None}, "labels": {}} for name in members]
    spec = {"bounds": {"max_concurrent": 4}, "topology_key": None, "isolation": {"min_group_size": 2, "soak": False, "budget": {}}}
    record = isolation.advance(isolation.start(category, judged, rows, spec), None)
    tested = {name for test in record["tests"] for name in test["nodes"]}
    assert tested == {"n0", "n2"}


def nvlink_category(size=4):
    template = {"env": [{"name": "NCCL_MNNVL_ENABLE", "value": "1"}]}
    return {"template": template, "groups": [{"nodes": [f"n{index}" for index in range(size)]}], "net_transport": "ib"}


def wave_result(shape, transport, nodes, category):
    missed = {**group(finding("ThresholdViolation", "missed"), value=218.0, limit=640.0), "name": "w01-01", "nodes": nodes}
    test = {"id": "w01-01", "shape": shape, "transport": transport, "nodes": nodes}
    return isolation.results_of(category, {"groups": [missed]}, [test])[0]


def test_a_limit_for_nvlink_is_not_held_against_the_adapters():
    """Four adapters carry a quarter of what NVLink does: every healthy node would fail, and be accused."""
    adapters = wave_result("domain-net", "net", ["n0", "n1"], nvlink_category())
    assert (adapters["passed"], adapters["binding"], adapters["value"]) == (True, False, 218.0)
    assert wave_result("domain-nvl", "nvl", ["n0", "n1"], nvlink_category())["passed"] is False
    assert wave_result("cross", "net", ["n0", "n1", "n2"], nvlink_category())["passed"] is False, "the closing test is the category's own"
    plain = {"template": TEMPLATE, "groups": [{"nodes": ["n0", "n1"]}], "net_transport": "ib"}
    assert wave_result("domain-net", "net", ["n0", "n1"], plain)["passed"] is False


def test_nvlink_is_switched_off_only_inside_a_domain():
    tests = [{"id": "a", "shape": "domain-net", "transport": "net", "nodes": ["n0", "n1"]},
             {"id": "b", "shape": "cross", "transport": "net", "nodes": ["n0", "n1"]}]  # fmt: skip
    record = {"wave": 1, "tests": tests}
    category = {**nvlink_category(), "id": "c01", "short_id": "c01", "title": "c01"}
    groups = isolation.wave_category(category, record)["groups"]
    assert [item["env"]["NCCL_MNNVL_ENABLE"] for item in groups] == ["0", "1"]


def test_a_wave_runs_its_tests_once_whatever_the_category_repeats():
    record = {"wave": 1, "tests": [{"id": "a", "shape": "single", "transport": "nvl", "nodes": ["n0"]}]}
    category = {**nvlink_category(), "id": "c01", "short_id": "c01", "title": "c01", "repeat": 5, "k_of_n": 4}
    wave = isolation.wave_category(category, record)
    assert (wave["repeat"], wave["k_of_n"], category["repeat"]) == (1, None, 5)
