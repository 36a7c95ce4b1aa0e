# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the search as many small procedures at once, wave by wave.

A procedure is a generator. It asks for tests, yields what it waits for, and goes on when all of that is done; so the
method reads like a recipe while independent branches advance in the same wave. The engine picks each wave: tests that
share no node, oldest first, at most `max_concurrent`.
"""

from __future__ import annotations

import dataclasses
import math
import typing as t
from collections import Counter

from .evidence import Evidence
from .node_sets import Nodes, Unit, make_units, upper_levels
from .state import State
from .trial import Trial


@dataclasses.dataclass(eq=False)
class Task:
    """A running procedure: done with a value, or waiting for trials and other tasks."""

    steps: Steps
    waits: t.Sequence[Trial | Task] = ()
    done: bool = False
    value: t.Any = None


Steps = t.Generator[t.Sequence[Trial | Task], None, t.Any]


class Engine:
    """Tests, waves, budgets, lost nodes. Knows nothing of faults."""

    def __init__(self, state: State) -> None:
        self.options: dict[str, t.Any] = state["options"]
        self.limits: dict[str, int] = self.options["limits"]
        self.names: list[str] = [name for name, _domain in state["nodes"]]
        self.index = {name: number for number, name in enumerate(self.names)}
        self.units: list[Unit] = make_units([domain for _name, domain in state["nodes"]], self.options["mnnvl"])
        self.levels = upper_levels(self.units, self.index, state.get("levels", {}))
        self.unit_of = {node: number for number, unit in enumerate(self.units) for node in unit.nodes}
        self.evidence = Evidence(self.options["sigma"])
        self.trials: list[Trial] = []
        self.of_node: dict[int, list[Trial]] = {node: [] for node in range(len(self.names))}
        self.pending: list[Trial] = []
        self.outstanding: list[Trial] = []
        self.lost: dict[int, str] = {}
        self.never: list[Trial] = []  # tests that never could be measured
        self.wave = 0
        self.tests = 0
        self.node_minutes = 0.0
        self.wall_minutes = 0.0
        self.stopped = ""
        self.finished = False
        self._tasks: list[Task] = []
        self._priors: dict[tuple[Nodes, str], list[dict[str, t.Any]]] = {}
        for prior in self.options["prior_evidence"]:
            if prior["usable"] and prior["outcome"] != "unmeasured":
                nodes = tuple(sorted({self.index[name] for name in prior["nodes"]}))
                self._priors.setdefault((nodes, prior["transport"] if len(nodes) > 1 else "net"), []).append(prior)

    # ----- procedures -----

    def spawn(self, steps: Steps) -> Task:
        """Start a procedure; it advances by itself."""
        task = Task(steps)
        self._tasks.append(task)
        return task

    def all_of(self, procedures: t.Iterable[Steps]) -> Steps:
        """Run procedures side by side; returns their values in order."""
        tasks = [self.spawn(steps) for steps in procedures]
        if tasks:
            yield tasks
        return [task.value for task in tasks]

    def advance(self, main: Task) -> None:
        """Let every procedure go on as far as it can; sets `finished` when the main one ends."""
        moved = True
        while moved and not main.done:
            moved = False
            for task in list(self._tasks):
                while not task.done and all(item.done for item in task.waits):
                    moved = True
                    try:
                        task.waits = next(task.steps)
                    except StopIteration as end:
                        task.done, task.value, task.waits = True, end.value, ()
            self._tasks = [task for task in self._tasks if not task.done]
        self.finished = main.done

    # ----- tests -----

    def shape_of(self, nodes: Nodes, transport: str) -> str:
        """single, domain-nvl, domain-net or cross."""
        if len(nodes) == 1:
            return "single"
        home = self.unit_of[nodes[0]]
        return f"domain-{transport}" if all(self.unit_of[node] == home for node in nodes) else "cross"

    def ask(
        self,
        nodes: t.Iterable[int],
        transport: str,
        purpose: str,
        hypothesis: str,
        *,
        avoid: t.Iterable[int] = (),
        exclusive: bool = False,
    ) -> Trial:
        """Request a test. Evidence from before answers it at once; nodes that were lost are left out.

        avoid: nodes that must not fill a group up to `min_group_size`: a group filled with somebody the fault may be
        between would fail for a reason of its own. exclusive: no other test runs at the same time.
        """
        members = tuple(sorted(node for node in set(nodes) if node not in self.lost))
        transport = transport if len(members) > 1 else "net"
        smallest = self.options["min_group_size"]
        wanted = members
        if 1 < len(members) < smallest:
            members = self._padded(members, transport, frozenset(avoid))
        trial = Trial(self.shape_of(members, transport) if members else "single", transport, members, purpose, hypothesis)
        trial.asked, trial.avoid, trial.exclusive = wanted, frozenset(avoid), exclusive
        prior = self._priors.get((members, transport))
        if not members or 1 < len(members) < smallest:
            trial.take({"outcome": "unmeasured", "reason": self._too_few(wanted)})
        elif prior:
            trial.id = f"w00-{sum(1 for other in self.trials if not other.wave) + 1:02d}"
            trial.take(prior.pop(0))
            self._record(trial)
        else:
            self.pending.append(trial)
        return trial

    def spare_partners(self, members: t.Iterable[int], transport: str) -> t.Iterable[int]:
        """Known-good nodes to fill a group with; the search overrides it."""
        return ()

    def _padded(self, members: Nodes, transport: str, avoid: frozenset[int]) -> Nodes:
        taken = {node for trial in self.pending for node in trial.nodes}
        # Others each time: what two failed tests have in common must be the nodes that were asked for.
        met = Counter(node for member in members for trial in self.of_node[member] for node in trial.nodes)
        spare = [node for node in self.spare_partners(members, transport) if node not in self.lost and node not in avoid]
        free = sorted(spare, key=lambda node: (met[node], node in taken))
        return tuple(sorted([*members, *free[: self.options["min_group_size"] - len(members)]]))

    def _too_few(self, nodes: Nodes) -> str:
        smallest = self.options["min_group_size"]
        return f"{len(nodes)} nodes and no known-good ones to reach min_group_size {smallest}" if nodes else "its nodes were lost"

    def untouched_priors(self, singles: bool) -> list[tuple[Nodes, str, dict[str, t.Any]]]:
        """Evidence from before that no request has used yet: of single nodes, or of groups."""
        return [
            (nodes, transport, prior)
            for (nodes, transport), priors in sorted(self._priors.items())
            for prior in priors
            if (len(nodes) == 1) == singles
        ]

    def _record(self, trial: Trial) -> None:
        self.trials.append(trial)
        for node in trial.nodes:
            self.of_node[node].append(trial)
        self.evidence.learn(trial)

    # ----- waves -----

    def next_wave(self) -> list[Trial]:
        """The tests to run now; empty when nothing is left or the budget is spent (see `stopped`)."""
        if self.finished or not self.pending:
            return []
        budget = self.options["budget"]
        room = self.options["max_concurrent"] or len(self.pending)
        if budget["tests"] is not None:
            room = min(room, int(budget["tests"]) - self.tests)
        if room <= 0:
            self.stopped = f"the budget of {int(budget['tests'])} tests is spent"
        elif budget["waves"] is not None and self.wave >= budget["waves"]:
            self.stopped = f"the budget of {int(budget['waves'])} waves is spent"
        if self.stopped:
            return []
        busy: set[int] = set()
        chosen: list[Trial] = []
        minutes = 0.0
        for trial in self.pending:
            if len(chosen) == room or (chosen and chosen[0].exclusive):
                break
            if trial.exclusive and chosen:
                continue
            if busy.isdisjoint(trial.nodes):
                cost = len(trial.nodes) * usual_minutes(len(trial.nodes))
                if budget["node_minutes"] is not None and self.node_minutes + minutes + cost > budget["node_minutes"]:
                    continue
                minutes += cost
                chosen.append(trial)
                busy.update(trial.nodes)
        if not chosen:
            self.stopped = f"the budget of {budget['node_minutes']:g} node-minutes is spent"
            return []
        self.wave += 1
        picked = set(map(id, chosen))
        self.pending = [trial for trial in self.pending if id(trial) not in picked]
        for number, trial in enumerate(chosen):
            trial.wave, trial.id = self.wave, f"w{self.wave:02d}-{number + 1:02d}"
        self.outstanding = chosen
        return chosen

    def deliver(self, results: t.Sequence[dict[str, t.Any]]) -> None:
        """Take in the results of the outstanding wave, in its order."""
        longest = 0.0
        for trial, result in zip(self.outstanding, results, strict=True):
            for name in result.get("lost", ()):
                self.lost.setdefault(self.index[name], result.get("reason") or "lost during the run")
            minutes = result.get("minutes") or usual_minutes(len(trial.nodes))
            longest = max(longest, minutes)
            self.tests += 1
            self.node_minutes += minutes * len(trial.nodes)
            if result["outcome"] == "unmeasured":
                self._again(trial, result)
            else:
                trial.take(result)
                self._record(trial)
        self.wall_minutes += longest
        self.outstanding = []
        self._drop_lost()
        if not any(trial.wave for trial in self.trials) and not self.pending and self._hopeless():
            self.stopped = "no test could be measured"

    def _hopeless(self) -> bool:
        """Nothing was ever measured, and no two nodes whose tests never start would explain it."""
        apart: list[set[int]] = []
        for nodes in (trial.nodes for trial in self.never):
            if all(seen.isdisjoint(nodes) for seen in apart):
                apart.append(set(nodes))
        return len(apart) > 2

    def _again(self, trial: Trial, result: dict[str, t.Any]) -> None:
        """Not the nodes' fault: run it again, a few times; it never becomes evidence."""
        trial.unmeasured.append({"id": trial.id, "reason": result.get("reason", "")})
        if len(trial.unmeasured) < self.limits["unmeasured_runs"]:
            self.pending.insert(0, trial)
        else:
            trial.take(result)
            self.never.append(trial)

    def _drop_lost(self) -> None:
        """Waiting tests go on without the lost nodes; one that became too small is filled up again or dropped."""
        if not self.lost:
            return
        kept = []
        for trial in self.pending:
            nodes = tuple(node for node in trial.nodes if node not in self.lost)
            if nodes == trial.nodes:
                kept.append(trial)
                continue
            trial.asked = tuple(node for node in trial.asked if node not in self.lost)
            gone = not trial.asked or (len(trial.asked) == 1 and len(trial.nodes) > 1)
            if not gone and 1 < len(nodes) < self.options["min_group_size"]:
                nodes = self._padded(nodes, trial.transport, trial.avoid)
                gone = len(nodes) < self.options["min_group_size"]
            trial.nodes = nodes
            if gone:
                trial.take({"outcome": "unmeasured", "reason": "its nodes were lost" if len(trial.asked) < 2 else self._too_few(nodes)})
                continue
            trial.shape = self.shape_of(nodes, trial.transport)
            kept.append(trial)
        self.pending = kept


def usual_minutes(size: int) -> float:
    """Minutes a job of this many nodes usually takes; the caller's own figures win."""
    return 2.5 + 0.25 * math.log2(size)
