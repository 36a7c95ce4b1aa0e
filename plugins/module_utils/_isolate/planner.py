# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The door to fault isolation: `start`, `next_step`, `conclude`, `history`. Pure functions over plain JSON.

The state holds the request and the results, and every call recomputes the search from them. So a run that was
interrupted goes on from the last saved state, and the same results always lead to the same tests and conclusion.
"""

from __future__ import annotations

import typing as t

from . import closure, explain, story
from .search import Search
from .state import State, checked_results, checked_state, new_state
from .trial import Trial
from .waves import Task, usual_minutes


class Session:
    """A search in memory. The functions below rebuild one from a state; a simulation may keep one and save the replay."""

    def __init__(self, state: State) -> None:
        self.search = Search(state)
        self._main: Task = self.search.spawn(closure.program(self.search))
        self._go()

    def _go(self) -> None:
        self.search.advance(self._main)
        if not self.search.stopped:
            self.search.next_wave()

    @property
    def wave(self) -> list[Trial]:
        """The tests to run now; empty when the search has ended."""
        return self.search.outstanding

    def ids(self) -> list[str]:
        """The ids of those tests."""
        return [trial.id for trial in self.wave]

    def deliver(self, results: t.Sequence[dict[str, t.Any]]) -> None:
        """Results of the wave, one for each test and in its order."""
        self.search.deliver(results)
        self._go()


def start(nodes: list[dict[str, t.Any]], options: dict[str, t.Any] | None = None) -> State:
    """A new state.

    nodes:   [{name, domain: str or null, levels: {level: switch above the domain}}]
    options: max_concurrent (0: no limit), min_group_size (2), mnnvl (false), sigma (null: estimated), limits, budget
             {waves, tests, node_minutes} (null: none), likely_healthy (false), soak (false), seed (0),
             prior_evidence [result + transport + nodes].
    Raises InputError.
    """
    return new_state(nodes, options)


def next_step(state: State, results: list[dict[str, t.Any]] | None = None) -> tuple[State, dict[str, t.Any]]:
    """Take in the results of the wave before and say what comes next.

    results: [{id, outcome: measured|failed|unmeasured, value, expected, passed, reason, log, minutes, lost: [nodes]}];
             empty or None asks again for the outstanding wave. A test of the wave without a result counts as unmeasured.
    Returns the new state (the one given is not changed) and {"wave": [tests]} or {"conclusion": {...}}.
    Raises InputError for a result that belongs to no test of the wave.
    """
    session = resume(state)
    if results:
        checked = checked_results(results, session.ids(), session.search.index)
        state = {**state, "results": [*state["results"], checked]}
        session.deliver(checked)
    if session.wave:
        return state, {"wave": [_test(session.search, trial) for trial in session.wave]}
    return state, {"conclusion": explain.conclude(session.search)}


def conclude(state: State) -> dict[str, t.Any]:
    """The conclusion of a finished run, or what can be said now; with every test in `tests`, the `domains` and the `story`."""
    session = Session(checked_state(state))
    known = []
    for results in state["results"]:
        session.deliver(results)
        known.append(story.standing(session.search))
    search = session.search
    return {**explain.conclude(search), **history(search), "story": story.story(search, known)}


def progress(state: State) -> dict[str, t.Any]:
    """One look at a running search.

    Returns {wave, tests, nodes, cleared: how many are known good, accused: [names], suspected: [who and why], standing: both in a
    sentence, purposes and asks: what this wave does and what it is to show, minutes: what it usually takes}.
    """
    search = resume(state).search
    return {
        "wave": search.wave,
        "tests": search.tests,
        "nodes": len(search.names),
        "cleared": story.known_good(search),
        "accused": sorted(search.names[node] for node in search.accused),
        "suspected": story.suspected(search),
        "standing": story.standing(search),
        "purposes": sorted({trial.purpose for trial in search.outstanding}),
        "asks": story.asked(search.outstanding),
        "minutes": round(max((usual_minutes(len(trial.nodes)) for trial in search.outstanding), default=0.0), 1),
    }


def resume(state: State) -> Session:
    """The search as it stood when `state` was saved."""
    session = Session(checked_state(state))
    for results in state["results"]:
        session.deliver(results)
    return session


def history(search: Search) -> dict[str, t.Any]:
    """Every test that has a result, oldest first, and the domains as the search used them."""
    tests = []
    for trial in sorted(search.trials, key=lambda trial: (trial.wave, trial.id)):
        item = explain.entry(search, trial)
        item["nodes"] = [search.names[node] for node in trial.nodes]
        tests.append(item)
    domains = [{"name": unit.name, "real": unit.real, "nodes": [search.names[node] for node in unit.nodes]} for unit in search.units]
    return {"tests": tests, "domains": domains}


def _test(search: Search, trial: Trial) -> dict[str, t.Any]:
    return {
        "id": trial.id,
        "shape": trial.shape,
        "transport": trial.transport,
        "nodes": [search.names[node] for node in trial.nodes],
        "purpose": trial.purpose,
        "hypothesis": trial.hypothesis,
    }
