# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of Jobs. If they are wrong, a rehearsal shows Jobs that end, retry or hang otherwise than on a real cluster."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients import job_rules as rules

NOW = datetime.datetime(2026, 3, 2, 8, 0, 0, tzinfo=datetime.UTC)


def job(status=None, restart_policy="Never", **spec):
    spec.setdefault("parallelism", 1)
    spec["template"] = {"spec": {"restartPolicy": restart_policy, "containers": [{"name": "main"}]}}
    return {"metadata": {"name": "j", "namespace": "d", "uid": "u"}, "spec": spec, "status": status or {}}


def pod(phase="Running", index=None, code=None, deleting=False, conditions=(), failures=None, name="p"):
    annotations = {} if index is None else {rules.INDEX: str(index)}
    if failures is not None:
        annotations[rules.INDEX_FAILURES] = str(failures)
    metadata = {"name": name, "namespace": "d", "uid": f"{name}-{index}", "annotations": annotations, "finalizers": [rules.FINALIZER]}
    if deleting:
        metadata["deletionTimestamp"] = "2026-03-02T08:00:00Z"
    statuses = [] if code is None else [{"name": "main", "state": {"terminated": {"exitCode": code}}, "restartCount": 0}]
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, "containerStatuses": statuses, "conditions": list(conditions)}}


def no_backoff(_index):
    return 0.0


def ending(the_job, pods, failed=0, succeeded=0):
    return rules.find_ending(the_job, pods, failed, succeeded, NOW)


@given(st.sets(st.integers(0, 300)))
def test_index_lists_survive_a_round_trip(indexes):
    assert rules.parse_indexes(rules.format_indexes(indexes)) == indexes


def test_index_lists_are_written_as_the_api_writes_them():
    assert rules.format_indexes({0, 2, 3, 5, 6, 7}) == "0,2,3,5-7"
    assert rules.format_indexes(set()) == ""


def test_every_missing_index_is_created_once():
    the_job = job(completionMode="Indexed", completions=4, parallelism=4)
    plan = rules.staff(the_job, [pod(index=1), pod("Succeeded", index=2)], 1, no_backoff)
    assert [wanted.index for wanted in plan.create] == [0, 3]
    assert plan.delete == []


def test_a_second_pod_of_an_index_is_removed():
    the_job = job(completionMode="Indexed", completions=2, parallelism=2)
    plan = rules.staff(the_job, [pod(index=0, name="a"), pod(index=0, name="b"), pod(index=1)], 0, no_backoff)
    assert [extra["metadata"]["name"] for extra in plan.delete] == ["b"]
    assert plan.create == []


def test_a_failed_pod_is_replaced_only_after_the_backoff():
    the_job = job(completionMode="Indexed", completions=1)
    plan = rules.staff(the_job, [pod("Failed", index=0, code=1)], 0, lambda _index: 7.0)
    assert plan.create == []
    assert plan.wait_s == 7.0


def test_a_terminating_pod_is_replaced_at_once_unless_the_job_asks_otherwise():
    gone = pod(index=0, deleting=True)
    assert rules.staff(job(completionMode="Indexed", completions=1), [gone], 0, no_backoff).create
    waits = job(completionMode="Indexed", completions=1, podReplacementPolicy="Failed")
    assert not rules.staff(waits, [gone], 0, no_backoff).create


def test_all_indexes_done_completes_the_job():
    the_job = job(completionMode="Indexed", completions=2)
    assert ending(the_job, [pod("Succeeded", index=0), pod(index=1)]) is None
    end = ending(the_job, [pod("Succeeded", index=0), pod("Succeeded", index=1)])
    assert (end.type, end.final_type, end.reason) == ("SuccessCriteriaMet", "Complete", "CompletionsReached")


def test_success_policy_ends_the_job_with_its_launcher():
    the_job = job(completionMode="Indexed", completions=3, successPolicy={"rules": [{"succeededIndexes": "0"}]})
    end = ending(the_job, [pod("Succeeded", index=0), pod(index=1), pod(index=2)])
    assert (end.reason, end.message) == ("SuccessPolicy", "Matched rules at index 0")
    assert ending(the_job, [pod(index=0), pod("Succeeded", index=1)]) is None


def test_success_policy_counts_within_its_indexes():
    the_job = job(completionMode="Indexed", completions=4, successPolicy={"rules": [{"succeededIndexes": "0-2", "succeededCount": 2}]})
    assert ending(the_job, [pod("Succeeded", index=0), pod("Succeeded", index=3)]) is None
    assert ending(the_job, [pod("Succeeded", index=0), pod("Succeeded", index=2)]).reason == "SuccessPolicy"


@pytest.mark.parametrize(("limit", "failed", "ends"), [(0, 0, False), (0, 1, True), (2, 2, False), (2, 3, True)])
def test_backoff_limit(limit, failed, ends):
    end = ending(job(completions=1, backoffLimit=limit), [], failed=failed)
    assert (end is not None and end.reason == "BackoffLimitExceeded") is ends


def test_restarts_in_place_count_for_the_backoff_limit():
    running = pod()
    running["status"]["containerStatuses"] = [{"name": "main", "restartCount": 3, "state": {"running": {}}}]
    assert ending(job(restart_policy="OnFailure", completions=1, backoffLimit=3), [running]).reason == "BackoffLimitExceeded"
    assert ending(job(restart_policy="OnFailure", completions=1, backoffLimit=4), [running]) is None


def test_deadline():
    started = {"startTime": "2026-03-02T07:59:00Z"}
    assert ending(job(started, completions=1, activeDeadlineSeconds=60), []).reason == "DeadlineExceeded"
    assert ending(job(started, completions=1, activeDeadlineSeconds=61), []) is None
    assert ending(job(started, completions=1, activeDeadlineSeconds=60, suspend=True), []) is None


def test_a_decided_ending_stays():
    status = {"conditions": [{"type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy", "message": "m"}]}
    assert ending(job(status, completions=1), [pod("Succeeded")], succeeded=1).reason == "PodFailurePolicy"


def policy(action, **rule):
    return {"rules": [{"action": action, **rule}]}


def test_pod_failure_policy_by_exit_code():
    the_job = job(completions=1, podFailurePolicy=policy("FailJob", onExitCodes={"operator": "In", "values": [42]}))
    end = ending(the_job, [pod("Failed", code=42)], failed=1)
    assert end.reason == "PodFailurePolicy"
    assert end.message == "Container main for pod d/p failed with exit code 42 matching FailJob rule at index 0"
    assert ending(the_job, [pod("Failed", code=1)], failed=1) is None


def test_pod_failure_policy_not_in_ignores_success():
    the_job = job(podFailurePolicy=policy("Count", onExitCodes={"operator": "NotIn", "values": [1]}))
    assert rules.failure_action(the_job, pod("Failed", code=0)) == ("Count", "")


def test_pod_failure_policy_by_condition():
    the_job = job(podFailurePolicy=policy("Ignore", onPodConditions=[{"type": "DisruptionTarget"}]))
    evicted = pod("Failed", code=137, conditions=[{"type": "DisruptionTarget", "status": "True"}])
    assert rules.failure_action(the_job, evicted)[0] == "Ignore"
    assert rules.failure_action(the_job, pod("Failed", code=137))[0] == "Count"


def test_indexes_fail_on_their_own():
    the_job = job(completionMode="Indexed", completions=2, parallelism=2, backoffLimitPerIndex=1)
    once = [pod("Failed", index=0, code=1), pod("Succeeded", index=1)]
    assert ending(the_job, once) is None
    assert [(wanted.index, wanted.failures) for wanted in rules.staff(the_job, once, 1, no_backoff).create] == [(0, 1)]
    twice = [*once, pod("Failed", index=0, code=1, failures=1, name="q")]
    assert ending(the_job, twice).reason == "FailedIndexes"


def test_too_many_failed_indexes_end_the_job_early():
    the_job = job(completionMode="Indexed", completions=9, backoffLimitPerIndex=0, maxFailedIndexes=1)
    failed = [pod("Failed", index=n, code=1) for n in range(2)]
    assert ending(the_job, failed[:1]) is None
    assert ending(the_job, failed).reason == "MaxFailedIndexesExceeded"


def test_fail_index_needs_no_second_try():
    the_job = job(
        completionMode="Indexed",
        completions=1,
        backoffLimitPerIndex=5,
        podFailurePolicy=policy("FailIndex", onExitCodes={"operator": "In", "values": [3]}),
    )
    assert ending(the_job, [pod("Failed", index=0, code=3)]).reason == "FailedIndexes"


def test_a_work_queue_is_done_after_one_success_and_no_active_pod():
    the_job = job(parallelism=2)
    assert ending(the_job, [pod("Succeeded"), pod()], succeeded=1) is None
    assert ending(the_job, [pod("Succeeded")], succeeded=1).reason == "CompletionsReached"
    assert rules.staff(the_job, [pod()], 1, no_backoff).create == []
