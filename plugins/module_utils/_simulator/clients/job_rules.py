# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The rules of batch/v1 Jobs, without any I/O: what a Job's pods mean for it.

Everything here takes the Job and its pods as the API shows them and returns decisions; `job_controller` carries them out.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import typing as t
from collections.abc import Iterable, Sequence

from .api import Object, parse_time

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_UNLIMITED = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How a Job ends: `type` is the condition that comes first (FailureTarget or SuccessCriteriaMet)."""

    type: str
    reason: str
    message: str

    @property
    def final_type(self) -> str:
        """The condition that comes last."""
        return "Failed" if self.type == "FailureTarget" else "Complete"


def condition(job: Object, kind: str) -> Object | None:
    """The Job's condition of that type if it is True."""
    rows: list[Object] = (job.get("status") or {}).get("conditions") or []
    return next((row for row in rows if row["type"] == kind and row["status"] == "True"), None)


def finished(job: Object) -> Object | None:
    """The terminal condition of a finished Job, else None."""
    return condition(job, "Complete") or condition(job, "Failed")


def is_indexed(job: Object) -> bool:
    """Whether each pod of the Job has a completion index."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def index_of(pod: Object) -> int:
    """The completion index of a pod; -1 if it has none."""
    try:
        return int((pod["metadata"].get("annotations") or {})[INDEX])
    except (KeyError, ValueError):
        return -1


def phase(pod: Object) -> str:
    """status.phase; Pending while no kubelet has spoken."""
    return str((pod.get("status") or {}).get("phase", "Pending"))


def is_terminal(pod: Object) -> bool:
    """Whether the pod has ended."""
    return phase(pod) in ("Succeeded", "Failed")


def is_active(pod: Object) -> bool:
    """Whether the pod has not ended and is not asked to."""
    return not is_terminal(pod) and not pod["metadata"].get("deletionTimestamp")


def is_terminating(pod: Object) -> bool:
    """Whether the pod is asked to end and has not."""
    return not is_terminal(pod) and bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: Object) -> bool:
    """Whether its condition Ready is True."""
    rows = (pod.get("status") or {}).get("conditions") or []
    return any(row["type"] == "Ready" and row["status"] == "True" for row in rows)


def replaces_only_failed(job: Object) -> bool:
    """podReplacementPolicy Failed, the default with a podFailurePolicy: a terminating pod is neither failed nor replaced yet."""
    policy = job["spec"].get("podReplacementPolicy")
    return policy == "Failed" or (policy is None and bool(job["spec"].get("podFailurePolicy")))


def has_failed(job: Object, pod: Object) -> bool:
    """Whether the Job counts the pod as failed: Failed, or being deleted where the Job does not wait for its end."""
    if phase(pod) == "Failed":
        return True
    return is_terminating(pod) and not replaces_only_failed(job)


def has_finalizer(pod: Object) -> bool:
    """Whether the pod has not been counted yet: the Job controller's finalizer is there."""
    return FINALIZER in (pod["metadata"].get("finalizers") or [])


def parse_indexes(text: str) -> set[int]:
    """`"1,3-5"` as a set; ValueError on anything else."""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _dash, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """The shortest form, as the API writes it: `"0,2-4"`; two neighbours are written `"3,4"`."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and (index is None or index != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}")
            run = []
        if index is not None:
            run.append(index)
    return ",".join(parts)


# -- pod failure policy


def failure_action(job: Object, pod: Object) -> tuple[str, str]:
    """(action, message for the Job) of the first matching podFailurePolicy rule; ("Count", "") without a match."""
    for number, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        detail = (
            _exit_code_match(rule["onExitCodes"], pod)
            if rule.get("onExitCodes")
            else _condition_match(rule.get("onPodConditions") or [], pod)
        )
        if detail:
            return rule["action"], f"{detail} matching {rule['action']} rule at index {number}"
    return "Count", ""


def _exit_code_match(wanted: Object, pod: Object) -> str:
    status = pod.get("status") or {}
    for row in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        terminated = (row.get("state") or {}).get("terminated")
        if not terminated or wanted.get("containerName") not in (None, row["name"]):
            continue
        code = terminated["exitCode"]
        hit = code in wanted["values"] if wanted["operator"] == "In" else code not in wanted["values"]
        if code and hit:
            return f"Container {row['name']} for pod {_full_name(pod)} failed with exit code {code}"
    return ""


def _condition_match(patterns: Sequence[Object], pod: Object) -> str:
    for row in (pod.get("status") or {}).get("conditions") or []:
        if any(row["type"] == wanted["type"] and row["status"] == wanted.get("status", "True") for wanted in patterns):
            return f"Pod {_full_name(pod)} has condition {row['type']}"
    return ""


def _full_name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


# -- indexes


@dataclasses.dataclass(frozen=True, slots=True)
class Indexes:
    """What is known of an Indexed Job's indexes. `failures`: failures so far by index (with backoffLimitPerIndex)."""

    succeeded: set[int]
    failed: set[int]
    failures: dict[int, int]


def survey_indexes(job: Object, pods: Sequence[Object]) -> Indexes:
    """From status and pods: indexes that succeeded, and those that failed for good (backoffLimitPerIndex, FailIndex)."""
    status, completions = job.get("status") or {}, job["spec"].get("completions") or 0
    succeeded = parse_indexes(status.get("completedIndexes", ""))
    succeeded |= {index_of(pod) for pod in pods if phase(pod) == "Succeeded" and 0 <= index_of(pod) < completions}
    failed = parse_indexes(status.get("failedIndexes", ""))
    failures: dict[int, int] = collections.defaultdict(int)
    limit = job["spec"].get("backoffLimitPerIndex")
    if limit is not None:
        for pod in pods:
            if not has_failed(job, pod):
                continue
            action, _message = failure_action(job, pod)
            count = _count_of(pod, INDEX_FAILURES) + (action != "Ignore")
            failures[index_of(pod)] = max(failures[index_of(pod)], count)
            if action == "FailIndex" or count > limit:
                failed.add(index_of(pod))
    return Indexes(succeeded, failed - succeeded, failures)


def _count_of(pod: Object, annotation: str) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(annotation, 0))


# -- how a Job ends


def find_ending(job: Object, pods: Sequence[Object], failed_count: int, succeeded_count: int, now: datetime.datetime) -> Ending | None:
    """The reason for the Job to end now, or None. The counts include pods that have just ended."""
    for kind in ("FailureTarget", "SuccessCriteriaMet"):
        decided = condition(job, kind)
        if decided:
            return Ending(kind, decided["reason"], decided.get("message", ""))
    return (
        _policy_failure(job, pods)
        or _success_policy(job, pods)
        or _backoff_exceeded(job, pods, failed_count)
        or _deadline_exceeded(job, now)
        or (_indexed_ending(job, pods) if is_indexed(job) else _counted_ending(job, pods, succeeded_count))
    )


def _policy_failure(job: Object, pods: Sequence[Object]) -> Ending | None:
    if not job["spec"].get("podFailurePolicy"):
        return None
    for pod in pods:
        if phase(pod) == "Failed":
            action, message = failure_action(job, pod)
            if action == "FailJob":
                return Ending("FailureTarget", "PodFailurePolicy", message)
    return None


def _success_policy(job: Object, pods: Sequence[Object]) -> Ending | None:
    rules = (job["spec"].get("successPolicy") or {}).get("rules") or []
    if not rules or not is_indexed(job):
        return None
    succeeded = survey_indexes(job, pods).succeeded
    for number, rule in enumerate(rules):
        wanted = parse_indexes(rule["succeededIndexes"]) if rule.get("succeededIndexes") else None
        matching = succeeded if wanted is None else succeeded & wanted
        needed = rule.get("succeededCount") or (len(wanted) if wanted is not None else 0)
        if needed and len(matching) >= needed:
            return Ending("SuccessCriteriaMet", "SuccessPolicy", f"Matched rules at index {number}")
    return None


def _backoff_exceeded(job: Object, pods: Sequence[Object], failed_count: int) -> Ending | None:
    spec = job["spec"]
    default = _UNLIMITED if spec.get("backoffLimitPerIndex") is not None else 6
    limit = spec.get("backoffLimit", default)
    restarts = 0
    if spec["template"]["spec"].get("restartPolicy") == "OnFailure":
        running = (pod for pod in pods if phase(pod) in ("Running", "Pending"))
        rows = (row for pod in running for key in ("initContainerStatuses", "containerStatuses") for row in pod["status"].get(key) or [])
        restarts = sum(row.get("restartCount", 0) for row in rows)
    if failed_count > limit or (restarts and restarts >= max(limit, 1)):
        return Ending("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    return None


def _deadline_exceeded(job: Object, now: datetime.datetime) -> Ending | None:
    left = deadline_left(job, now)
    if left is None or left > 0:
        return None
    return Ending("FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline")


def deadline_left(job: Object, now: datetime.datetime) -> float | None:
    """Seconds until activeDeadlineSeconds are over; None without a deadline or while suspended."""
    limit, started = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
    if limit is None or not started or job["spec"].get("suspend"):
        return None
    return float(limit) - (now - parse_time(started)).total_seconds()


def _indexed_ending(job: Object, pods: Sequence[Object]) -> Ending | None:
    indexes, completions = survey_indexes(job, pods), job["spec"].get("completions") or 0
    most = job["spec"].get("maxFailedIndexes")
    if most is not None and len(indexes.failed) > most:
        return Ending("FailureTarget", "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
    if indexes.failed and len(indexes.failed) + len(indexes.succeeded) >= completions:
        return Ending("FailureTarget", "FailedIndexes", "Job has failed indexes")
    if len(indexes.succeeded) >= completions:
        return _completed()
    return None


def _counted_ending(job: Object, pods: Sequence[Object], succeeded_count: int) -> Ending | None:
    completions = job["spec"].get("completions")
    if completions is None:  # a work queue: one success and nobody left
        return _completed() if succeeded_count and not any(is_active(pod) for pod in pods) else None
    return _completed() if succeeded_count >= completions else None


def _completed() -> Ending:
    return Ending("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")


# -- pods to create


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A pod to create now. `index` is None in a NonIndexed Job; `failures` of that index so far, None unless counted by index."""

    index: int | None
    failures: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Staffing:
    """Pods to create and to delete so that the Job runs as many as it asks for; `wait_s` until a back-off ends, None without one."""

    create: list[Wanted]
    delete: list[Object]
    wait_s: float | None = None


def staff(job: Object, pods: Sequence[Object], succeeded_count: int, backoff_left_s: t.Callable[[int], float]) -> Staffing:
    """`backoff_left_s(failures)` tells how long to wait after that many failures in a row (0: not at all).

    A caller passes the whole Job's failures through it: with backoffLimitPerIndex they are counted by index.
    """
    parallelism = job["spec"].get("parallelism", 1)
    active = [pod for pod in pods if is_active(pod)]
    blocking = [pod for pod in pods if is_terminating(pod)] if replaces_only_failed(job) else []
    if is_indexed(job):
        return _staff_indexes(job, pods, active, blocking, parallelism, backoff_left_s)
    wanted = parallelism
    completions = job["spec"].get("completions")
    if completions is not None:
        wanted = min(parallelism, max(completions - succeeded_count, 0))
    elif succeeded_count:
        wanted = min(len(active), parallelism)
    missing = wanted - len(active) - len(blocking)
    if missing < 0:
        return Staffing([], active[wanted:])
    if missing == 0:
        return Staffing([], [])
    wait = backoff_left_s(-1)
    return Staffing([], [], wait) if wait > 0 else Staffing([Wanted(None)] * missing, [])


def _staff_indexes(
    job: Object,
    pods: Sequence[Object],
    active: Sequence[Object],
    blocking: Sequence[Object],
    parallelism: int,
    backoff_left_s: t.Callable[[int], float],
) -> Staffing:
    indexes, completions = survey_indexes(job, pods), job["spec"].get("completions") or 0
    per_index = job["spec"].get("backoffLimitPerIndex") is not None
    taken: set[int] = set()
    surplus: list[Object] = []
    for pod in sorted(active, key=index_of):
        index = index_of(pod)
        if index in taken or not 0 <= index < completions or index in indexes.succeeded:
            surplus.append(pod)
        else:
            taken.add(index)
    surplus += [pod for pod in active if index_of(pod) in taken and pod not in surplus][parallelism:]
    taken |= {index_of(pod) for pod in blocking}
    open_indexes = [n for n in range(completions) if n not in taken and n not in indexes.succeeded and n not in indexes.failed]
    room = max(parallelism - len(taken), 0)
    create: list[Wanted] = []
    waits: list[float] = []
    job_wait = 0.0 if per_index else backoff_left_s(-1)
    for index in open_indexes[:room] if not per_index else open_indexes:
        if len(create) >= room:
            break
        failures = indexes.failures.get(index, 0) if per_index else None
        wait = backoff_left_s(index) if per_index and failures else job_wait
        if wait > 0:
            waits.append(wait)
        else:
            create.append(Wanted(index, failures))
    return Staffing(create, surplus, min(waits, default=None))
