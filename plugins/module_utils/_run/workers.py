# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The threads that take the steps of attempts, a pool for each kind of step.

Reading logs may hang for minutes; creating and deleting must not wait for it, nor for each other.
"""

from __future__ import annotations

import queue
import typing as t

from .attempt import Attempt
from .messages import Seen, Step, Taken
from .pool import Pool

SIZE = 16
FEW = 4


class Workers:
    """answers: where it is put what a step came to."""

    def __init__(self, answers: queue.Queue[Seen | Taken]) -> None:
        self._answers = answers
        self._pools = {step: Pool(FEW if step is Step.ASK_REFUSAL else SIZE, step.name.lower()) for step in Step}

    def submit(self, attempt: Attempt, step: Step, work: t.Callable[[], t.Any]) -> None:
        """Takes a step of an attempt in a thread; what it returns or raises becomes a message."""
        name = attempt.name
        attempt.under_way.add(step)

        def take() -> None:
            try:
                self._answers.put(Taken(step, name, result=work()))
            except Exception as error:  # the loop decides what it means
                self._answers.put(Taken(step, name, error=error))

        self._pools[step].submit(take)

    def for_questions(self) -> Pool:
        """Threads for what is asked beside the steps."""
        return self._pools[Step.ASK_REFUSAL]

    def stop(self) -> None:
        """Nothing new begins; does not wait."""
        for pool in self._pools.values():
            pool.stop()
