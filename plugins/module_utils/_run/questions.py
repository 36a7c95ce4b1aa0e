# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked about an attempt while it waits and runs, and when: its log, why no pod comes, and, before time decides, how it is now."""

from __future__ import annotations

import typing as t

from .attempt import Attempt, State, lacks_pods
from .contact import Contact
from .logs import PodLog
from .messages import Step
from .steps import Now, Steps
from .workers import Workers

LOG_POLL_S = 5.0
# What the cluster said of an attempt counts as its present state for so long; one that does not answer is asked again after ASK_AGAIN_S.
ANSWER_S, ASK_AGAIN_S = 10.0, 5.0
# Kubelets, scheduler and controllers were without the API server as well: what they have to tell comes within SETTLE_S of its return.
# A server that is always this slow puts no decision off for ever.
LATE_S, SETTLE_S, MAX_SETTLED = 5.0, 20.0, 3


class Questions:
    """One step of each kind at most is under way. Times are those of the engine's clock."""

    def __init__(
        self,
        steps: Steps,
        contact: Contact,
        bounds: t.Mapping[str, t.Any],
        workers: Workers,
    ) -> None:
        self._steps, self._contact, self._bounds, self._workers = steps, contact, bounds, workers
        self.logs: dict[str, PodLog] = {}  # by pod, of launchers that were read while they ran

    def poll_log(self, attempt: Attempt, now: float) -> None:
        """Reads what a launcher has printed since."""
        launcher = attempt.launcher()
        if attempt.state is not State.RUNNING or launcher is None or not launcher["running"] or Step.POLL_LOG in attempt.under_way:
            return
        if now - attempt.polled_at.get("log", t.cast(float, attempt.started_at)) < LOG_POLL_S:
            return
        attempt.polled_at["log"] = now
        log = self.logs.setdefault(launcher["name"], self._steps.pod_log(attempt.target(), launcher))
        self._workers.submit(attempt, Step.POLL_LOG, log.poll)

    def ask_refusal(self, attempt: Attempt, now: float) -> None:
        """Pods that the cluster never lets come into being are told by events of the Job alone."""
        if attempt.state is not State.WAITING or not lacks_pods(attempt) or Step.ASK_REFUSAL in attempt.under_way:
            return
        if now - attempt.polled_at.setdefault("refusal", attempt.created_at) < self._bounds["start_grace_s"]:
            return
        attempt.polled_at["refusal"] = now
        target, about = attempt.target(), attempt.objects()
        self._workers.submit(attempt, Step.ASK_REFUSAL, lambda: self._steps.refusal(target, about))

    def must_ask(self, attempt: Attempt, now: float) -> bool:
        """Whether the cluster is still to say how an attempt is: while the API server is away, and just after, silence means nothing."""
        if now < attempt.settled_at:
            return True
        attempt.asking_since = now if attempt.asking_since is None else attempt.asking_since
        if attempt.asked_at is not None and now - attempt.asked_at < ANSWER_S:
            return False
        if Step.ASK_NOW not in attempt.under_way and now - attempt.polled_at.get("now", now - ASK_AGAIN_S) >= ASK_AGAIN_S:
            attempt.polled_at["now"] = now
            target = attempt.target()
            self._workers.submit(attempt, Step.ASK_NOW, lambda: self._steps.ask_now(target))
        return True

    def take(self, attempt: Attempt, answer: Now, now: float) -> None:
        """The answer: pods and nodes as they are."""
        late = attempt.asking_since is not None and now - attempt.asking_since >= LATE_S
        attempt.asked_at, attempt.asking_since = now, None
        if late and attempt.outages < MAX_SETTLED:
            attempt.outages, attempt.settled_at = attempt.outages + 1, now + SETTLE_S
        self._contact.read(attempt.nodes, answer.nodes, now)
        for pod in answer.pods:
            attempt.claim_pod(pod, gone=False)
