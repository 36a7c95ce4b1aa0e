# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How sure an accusation is: prior odds of a component of its class, times what the tests say.

Evidence is a log-likelihood ratio (see `evidence`). A run may also be slow by chance (congestion, a neighbour's job):
no single run counts more than the log of one over the rate at which that happens, and that rate is estimated from
failures that did not repeat.
"""

from __future__ import annotations

import math
import statistics
import typing as t

# Odds that one given component of a class is bad before anything was run. A pair is one of very many.
PRIOR_ODDS = {
    "node": 5e-3,
    "nic": 5e-3,
    "node or nic": 5e-3,
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


class Pair(t.NamedTuple):
    """Probabilities: of a bad pair, of failures by chance, and of an end that fails now and then."""

    bad: float
    chance: float
    end: float


def pair(together: tuple[int, int], ends: t.Sequence[tuple[int, int]], rate: float) -> Pair:
    """How likely a bad pair is, against an end that fails now and then, and against chance.

    together: (failed, passed) tests with both ends. ends: for each end (failed, passed) tests without the other.
    """
    failed, passed = together
    others = sum(end[0] for end in ends)
    logs = [math.log(PRIOR_ODDS["pair"]) + passed * math.log(rate) + others * math.log(rate)]
    logs.append((failed + others) * math.log(rate))
    for missed, met in ends:
        hits, tries = failed + missed, failed + missed + passed + met
        share = min(max(hits / max(1, tries), SELDOM), OFTEN)
        elsewhere = (others - missed) * math.log(rate)
        logs.append(math.log(PRIOR_ODDS["intermittent"]) + hits * math.log(share) + (tries - hits) * math.log(1 - share) + elsewhere)
    top = max(logs)
    bad, chance, *unsteady_ends = (math.exp(log - top) for log in logs)
    whole = bad + chance + sum(unsteady_ends)
    return Pair(min(MOST, bad / whole), chance / whole, sum(unsteady_ends) / whole)


# ----- nodes that were tested alone -----

UNKNOWN_CHANCE = 0.02  # of a healthy node to miss a limit, where nothing is known of the limit
SUDDEN = 1 / 400  # of a healthy node to crash or hang
UNSTEADY_SHARE = 0.1  # of bad nodes fail only now and then


def chance_of_missing(values: t.Sequence[float], limit: float) -> float:
    """How likely a healthy node misses the limit: from the spread of those that met it."""
    logs = sorted(math.log(value) for value in values if value > 0)
    if len(logs) < 5 or limit <= 0:
        return UNKNOWN_CHANCE
    middle = statistics.median(logs)
    sigma = max(1.4826 * statistics.median(abs(log - middle) for log in logs), 0.002)
    return min(max(0.5 * math.erfc((middle - math.log(limit)) / sigma / math.sqrt(2)), 1e-4), 0.5)


def alone(failures: int, nodes: int, chance: float, repeat_failed: bool) -> float:
    """The probability that a node is bad that failed alone once, and again or not.

    failures: of `nodes` nodes that were tested alone; chance: of a healthy node to fail such a test. What chance
    explains of the failures says nothing of the nodes: many that fail near a limit are no better witnesses than one.
    """
    expected = max(nodes * chance, 1e-12)
    odds = max(failures - expected, 0.1 * failures) / expected
    odds *= 1 / chance if repeat_failed else UNSTEADY_SHARE * 0.5 / (1 - chance)
    return min(MOST, odds / (1 + odds))
