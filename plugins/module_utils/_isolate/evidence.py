# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""How much one measurement says for or against a fault.

A test result becomes a log-likelihood ratio: positive speaks for a fault among the members, negative against it.
The healthy hypothesis is "as expected", the faulty one "at most 80 % of expected", both with the noise the runs show.
A pass or fail without a number counts as much as a test that is right 19 times of 20.
"""

from __future__ import annotations

import bisect
import math
import typing as t

if t.TYPE_CHECKING:
    from .engine import Trial

CLEAR = -2.9  # total evidence at which a group counts as good
FAIL = 2.9  # total evidence at which a group counts as failed
CONVICT = 6.9  # total evidence that convicts: about one error in a thousand
CLIP = 6.0  # no single run may count more than this, so no single run convicts
BINARY = math.log(0.95 / 0.05)
FAULT_SHIFT = math.log(0.80)
QUIET = 0.065  # noise up to which an unclear group is settled by looking at its parts
STRONG_RATIO = 0.87  # a failure below this, and beyond 6 sigma, is never shrugged off as noise

PRIOR_SIGMA, PRIOR_RUNS = 0.05, 4
SIGMA_FLOOR, SIGMA_CEILING = 0.01, 0.15
BASELINE_RUNS = 3


class Evidence:
    """Learns the noise and the usual value of each kind of test, and weighs single runs with them.

    sigma: the relative noise of one run, when the caller knows it; otherwise it is estimated.
    """

    def __init__(self, sigma: t.Optional[float] = None) -> None:
        self._fixed = sigma
        self._squares = 0.0
        self._runs = 0
        self._usual: dict[tuple[str, str, int], list[float]] = {}

    @property
    def sigma(self) -> float:
        """Relative noise of one run. Only runs above expectation are used: a fault can only pull a value down."""
        if self._fixed is not None:
            return self._fixed
        variance = (self._squares + PRIOR_RUNS * PRIOR_SIGMA**2) / (self._runs + PRIOR_RUNS)
        return min(max(math.sqrt(variance), SIGMA_FLOOR), SIGMA_CEILING)

    @property
    def cautious_sigma(self) -> float:
        """Upper estimate of the noise, for evidence that accuses: few runs know the noise badly."""
        if self._fixed is not None:
            return self._fixed
        return min(self.sigma * (1 + 1 / math.sqrt(self._runs + PRIOR_RUNS)), SIGMA_CEILING)

    def learn(self, trial: Trial) -> None:
        """Take one finished run into the estimates."""
        if trial.outcome != "measured" or not _usable(trial.value):
            return
        if trial.expected is None and trial.passed is not False:
            bisect.insort(self._usual.setdefault(_kind(trial), []), t.cast(float, trial.value))
        deviation = self.deviation(trial)
        if deviation is not None and deviation > 0:
            self._squares += min(deviation, 0.5) ** 2
            self._runs += 1

    def expected(self, trial: Trial) -> t.Optional[float]:
        """The caller's expected value, else the median of comparable runs that met the criterion, else None."""
        if _usable(trial.expected):
            return trial.expected
        values = self._usual.get(_kind(trial), [])
        return values[len(values) // 2] if len(values) >= BASELINE_RUNS else None

    def deviation(self, trial: Trial) -> t.Optional[float]:
        """ln(measured / expected), None when either is unknown."""
        expected = self.expected(trial)
        if trial.outcome != "measured" or expected is None or not _usable(trial.value):
            return None
        return math.log(t.cast(float, trial.value) / expected)

    def ratio(self, trial: Trial) -> t.Optional[float]:
        """measured / expected, None when either is unknown."""
        deviation = self.deviation(trial)
        return None if deviation is None else math.exp(deviation)

    def weight(self, trial: Trial) -> float:
        """The log-likelihood ratio of one run, between -6 and +6; 0 when the run says nothing."""
        if trial.outcome == "unmeasured":
            return 0.0
        if trial.outcome == "failed" or (trial.value is not None and not _usable(trial.value)):
            return CLIP
        verdict = None if trial.passed is None else (-BINARY if trial.passed else BINARY)
        deviation = self.deviation(trial)
        if deviation is None:
            return verdict or 0.0
        distance = deviation - FAULT_SHIFT / 2
        sigma = self.sigma if distance > 0 else self.cautious_sigma
        raw = FAULT_SHIFT / sigma**2 * distance
        weight = min(max(raw, -CLIP), CLIP)
        # Without an expected value from the caller the fleet is only a yardstick for strength: the user's criterion
        # says which side of the limit a run is on.
        if trial.expected is None and verdict is not None and weight * verdict < 0:
            return verdict
        return weight

    def strong(self, trial: Trial) -> bool:
        """True for a failure too deep to be noise."""
        if self.weight(trial) < FAIL:
            return False
        deviation = self.deviation(trial)
        if deviation is None:
            return trial.outcome == "failed"
        return deviation < math.log(STRONG_RATIO) and deviation < -6 * self.sigma


def _usable(value: t.Optional[float]) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _kind(trial: Trial) -> tuple[str, str, int]:
    """Runs are comparable when shape, transport and size class (next power of two) agree."""
    return trial.shape, trial.transport, (len(trial.nodes) - 1).bit_length()
