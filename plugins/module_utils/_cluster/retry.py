# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The one retry policy of the collection: what is worth another try, and how long to wait before it."""

from __future__ import annotations

import dataclasses
import random
import time
import typing as t

# Another try can help: rate limits, and answers of a server or a proxy that is restarting. 500 is decided by its text.
RETRIED_STATUS = frozenset({429, 502, 503, 504})

# These words in an error 500 say that the request was refused before anything was stored.
HARMLESS_500 = ("failed calling webhook", "failed to call webhook", "failed calling admission webhook")


@dataclasses.dataclass
class RetryPolicy:
    """Bounded, jittered exponential back-off.

    attempts: tries in all, the first one included.
    patience_s: no further try begins so long after the first, seconds; a server that hangs costs two of its time-outs, not seven.
    base_s, max_s: the first and the longest pause, seconds; a pause is drawn between half and the whole of it.
    retry_after_max_s: a longer Retry-After of the server is cut to this, seconds.
    """

    attempts: int = 7
    patience_s: float = 100.0
    base_s: float = 0.4
    max_s: float = 10.0
    retry_after_max_s: float = 30.0
    sleep: t.Callable[[float], None] = time.sleep
    random: t.Callable[[], float] = random.random
    clock: t.Callable[[], float] = time.monotonic

    def tries(self) -> Tries:
        """The tries of one request, of which the first is made now."""
        return Tries(self)

    def pause(self, attempt: int, retry_after: str | None = None) -> None:
        """Waits after failed try number *attempt* (1 is the first)."""
        self.sleep(self.pause_s(attempt, retry_after))

    def pause_s(self, attempt: int, retry_after: str | None = None) -> float:
        """The seconds to wait; the server's Retry-After, when it gives one in seconds, is the least."""
        backoff: float = min(self.max_s, self.base_s * 2 ** min(attempt - 1, 30)) * (0.5 + self.random() / 2)
        if retry_after is None or not retry_after.strip().isdigit():
            return backoff
        # Jitter on top, or all clients of a busy server come back in the same moment.
        asked = min(float(retry_after), self.retry_after_max_s)
        return asked + backoff / 4


class Tries:
    """The tries of one request under a policy."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy, self._made, self._since = policy, 1, policy.clock()

    @property
    def are_left(self) -> bool:
        """Whether the policy allows another try."""
        return self._made < self._policy.attempts and self._policy.clock() - self._since < self._policy.patience_s

    def pause(self, retry_after: str | None = None) -> None:
        """Waits for the next try."""
        self._policy.pause(self._made, retry_after)
        self._made += 1


def worth_retrying(status: int, message: str) -> bool:
    """Whether an answer with this status may turn out differently on another try."""
    return status in RETRIED_STATUS or status == 500


def surely_not_stored(status: int, message: str) -> bool:
    """Whether the server certainly did not act on the request, so that even a create may be sent again.

    429 and admission webhook failures come before storage. 500, 502, 503 and 504 may come after it.
    """
    return status == 429 or (status == 500 and any(words in message for words in HARMLESS_500))
