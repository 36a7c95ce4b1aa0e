# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The engine: runs one workload per group, follows all of them at once, and leaves nothing behind.

One loop owns all state. Watches deliver facts into its queue; a pool of threads does the writing and the log reading and
delivers the results into the same queue. Each transition is in the journal before it is acted on, so that a killed run can
be taken up again: finished attempts are read back; what was running is removed, and its groups run again.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import queue
import re
import secrets
import time
import typing as t

from .._archive.journal import Journal, utc
from .._cluster.client import Client
from .._common.errors import ClusterError
from .._workload import names
from .._workload.objects import anchor, attempt_objects, ssh_secret
from . import cleanup
from .attempt import Attempt, Decision, all_running, decide, lacks_pods
from .logs import PodLog
from .projections import Facts, job_facts, lost, node_facts, pod_facts
from .watcher import Watcher

TICK_S = 0.2
LOG_POLL_S = 5.0
PROGRESS_S = 10.0
WORKERS = 16
# Pods of a finished attempt get this long to go before its nodes are given to the next group all the same.
RELEASE_S = 60.0
# Up to this many lost nodes are the nodes' own affair, however small the batch.
FEW_NODES = 3
EXPIRY_MARGIN_S = 3600.0
# More nodes than this are read with one list.
SINGLE_READS = 16

Health: t.TypeAlias = t.Callable[[Facts], dict[str, t.Any] | None]
Classify = t.Callable[[dict[str, t.Any]], dict[str, t.Any]]


@dataclasses.dataclass
class Batch:
    """What to run. bounds: max_concurrent, attempt_timeout_s, queue_timeout_s, start_grace_s, retries."""

    run_id: str
    run_dir: str
    category: str  # short id, part of object names: c01
    title: str  # for people: "c01 nccl-all-reduce intra-node"
    template: dict[str, t.Any]
    groups: list[dict[str, t.Any]]
    bounds: dict[str, t.Any]
    deadline_at: float  # wall clock seconds
    finished: dict[str, list[dict[str, t.Any]]] = dataclasses.field(default_factory=dict)  # by group: records of an earlier start


class Engine:
    """Runs one batch. classify names the reason and whether a retry makes sense; health returns {message, evidence} or None."""

    def __init__(
        self,
        client: Client,
        batch: Batch,
        *,
        classify: Classify,
        health: Health | None = None,
        progress: t.Callable[[str], None] = lambda _text: None,
        alive: t.Callable[[], bool] = lambda: True,
    ) -> None:
        self._client, self._batch, self._classify, self._health, self._say, self._alive = client, batch, classify, health, progress, alive
        self._namespace = batch.template["namespace"]
        self._label = f"{cleanup.selector(batch.run_id)},{names.CATEGORY_LABEL}={batch.category}"
        self._queue: queue.Queue[tuple[str, str, t.Any]] = queue.Queue()
        self._pool = concurrent.futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="readiness")
        self._nodes: dict[str, Facts] = {}
        self._live: dict[str, Attempt] = {}  # by object name
        self._records: dict[str, list[dict[str, t.Any]]] = {
            group["name"]: list(batch.finished.get(group["name"], [])) for group in batch.groups
        }
        self._waiting = [group for group in batch.groups if not self._is_final(self._records[group["name"]])]
        self._busy: dict[str, str] = {}  # node → attempt that holds it
        self._log_polls: dict[str, PodLog] = {}
        self._owner: list[dict[str, t.Any]] = []
        self._cancelled = ""
        self._broken = ""
        self._synced: set[str] = set()
        self._nodes_changed = False
        self._journal = Journal(os.path.join(batch.run_dir, "journal.jsonl"))
        self._said_at = time.monotonic()

    def _is_final(self, records: t.Sequence[t.Mapping[str, t.Any]]) -> bool:
        """Whether a group needs no further attempt. One that was cancelled was never really tried."""
        if not records or records[-1]["outcome"] == "cancelled":
            return False
        return not (records[-1]["retryable"] and len(records) <= self._batch.bounds["retries"])

    # Control

    def cancel(self, why: str) -> None:
        """Ends the batch soon: nothing new starts, what runs is removed. Callable from a signal handler."""
        self._cancelled = self._cancelled or why

    def run(self) -> dict[str, t.Any]:
        """The whole batch. Returns an observation (docs/data_shapes.md). Raises ClusterError only before anything was created."""
        watchers: list[Watcher] = []
        try:
            if self._waiting:  # otherwise an earlier start of the run has done it all
                self._make_anchor()
                watchers = self._start_watches()
                self._loop()
        finally:
            for watcher in watchers:
                watcher.stop()
            proof = self._clean_up()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._journal.write("batch_end", time.time(), category=self._batch.category, cleanup=proof)
            self._journal.close()
        groups = [
            {"name": group["name"], "nodes": group["nodes"], "attempts": self._records[group["name"]]} for group in self._batch.groups
        ]
        return {"groups": groups, "cleanup": proof, "cancelled": self._cancelled or self._broken}

    # The loop

    def _loop(self) -> None:
        batch = self._batch
        while self._waiting or self._live:
            self._check_ending()
            self._admit()
            self._drain()
            now = time.monotonic()
            for attempt in list(self._live.values()):
                self._step(attempt, now)
            self._report_progress(now)
        self._say(f"{batch.title}: all {len(batch.groups)} groups done")

    def _check_ending(self) -> None:
        if not self._alive():
            self.cancel("the play was ended")
        if time.time() >= self._batch.deadline_at:
            self.cancel("the deadline of the run (bounds.deadline_s) has passed")
        self._check_contact()
        why = self._cancelled or self._broken
        if not why:
            return
        for group in self._waiting:
            self._records[group["name"]].append(self._never_started(group, why))
        self._waiting = []
        for attempt in self._live.values():
            if attempt.decision is None:
                self._decide(attempt, Decision("cancelled", "Cancelled", why))

    def _check_contact(self) -> None:
        """Most nodes do not die at once: then the control plane or the network is at fault, and none of them is accused."""
        if not self._nodes_changed or self._broken or "node" not in self._synced:
            return
        self._nodes_changed = False
        members = {name for group in self._batch.groups for name in group["nodes"]}
        gone = [name for name in members if lost(self._nodes.get(name))]
        if len(gone) <= max(FEW_NODES, len(members) // 2):
            return
        self._broken = f"contact with {len(gone)} of {len(members)} nodes was lost at once: look at the control plane and the network first"
        for records in self._records.values():
            if records and records[-1]["reason"] == "NodeLost":
                records[-1].update(outcome="cancelled", reason="Cancelled", message=self._broken, nodes=[], retryable=False)
        for attempt in self._live.values():
            if attempt.decision and attempt.decision.reason == "NodeLost":
                attempt.decision = Decision("cancelled", "Cancelled", self._broken)

    def _never_started(self, group: t.Mapping[str, t.Any], why: str) -> dict[str, t.Any]:
        attempt = Attempt(group["name"], list(group["nodes"]), len(self._records[group["name"]]) + 1, "")
        attempt.decision = Decision("cancelled", "Cancelled", f"never started: {why}")
        return self._record(attempt)

    def _admit(self) -> None:
        if "node" not in self._synced:
            return
        limit = self._batch.bounds["max_concurrent"]
        for group in list(self._waiting):
            if len(self._live) >= limit:
                return
            if any(node in self._busy for node in group["nodes"]):
                continue
            self._waiting.remove(group)
            self._start(group)

    def _start(self, group: t.Mapping[str, t.Any]) -> None:
        number = len(self._records[group["name"]]) + 1
        name = names.attempt_name(self._batch.run_id, self._batch.category, group["name"], number)
        attempt = Attempt(group["name"], list(group["nodes"]), number, name, dict(group.get("env") or {}), created_at=time.monotonic())
        self._live[name] = attempt
        for node in attempt.nodes:
            self._busy[node] = name
            if node in self._nodes:  # it may have fallen ill while nothing ran on it
                self._check_health(attempt, self._nodes[node])
        self._note(attempt, "attempt_creating", nodes=attempt.nodes)
        self._submit(attempt, "created", lambda: self._create(attempt))

    def _create(self, attempt: Attempt) -> str:
        identity = {
            "run_id": self._batch.run_id, "category": self._batch.category, "group": attempt.group,
            "attempt": attempt.number, "owner": self._owner,
        }  # fmt: skip
        objects = attempt_objects(_with_env(self._batch.template, attempt.env), identity, attempt.nodes)
        base = f"/api/v1/namespaces/{self._namespace}"
        jobs = f"/apis/batch/v1/namespaces/{self._namespace}/jobs"
        job = self._client.create(
            jobs, objects["job"], is_ours=lambda found: found["metadata"].get("labels") == objects["job"]["metadata"]["labels"]
        )
        owner = [names.owner_reference({"apiVersion": "batch/v1", "kind": "Job", **job})]
        for kind, path in (("config_map", f"{base}/configmaps"), ("service", f"{base}/services")):
            if kind in objects:
                objects[kind]["metadata"]["ownerReferences"] = owner
                self._client.create(path, objects[kind], is_ours=lambda found: found["metadata"].get("ownerReferences") == owner)
        self._client.patch(f"{jobs}/{attempt.name}", {"spec": {"suspend": False}})
        return job["metadata"]["uid"]

    def _drain(self) -> None:
        """Takes every message there is; waits a tick for the first."""
        timeout = TICK_S
        while True:
            try:
                kind, event, thing = self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
            except queue.Empty:
                return
            timeout = 0.0
            if event == "ERROR":
                self._broken = self._broken or f"watching {kind}s failed: {thing}"
            elif event == "SYNCED":
                self._synced.add(kind)
            elif kind == "node":
                self._on_node(event, thing)
            elif kind == "pod":
                self._on_pod(event, thing)
            elif kind == "job":
                self._on_job(event, thing)
            else:
                self._on_result(kind, t.cast(Attempt, self._live.get(event)), thing)

    def _on_node(self, event: str, node: Facts) -> None:
        name = node["metadata"]["name"]
        self._nodes_changed = True
        if event == "DELETED":
            self._nodes.pop(name, None)
            return
        self._nodes[name] = node
        holder = self._busy.get(name)
        attempt = self._live.get(holder) if holder else None
        if attempt and attempt.state in ("waiting", "running"):
            self._check_health(attempt, node)

    def _check_health(self, attempt: Attempt, node: Facts) -> None:
        name = node["metadata"]["name"]
        if self._health is None or lost(node) or any(item["node"] == name for item in attempt.health):
            return
        sick = self._health(node)
        if sick:
            attempt.health.append({"node": name, **sick})

    def _on_pod(self, event: str, pod: Facts) -> None:
        attempt = self._live.get(pod["job"] or "")
        if attempt is None:
            return
        attempt.see_pod(pod, gone=event == "DELETED")

    def _on_job(self, event: str, job: Facts) -> None:
        attempt = self._live.get(job["name"])
        if attempt is None:
            return
        if event == "DELETED":
            if attempt.decision is None and not job["complete"] and not job["failed"]:
                attempt.removed.append(f"Job {job['name']}")
            return
        attempt.job = job
        attempt.queued = job["suspended"] and attempt.state == "waiting"

    # One attempt

    def _step(self, attempt: Attempt, now: float) -> None:
        if attempt.state in ("waiting", "running"):
            if attempt.state == "waiting" and all_running(attempt):
                attempt.state, attempt.started_at = "running", now
                self._note(attempt, "attempt_running")
            decision = decide(attempt, now, self._batch.bounds, self._nodes)
            if decision:
                self._decide(attempt, decision)
            else:
                self._poll_log(attempt, now)
                self._poll_refusal(attempt, now)
        elif attempt.state == "deleting":
            left = [pod for pod in attempt.pods.values() if not pod.get("gone")]
            if not left or self._broken or now - t.cast(float, attempt.finished_at) > RELEASE_S:
                self._finish(attempt)

    def _decide(self, attempt: Attempt, decision: Decision) -> None:
        attempt.decision, attempt.finished_at = decision, time.monotonic()
        self._note(attempt, "attempt_decided", outcome=decision.outcome, reason=decision.reason, message=decision.message)
        if attempt.state == "creating":
            return  # its result is still under way and moves it on
        attempt.state = "collecting"
        self._submit(attempt, "collected", lambda: self._collect(attempt))

    def _collect(self, attempt: Attempt) -> None:
        """Logs and, when it did not succeed, events and one more look at the nodes."""
        decision = t.cast(Decision, attempt.decision)
        for pod in attempt.telling():
            if pod["running"] or pod["terminated"]:
                log = self._log_polls.get(pod["name"]) or self._pod_log(attempt, pod)
                whole, _problem = log.finish()
                if os.path.exists(log.path):
                    attempt.logs[pod["name"]] = (os.path.relpath(log.path, self._batch.run_dir), whole)
                self._keep_termination(attempt, pod)
        if decision.outcome != "succeeded" and not self._broken:  # each question to a server that is gone costs its whole patience
            attempt.events = self._events(attempt)
            self._last_look(attempt)

    def _last_look(self, attempt: Attempt) -> None:
        """A node may have fallen ill in the very moment it took the workload down."""
        try:
            if len(attempt.nodes) > SINGLE_READS:
                every = self._client.list_result("/api/v1/nodes", project=node_facts).items
                nodes = [node for node in every if node["metadata"]["name"] in set(attempt.nodes)]
            else:
                nodes = [node_facts(self._client.get(f"/api/v1/nodes/{name}")) for name in attempt.nodes]
        except ClusterError:
            return
        for node in nodes:
            self._check_health(attempt, node)

    def _keep_termination(self, attempt: Attempt, pod: Facts) -> None:
        text = (pod["terminated"] or {}).get("message")
        if text:
            with open(self._pod_log(attempt, pod).path + ".termination", "w", encoding="utf-8") as handle:
                handle.write(text)

    def _events(self, attempt: Attempt) -> list[str]:
        """Warnings about the attempt's Job and pods, as "reason object: message", newest last, a bounded number."""
        lines: list[str] = []
        about = [attempt.name, *[pod["name"] for pod in attempt.pods.values() if pod["phase"] != "Succeeded"][:8]]
        for name in about:
            try:
                found = self._client.list(
                    f"/api/v1/namespaces/{self._namespace}/events", field_selector=f"involvedObject.name={name},type=Warning"
                )
                lines += [f"{item.get('reason')} {name}: {' '.join((item.get('message') or '').split())}" for item in found]
            except ClusterError as error:
                lines.append(f"events of {name} could not be read: {error.render()}")
        # The Job controller gives each try a new random name; the same refusal twenty times would hide everything else.
        latest = {re.sub(rf"{re.escape(attempt.name)}-\d+-\w+", attempt.name, line): line for line in lines}
        return list(latest.values())[-20:]

    def _poll_log(self, attempt: Attempt, now: float) -> None:
        launcher = attempt.launcher()
        if attempt.state != "running" or launcher is None or not launcher["running"]:
            return
        key = launcher["name"]
        if now - attempt.trouble_since.get("log", t.cast(float, attempt.started_at)) < LOG_POLL_S:
            return
        attempt.trouble_since["log"] = now
        log = self._log_polls.setdefault(key, self._pod_log(attempt, launcher))
        self._submit(attempt, "polled", log.poll)

    def _poll_refusal(self, attempt: Attempt, now: float) -> None:
        """Pods that the cluster never lets come into being are told by events of the Job alone: pod security, a missing service account."""
        grace = self._batch.bounds["start_grace_s"]
        if attempt.state != "waiting" or not lacks_pods(attempt):
            return
        if now - attempt.trouble_since.setdefault("refusal", attempt.created_at) < grace:
            return
        attempt.trouble_since["refusal"] = now
        self._submit(attempt, "polled", lambda: self._read_refusal(attempt))

    def _read_refusal(self, attempt: Attempt) -> None:
        refused = [line for line in self._events(attempt) if line.startswith("FailedCreate ")]
        # Quota that is used up may be freed, also by our own groups: that waits for queue_timeout_s.
        attempt.refusal = next((line for line in reversed(refused) if "exceeded quota" not in line), "")

    def _pod_log(self, attempt: Attempt, pod: Facts) -> PodLog:
        folder = os.path.join(self._batch.run_dir, "logs", self._batch.category)
        return PodLog(
            self._client, self._namespace, pod["name"], os.path.join(folder, f"{attempt.group}-{attempt.number}-{pod['index'] or 0}.log")
        )

    def _on_result(self, step: str, attempt: Attempt | None, error: t.Any) -> None:
        if attempt is None:
            return
        if step == "created":
            attempt.state = "waiting"
            if isinstance(error, ClusterError):
                attempt.decision = attempt.decision or Decision("not_started", _create_reason(error), error.render())
                attempt.finished_at = time.monotonic()
            elif isinstance(error, Exception):
                raise error
            if attempt.decision:
                self._delete(attempt)
        elif step == "collected":
            if isinstance(error, Exception) and not isinstance(error, (ClusterError, OSError)):
                raise error
            self._delete(attempt)
        elif step == "deleted":
            attempt.state = "deleting"

    def _delete(self, attempt: Attempt) -> None:
        self._note(attempt, "attempt_deleting")
        self._submit(attempt, "deleted", lambda: self._remove(attempt))

    def _remove(self, attempt: Attempt) -> None:
        self._client.delete(f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{attempt.name}")
        for pod in attempt.pods.values():
            if pod["node"] and lost(self._nodes.get(pod["node"])):
                # Its kubelet will never confirm the deletion.
                self._client.delete(f"/api/v1/namespaces/{self._namespace}/pods/{pod['name']}", uid=pod["uid"], grace_period_s=0)

    def _finish(self, attempt: Attempt) -> None:
        attempt.state = "done"
        del self._live[attempt.name]
        for node in attempt.nodes:
            if self._busy.get(node) == attempt.name:
                del self._busy[node]
        record = self._record(attempt)
        self._records[attempt.group].append(record)
        self._journal.write("attempt_done", time.time(), category=self._batch.category, group=attempt.group, record=record)
        again = not self._cancelled and not self._is_final(self._records[attempt.group])
        if record["outcome"] != "succeeded":
            where = ", ".join(attempt.nodes[:3]) + (" …" if len(attempt.nodes) > 3 else "")
            text = " ".join((record["message"] or "").split())[:160]
            then = " - retrying" if again else ""
            self._say(f"{self._batch.title}: {attempt.group} ({where}) {record['outcome']}: {record['reason']}: {text}{then}")
        if again:
            self._waiting.append({"name": attempt.group, "nodes": attempt.nodes, "env": attempt.env})

    def _record(self, attempt: Attempt) -> dict[str, t.Any]:
        """The attempt as data, with the reason the classifier found."""
        decision = t.cast(Decision, attempt.decision)
        offset = time.time() - time.monotonic()
        launcher = attempt.launcher()
        ordered = sorted(attempt.pods.values(), key=lambda pod: (pod["index"] or 0, pod["name"]))
        record: dict[str, t.Any] = {
            "attempt": attempt.number,
            "name": attempt.name,
            "outcome": decision.outcome,
            "reason": decision.reason,
            "message": decision.message,
            "nodes": decision.nodes,
            "exit_code": decision.exit_code,
            "created": utc(attempt.created_at + offset) if attempt.created_at else None,
            "started": utc(attempt.started_at + offset) if attempt.started_at is not None else None,
            "finished": utc(attempt.finished_at + offset) if attempt.finished_at is not None else None,
            "duration_s": round(attempt.finished_at - attempt.started_at, 1)
            if attempt.finished_at and attempt.started_at is not None
            else None,
            "pods": [_pod_record(pod, launcher, attempt.logs.get(pod["name"])) for pod in ordered],
            "events": attempt.events,
            "health": attempt.health,
        }
        if attempt.health and decision.outcome != "succeeded":
            record.update(reason="HardwareFailureDetected", nodes=[item["node"] for item in attempt.health])
        verdict = self._classify(record)
        record["reason"] = verdict["reason"]
        record["message"] = verdict["message"] or decision.message
        record["nodes"] = verdict["nodes"]
        record["retryable"] = bool(verdict["retryable"]) and decision.outcome not in ("succeeded", "cancelled")
        return record

    # Whole batch

    def _make_anchor(self) -> None:
        batch = self._batch
        self._journal.write("batch_start", time.time(), category=batch.category, groups=len(batch.groups))
        expires = utc(max(batch.deadline_at, time.time()) + EXPIRY_MARGIN_S)
        wanted = anchor(batch.run_id, self._namespace, batch.category, expires)
        base = f"/api/v1/namespaces/{self._namespace}"
        # A run that was interrupted may have left its own; what it owns is swept before we start.
        leftover = cleanup.clean(self._client, self._namespace, self._label)
        if not leftover["proven"]:
            raise ClusterError(
                f"objects of an earlier start of this run are still there: {', '.join(leftover['left'][:5])}",
                place=f"namespace {self._namespace}", hint=leftover["message"],
            )  # fmt: skip
        mine = secrets.token_hex(8)
        wanted["data"]["start"] = mine
        made = self._client.create(f"{base}/configmaps", wanted, is_ours=lambda found: (found.get("data") or {}).get("start") == mine)
        self._owner = [names.owner_reference({"apiVersion": "v1", "kind": "ConfigMap", **made})]
        if any(len(group["nodes"]) > 1 for group in batch.groups):
            private, public = make_ssh_key()
            secret = ssh_secret(
                batch.run_id,
                self._namespace,
                batch.category,
                self._owner,
                private_key=private,
                public_key=public,
                port=batch.template["ssh_port"],
            )
            self._client.create(f"{base}/secrets", secret, is_ours=lambda found: found["metadata"].get("ownerReferences") == self._owner)

    def _start_watches(self) -> list[Watcher]:
        def deliver(kind: str, event: str, facts: t.Any) -> None:
            self._queue.put((kind, event, facts))

        base = f"/api/v1/namespaces/{self._namespace}"
        jobs = f"/apis/batch/v1/namespaces/{self._namespace}/jobs"
        watchers = [
            Watcher(self._client, "node", "/api/v1/nodes", node_facts, deliver),
            Watcher(self._client, "pod", f"{base}/pods", pod_facts, deliver, label_selector=self._label),
            Watcher(self._client, "job", jobs, job_facts, deliver, label_selector=self._label),
        ]
        for watcher in watchers:
            watcher.start()
        return watchers

    def _clean_up(self) -> dict[str, t.Any]:
        gone = {name for group in self._batch.groups for name in group["nodes"] if self._nodes and lost(self._nodes.get(name))}
        return cleanup.clean(self._client, self._namespace, self._label, force_at_once=gone)

    def _submit(self, attempt: Attempt, step: str, work: t.Callable[[], t.Any]) -> None:
        def done() -> None:
            try:
                result = work()
                if step == "created":
                    attempt.uid = result
                    result = None
            except Exception as error:
                result = error
            self._queue.put((step, attempt.name, result))

        self._pool.submit(done)

    def _note(self, attempt: Attempt, event: str, **fields: t.Any) -> None:
        self._journal.write(
            event, time.time(), category=self._batch.category, group=attempt.group, attempt=attempt.number, name=attempt.name, **fields
        )

    def _report_progress(self, now: float) -> None:
        if now - self._said_at < PROGRESS_S:
            return
        self._said_at = now
        running = sum(1 for attempt in self._live.values() if attempt.state == "running")
        done = len(self._batch.groups) - len(self._waiting) - len(self._live)
        starting = len(self._live) - running
        parts = f"{running} running, {starting} starting or ending, {len(self._waiting)} waiting"
        self._say(f"{self._batch.title}: {done} of {len(self._batch.groups)} groups done, {parts}")


def _with_env(template: dict[str, t.Any], env: t.Mapping[str, str]) -> dict[str, t.Any]:
    kept = [item for item in template["env"] if item["name"] not in env]
    return {**template, "env": [*kept, *({"name": name, "value": value} for name, value in env.items())]} if env else template


def _pod_record(pod: Facts, launcher: Facts | None, log: tuple[str, bool] | None) -> dict[str, t.Any]:
    end = pod["terminated"] or {}
    waiting = pod["waiting"] or {}
    return {
        "name": pod["name"],
        "node": pod["node"],
        "index": pod["index"],
        "role": "launcher" if pod is launcher else "worker",
        "phase": pod["phase"],
        "exit_code": end.get("exit_code"),
        "reason": end.get("reason") or pod["reason"] or waiting.get("reason"),
        # The container's own last words are its log's business (see the .termination file); here stands what the API says.
        "message": pod["message"] or waiting.get("message"),
        "restarts": pod["restarts"],
        "log": log[0] if log else None,
        "log_complete": bool(log and log[1]),
    }


def _create_reason(error: ClusterError) -> str:
    """Why the API server refused our objects. None of these is a node's fault."""
    text = error.message.lower()
    if "exceeded quota" in text or "failed quota" in text:
        return "Quota"
    if error.status == 403 or "admission" in text or "podsecurity" in text.replace(" ", ""):
        return "AdmissionDenied"
    return "SetupError"


def make_ssh_key() -> tuple[str, str]:
    """A fresh ed25519 key pair as OpenSSH texts (private, public)."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), public.decode() + "\n"
