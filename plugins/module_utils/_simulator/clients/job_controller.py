# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The Job controller: creates and deletes the pods of batch/v1 Jobs and writes their status. The rules are in `job_rules`.

A pod is counted once: its uid goes to status.uncountedTerminatedPods, then its finalizer is removed, then it moves to the counter. So a
controller that is stopped at any point continues from what the API shows.
"""

from __future__ import annotations

import collections
import copy
import datetime
import logging
import typing as t

from ..._common.errors import ClusterError
from . import job_rules as rules
from .api import Api, ApiError, Object, now_rfc3339, parse_time, resource_path
from .events import EventRecorder
from .informer import Informer, WorkQueue, key_of
from .tasks import gather_bounded

log = logging.getLogger(__name__)

MANAGER = "kubernetes.io/job-controller"
_BACKOFF_S, _BACKOFF_MAX_S = 10.0, 600.0
_BATCH_S, _BATCH_PER_POD_S = 0.02, 0.0001
_ORPHAN_CHECK_S = 0.5
_STATUS_KEYS = (
    "active", "ready", "terminating", "succeeded", "failed", "startTime", "completionTime",
    "completedIndexes", "failedIndexes", "uncountedTerminatedPods", "conditions",
)  # fmt: skip


class _Streak:
    """Failures of a Job since its last success, for the back-off of pod creation."""

    def __init__(self) -> None:
        self.failures = 0
        self.last_failure: datetime.datetime | None = None


class JobController:
    """Run with `await start()`. `time_scale` shortens the back-off between failed pods; deadlines and TTLs are real time."""

    def __init__(self, api: Api, jobs: Informer, pods: Informer, time_scale: float = 1.0) -> None:
        self.api = api
        self.jobs = jobs
        self.pods = pods
        self._time_scale = time_scale
        self.events = EventRecorder(api, "job-controller")
        self.queue = WorkQueue(self._work, workers=8)
        self.pods_of: dict[str, dict[str, Object]] = collections.defaultdict(dict)
        self.streaks: dict[str, _Streak] = collections.defaultdict(_Streak)
        jobs.on_change(self._job_changed)
        pods.on_change(self._pod_changed)

    async def start(self) -> None:
        """Works on every Job that is there and that comes."""
        self.events.start()
        self.queue.start()

    async def stop(self) -> None:
        """Ends; what was begun is continued by the next controller."""
        await self.queue.stop()
        await self.events.stop()

    # -- what happens in the cluster

    def _job_changed(self, kind: str, job: Object, _old: Object | None) -> None:
        if kind == "DELETED":
            uid = job["metadata"]["uid"]
            self.streaks.pop(uid, None)
            for pod in self.pods_of.get(uid, {}).values():
                self.queue.add(("orphan", *key_of(pod)))
        else:
            self.queue.add(("job", *key_of(job)))

    def _pod_changed(self, kind: str, pod: Object, _old: Object | None) -> None:
        owner = _owner_of(pod)
        if owner is None:
            if rules.has_finalizer(pod):
                self.queue.add_after(("orphan", *key_of(pod)), _ORPHAN_CHECK_S)
            return
        siblings = self.pods_of[owner["uid"]]
        if kind == "DELETED":
            siblings.pop(pod["metadata"]["uid"], None)
            if not siblings:
                del self.pods_of[owner["uid"]]
        else:
            siblings[pod["metadata"]["uid"]] = pod
        namespace = pod["metadata"]["namespace"]
        job = self.jobs.items.get((namespace, owner["name"]))
        if job is not None and job["metadata"]["uid"] == owner["uid"]:
            # Pods change in swarms: look at the Job once for many of them.
            self.queue.add_after(("job", namespace, owner["name"]), _BATCH_S + _BATCH_PER_POD_S * len(siblings))
        elif kind != "DELETED" and rules.has_finalizer(pod):
            self.queue.add_after(("orphan", *key_of(pod)), _ORPHAN_CHECK_S)

    async def _work(self, key: tuple[str, str, str]) -> None:
        what, namespace, name = key
        if what == "job":
            await self._sync(namespace, name)
        else:
            await self._release_orphan(namespace, name)

    async def _release_orphan(self, namespace: str, name: str) -> None:
        """Removes the finalizer of a pod whose Job is gone: nobody will count it any more."""
        pod = self.pods.items.get((namespace, name))
        if pod is None or not rules.has_finalizer(pod):
            return
        owner = _owner_of(pod)
        job = self.jobs.items.get((namespace, owner["name"])) if owner else None
        if owner is None or job is None or job["metadata"]["uid"] != owner["uid"]:
            await self.remove_finalizer(pod)

    # -- one look at a Job

    async def _sync(self, namespace: str, name: str) -> None:
        job = self.jobs.items.get((namespace, name))
        if job is None or job["spec"].get("managedBy", MANAGER) != MANAGER:
            return
        pods = list(self.pods_of.get(job["metadata"]["uid"], {}).values())
        if job["metadata"].get("deletionTimestamp"):
            await gather_bounded(self.remove_finalizer(pod) for pod in pods if rules.has_finalizer(pod))
        elif rules.finished(job):
            await gather_bounded(self.remove_finalizer(pod) for pod in pods if rules.has_finalizer(pod))
            await self._expire(job)
        else:
            await _Sync(self, job, pods).run()

    async def _expire(self, job: Object) -> None:
        ttl, end = job["spec"].get("ttlSecondsAfterFinished"), rules.finished(job)
        if ttl is None or end is None:
            return
        left = ttl - (_now() - parse_time(end["lastTransitionTime"])).total_seconds()
        if left > 0:
            self.queue.add_after(("job", *key_of(job)), left)
            return
        path = resource_path("batch/v1/jobs", *key_of(job))
        await _ignore_missing(self.api.delete(path, uid=job["metadata"]["uid"], propagation="Background"))

    async def remove_finalizer(self, pod: Object) -> None:
        """Lets a pod go that has been counted, or that nobody will count."""
        rest = [name for name in pod["metadata"].get("finalizers") or [] if name != rules.FINALIZER]
        patch = {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": rest or None}}
        changed = await _ignore_missing(self.api.patch(resource_path("pods", *key_of(pod)), patch, "merge"))
        if changed and not pod["metadata"].get("deletionTimestamp"):
            self.pods.learn(changed)

    def backoff_s(self, failures: int) -> float:
        """Real seconds to wait after so many failures in a row."""
        return min(_BACKOFF_S * 2 ** min(failures - 1, 20), _BACKOFF_MAX_S) / self._time_scale if failures > 0 else 0.0


class _Sync:
    """One pass over one Job: decide, create and delete pods, write the status."""

    def __init__(self, owner: JobController, job: Object, pods: list[Object]) -> None:
        self._owner = owner
        self._api = owner.api
        self._job = job
        self._pods = pods
        self._key = ("job", *key_of(job))
        self._status: Object = copy.deepcopy(job.get("status") or {})
        uncounted = self._status.get("uncountedTerminatedPods") or {}
        self._uncounted: dict[str, list[str]] = {kind: list(uncounted.get(kind) or []) for kind in ("succeeded", "failed")}
        self._taken: set[str] = set()  # pods whose end is noted: only they may lose the finalizer
        self._create_error: ApiError | None = None

    async def run(self) -> None:
        new = self._take_in_finished_pods()
        suspended = bool(self._job["spec"].get("suspend"))
        if not suspended and not self._status.get("startTime"):
            self._status["startTime"] = now_rfc3339()
        seen = {**self._job, "status": self._status}
        succeeded = self._status.get("succeeded", 0) + len(self._uncounted["succeeded"])
        failed = self._status.get("failed", 0) + len(self._uncounted["failed"])
        ending = rules.find_ending(seen, self._pods, failed, succeeded, _now())
        if ending is not None:
            self._set_condition(ending.type, ending.reason, ending.message)
        if ending is not None or suspended:
            await self._delete_pods([pod for pod in self._pods if rules.is_active(pod)])
        else:
            await self._staff(seen, succeeded)
            self._wake_at_deadline(seen)
        self._note_suspension(suspended and ending is None)
        self._count()
        if new or ending is not None:
            await self._write()
            await self._release_counted()
        self._count()
        if ending is not None and self._may_finish():
            self._finish(ending)
        await self._write()
        if self._create_error is not None:
            raise self._create_error  # the queue tries again, later each time

    # -- counting

    def _take_in_finished_pods(self) -> bool:
        """Notes pods that have ended since the last look; True if there are any."""
        self._taken = {uid for uids in self._uncounted.values() for uid in uids}
        streak = self._owner.streaks[self._job["metadata"]["uid"]]
        new = False
        ended = [pod for pod in self._pods if rules.has_finalizer(pod) and pod["metadata"]["uid"] not in self._taken]
        for pod in sorted(ended, key=_finish_time):
            if rules.phase(pod) == "Succeeded":
                self._taken.add(pod["metadata"]["uid"])
                self._uncounted["succeeded"].append(pod["metadata"]["uid"])
                streak.failures, new = 0, True
            elif rules.has_failed(self._job, pod):
                new = True
                self._taken.add(pod["metadata"]["uid"])
                # Pods that are stopped because the Job has succeeded already are let go without being counted.
                stopped = bool(pod["metadata"].get("deletionTimestamp")) and self._has_condition("SuccessCriteriaMet")
                if not stopped and rules.failure_action(self._job, pod)[0] != "Ignore":
                    self._uncounted["failed"].append(pod["metadata"]["uid"])
                    streak.failures += 1
                    streak.last_failure = _finish_time(pod)
        return new

    def _has_condition(self, kind: str) -> bool:
        return any(row["type"] == kind and row["status"] == "True" for row in self._status.get("conditions") or [])

    def _count(self) -> None:
        """Counters from the pods as they are known now; pods without finalizer leave the uncounted."""
        self._pods = list(self._owner.pods_of.get(self._job["metadata"]["uid"], {}).values())
        held = {pod["metadata"]["uid"] for pod in self._pods if rules.has_finalizer(pod)}
        for kind in ("succeeded", "failed"):
            done = [uid for uid in self._uncounted[kind] if uid not in held]
            self._uncounted[kind] = [uid for uid in self._uncounted[kind] if uid in held]
            self._status[kind] = self._status.get(kind, 0) + len(done)
        self._status["uncountedTerminatedPods"] = {kind: uids for kind, uids in self._uncounted.items() if uids}
        active = [pod for pod in self._pods if rules.is_active(pod)]
        self._status["active"] = len(active)
        self._status["ready"] = sum(map(rules.is_ready, active))
        self._status["terminating"] = sum(map(rules.is_terminating, self._pods))
        if rules.is_indexed(self._job):
            indexes = rules.survey_indexes({**self._job, "status": self._status}, self._pods)
            self._status["completedIndexes"] = rules.format_indexes(indexes.succeeded)
            self._status["succeeded"] = len(indexes.succeeded)
            if self._job["spec"].get("backoffLimitPerIndex") is not None:
                self._status["failedIndexes"] = rules.format_indexes(indexes.failed)

    async def _release_counted(self) -> None:
        over = [pod for pod in self._pods if rules.has_finalizer(pod) and pod["metadata"]["uid"] in self._taken]
        await gather_bounded(self._owner.remove_finalizer(pod) for pod in over)

    def _may_finish(self) -> bool:
        return not any(self._uncounted.values()) and not any(not rules.is_terminal(pod) for pod in self._pods)

    def _finish(self, ending: rules.Ending) -> None:
        self._set_condition(ending.final_type, ending.reason, ending.message)
        if ending.final_type == "Complete":
            self._status["completionTime"] = now_rfc3339()
            self._event("Normal", "Completed", "Job completed")
        else:
            self._event("Warning", ending.reason, ending.message)

    # -- suspension and waiting

    def _note_suspension(self, suspended: bool) -> None:
        row = next((row for row in self._status.get("conditions") or [] if row["type"] == "Suspended"), None)
        was = row is not None and row["status"] == "True"
        if suspended:
            self._status.pop("startTime", None)
        if suspended and not was:
            self._set_condition("Suspended", "JobSuspended", "Job suspended")
            self._event("Normal", "Suspended", "Job suspended")
        elif was and not suspended:
            self._set_condition("Suspended", "JobResumed", "Job resumed", value="False")
            self._event("Normal", "Resumed", "Job resumed")

    def _wake_at_deadline(self, seen: Object) -> None:
        left = rules.deadline_left(seen, _now())
        if left is not None:
            self._owner.queue.add_after(("job", *key_of(self._job)), max(left, 0) + 0.05)

    def _set_condition(self, kind: str, reason: str, message: str, value: str = "True") -> None:
        rows: list[Object] = self._status.setdefault("conditions", [])
        now = now_rfc3339()
        row = {"type": kind, "status": value, "lastProbeTime": now, "lastTransitionTime": now, "reason": reason, "message": message}
        for number, old in enumerate(rows):
            if old["type"] == kind:
                if old["status"] != value:
                    rows[number] = row
                return
        rows.append(row)

    # -- pods

    async def _staff(self, seen: Object, succeeded: int) -> None:
        plan = rules.staff(seen, self._pods, succeeded, self._backoff_left)
        await self._delete_pods(plan.delete)
        if plan.wait_s is not None:
            self._owner.queue.add_after(self._key, plan.wait_s)
        if not plan.create:
            return
        # One pod first: a Job whose pods are refused must not have each of them refused.
        await self._create_pod(plan.create[0])
        if self._create_error is None:
            await gather_bounded(self._create_pod(wanted) for wanted in plan.create[1:])

    def _backoff_left(self, index: int) -> float:
        """Seconds to wait before a pod is created for an index, or with -1 for the Job as a whole."""
        if index < 0:
            streak = self._owner.streaks[self._job["metadata"]["uid"]]
            failures, last = streak.failures, streak.last_failure
        else:
            failed = [pod for pod in self._pods if rules.index_of(pod) == index and rules.has_failed(self._job, pod)]
            failures = rules.survey_indexes(self._job, failed).failures.get(index, 0)
            last = max(map(_finish_time, failed), default=None)
        if not failures or last is None:
            return 0.0
        return self._owner.backoff_s(failures) - (_now() - last).total_seconds()

    async def _create_pod(self, wanted: rules.Wanted) -> None:
        try:
            pod = await self._api.create(resource_path("pods", self._job["metadata"]["namespace"]), pod_for(self._job, wanted))
        except ApiError as exc:
            if self._create_error is None and "because it is being terminated" not in exc.message:
                self._event("Warning", "FailedCreate", f"Error creating: {exc.message}")
            self._create_error = exc
            return
        self._owner.pods.learn(pod)
        self._event("Normal", "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")

    async def _delete_pods(self, pods: list[Object]) -> None:
        await gather_bounded(self._delete_pod(pod) for pod in pods)

    async def _delete_pod(self, pod: Object) -> None:
        gone = await _ignore_missing(self._api.delete(resource_path("pods", *key_of(pod)), uid=pod["metadata"]["uid"]))
        if gone is not None:
            self._event("Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")

    # -- writes

    def _event(self, kind: str, reason: str, message: str) -> None:
        self._owner.events.record(self._job, kind, reason, message)

    async def _write(self) -> None:
        for counter in ("active", "succeeded", "failed"):  # the API leaves these out when they are 0
            if not self._status.get(counter):
                self._status.pop(counter, None)
        if not self._status.get("completedIndexes"):
            self._status.pop("completedIndexes", None)
        if self._status == (self._job.get("status") or {}):
            return
        patch = {key: self._status.get(key) for key in _STATUS_KEYS}
        if patch["uncountedTerminatedPods"] is not None:  # a merge patch keeps what it does not name
            patch["uncountedTerminatedPods"] = {kind: uids or None for kind, uids in self._uncounted.items()}
        body = {"metadata": {"uid": self._job["metadata"]["uid"]}, "status": patch}
        changed = await _ignore_missing(self._api.patch(resource_path("batch/v1/jobs", *key_of(self._job), "status"), body, "merge"))
        if changed is not None:
            self._job = changed
            self._owner.jobs.learn(changed)


def pod_for(job: Object, wanted: rules.Wanted) -> Object:
    """The Pod object of a Job, as kube-controller-manager makes it."""
    metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    pod_metadata = {key: value for key, value in (template.get("metadata") or {}).items() if key in ("labels", "annotations", "finalizers")}
    labels = pod_metadata.setdefault("labels", {})
    annotations = pod_metadata.setdefault("annotations", {})
    labels.update(
        {
            "batch.kubernetes.io/controller-uid": metadata["uid"],
            "batch.kubernetes.io/job-name": metadata["name"],
            "controller-uid": metadata["uid"],
            "job-name": metadata["name"],
        }
    )
    prefix = metadata["name"]
    if wanted.index is not None:
        labels[rules.INDEX] = annotations[rules.INDEX] = str(wanted.index)
        prefix = f"{metadata['name']}-{wanted.index}"
        template["spec"]["hostname"] = prefix
        _add_index_variable(template["spec"])
    if wanted.failures is not None:
        annotations[rules.INDEX_FAILURES] = str(wanted.failures)
    pod_metadata["generateName"] = f"{prefix[:57]}-"
    pod_metadata["namespace"] = metadata["namespace"]
    pod_metadata["finalizers"] = [*(pod_metadata.get("finalizers") or []), rules.FINALIZER]
    pod_metadata["ownerReferences"] = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    if not annotations:
        del pod_metadata["annotations"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": template["spec"]}


def _add_index_variable(spec: Object) -> None:
    variable = {
        "name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{rules.INDEX}']"}},
    }
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        env = container.get("env") or []
        if not any(row["name"] == variable["name"] for row in env):
            container["env"] = [*env, copy.deepcopy(variable)]


def _owner_of(pod: Object) -> Object | None:
    owners: list[Object] = pod["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller") and owner["kind"] == "Job"), None)


def _finish_time(pod: Object) -> datetime.datetime:
    """When the last container of a pod ended; when that is unknown, its deletion or now."""
    times = []
    for row in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = ((row.get("state") or {}).get("terminated") or {}).get("finishedAt")
        if ended:
            times.append(parse_time(ended))
    if times:
        return max(times)
    deleted = pod["metadata"].get("deletionTimestamp")
    return min(parse_time(deleted), _now()) if deleted else _now()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def _ignore_missing(call: t.Awaitable[Object]) -> Object | None:
    """The answer, or None if the object is gone or has been replaced by another of its name."""
    try:
        return await call
    except ApiError as exc:
        if exc.status in (404, 409, 422):
            log.debug("%s", exc)
            return None
        raise
    except ClusterError as exc:
        log.debug("%s", exc)
        return None
