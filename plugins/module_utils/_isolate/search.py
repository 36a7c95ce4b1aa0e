# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whom the tests accuse, and how surely.

The procedures in `suspects`, `pairs`, `links`, `boundaries` and `closure` work on one `Search`.
"""

from __future__ import annotations

import itertools
import math
import typing as t

from . import posterior
from .evidence import CLEAR, CLIP, CONVICT, FAIL
from .knowledge import Finding, Knowledge
from .node_sets import Nodes
from .trial import Trial

__all__ = ["Finding", "Search"]

SMALL = 4  # groups up to this size are repeats of their own, not steps on the way to a suspect
WIDE = 64  # larger groups are no witnesses against a single node


class Search(Knowledge):
    """What is known, and what follows from it against single components."""

    def case(self, node: int, transport: str) -> tuple[float, list[Trial], bool]:
        """Evidence against one node alone: its total, the failing tests, and whether nothing else explains them.

        Only tests count in which every other member is known to be good. Nothing else explains them when the node is
        the only one they have in common; a bad pair would show as a second common member. Of the groups that led to
        the suspicion only the smallest counts: they were picked because they failed, so each further one proves less.
        """
        tainted = self.tainted(transport)
        trials = []
        for trial in self.of_node[node]:
            if trial.transport != transport or not 2 <= len(trial.nodes) <= WIDE:
                continue
            if trial.shape == "cross" and not all(self.crosses(unit) for unit in {self.unit_of[member] for member in trial.nodes}):
                continue
            others = set(trial.nodes) - {node}
            one_side = transport == "net" or len(others) < 2 or len(self.sides(others, transport, self.home(node))) == 1
            if others <= self.cleared[transport] and not others & tainted and one_side:
                trials.append(trial)
        failing = [trial for trial in trials if self.evidence.weight(trial) > 0]
        if all(trial.shape == "cross" for trial in failing):
            # Nothing failed inside the domain: then the ways to the others must be known to work.
            trials = [trial for trial in trials if trial not in failing or self.ways_work(node, trial)]
            failing = [trial for trial in failing if trial in trials]
        smallest = min((len(trial.nodes) for trial in failing if len(trial.nodes) > 2), default=0)
        counted = [trial for trial in trials if trial not in failing or len(trial.nodes) in (2, smallest)]
        witnesses = [trial for trial in failing if trial in counted]
        common = set.intersection(*(set(trial.nodes) for trial in witnesses)) if witnesses else set()
        clip = self.clip(node)
        return sum(min(self.evidence.weight(trial), clip) for trial in counted), witnesses, common == {node}

    def ways_work(self, node: int, trial: Trial) -> bool:
        """Whether neighbours of the node passed together with every other domain of a test."""
        home = set(self.home(node)) - {node}
        if not home:
            return True
        others = {self.unit_of[mate] for mate in trial.nodes} - {self.unit_of[node]}
        return all(
            any(not home.isdisjoint(members) and not members.isdisjoint(self.units[other].nodes) for members in self.passes["net"])
            for other in others
        )

    def clip(self, node: int) -> float:
        """The most that one run counts against a node, see `posterior`."""
        return min(CLIP, -math.log(self.outlier_rate(node)))

    def outlier_rate(self, node: int, *, repeated: bool = True) -> float:
        """Share of the runs without this node that were slow by chance: nothing explains them, and they did not repeat."""
        version = (len(self.trials), self.changes, len(self.passes["net"]) + len(self.passes["nvl"]))
        if self._chance[0] != version:
            slow = [
                (trial, self.passed_together(trial.nodes, trial.transport) is not None)
                for trial in self.trials
                if trial.outcome == "measured" and len(trial.nodes) > 1 and self.evidence.strong(trial) and not self.explained(trial)
            ]
            self._chance = version, slow
        seen = sum(node not in trial.nodes and (passed or not repeated) for trial, passed in self._chance[1])
        return posterior.outlier_rate(seen, len(self.trials))

    def try_to_convict(self, node: int, transport: str) -> bool:
        """Accuse the node if two witnesses that share nothing else carry it."""
        total, failing, alone = self.case(node, transport)
        strongest = max((self.evidence.weight(trial) for trial in failing), default=0.0)
        enough = total >= CONVICT and posterior.convicts("node", total)
        if not enough or total - strongest < FAIL or len(failing) < 2 or not alone:
            return False
        if transport == "nvl" and not self._failed_on_every_side(node, failing):
            return False
        self.accuse(node, transport, total, failing)
        return True

    def _failed_on_every_side(self, node: int, failing: list[Trial]) -> bool:
        """Whether the node failed with each group of its domain that works together: else it may belong to another side."""
        good = [mate for mate in self.home(node) if mate != node and self.good(mate, "nvl")]
        met = {mate for trial in failing for mate in trial.nodes}
        return all(met & set(side) for side in self.sides(good, "nvl"))

    def unsteadiness(self, node: int, transport: str, apart: t.Collection[int] = ()) -> tuple[float, list[Trial]]:
        """Evidence that a node fails now and then, from its tests that nothing else explains; and the failed ones.

        Only failures with others that it passed with too: it fails now and then. Of the large groups that led to the
        node only the smallest counts: they were picked because they failed. Only failures of the same loss: runs that are
        slow by chance differ.
        apart: nodes whose tests with this one do not count.
        """
        failed: list[Trial] = []
        passed: list[Trial] = []
        mine = [self.accused[node]] if node in self.accused else []
        for trial in self.of_node[node]:
            if trial.transport != transport or not 2 <= len(trial.nodes) <= WIDE or self.explained(trial, without=mine, end=node):
                continue
            weight = self.evidence.weight(trial)
            if weight <= CLEAR:
                passed.append(trial)
            elif weight >= FAIL and not set(apart) & set(trial.nodes):
                failed.append(trial)
        # A failure with somebody it never passed with may be a bad way to them.
        known = {mate for trial in passed for mate in trial.nodes}
        failed = [trial for trial in failed if known.issuperset(trial.nodes)]
        large = sorted((trial for trial in failed if len(trial.asked or trial.nodes) > SMALL), key=lambda trial: len(trial.nodes))
        failed = self.evidence.alike([trial for trial in failed if trial not in large[1:]])
        return posterior.unsteady(len(failed), len(passed), self.outlier_rate(node, repeated=False)), failed

    def sure(self, finding: Finding, kind: str) -> float:
        """How sure a finding is, shown as class `kind`: a probability, see `posterior`. 0 for what names no component."""
        if kind in ("unresolved", "irreproducible"):
            return 0.0
        if kind == "pair":
            return self.pair_odds(finding).bad
        if kind == "intermittent":
            node = finding.left[0]
            shown = [trial for trial in finding.witnesses if len(trial.nodes) > 1 and self.evidence.weight(trial) > 0]
            passed = sum(
                trial.transport == finding.transport and len(trial.nodes) > 1 and self.evidence.weight(trial) <= CLEAR
                for trial in self.of_node[node]
            )
            shown = self.evidence.alike(shown)
            rate = self.outlier_rate(node, repeated=False)
            now_and_then = posterior.confidence(kind, posterior.unsteady(len(shown), passed, rate))
            # Accused as a bad node, it passed later: what speaks against it is then less, and may still be enough.
            always = 0.0 if finding.kind_of_node == "intermittent" else posterior.confidence("node", self.case(node, finding.transport)[0])
            return max(now_and_then, always, finding.sure)
        clip = self.clip(finding.left[0])
        weights = sorted((min(self.evidence.weight(trial), clip) for trial in finding.witnesses), reverse=True)
        return posterior.confidence(kind, min(finding.strength, sum(weight for weight in weights if weight > 0)))

    def pair_odds(self, finding: Finding) -> posterior.Pair:
        """What the tests of both ends say: a bad pair, an end that fails now and then, or chance."""
        one, two = finding.left[0], finding.right[0]
        both, first = self._counts(one, {two}, finding.transport, [finding])
        _same, second = self._counts(two, {one}, finding.transport, [finding])
        unsteady = posterior.SOAK_ODDS if self.options["soak"] else posterior.PRIOR_ODDS["intermittent"]
        return posterior.pair(both, [first, second], self.outlier_rate(one), self._partners(one, two), unsteady)

    def end_odds(self, node: int, pairs: t.Sequence[Finding]) -> float:
        """How likely a node fails now and then that is an end of these pairs."""
        if len(pairs) == 1:
            return self.pair_odds(pairs[0]).ends[pairs[0].right == (node,)]
        others = {end for finding in pairs for end in finding.left + finding.right} - {node}
        inside, outside = self._counts(node, others, pairs[0].transport, pairs)
        partners = min(self._partners(node, other) for other in others)
        return posterior.end_of_several(len(pairs), inside, outside, self.outlier_rate(node), partners)

    def _partners(self, one: int, two: int) -> int:
        """How many nodes the other end of a pair may be: inside the domain, or outside."""
        home = self.home(one)
        return len(home) - 1 if two in home else len(self.names) - len(home)

    def _counts(self, node: int, others: set[int], transport: str, pairs: t.Sequence[Finding]) -> tuple[tuple[int, int], tuple[int, int]]:
        """(failed, passed) tests of a node with any of these others, and without."""
        counts = {True: [0, 0], False: [0, 0]}
        known = self._passed_with(node, transport)
        for trial in self.of_node[node]:
            if trial.transport != transport or len(trial.nodes) < 2:
                continue
            together = not others.isdisjoint(trial.nodes)
            weight = self.evidence.weight(trial)
            if weight <= CLEAR:
                counts[together][1] += 1
            elif weight >= FAIL and not self.explained(trial, without=pairs, end=node):
                # A large group, or one filled with others, has other reasons to fail than this end; and so has one with
                # somebody it never passed with, or whose others never passed.
                small = len(trial.nodes) <= SMALL and known.issuperset(trial.nodes) and self._others_work(node, trial)
                counts[together][0] += together or small
        return (counts[True][0], counts[True][1]), (counts[False][0], counts[False][1])

    def _passed_with(self, node: int, transport: str) -> set[int]:
        """Whom a node passed with."""
        trials = [trial for trial in self.of_node[node] if trial.transport == transport and self.evidence.weight(trial) <= CLEAR]
        return {mate for trial in trials for mate in trial.nodes if len(trial.nodes) > 1}

    def try_end(self, node: int, pairs: t.Sequence[Finding]) -> bool:
        """Accuse an end of blamed pairs of failing now and then, if that explains its tests better than the pairs."""
        sure = self.end_odds(node, pairs)
        if sure < posterior.LEAST:
            return False
        transport = pairs[0].transport
        known = self._passed_with(node, transport)
        trials = [trial for trial in self.of_node[node] if trial.transport == transport and 2 <= len(trial.nodes) <= WIDE]
        failed = [trial for trial in trials if self.evidence.weight(trial) >= FAIL and self._mine(trial, node, pairs, known)]
        outside = [trial for trial in failed if not _holds_any(trial, pairs)]
        if len(pairs) > 1 and self._one_way(node, pairs, known):
            return False
        if not outside and not any(self.passed_together(finding.left + finding.right, transport) for finding in pairs):
            return False  # nothing but its pairs failed, and none of them ever passed: they are what is bad
        if len(pairs) == 1 and len(outside) < 2 and not any(self.evidence.weight(trial) >= CLIP for trial in outside):
            return False  # a single run that may be noise tells nothing of an end
        if len(failed) < 2 or set.intersection(*(set(trial.nodes) for trial in failed)) != {node}:
            return False
        passed = sum(self.evidence.weight(trial) <= CLEAR for trial in trials)
        strength = posterior.unsteady(len(failed), passed, self.outlier_rate(node, repeated=False))
        self.accuse(node, transport, strength, failed, "intermittent")
        self.accused[node].sure = min(sure, posterior.MOST)
        return True

    def _one_way(self, node: int, pairs: t.Sequence[Finding], known: set[int]) -> bool:
        """Whether the pairs of a node all lead to one other domain that it never passed with: the way to it, not the node."""
        homes = {self.unit_of[end] for finding in pairs for end in finding.left + finding.right if end != node}
        return len(homes) == 1 and self.unit_of[node] not in homes and known.isdisjoint(self.units[min(homes)].nodes)

    def _mine(self, trial: Trial, node: int, pairs: t.Sequence[Finding], known: set[int]) -> bool:
        """Whether nothing but the node, or one of these pairs of it, explains a failed test."""
        whole = trial.asked in ((), trial.nodes) and known.issuperset(trial.nodes)  # not filled with others
        mine = _holds_any(trial, pairs) or (whole and self._others_work(node, trial))
        return mine and not self.explained(trial, without=pairs, end=node)

    def _others_work(self, node: int, trial: Trial) -> bool:
        """Whether the others of a failed test work together: all of them, or each two of a few."""
        rest = [mate for mate in trial.nodes if mate != node]
        if len(rest) < 2 or self.passed_together(rest, trial.transport):
            return True
        return len(rest) <= SMALL and all(self.passed_together(two, trial.transport) for two in itertools.combinations(rest, 2))

    def try_unsteady(self, node: int, transport: str, apart: t.Collection[int] = ()) -> bool:
        """Accuse the node of failing now and then, if its failures are too many for chance and share nothing but it."""
        strength, failed = self.unsteadiness(node, transport, apart)
        if len(failed) < 2 or not posterior.convicts("intermittent", strength):
            return False
        if set.intersection(*(set(trial.nodes) for trial in failed)) != {node}:
            return False
        self.accuse(node, transport, strength, failed, "intermittent")
        return True

    def try_common(self, node: int, transport: str, failed: list[Trial]) -> bool:
        """Accuse the one node that all failures have in common, if so many of the same loss are no chance."""
        failed = self.evidence.alike(failed)
        passed = sum(
            len(trial.nodes) > 1 and trial.transport == transport and self.evidence.weight(trial) <= CLEAR for trial in self.of_node[node]
        )
        strength = posterior.unsteady(len(failed), passed, self.outlier_rate(node))
        if len(failed) < 2 or not posterior.convicts("intermittent", strength):
            return False
        self.accuse(node, transport, strength, failed, "intermittent")
        return True

    def crossed(self, nodes: Nodes) -> bool:
        """Whether at least half of a domain passed together with others: its own boundary is good."""
        mine = set(self.span(nodes))
        return any(2 * len(members & mine) >= len(nodes) and not members <= mine for members in self.passes["net"])

    def blame_boundary(self, nodes: Nodes, witnesses: list[Trial]) -> bool:
        """Hold the boundary of a domain responsible, unless it was seen to cross as a whole."""
        if self.crossed(nodes):
            return False
        total = sum(min(self.evidence.weight(trial), CLIP) for trial in witnesses)
        out = set(self.accused) | set(self.lost) | set(self.untested)
        if len(set(self.span(nodes)) - out) == 1:
            # The boundary of a domain with one usable node is the network path of that node.
            self.accuse(nodes[0], "net", total, witnesses)
            return True
        mine = {self.unit_of[node] for node in nodes}
        for finding in list(self.findings):
            if finding.kind == "rack-boundary" and mine & {self.unit_of[node] for node in finding.left + finding.right}:
                self.retract(finding)  # the boundary between this domain and another is now explained
        self.blame(Finding("rack-boundary", "net", nodes, strength=total, witnesses=witnesses))
        return True

    def blame_way(self, finding: Finding) -> None:
        """Hold what is between two sides responsible; of a domain with one usable node it is the network path of that node."""
        out = set(self.accused) | set(self.lost) | set(self.untested)
        left = [set(self.span(side)) - out for side in (finding.left, finding.right)]
        alone = [side for side in left if len(side) == 1]
        if finding.kind == "rack-boundary" and len(alone) == 1 and len(self.units) == 2:
            self.accuse(min(alone[0]), "net", finding.strength, finding.witnesses)
        else:
            self.blame(finding)

    def accuse(self, node: int, transport: str, strength: float, witnesses: list[Trial], kind_of_node: str = "") -> None:
        """Hold one node responsible, and no pair that it is an end of."""
        for finding in list(self.findings):
            if finding.kind == "pair" and node in finding.left + finding.right:
                self.retract(finding)
        for cleared in self.cleared.values():
            cleared.discard(node)
        self.accused[node] = self.blame(
            Finding("node", transport, (node,), kind_of_node=kind_of_node, strength=strength, witnesses=list(witnesses))
        )

    def blame(self, finding: Finding) -> Finding:
        """Record a finding."""
        self.findings.append(finding)
        self.changes += 1
        return finding

    def retract(self, finding: Finding) -> None:
        """Take a finding back."""
        self.findings.remove(finding)
        self.changes += 1
        if finding.kind == "node":
            self.accused.pop(finding.left[0], None)

    def unresolved(self, nodes: t.Iterable[int], transport: str, note: str, witnesses: t.Sequence[Trial] = ()) -> None:
        """Something is wrong among these nodes and the search cannot say what."""
        members = tuple(sorted(node for node in set(nodes) if node not in self.accused and node not in self.lost))
        if members:
            self.blame(Finding("unresolved", transport, members, strength=0.0, witnesses=list(witnesses), note=note))

    def irreproducible(self, nodes: t.Iterable[int], transport: str, witnesses: t.Sequence[Trial] = ()) -> None:
        """Something failed among these nodes and could not be made to fail again."""
        self.blame(Finding("irreproducible", transport, tuple(sorted(nodes)), strength=0.0, witnesses=list(witnesses)))


def _holds_any(trial: Trial, pairs: t.Iterable[Finding]) -> bool:
    """Whether both ends of one of these pairs are in a test."""
    return any(set(finding.left + finding.right) <= set(trial.nodes) for finding in pairs)
