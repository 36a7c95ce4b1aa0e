# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How much one measurement says for or against a fault.

A test result becomes a log-likelihood ratio: positive speaks for a fault among the members, negative against it.
The healthy hypothesis is "as expected", the faulty one "at most 80 % of expected", both with the noise the runs show.
A pass or fail without a number counts as much as a test that is right 19 times of 20.
"""

from __future__ import annotations

import bisect
import math
import typing as t

from .trial import Trial

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
DIFFERENT = 5  # times the noise, by which two losses are those of different faults
DECIDED = 1.5  # standard errors by which the mean of repeats must clear a limit
FLOOR_MARGIN, FLOOR_DOUBT = 0.04, 0.25  # a median this far above the expected value (more if few runs) means that it is a floor
POOL = "all"

Kind = tuple[str, str, int, bool]  # shape, transport, size class, whether the caller expects a value


class Evidence:
    """Learns the noise and the usual value of each kind of test, and weighs single runs with them.

    The caller's expected value may be what a healthy group reaches or a floor that it must exceed: runs that lie well
    above it shift the yardstick up to their median. Without an expected value the median of comparable runs is used.

    sigma: the relative noise of one run, when the caller knows it; otherwise it is estimated.
    """

    def __init__(self, sigma: float | None = None) -> None:
        self._fixed = sigma
        self._logs: dict[Kind, list[float]] = {}  # ln(value / expected), or ln(value) of runs that met the criterion; sorted
        self._groups: dict[Kind, set[tuple[int, ...]]] = {}  # whose runs these are: repeats of one group are no comparison
        self._unbound: set[Kind] = set()  # kinds with runs that no criterion judges
        self._met = False  # somebody met the criterion: it is a limit that can be met
        # What follows is derived from the runs so far and forgotten with every new one.
        self._estimate: tuple[float, int] | None = None
        self._usuals: dict[Kind, float | None] = {}
        self._weights: dict[Trial, float] = {}

    @property
    def sigma(self) -> float:
        """Relative noise of one run. Only runs above expectation are used: a fault can only pull a value down."""
        if self._fixed is not None:
            return self._fixed
        squares, runs = self._above()
        variance = (squares + PRIOR_RUNS * PRIOR_SIGMA**2) / (runs + PRIOR_RUNS)
        return min(max(math.sqrt(variance), SIGMA_FLOOR), SIGMA_CEILING)

    @property
    def cautious_sigma(self) -> float:
        """Upper estimate of the noise, for evidence that accuses: few runs know the noise badly."""
        if self._fixed is not None:
            return self._fixed
        return min(self.sigma * (1 + 1 / math.sqrt(self._above()[1] + PRIOR_RUNS)), SIGMA_CEILING)

    def _above(self) -> tuple[float, int]:
        """Sum of squares and number of runs above expectation."""
        if self._estimate is None:
            squares, runs = 0.0, 0
            for kind, logs in self._logs.items():
                usual = self._usual(kind)
                if kind[0] == POOL or usual is None:
                    continue
                above = logs[bisect.bisect_right(logs, usual) :]
                squares += sum((log - usual) ** 2 for log in above)
                runs += len(above)
            self._estimate = squares, runs
        return self._estimate

    def learn(self, trial: Trial) -> None:
        """Take one finished run into the estimates."""
        if trial.passed and trial.binding and not self._met:
            self._met = True
            self._weights.clear()
        if trial.outcome != "measured" or not _usable(trial.value) or (trial.binding and trial.passed is False):
            return
        log = math.log(t.cast(float, trial.value) / (trial.expected or 1.0))
        for kind in (_kind(trial), _pool(trial)):
            bisect.insort(self._logs.setdefault(kind, []), log)
            self._groups.setdefault(kind, set()).add(trial.nodes)
            if not trial.binding:
                self._unbound.add(kind)
        self._estimate = None
        self._usuals.clear()
        self._weights.clear()

    def _usual(self, kind: Kind) -> float | None:
        if kind not in self._usuals:
            self._usuals[kind] = self._median(kind)
        return self._usuals[kind]

    def _median(self, kind: Kind) -> float | None:
        """What a healthy run of this kind shows: ln(value), or ln(value / expected) when the caller expects something."""
        relative = kind[-1]
        logs = self._logs.get(kind, [])
        # Where no criterion judges, two groups must do: the better one shows what the other should reach.
        enough = BASELINE_RUNS - 1 if kind in self._unbound else BASELINE_RUNS
        if len(logs) < enough and relative:
            logs = self._logs.get((POOL, "", 0, True), [])
        if len(logs) < enough or (not relative and len(self._groups[kind]) < enough):
            return 0.0 if relative else None
        median = logs[len(logs) // 2]
        if not relative:
            return median
        if _is_floor(median, len(logs)):
            return median
        # Few runs of this kind: the others tell whether what the caller expects is a floor.
        pool = self._logs.get((POOL, "", 0, True), [])
        return median if pool and median > FLOOR_MARGIN and _is_floor(pool[len(pool) // 2], len(pool)) else 0.0

    def expected(self, trial: Trial) -> float | None:
        """The value a healthy group would show in this test, None when nothing is known."""
        usual = self._usual(_kind(trial))
        return None if usual is None else math.exp(usual) * (trial.expected or 1.0)

    def deviation(self, trial: Trial) -> float | None:
        """ln(measured / expected), None when either is unknown."""
        expected = self.expected(trial)
        if trial.outcome != "measured" or expected is None or not _usable(trial.value):
            return None
        return math.log(t.cast(float, trial.value) / expected)

    def ratio(self, trial: Trial) -> float | None:
        """measured / expected, None when either is unknown."""
        deviation = self.deviation(trial)
        return None if deviation is None else math.exp(deviation)

    def weight(self, trial: Trial) -> float:
        """The log-likelihood ratio of one run, between -6 and +6; 0 when the run says nothing."""
        known = self._weights.get(trial) if trial.done else None
        if known is None:
            known = self._weigh(trial)
            if trial.done:
                self._weights[trial] = known
        return known

    def _weigh(self, trial: Trial) -> float:
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
        # The value only says how clearly: the user's criterion, if it binds, says on which side a run is. A limit that
        # nobody has met yet says nothing of a run that is as good as expected.
        by_fleet = trial.expected is None or self._usual(_kind(trial)) != 0
        if verdict is None or not trial.binding or weight * verdict >= 0 or not (by_fleet or self._met):
            return weight
        return verdict if by_fleet else math.copysign(min(abs(weight), BINARY), verdict)

    def differ(self, runs: t.Sequence[Trial]) -> bool:
        """Whether the losses of runs differ by far more than the noise: then they do not show the same fault."""
        losses = [loss for run in runs if (loss := self.deviation(run)) is not None]
        return len(losses) > 1 and max(losses) - min(losses) > DIFFERENT * self.sigma

    def alike(self, runs: t.Sequence[Trial]) -> list[Trial]:
        """The most of these runs that show the same loss; a run without a value is like any other."""
        losses = [(self.deviation(run), run) for run in runs]
        groups = [
            [run for other, run in losses if other is None or abs(other - loss) <= DIFFERENT * self.sigma / 2]
            for loss, _run in losses
            if loss is not None
        ]
        return max(groups, key=len, default=list(runs))

    def met(self, runs: t.Sequence[Trial], *, last: bool = False) -> bool | None:
        """Whether repeated runs of one group meet the criterion: their mean decides. None: too close to tell, run it again.

        last: there will be no further run.

        The limit lies between the best run that missed it and the worst that met it. Where no run missed it, it is taken
        to be no higher than where a healthy and a faulty group are told apart.
        """
        missed = [run for run in runs if run.passed is False and run.binding]
        if len(missed) == len(runs) and len(runs) > 1:
            return False
        expected: float | None = None
        logs = [math.log(t.cast(float, run.value)) for run in runs if _usable(run.value)]
        if len(logs) < len(runs) or not missed:
            expected = self.expected(runs[0]) if len(logs) == len(runs) else None
            if missed or expected is None:
                lead = len(runs) - 2 * len(missed)
                return None if missed and abs(lead) < 2 and not last else lead > 0
            limit = math.log(expected) + FAULT_SHIFT / 2
        else:
            worst = max(math.log(t.cast(float, run.value)) for run in missed)
            best = min((math.log(t.cast(float, run.value)) for run in runs if run not in missed), default=worst)
            expected = self.expected(runs[0])
            # As far as these runs allow, where a healthy and a faulty group are told apart.
            limit = (worst + best) / 2 if expected is None else min(max(math.log(expected) + FAULT_SHIFT / 2, worst), best)
        mean = sum(logs) / len(logs)
        margin = mean - limit
        if not missed and expected is not None and mean - math.log(expected) > FAULT_SHIFT / 3:
            return True  # nearer to healthy than to the limit
        return None if abs(margin) < DECIDED * self.sigma / math.sqrt(len(logs)) and not last else margin > 0

    def foreign(self, trial: Trial) -> bool:
        """Whether the criterion that judged a run of one node may have been made for groups: nothing else is known of it."""
        return trial.outcome == "measured" and _usable(trial.value) and trial.expected is None and self._usual(_kind(trial)) is None

    def strong(self, trial: Trial) -> bool:
        """True for a failure too deep to be noise."""
        if self.weight(trial) < FAIL:
            return False
        deviation = self.deviation(trial)
        if deviation is None:
            return trial.outcome == "failed"
        return deviation < math.log(STRONG_RATIO) and deviation < -6 * self.sigma


def _is_floor(median: float, runs: int) -> bool:
    """Whether runs lie so far above what is expected that it must be a floor."""
    return median > FLOOR_MARGIN + FLOOR_DOUBT / math.sqrt(runs)


def _usable(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _kind(trial: Trial) -> Kind:
    """Runs are comparable when shape, transport and size class (next power of two) agree."""
    return trial.shape, trial.transport, (len(trial.nodes) - 1).bit_length(), _usable(trial.expected)


def _pool(trial: Trial) -> Kind:
    """All runs with an expected value, for kinds of which there are too few."""
    return POOL, "", 0, _usable(trial.expected)
