# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The engine: runs one workload per group, follows all of them at once, and leaves nothing behind.

Who writes what: the thread that calls `run` owns all state, attempts included. Watches and the threads that take steps only put
messages into its queue; `steps` cannot even name an attempt. Each transition of an attempt is one method here, and is in the journal
before it is acted on, so that a killed run can be taken up again: finished attempts are read back; what was running is removed, and
its groups run again. An error of a step is never dropped: it decides the attempt, is told, or ends the batch.
"""

from __future__ import annotations

import os
import queue
import time
import typing as t

from .._archive.journal import Journal
from .._causes.classify import NOT_READ
from .._causes.reasons import reason_of
from .._causes.wordings import reason_of_wording
from .._cluster.client import Client
from .._cluster.kinds import NODE, POD
from .._common.errors import ClusterError
from .._common.shapes import AttemptRecord, CleanupProof, Group, JournalEvent, NodeState, Observation, Untested
from .._workload import names, pods
from .anchors import category_selector
from .attempt import Attempt, Decision, State, all_running, decide, lacks_pods
from .contact import Contact
from .fitness import Fitness
from .holding import Holding
from .last_look import LastLook
from .logs import PodLog
from .messages import Batch, Seen, Step, Taken
from .pool import Pool
from .projections import Facts, lost_reason, node_state
from .records import acquit, ending, observation_of, progress_line, record_of, refusal_by, states_before, words_of
from .steps import Collected, Steps
from .watcher import Watcher
from .watches import start_watches

TICK_S = 0.2
LOG_POLL_S = 5.0
# A silent node is lost after this, where the plan of an older archive does not say; a kubelet that restarts is back long before.
NODE_GRACE_S = 40.0
PROGRESS_S = 10.0
WORKERS = 16
FEW = 4
# Pods of a finished attempt get this long to go before its nodes are given to the next group all the same.
RELEASE_S = 60.0
# How long a batch that is to end waits for steps that hang.
HURRY_S = 45.0

Health: t.TypeAlias = t.Callable[[Facts], dict[str, t.Any] | None]


class Engine:
    """Runs one batch. health returns {message, evidence} of a node that is unwell, or None."""

    def __init__(
        self,
        client: Client,
        batch: Batch,
        *,
        health: Health | None = None,
        progress: t.Callable[[str], None] = lambda _text: None,
        alive: t.Callable[[], bool] = lambda: True,
    ) -> None:
        self._client, self._batch, self._health, self._tell, self._alive = client, batch, health, progress, alive
        self._namespace = batch.template["namespace"]
        self._steps = Steps(client, batch.template, batch.run_id, batch.category, batch.run_dir)
        self._queue: queue.Queue[Seen | Taken] = queue.Queue()
        # Reading logs may hang for minutes; creating and deleting must not wait for it, nor for each other.
        self._pools = {
            Step.CREATE: Pool(WORKERS, "create"),
            Step.REMOVE: Pool(WORKERS, "remove"),
            Step.COLLECT: Pool(WORKERS, "collect"),
            Step.POLL_LOG: Pool(WORKERS, "poll"),
            Step.ASK_REFUSAL: Pool(FEW, "ask"),
        }
        self._contact = Contact(batch.bounds.get("node_grace_s", NODE_GRACE_S))
        self._fitness = Fitness(self._contact, batch.planned, batch.template.get("tolerations", ()), self._unwell)
        self._not_before: dict[str, float] = {}  # by group that is to be repeated
        self._live: dict[str, Attempt] = {}  # by object name
        self._records: dict[str, list[AttemptRecord]] = {
            group["name"]: list(batch.finished.get(group["name"], [])) for group in batch.groups
        }
        self._waiting = [group for group in batch.groups if not self._is_final(self._records[group["name"]])]
        self._busy: dict[str, str] = {}  # node → attempt that holds it
        self._logs: dict[str, PodLog] = {}  # by pod, of launchers that were read while they ran
        self._owner: list[dict[str, t.Any]] = []
        self._holding = Holding(client, batch, lost=self.cancel, tell=progress)
        self.proof: CleanupProof | None = None  # of the cleanup, once `run` has ended
        self._cancelled = ""
        self._broken = ""
        self._synced: set[str] = set()
        self._journal = Journal(os.path.join(batch.run_dir, "journal.jsonl"))
        self._told_at = time.monotonic()

    def _is_final(self, records: t.Sequence[AttemptRecord]) -> bool:
        """Whether a group needs no further attempt. One that was cancelled was never really tried, and uses up no repetition."""
        if not records or records[-1]["outcome"] == "cancelled":
            return False
        cause, tried = records[-1]["cause"], [record for record in records if record["outcome"] != "cancelled"]
        return not (cause and cause["retryable"] and len(tried) <= self._batch.bounds["retries"])

    # Control

    def cancel(self, why: str) -> None:
        """Ends the batch soon: nothing new starts, what runs is removed. Callable from a signal handler."""
        self._cancelled = self._cancelled or why

    def disown(self, why: str) -> None:
        """Another process runs this run now: ends the batch soon, and writes nothing more into its journal."""
        self._journal.mute()
        self.cancel(why)

    def run(self) -> Observation:
        """The whole batch. Returns an observation (docs/data_shapes.md). Raises ClusterError only before anything was created."""
        watchers: list[Watcher] = []
        look: dict[str, NodeState | None] | None = None
        try:
            if self._waiting:  # otherwise an earlier start of the run has done it all
                self._journal.write("batch_start", time.time(), category=self._batch.category, groups=len(self._batch.groups))
                self._owner = self._holding.take(self._batch.deadline_at - time.time())
                watchers = self._start_watches()
                self._loop()
            look = self._look_again(watched=bool(watchers))
        finally:
            for watcher in watchers:
                watcher.stop()
            proof = self.proof = self._holding.clean_up(self._lost_nodes())
            for pool in self._pools.values():
                pool.stop()
            self._journal.write("batch_end", time.time(), category=self._batch.category, cleanup=proof)
            self._journal.close()
        return observation_of(self._batch.groups, self._records, proof, self._cancelled or self._broken, look)

    # The loop

    def _loop(self) -> None:
        batch = self._batch
        while self._waiting or self._live:
            self._check_ending()
            self._admit()
            self._drain()
            now = time.monotonic()
            for attempt in list(self._live.values()):
                self._advance(attempt, now)
            self._report_progress(now)
        self._tell(f"{batch.title}: all {len(batch.groups)} groups done")

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
                self._to_decided(attempt, Decision("cancelled", "Cancelled", why))

    def _check_contact(self) -> None:
        """Contact with most of the cluster is lost: nobody is accused, nor are those that were accused while it was being lost."""
        if self._broken or "node" not in self._synced:
            return
        self._broken = self._contact.outage(time.monotonic())
        if not self._broken:
            return
        for group, record in acquit(self._records, self._contact.silent_nodes(), self._broken).items():
            self._journal.write("attempt_acquitted", time.time(), category=self._batch.category, group=group, record=record)
        for attempt in self._live.values():
            if attempt.decision and attempt.decision.reason == "NodeLost":
                attempt.decision = Decision("cancelled", "Cancelled", self._broken)

    def _never_started(self, group: Group, why: str) -> AttemptRecord:
        attempt = self._new_attempt(group, [])
        attempt.decision = Decision("cancelled", "Cancelled", f"never started: {why}")
        return record_of(attempt, attempt.decision)

    def _admit(self) -> None:
        if "node" not in self._synced:
            return
        now = time.monotonic()
        limit = self._batch.bounds["max_concurrent"]
        for group in list(self._waiting):
            if len(self._live) >= limit:
                return
            if any(node in self._busy for node in group["nodes"]) or now < self._not_before.get(group["name"], now):
                continue
            excluded = self._fitness.excluded(group["nodes"], now)
            if excluded is None:
                continue  # a node may be back in a moment
            self._waiting.remove(group)
            self._begin(group, excluded)

    def _begin(self, group: Group, excluded: list[Untested]) -> None:
        """An attempt with the members that can be tested now; with none of them it has ended before it began."""
        attempt = self._new_attempt(group, excluded)
        if attempt.nodes:
            self._to_creating(attempt)
            return
        words = "; ".join(f"{item['node']}: {item['message']}" for item in excluded)
        attempt.decision = Decision("not_started", excluded[0]["reason"], words, [item["node"] for item in excluded])
        self._keep(attempt, record_of(attempt, attempt.decision))

    def _new_attempt(self, group: Group, excluded: list[Untested]) -> Attempt:
        number = len(self._records[group["name"]]) + 1
        name = names.attempt_name(self._batch.run_id, self._batch.category, group["name"], number)
        left = [node for node in group["nodes"] if node not in {item["node"] for item in excluded}]
        env, ends = dict(group.get("env") or {}), pods.ends(self._batch.template)
        return Attempt(group["name"], left, number, name, env, ends, created_at=time.monotonic(), excluded=excluded)

    # Messages

    def _drain(self) -> None:
        """Takes every message there is; waits a tick for the first."""
        timeout = TICK_S
        while True:
            try:
                message = self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
            except queue.Empty:
                return
            timeout = 0.0
            if isinstance(message, Seen):
                self._on_seen(message)
            else:
                self._on_taken(message)

    def _on_seen(self, seen: Seen) -> None:
        if seen.event == "ERROR":
            self._broken = self._broken or f"watching {seen.kind}s failed: {seen.facts}"
        elif seen.event == "STRANGE":
            self._tell(f"{self._batch.title}: {seen.facts}")
        elif seen.event == "SYNCED":
            self._synced.add(seen.kind)
            if seen.kind == NODE.name:
                self._contact.expect(self._members(), time.monotonic())
        elif seen.kind == NODE.name:
            self._on_node(seen.event, seen.facts)
        elif seen.kind == POD.name:
            self._on_pod(seen.event, seen.facts)
        else:
            self._on_job(seen.event, seen.facts)

    def _on_node(self, event: str, node: Facts) -> None:
        name, now = node["metadata"]["name"], time.monotonic()
        if event == "DELETED":
            self._contact.lose(name, now)
        else:
            self._contact.see(node, now)
        holder = self._busy.get(name)
        attempt = self._live.get(holder) if holder else None
        if attempt and attempt.decision is None:
            attempt.see_node(name, self._contact.state(name))
            if event != "DELETED" and attempt.state is not State.CREATING:
                self._check_health(attempt, node)

    def _check_health(self, attempt: Attempt, node: Facts) -> None:
        unwell = self._unwell(node)
        if unwell:
            attempt.see_illness({"node": node["metadata"]["name"], "message": unwell["message"], "evidence": unwell["evidence"]})

    def _unwell(self, node: Facts) -> dict[str, t.Any] | None:
        """What the health expression says of a node; of one that is silent it would say old news."""
        return self._health(node) if self._health and lost_reason(node) is None else None

    def _on_pod(self, event: str, pod: Facts) -> None:
        attempt = self._live.get(pod["job"] or "")
        if attempt is not None:
            attempt.claim_pod(pod, gone=event == "DELETED")

    def _on_job(self, event: str, job: Facts) -> None:
        attempt = self._live.get(job["name"])
        if attempt is None or attempt.uid not in (None, job["uid"]):
            return
        if event == "DELETED":
            if attempt.decision is None and not job["complete"] and not job["failed"]:
                attempt.removed.append(f"Job {job['name']}")
            return
        attempt.job = job
        attempt.queued = job["suspended"] and attempt.state is State.WAITING

    def _on_taken(self, taken: Taken) -> None:
        """A step has ended. A defect (any error that is not the cluster's or the disk's) ends the batch: nothing is proven by it."""
        attempt = self._live.get(taken.attempt)
        if taken.error is not None and not isinstance(taken.error, (ClusterError, OSError)):
            raise taken.error
        if attempt is None:
            return
        attempt.under_way.discard(taken.step)
        if taken.step is Step.CREATE:
            self._on_created(attempt, taken)
        elif taken.step is Step.COLLECT and attempt.state is State.COLLECTING:
            self._on_collected(attempt, taken)
        elif taken.step is Step.REMOVE and attempt.state is State.REMOVING:
            self._on_removed(attempt, taken)
        elif taken.error is not None:
            self._tell(f"{self._batch.title}: {attempt.group}: could not {taken.step.value}: {words_of(taken.error)}")
        elif taken.step is Step.POLL_LOG:
            attempt.heard_at = time.monotonic() if taken.result else attempt.heard_at
        elif taken.step is Step.ASK_REFUSAL:
            # Quota that is used up may be freed, also by our own groups: that waits for queue_timeout_s.
            attempt.refusal = next((line for line in reversed(taken.result) if reason_of_wording(line) != "Quota"), "")

    def _on_created(self, attempt: Attempt, taken: Taken) -> None:
        if taken.error is None:
            attempt.own(taken.result)
        else:
            refused = Decision("not_started", refusal_by(taken.error), words_of(taken.error))
            if attempt.decision is None:  # else it was cancelled meanwhile
                self._to_decided(attempt, refused)
        self._to_waiting(attempt)

    def _on_collected(self, attempt: Attempt, taken: Taken) -> None:
        if taken.error is None:
            found = t.cast(Collected, taken.result)
            attempt.logs, attempt.events, attempt.log_problems = found.logs, found.events, found.problems
            for node in found.nodes:
                self._check_health(attempt, node)
                self._contact.see(node, time.monotonic())
                attempt.after[node["metadata"]["name"]] = node_state(node)
        else:
            attempt.log_problems = {pod["name"]: words_of(taken.error) for pod in attempt.pods_to_log()}
            attempt.events.append(f"{NOT_READ}{words_of(taken.error)}")
            self._tell(f"{self._batch.title}: {attempt.group}: logs could not be collected: {words_of(taken.error)}")
        self._to_removing(attempt)

    def _on_removed(self, attempt: Attempt, taken: Taken) -> None:
        if taken.error is not None:
            # What is left then is looked for, and told, by the cleanup at the end.
            self._tell(f"{self._batch.title}: {attempt.group}: its Job could not be deleted: {words_of(taken.error)}")
        self._to_releasing(attempt)

    # Transitions of one attempt: CREATING → WAITING → RUNNING → COLLECTING → REMOVING → RELEASING → DONE

    def _advance(self, attempt: Attempt, now: float) -> None:
        """Whatever time and facts allow now."""
        if attempt.state in (State.WAITING, State.RUNNING):
            if attempt.state is State.WAITING and all_running(attempt):
                self._to_running(attempt, now)
            decision = decide(attempt, now, self._batch.bounds, self._contact.news(attempt.nodes, now, attempt.heard_at))
            if decision:
                self._to_decided(attempt, decision)
            else:
                self._poll_log(attempt, now)
                self._ask_refusal(attempt, now)
        elif attempt.state in (State.CREATING, State.COLLECTING, State.REMOVING):
            self._hurry(attempt, now)
        elif attempt.state is State.RELEASING:
            left = [pod for pod in attempt.pods.values() if not pod.get("gone")]
            if not left or self._broken or now - t.cast(float, attempt.finished_at) > RELEASE_S:
                self._to_done(attempt)

    def _hurry(self, attempt: Attempt, now: float) -> None:
        """Once the batch is to end, a step that hangs is waited for no longer; what it leaves is for the cleanup to find."""
        if not (self._cancelled or self._broken) or attempt.finished_at is None or now - attempt.finished_at < HURRY_S:
            return
        if attempt.state is State.COLLECTING:
            attempt.events.append(f"{NOT_READ}the logs were not read within {HURRY_S:.0f} s of the end")
            self._to_removing(attempt)
        elif now - attempt.finished_at >= 2 * HURRY_S:
            self._to_done(attempt)

    def _to_creating(self, attempt: Attempt) -> None:
        self._live[attempt.name] = attempt
        for node in attempt.nodes:
            self._busy[node] = attempt.name
            attempt.see_node(node, self._contact.state(node))
        self._note(attempt, "attempt_creating", nodes=attempt.nodes)
        target, owner = attempt.target(), list(self._owner)
        self._submit(attempt, Step.CREATE, lambda: self._steps.create(target, owner))

    def _to_waiting(self, attempt: Attempt) -> None:
        attempt.state = State.WAITING
        if attempt.decision:  # while it was being created
            self._to_removing(attempt)

    def _to_running(self, attempt: Attempt, now: float) -> None:
        self._note(attempt, "attempt_running")
        attempt.state, attempt.started_at = State.RUNNING, now

    def _to_decided(self, attempt: Attempt, decision: Decision) -> None:
        """The attempt has ended; what is left of it is collected, once its creation is over."""
        attempt.finished_at = time.monotonic()
        attempt.after = {node: self._contact.state(node) for node in attempt.nodes}
        self._note(attempt, "attempt_decided", outcome=decision.outcome, reason=decision.reason, message=decision.message)
        attempt.decision = decision
        if attempt.state is not State.CREATING:
            self._to_collecting(attempt, decision)

    def _to_collecting(self, attempt: Attempt, decision: Decision) -> None:
        attempt.state = State.COLLECTING
        # Each question to a server that is gone costs its whole patience.
        about = attempt.objects() if decision.outcome != "succeeded" and not self._broken else []
        target, pods, logs = attempt.target(), attempt.pods_to_log(), dict(self._logs)
        self._submit(attempt, Step.COLLECT, lambda: self._steps.collect(target, pods, logs, about))

    def _to_removing(self, attempt: Attempt) -> None:
        self._note(attempt, "attempt_deleting")
        attempt.state = State.REMOVING
        gone = self._lost_nodes()
        stranded = [pod for pod in attempt.pods.values() if pod["node"] in gone]
        target, uid = attempt.target(), attempt.uid
        self._submit(attempt, Step.REMOVE, lambda: self._steps.remove(target, uid, stranded))

    def _to_releasing(self, attempt: Attempt) -> None:
        attempt.state = State.RELEASING

    def _to_done(self, attempt: Attempt) -> None:
        del self._live[attempt.name]
        for node in attempt.nodes:
            if self._busy.get(node) == attempt.name:
                del self._busy[node]
        self._keep(attempt, record_of(attempt, t.cast(Decision, attempt.decision)))

    def _keep(self, attempt: Attempt, record: AttemptRecord) -> None:
        """The record of an attempt that is over; its group comes again where its cause may mend itself."""
        self._journal.write("attempt_done", time.time(), category=self._batch.category, group=attempt.group, record=record)
        attempt.state = State.DONE
        self._records[attempt.group].append(record)
        again = not self._cancelled and not self._broken and not self._is_final(self._records[attempt.group])
        if record["cause"]:
            self._tell(f"{self._batch.title}: {ending(attempt, record)}{' - retrying' if again else ''}")
        if again:
            group = next(group for group in self._batch.groups if group["name"] == attempt.group)
            cause = record["cause"]
            self._not_before[attempt.group] = time.monotonic() + (reason_of(cause["reason"]).pause_s if cause else 0.0)
            self._waiting.append(group)

    # While an attempt runs

    def _poll_log(self, attempt: Attempt, now: float) -> None:
        launcher = attempt.launcher()
        if attempt.state is not State.RUNNING or launcher is None or not launcher["running"] or Step.POLL_LOG in attempt.under_way:
            return
        if now - attempt.polled_at.get("log", t.cast(float, attempt.started_at)) < LOG_POLL_S:
            return
        attempt.polled_at["log"] = now
        log = self._logs.setdefault(launcher["name"], self._steps.pod_log(attempt.target(), launcher))
        self._submit(attempt, Step.POLL_LOG, log.poll)

    def _ask_refusal(self, attempt: Attempt, now: float) -> None:
        """Pods that the cluster never lets come into being are told by events of the Job alone."""
        if attempt.state is not State.WAITING or not lacks_pods(attempt) or Step.ASK_REFUSAL in attempt.under_way:
            return
        if now - attempt.polled_at.setdefault("refusal", attempt.created_at) < self._batch.bounds["start_grace_s"]:
            return
        attempt.polled_at["refusal"] = now
        target, about = attempt.target(), attempt.objects()
        self._submit(attempt, Step.ASK_REFUSAL, lambda: self._steps.refusal(target, about))

    # Whole batch

    def _start_watches(self) -> list[Watcher]:
        label = category_selector(self._batch.run_id, self._batch.category)
        return start_watches(self._client, self._namespace, label, lambda *seen: self._queue.put(Seen(*seen)))

    def _members(self) -> set[str]:
        return {name for group in self._batch.groups for name in group["nodes"]}

    def _lost_nodes(self) -> set[str]:
        """Members whose kubelets will confirm nothing any more."""
        now = time.monotonic()
        return {name for name in self._members() if self._contact.trouble(name) and self._contact.settled(name, now)}

    def _look_again(self, *, watched: bool) -> dict[str, NodeState | None] | None:
        before = {name: states_before(self._records, name) for name in sorted(self._members())}
        look = LastLook(self._pools[Step.ASK_REFUSAL], self._steps.look_at, self._contact, self._fitness, self._tell)
        return look.take(before, self._drain if watched else None, lambda: self._alive() and not (self._cancelled or self._broken))

    def _submit(self, attempt: Attempt, step: Step, work: t.Callable[[], t.Any]) -> None:
        name = attempt.name
        attempt.under_way.add(step)

        def take() -> None:
            try:
                self._queue.put(Taken(step, name, result=work()))
            except Exception as error:  # the loop decides what it means
                self._queue.put(Taken(step, name, error=error))

        self._pools[step].submit(take)

    def _note(self, attempt: Attempt, event: JournalEvent, **fields: t.Any) -> None:
        self._journal.write(
            event, time.time(), category=self._batch.category, group=attempt.group, attempt=attempt.number, name=attempt.name, **fields
        )

    def _report_progress(self, now: float) -> None:
        if now - self._told_at < PROGRESS_S:
            return
        self._told_at = now
        running = sum(1 for attempt in self._live.values() if attempt.state is State.RUNNING)
        self._tell(progress_line(self._batch.title, len(self._batch.groups), len(self._waiting), len(self._live), running))
