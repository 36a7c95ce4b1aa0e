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
from .._causes.record import acquitted, under_mass_event
from .._causes.wordings import reason_of_wording
from .._cluster.client import Client
from .._cluster.kinds import NODE, POD
from .._common.errors import ClusterError
from .._common.shapes import AttemptRecord, CleanupProof, Group, JournalEvent, NodeState, Observation, Untested
from .._common.words import counted
from .._workload import names, pods
from .anchors import category_selector
from .attempt import Attempt, Decision, State, all_running, decide, nothing_left
from .contact import Contact
from .fitness import Eyes, Fitness
from .groups import Groups
from .holding import Holding, Unswept
from .illness import Health
from .last_look import LastLook
from .messages import Batch, Seen, Step, Taken
from .projections import Facts
from .questions import Questions
from .records import acquit, ending, observation_of, progress_line, record_of, refusal_by, words_of
from .steps import Collected, Steps
from .watcher import Watcher
from .watches import start_watches
from .workers import Workers

TICK_S = 0.2
# A silent node is lost after this, where the plan of an older archive does not say; a kubelet that restarts is back long before.
NODE_GRACE_S = 40.0
PROGRESS_S = 10.0
# Pods of a finished attempt get this long to go before its nodes are given to the next group all the same.
RELEASE_S = 60.0
# How long a batch that is to end waits for a step that hangs, once for the logs and once more for what removes; and where somebody waits.
HURRY_S, SOON_S = 45.0, 20.0


class Engine:
    """Runs one batch."""

    def __init__(
        self,
        client: Client,
        batch: Batch,
        *,
        eyes: Eyes = Eyes(),  # noqa: B008 - immutable
        progress: t.Callable[[str], None] = lambda _text: None,
        alive: t.Callable[[], bool] = lambda: True,
    ) -> None:
        self._client, self._batch, self._tell, self._alive = client, batch, progress, alive
        self._namespace = batch.template["namespace"]
        self._steps = Steps(client, batch.template, batch.run_id, batch.category, batch.run_dir)
        self._queue: queue.Queue[Seen | Taken] = queue.Queue()
        self._workers = Workers(self._queue)
        self._contact = Contact(batch.bounds.get("node_grace_s", NODE_GRACE_S), eyes.departure)
        self._health = Health(eyes.unwell, batch.planned)
        self._fitness = Fitness(self._contact, self._health, batch.planned, batch.template.get("tolerations", ()))
        self._questions = Questions(self._steps, self._contact, batch.bounds, self._workers)
        self._groups = Groups(batch)
        self._live: dict[str, Attempt] = {}  # by object name
        self._busy: dict[str, str] = {}  # node → attempt that holds it
        self._owner: list[dict[str, t.Any]] = []
        self._holding = Holding(client, batch, lost=self.cancel, tell=progress)
        self.proof: CleanupProof | None = None  # of the cleanup, once `run` has ended
        self._cancelled, self._soon = "", False
        self._broken = ""
        self._synced: set[str] = set()
        self._journal = Journal(os.path.join(batch.run_dir, "journal.jsonl"))
        self._told_at = time.monotonic()

    # Control

    def cancel(self, why: str, *, soon: bool = True) -> None:
        """Ends the batch: nothing new starts, what runs is removed. Callable from a signal handler.

        soon: somebody waits for it, so that an API server that does not answer then is not waited for.
        """
        self._cancelled, self._soon = self._cancelled or why, self._soon or soon

    def disown(self, why: str) -> None:
        """Another process runs this run now: ends the batch soon, and writes nothing more into its journal."""
        self._journal.mute()
        self.cancel(why)

    def run(self) -> Observation:
        """The whole batch. Returns an observation (docs/data_shapes.md). Raises ClusterError only before anything was created."""
        watchers: list[Watcher] = []
        look: dict[str, NodeState | None] | None = None
        try:
            if self._groups.waiting:  # otherwise an earlier start of the run has done it all
                self._journal.write("batch_start", time.time(), category=self._batch.category, groups=len(self._batch.groups))
                self._take_hold()
                watchers = self._start_watches()
                self._loop()
            look = self._look_again(watched=bool(watchers))
        finally:
            for watcher in watchers:
                watcher.stop()
            proof = self.proof = self._holding.clean_up(self._lost_nodes(), 0.0 if self._soon else self._batch.api_outage_s)
            self._workers.stop()
            self._journal.write("batch_end", time.time(), category=self._batch.category, cleanup=proof)
            self._journal.close()
        return observation_of(self._batch.groups, self._groups.records, proof, self._cancelled or self._broken, look)

    # The loop

    def _loop(self) -> None:
        batch = self._batch
        while self._groups.waiting or self._live:
            self._check_ending()
            self._admit()
            self._drain()
            now = time.monotonic()
            for attempt in list(self._live.values()):
                self._advance(attempt, now)
            self._report_progress(now)
        self._tell(f"{batch.title}: {counted(len(batch.groups), 'group')} done")

    def _check_ending(self) -> None:
        if not self._alive():
            self.cancel("the play was ended")
        if time.time() >= self._batch.deadline_at:
            self.cancel("the deadline of the run (bounds.deadline_s) has passed", soon=False)
        self._check_contact()
        why = self._cancelled or self._broken
        if not why:
            return
        for group in self._groups.cut_short():
            self._groups.records[group["name"]].append(self._never_started(group, why))
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
        self._acquit("NodeLost", dict.fromkeys(self._contact.silent_nodes(), ""), lambda record: acquitted(record, self._broken))
        for attempt in self._live.values():
            if attempt.decision and attempt.decision.reason == "NodeLost":
                attempt.decision = Decision("cancelled", "Cancelled", self._broken)

    def _acquit(self, reason: str, said: t.Mapping[str, str], instead: t.Callable[[AttemptRecord], AttemptRecord]) -> None:
        for group, record in acquit(self._groups.records, said, reason, instead).items():
            self._journal.write("attempt_acquitted", time.time(), category=self._batch.category, group=group, record=record)

    def _never_started(self, group: Group, why: str) -> AttemptRecord:
        attempt = self._new_attempt(group, [])
        attempt.decision = Decision("cancelled", "Cancelled", f"never started: {why}")
        return record_of(attempt, attempt.decision)

    def _admit(self) -> None:
        if "node" not in self._synced:
            return
        now = time.monotonic()
        limit = self._batch.bounds["max_concurrent"]
        for group in self._groups.due(now):
            if len(self._live) >= limit:
                return
            if any(node in self._busy for node in group["nodes"]):
                continue
            condemned = self._groups.left_out(group)
            rest = [node for node in group["nodes"] if node not in {item["node"] for item in condemned}]
            excluded = self._fitness.excluded(rest, now)
            if excluded is None:
                continue  # a node may be back in a moment
            self._groups.waiting.remove(group)
            self._begin(group, condemned + excluded)

    def _begin(self, group: Group, excluded: list[Untested]) -> None:
        """An attempt with the members that can be tested now; with none of them it has ended before it began."""
        attempt = self._new_attempt(group, excluded)
        if attempt.nodes:
            self._to_creating(attempt)
            return
        attempt.decision = nothing_left(excluded)
        self._keep(attempt, record_of(attempt, attempt.decision))

    def _new_attempt(self, group: Group, excluded: list[Untested]) -> Attempt:
        records = self._groups.records[group["name"]]
        number, repeat = len(records) + 1, self._groups.next_repeat(group, records) or 1
        name = names.attempt_name(self._batch.run_id, self._batch.category, group["name"], number)
        left = [node for node in group["nodes"] if node not in {item["node"] for item in excluded}]
        env, ends = dict(group.get("env") or {}), pods.ends(self._batch.template)
        return Attempt(group["name"], left, number, name, repeat, env, ends, created_at=time.monotonic(), excluded=excluded)

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
                self._contact.expect(self._groups.members(), time.monotonic())
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
            self._health.forget(name)
        else:
            self._contact.see(node, now)
        holder = self._busy.get(name)
        attempt = self._live.get(holder) if holder else None
        if attempt and attempt.decision is None:
            attempt.see_node(name, self._contact.state(name))
        if event != "DELETED":
            self._check_health(node, attempt if attempt and attempt.decision is None and attempt.state is not State.CREATING else None)

    def _check_health(self, node: Facts, attempt: Attempt | None) -> None:
        """attempt: whose node it is."""
        name = node["metadata"]["name"]
        grown = self._health.see(node, time.monotonic())
        told, shared = self._health.told(name), self._health.event(name)
        if told and attempt and not shared:
            attempt.see_illness({"node": name, "message": told["message"], "evidence": told["evidence"]})
        elif shared and attempt:
            attempt.see_event({name}, shared)
        if grown:
            self._on_mass_event()

    def _on_mass_event(self) -> None:
        """Most nodes show the same at once: nobody is accused of it, nor are those that were accused while it was coming."""
        ill = self._health.under_event()
        event = self._health.event(next(iter(ill), ""))
        self._acquit("HardwareFailureDetected", ill, lambda record: under_mass_event(record, event))
        for attempt in self._live.values():
            attempt.see_event(set(ill).intersection(attempt.nodes), event)

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
        elif taken.step is Step.ASK_NOW and taken.error is not None:
            return  # the API server is away: it is asked again, until the watches give it up
        elif taken.step is Step.ASK_NOW:
            self._questions.take(attempt, taken.result, time.monotonic())
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
            attempt.created_at = time.monotonic()  # it waits for its pods from now on, however long the API server took
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
                name = node["metadata"]["name"]
                self._contact.see(node, time.monotonic())
                self._check_health(node, attempt)
                attempt.after[name] = self._contact.state(name)
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
            if decision and not (decision.by_clock and self._questions.must_ask(attempt, now)):
                self._to_decided(attempt, decision)
            else:
                self._questions.poll_log(attempt, now)
                self._questions.ask_refusal(attempt, now)
        elif attempt.state in (State.CREATING, State.COLLECTING, State.REMOVING):
            self._hurry(attempt, now)
        elif not attempt.holds_nodes() or self._broken or now - t.cast(float, attempt.finished_at) > RELEASE_S:
            self._to_done(attempt)  # RELEASING

    def _hurry(self, attempt: Attempt, now: float) -> None:
        """Once the batch is to end, a step that hangs is waited for no longer; what it leaves is for the cleanup to find."""
        patience = SOON_S if self._soon else HURRY_S
        if not (self._cancelled or self._broken) or attempt.finished_at is None or now - attempt.finished_at < patience:
            return
        if attempt.state is State.COLLECTING:
            attempt.events.append(f"{NOT_READ}the logs were not read within {patience:.0f} s of the end")
            self._to_removing(attempt)
        elif now - attempt.finished_at >= 2 * patience:
            self._to_done(attempt)

    def _to_creating(self, attempt: Attempt) -> None:
        self._live[attempt.name] = attempt
        for node in attempt.nodes:
            self._busy[node] = attempt.name
            attempt.see_node(node, self._contact.state(node))
        self._note(attempt, "attempt_creating", nodes=attempt.nodes)
        target, owner = attempt.target(), list(self._owner)
        self._workers.submit(attempt, Step.CREATE, lambda: self._steps.create(target, owner))

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
        target, pods, logs, silent = attempt.target(), attempt.pods_to_log(), dict(self._questions.logs), self._contact.silent_nodes()
        self._workers.submit(attempt, Step.COLLECT, lambda: self._steps.collect(target, pods, logs, about, silent))

    def _to_removing(self, attempt: Attempt) -> None:
        self._note(attempt, "attempt_deleting")
        attempt.state = State.REMOVING
        gone = self._lost_nodes()
        stranded = [pod for pod in attempt.pods.values() if pod["node"] in gone]
        target, uid = attempt.target(), attempt.uid
        self._workers.submit(attempt, Step.REMOVE, lambda: self._steps.remove(target, uid, stranded))

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
        again = self._groups.keep(attempt.group, record, time.monotonic(), going=not (self._cancelled or self._broken))
        if record["cause"]:
            self._tell(f"{self._batch.title}: {ending(attempt, record)}{' - retrying' if again else ''}")

    # Whole batch

    def _take_hold(self) -> None:
        try:
            self._owner = self._holding.take(self._batch.deadline_at - time.time())
        except Unswept:  # what cannot be asked now has just been waited for in vain
            self._soon = True
            raise

    def _start_watches(self) -> list[Watcher]:
        label, outage_s = category_selector(self._batch.run_id, self._batch.category), self._batch.api_outage_s
        return start_watches(self._client, self._namespace, label, lambda *seen: self._queue.put(Seen(*seen)), outage_s=outage_s)

    def _lost_nodes(self) -> set[str]:
        return self._contact.given_up(self._groups.members(), time.monotonic())

    def _look_again(self, *, watched: bool) -> dict[str, NodeState | None] | None:
        pool, outage_s = self._workers.for_questions(), self._batch.api_outage_s
        look = LastLook(pool, self._steps.look_at, self._contact, self._health, self._fitness, self._tell, outage_s)
        going: t.Callable[[], bool] = lambda: self._alive() and not (self._cancelled or self._broken)  # noqa: E731
        return look.take(self._groups.states_before(), self._drain if watched else None, going)

    def _note(self, attempt: Attempt, event: JournalEvent, **fields: t.Any) -> None:
        self._journal.write(
            event, time.time(), category=self._batch.category, group=attempt.group, attempt=attempt.number, name=attempt.name, **fields
        )

    def _report_progress(self, now: float) -> None:
        if now - self._told_at < PROGRESS_S:
            return
        self._told_at = now
        running = sum(1 for attempt in self._live.values() if attempt.state is State.RUNNING)
        self._tell(progress_line(self._batch.title, len(self._batch.groups), len(self._groups.waiting), len(self._live), running))
