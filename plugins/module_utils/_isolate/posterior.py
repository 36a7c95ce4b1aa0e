# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How sure an accusation is: prior odds of a component of its class, times what the tests say.

Evidence is a log-likelihood ratio (see `evidence`). A run may also be slow by chance (congestion, a neighbour's job):
no single run counts more than the log of one over the rate at which that happens, and that rate is estimated from
failures that did not repeat.
"""

from __future__ import annotations

import math

# Odds that one given component of a class is bad before anything was run. A pair is one of very many.
PRIOR_ODDS = {
    "node": 5e-3,
    "nic": 5e-3,
    "nvl": 5e-3,
    "intermittent": 2e-4,
    "rack-boundary": 1e-3,
    "partition": 1e-4,
    "pair": 1e-5,
}
LEAST = 0.90  # below this a suspect stays a suspect
MOST = 0.994  # the model itself is wrong more often than the rest
USUAL_RATE, USUAL_RUNS = 1 / 400, 100  # runs that are slow by chance, before any were seen; worth so many runs
BUSY_RATE = 0.01
SELDOM, OFTEN = 0.3, 0.95  # how often an intermittent node shows, at least and at most


def confidence(kind: str, strength: float) -> float:
    """The probability that the component is at fault, given the evidence `strength` and the prior odds of its class."""
    log_odds = min(math.log(PRIOR_ODDS[kind]) + strength, 50.0)
    return min(MOST, 1 / (1 + math.exp(-log_odds)))


def convicts(kind: str, strength: float) -> bool:
    """Whether that is enough to hold the component responsible."""
    return confidence(kind, strength) >= LEAST


def outlier_rate(unrepeated: int, runs: int) -> float:
    """Share of runs that are slow by chance, from the failures that did not repeat."""
    return (USUAL_RATE * USUAL_RUNS + unrepeated) / (USUAL_RUNS + runs)


def unsteady(failed: int, passed: int, rate: float) -> float:
    """Evidence that a node fails now and then: `failed` and `passed` tests with it, against slow runs by chance.

    Many nodes are looked at until one stands out, so the rate of chance is taken for no lower than on a busy cluster.
    """
    rate = max(rate, BUSY_RATE)
    share = min(max(failed / max(1, failed + passed), SELDOM), OFTEN)
    return failed * math.log(share / rate) + passed * math.log((1 - share) / (1 - rate))
