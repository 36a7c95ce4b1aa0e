# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A node that has failed after the only category whose evidence counts for it must not be certified by that category."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.classify import Said
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.certification import roll_up
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._judge.last_look import final_findings


def state(uid="machine", boot="first", gpus=8, trouble=None, **more):
    return {"uid": uid, "boot_id": boot, "gpus": gpus, "trouble": trouble, **more}


def observed(*seen, hour=8, outcome="succeeded", reason=None, number=1):
    """One group of the nodes (name, before, after)."""
    machines = [{"node": node, "before": before, "after": after or before, "fewest_gpus": None} for node, before, after in seen]
    created = f"2026-03-02T{hour:02d}:00:00Z"
    said = Said(reason, "as it was said") if reason else Said()
    attempt = attempt_record(number, outcome, said, created=created, started=created, finished=created, machines=machines)
    return {"groups": [{"name": "g001", "nodes": [item[0] for item in seen], "attempts": [attempt]}], "cleanup": None, "cancelled": ""}


def look(**nodes):
    return {"at": "2026-03-02T12:00:00Z", "nodes": nodes, "why": ""}


ONE = {"c01": observed(("n1", state(), None), ("n2", state(), None))}


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        (state(), None),
        (state(boot="second"), "NodeUnavailable"),
        (state(uid="another"), "NodeUnavailable"),
        (None, "NodeUnavailable"),
        (state(trouble="Ready=Unknown: silent"), "NodeUnavailable"),
        (state(gpus=7), "HardwareFailureDetected"),
        (state(illness={"message": "sick", "evidence": ["condition X=True"], "kinds": ["condition X=True"]}), "HardwareFailureDetected"),
    ],
)
def test_what_became_of_a_node_after_its_last_test_is_judged(now, reason):
    found = final_findings(["c01"], ONE, look(n1=state(), n2=now))
    assert {node: item["reason"] for node, item in found.items()} == ({"n2": reason} if reason else {})


def test_a_restart_between_two_categories_makes_the_first_measurement_old():
    both = {**ONE, "c02": observed(("n2", state(boot="second"), None), hour=9)}
    found = final_findings(["c01", "c02"], both, look(n1=state(), n2=state(boot="second")))
    assert list(found) == ["n2"] and "restarted after its test had begun" in found["n2"]["message"]


def test_a_restart_before_the_wave_that_proved_a_node_counts_as_its_own_failure_only_where_its_first_test_crashed():
    waves = {"c01": observed(("n2", state(), None)), "c01-w01": observed(("n2", state(boot="second"), None), hour=9)}
    now = look(n2=state(boot="second"))
    assert final_findings(["c01"], waves, now) == {}, "what it measured last, it measured since"
    waves["c01"] = observed(("n2", state(), None), outcome="failed", reason="WorkloadFailed")
    assert final_findings(["c01"], waves, now)["n2"]["reason"] == "NodeLost"


def test_without_a_look_no_node_passes_and_the_reason_is_told():
    found = final_findings(["c01"], ONE, {"at": "2026-03-02T12:00:00Z", "nodes": None, "why": "connection refused"})
    assert {item["reason"] for item in found.values()} == {"NodeUnavailable"} and sorted(found) == ["n1", "n2"]
    assert "connection refused" in found["n1"]["message"]


def test_where_nobody_was_asked_to_look_the_categories_have_the_last_word():
    assert final_findings(["c01"], ONE, None) == {}


def member(verdict, *findings):
    return {"verdict": verdict, "findings": list(findings)}


def certification(since, **members):
    category = {
        "id": "c01", "test": "t", "test_scale": "full-scale", "verdict": "passed", "why": "", "criteria": [], "allow_no_criteria": False,
        "groups": [], "untested": [], "members": members, "isolation": None,
    }  # fmt: skip
    snapshot = {"nodes": [{"name": name, "target": True, "exclusion": None, "findings": []} for name in members], "gpus": []}
    return roll_up(snapshot, [category], since)


def test_the_certification_does_not_pass_a_node_that_failed_since():
    rolled = certification(
        final_findings(["c01"], ONE, look(n1=state(gpus=7), n2=state(boot="second"))), n1=member("passed"), n2=member("passed")
    )
    assert [(node["verdict"], node["findings"][0]["reason"]) for node in rolled["nodes"]] == [
        ("failed", "HardwareFailureDetected"),
        ("untested", "NodeUnavailable"),
    ]
    assert rolled["verdict"] == "failed" and "1 node failed" in rolled["why"]


def test_what_a_category_has_told_is_not_told_again():
    since = final_findings(["c01"], ONE, look(n1=state(gpus=7), n2=state()))
    rolled = certification(since, n1=member("failed", since["n1"]), n2=member("passed"))
    assert [len(node["findings"]) for node in rolled["nodes"]] == [1, 0]


def test_that_a_machine_found_dead_does_not_answer_is_no_news():
    since = final_findings(["c01"], ONE, look(n1=state(trouble="Ready=Unknown: silent"), n2=state()))
    rolled = certification(since, n1=member("failed", {**since["n1"], "reason": "NodeLost"}), n2=member("passed"))
    assert [item["reason"] for item in rolled["nodes"][0]["findings"]] == ["NodeLost"]
