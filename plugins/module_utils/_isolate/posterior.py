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
}
PAIR_ODDS = 4e-5  # that one given node has a bad way to some other one: each of them is one of many
SOAK_ODDS = 1e-3  # that a node fails now and then, where a soak was asked for
SHARED_ODDS = 0.05  # that a node with one bad way has another
LEAST = 0.90  # below this a suspect stays a suspect
MOST = 0.994  # the model itself is wrong more often than the rest
USUAL_RATE, USUAL_RUNS = 1 / 400, 40  # runs that are slow by chance, before any were seen; worth so many runs
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
    """Probabilities: of a bad pair, of failures by chance, and of each end that it fails now and then."""

    bad: float
    chance: float
    ends: tuple[float, ...]
    again: bool  # both once more tells more than each with another

    @property
    def end(self) -> float:
        """Of either end."""
        return sum(self.ends)


def pair(
    together: tuple[int, int],
    ends: t.Sequence[tuple[int, int]],
    rate: float,
    partners: int,
    unsteady_odds: float = PRIOR_ODDS["intermittent"],
) -> Pair:
    """How likely a bad pair is, against an end that fails now and then, and against chance.

    together: (failed, passed) tests with both ends. ends: for each end (failed, passed) tests without the other.
    unsteady_odds: that a node fails now and then, before anything was run.
    partners: nodes that the other end may have been. Whatever an end does, it looks like a bad way to one of them for a
    while: the tests that led to this one tell little between the two.
    """
    failed, passed = together
    others = sum(end[0] for end in ends)
    logs = [math.log(PAIR_ODDS / max(1, partners)) + passed * math.log(rate) + others * math.log(rate)]
    logs.append((failed + others) * math.log(rate))
    for missed, met in ends:
        hits, misses = failed + missed, passed + met
        elsewhere = (others - missed) * math.log(rate)
        # How often such an end fails is not known: any share is as likely as any other.
        logs.append(math.log(unsteady_odds) + _log_beta(hits, misses) + elsewhere)
    top = max(logs)
    bad, chance, *unsteady_ends = (math.exp(log - top) for log in logs)
    whole = bad + chance + sum(unsteady_ends)
    # The likelier end has failed and passed so often; the test that makes both equal tells most of it.
    at = unsteady_ends.index(max(unsteady_ends))
    open_ = bad > whole * (1 - LEAST) and failed + ends[at][0] <= passed + ends[at][1]
    again = chance > sum(unsteady_ends) or open_
    return Pair(min(MOST, bad / whole), chance / whole, tuple(end / whole for end in unsteady_ends), again)


def end_of_several(pairs: int, inside: tuple[int, int], outside: tuple[int, int], rate: float, partners: int) -> float:
    """How likely a node fails now and then that is the end of several blamed pairs, against these pairs being bad.

    inside: (failed, passed) tests with another end of these pairs; outside: without.
    """
    bad = math.log(PAIR_ODDS / max(1, partners)) + (pairs - 1) * math.log(SHARED_ODDS / max(1, partners))
    bad += (inside[1] + outside[0]) * math.log(rate)
    end = math.log(PRIOR_ODDS["intermittent"]) + _log_beta(inside[0] + outside[0], inside[1] + outside[1])
    return 1 / (1 + math.exp(min(bad - end, 700.0)))


def _log_beta(hits: int, misses: int) -> float:
    """The log of the chance of these tests in this order, on average over all shares of failures."""
    return math.lgamma(hits + 1) + math.lgamma(misses + 1) - math.lgamma(hits + misses + 2)


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
