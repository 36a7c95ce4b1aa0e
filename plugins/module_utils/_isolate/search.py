# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the search knows: who is cleared on which transport, who is accused, which components are blamed.

The procedures in `suspects`, `pairs`, `links`, `boundaries` and `closure` work on one `Search`.
"""

from __future__ import annotations

import dataclasses
import math
import random
import typing as t

from . import posterior
from .evidence import CLEAR, CLIP, CONVICT, FAIL, QUIET
from .node_sets import Nodes
from .state import State
from .trial import Trial
from .waves import Engine, Steps

SMALL = 4  # groups up to this size are repeats of their own, not steps on the way to a suspect
WIDE = 64  # larger groups are no witnesses against a single node


@dataclasses.dataclass(eq=False)
class Finding:
    """A component held responsible. kind: node, pair, partition, rack-boundary, irreproducible, unresolved.

    left and right are the two sides of a pair, partition or boundary; of the others left holds the nodes.
    """

    kind: str
    transport: str
    left: Nodes
    right: Nodes = ()
    kind_of_node: str = ""  # node, nic, nvl, intermittent: the class of an accused node, once known
    strength: float = CONVICT
    witnesses: list[Trial] = dataclasses.field(default_factory=list)
    controls: list[Trial] = dataclasses.field(default_factory=list)
    note: str = ""

    @property
    def own_boundary(self) -> bool:
        """True for the boundary of one domain: its nodes are good inside, and no references across."""
        return self.kind == "rack-boundary" and not self.right


class Search(Engine):
    """The engine plus the knowledge gained so far."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.cleared: dict[str, set[int]] = {"net": set(), "nvl": set()}
        self.passes: dict[str, list[frozenset[int]]] = {"net": [], "nvl": []}
        self.pass_trials: dict[str, list[Trial]] = {"net": [], "nvl": []}
        self.fine_alone: set[int] = set()
        self.findings: list[Finding] = []
        self.accused: dict[int, Finding] = {}
        self.untested: dict[int, str] = {}
        self.notes: list[str] = []
        self.proofs: list[Trial] = []
        self.references: list[Trial] = []  # good nodes alone, to compare accused ones with
        self.leftover: list[tuple[list[tuple[Nodes, Trial]], str]] = []
        self.random = random.Random(self.options["seed"])  # noqa: S311 (reproducible shuffles, no secret)
        self.changes = 0
        self._tainted: dict[tuple[str, int, int, int], set[int]] = {}
        self._chance: tuple[tuple[int, int, int], list[tuple[Trial, bool]]] = ((-1, 0, 0), [])
        self.reconsidered: dict[tuple[int, str], list[Finding]] = {}

    # ----- verdict of a group -----

    def total(self, trials: t.Iterable[Trial]) -> float:
        """The evidence of several runs of one group."""
        return sum(self.evidence.weight(trial) for trial in trials)

    def settle(self, first: Trial, *, look_inside: bool = False) -> Steps:
        """Repeat a test until it is clear: pass, fail or untested.

        look_inside: the caller will test the parts anyway, so on a quiet fleet an unclear result is returned as gray.
        """
        yield [first]
        runs = [first]
        while True:
            sum_ = self.total(runs)
            if all(run.outcome == "unmeasured" for run in runs):
                return "untested"
            if first.nodes and not any(self.evidence.weight(run) for run in runs):
                return "untested"  # there is nothing to compare these values with
            if sum_ <= CLEAR:
                break
            if sum_ >= FAIL:
                return "fail"
            if look_inside and self.evidence.sigma <= QUIET:
                return "gray"
            if len(runs) >= self.limits["runs_per_test"]:
                if sum_ >= 0:
                    return "fail"
                break
            run = self.ask(first.nodes, first.transport, f"repeat: {first.purpose}", first.hypothesis)
            yield [run]
            runs.append(run)
        self.clear(runs[-1])
        return "pass"

    def decide(self, nodes: t.Iterable[int], transport: str, purpose: str, hypothesis: str) -> Steps:
        """Test a group until it is clear; returns (verdict, first trial)."""
        trial = self.ask(nodes, transport, purpose, hypothesis)
        verdict = yield from self.settle(trial)
        return verdict, trial

    # ----- cleared nodes -----

    def clear(self, trial: Trial) -> None:
        """The members of a passing group are jointly good on its transport. One node alone says nothing of a network."""
        if len(trial.nodes) < 2:
            self.fine_alone.update(trial.nodes)
            return
        self.cleared[trial.transport].update(trial.nodes)
        self.passes[trial.transport].append(frozenset(trial.nodes))
        self.pass_trials[trial.transport].append(trial)

    def passed_together(self, nodes: t.Iterable[int], transport: str) -> Trial | None:
        """A passing test that contained all of `nodes`, or None."""
        wanted = frozenset(nodes)
        for members, trial in zip(reversed(self.passes[transport]), reversed(self.pass_trials[transport]), strict=True):
            if wanted <= members:
                return trial
        return None

    def proven_inside(self, unit: Nodes) -> bool:
        """True when these nodes of a domain passed together, or the only node passed alone."""
        return unit[0] in self.fine_alone if len(unit) == 1 else self.passed_together(unit, "net") is not None

    def good(self, node: int, transport: str) -> bool:
        """Fit to be a reference: cleared on this transport, neither accused nor an end of a blamed pair, not lost."""
        return node in self.cleared[transport] and node not in self.tainted(transport)

    def tainted(self, transport: str) -> set[int]:
        """Nodes never used as a reference on this transport."""
        version = (transport, self.changes, len(self.lost), len(self.untested))
        if version in self._tainted:
            return self._tainted[version]
        result = set(self.accused) | set(self.lost) | set(self.untested)
        for finding in self.findings:
            between = finding.kind in ("pair", "partition") and finding.transport != transport
            if finding.kind not in ("irreproducible", "rack-boundary") and not between:
                result.update(finding.left, finding.right)
        self._tainted = {version: result}
        return result

    def behind_boundary(self) -> set[int]:
        """Nodes of domains whose boundary is blamed or in doubt: good inside, no references across."""
        homes = {
            self.unit_of[node] for finding in self.findings if finding.kind == "rack-boundary" for node in finding.left + finding.right
        }
        return {node for home in homes for node in self.units[home].nodes}

    def in_doubt(self, node: int) -> bool:
        """Lost, untested or in an unresolved set: what failed with it may be its doing."""
        unresolved = any(finding.kind == "unresolved" and node in finding.left for finding in self.findings)
        return unresolved or node in self.lost or node in self.untested

    def explained(self, trial: Trial, without: Finding | None = None) -> bool:
        """True when a named component, other than `without`, explains a failure of this test."""
        members = set(trial.nodes)
        for finding in self.findings:
            if finding is without or (finding.transport != trial.transport and finding.kind_of_node != "node"):
                continue
            left, right = members & set(finding.left), members & set(finding.right)
            if finding.kind == "node" and left:
                return True
            span = set(self.span(finding.left)) if finding.own_boundary and trial.shape == "cross" else set()
            if members & span and members - span:
                return True
            if finding.right and left and right:
                return True
        return False

    def touched(self, nodes: t.Iterable[int], known: t.Sequence[Finding]) -> bool:
        """True when a finding that is not in `known` concerns any of these nodes."""
        wanted = set(nodes)
        return any(not wanted.isdisjoint(new.left + new.right) for new in self.findings if new not in known)

    def spare_partners(self, members: t.Iterable[int], transport: str) -> t.Iterable[int]:
        """References for padding a group: of the same domain first; over the network also of others."""
        members = set(members)
        homes = {self.unit_of[node] for node in members}
        tainted = self.tainted(transport)
        usable = sorted(self.cleared[transport] - members - tainted)
        near = [node for node in usable if self.unit_of[node] in homes]
        if transport == "nvl":
            # From the side of the domain that a good member is known to be on: another side would fail by itself.
            known = members & self.cleared[transport]
            sides = [side for side in self.sides(self.cleared[transport] & set(self.home(min(members))), transport) if known & set(side)]
            return [node for node in near if node in sides[0]] if sides else near
        behind = self.behind_boundary()
        far = [node for node in usable if self.unit_of[node] not in homes and node not in behind]
        works = {home for home in {self.unit_of[node] for node in far} if self.crosses(home)}
        return near + sorted(far, key=lambda node: self.unit_of[node] not in works)

    def home(self, node: int) -> Nodes:
        """The domain of a node."""
        return self.units[self.unit_of[node]].nodes

    def span(self, nodes: t.Iterable[int]) -> Nodes:
        """All nodes of the domains of these nodes."""
        return tuple(sorted(node for unit in {self.unit_of[node] for node in nodes} for node in self.units[unit].nodes))

    def domain_transport(self, unit: int) -> str:
        """The transport on which a domain is tested first."""
        return "nvl" if self.options["mnnvl"] and self.units[unit].real and len(self.units[unit].nodes) > 1 else "net"

    def crosses(self, unit: int) -> bool:
        """True when some node of the domain passed together with a node of another domain."""
        nodes = set(self.units[unit].nodes)
        return any(not members.isdisjoint(nodes) and not members <= nodes for members in self.passes["net"])

    # ----- accusations -----

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

    def sides(self, nodes: t.Iterable[int], transport: str, through: t.Iterable[int] = ()) -> list[Nodes]:
        """Nodes of a domain joined by passing tests inside it, the largest group first; other nodes may join them too."""
        wanted = set(nodes)
        group_of = {node: node for node in sorted(wanted | set(through))}
        for node in group_of:
            for trial in self.of_node[node]:
                if trial.transport == transport and len(trial.nodes) > 1 and trial.shape != "cross" and self.group_passed(trial):
                    mates = {group_of[mate] for mate in trial.nodes if mate in group_of}
                    for mate in group_of:
                        if group_of[mate] in mates:
                            group_of[mate] = group_of[node]
        groups: dict[int, list[int]] = {}
        for node in sorted(wanted):
            groups.setdefault(group_of[node], []).append(node)
        return sorted((tuple(group) for group in groups.values()), key=lambda group: (-len(group), group))

    def group_passed(self, trial: Trial) -> bool:
        """Whether all runs of the same group together say that it passes: one of several may have passed by chance."""
        runs = [run for run in self.of_node[trial.nodes[0]] if run.nodes == trial.nodes and run.transport == trial.transport]
        return self.total(runs) <= CLEAR

    def _failed_on_every_side(self, node: int, failing: list[Trial]) -> bool:
        """Whether the node failed with each group of its domain that works together: else it may belong to another side."""
        good = [mate for mate in self.home(node) if mate != node and self.good(mate, "nvl")]
        met = {mate for trial in failing for mate in trial.nodes}
        return all(met & set(side) for side in self.sides(good, "nvl"))

    def unsteadiness(self, node: int, transport: str, apart: t.Collection[int] = ()) -> tuple[float, list[Trial]]:
        """Evidence that a node fails now and then, from its tests that nothing else explains; and the failed ones.

        Only failures with others that it passed with too: it fails now and then. Of the large groups that led to the
        node only the smallest counts: they were picked because they failed.
        apart: nodes whose tests with this one do not count.
        """
        failed: list[Trial] = []
        passed: list[Trial] = []
        mine = self.accused.get(node)
        for trial in self.of_node[node]:
            if trial.transport != transport or not 2 <= len(trial.nodes) <= WIDE or self.explained(trial, without=mine):
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
        failed = [trial for trial in failed if trial not in large[1:]]
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
            rate = self.outlier_rate(node, repeated=False)
            now_and_then = posterior.confidence(kind, posterior.unsteady(len(shown), passed, rate))
            # Accused as a bad node, it passed later: what speaks against it is then less, and may still be enough.
            always = 0.0 if finding.kind_of_node == "intermittent" else posterior.confidence("node", self.case(node, finding.transport)[0])
            return max(now_and_then, always)
        clip = self.clip(finding.left[0])
        weights = sorted((min(self.evidence.weight(trial), clip) for trial in finding.witnesses), reverse=True)
        return posterior.confidence(kind, min(finding.strength, sum(weight for weight in weights if weight > 0)))

    def pair_odds(self, finding: Finding) -> posterior.Pair:
        """What the tests of both ends say: a bad pair, an end that fails now and then, or chance."""
        one, two = finding.left[0], finding.right[0]
        counts: dict[tuple[int, ...], list[int]] = {(one, two): [0, 0], (one,): [0, 0], (two,): [0, 0]}
        for node, other in ((one, two), (two, one)):
            for trial in self.of_node[node]:
                if trial.transport != finding.transport or len(trial.nodes) < 2 or (node == two and other in trial.nodes):
                    continue
                key = (one, two) if other in trial.nodes else (node,)
                weight = self.evidence.weight(trial)
                if weight <= CLEAR:
                    counts[key][1] += 1
                elif weight >= FAIL and not self.explained(trial, without=finding):
                    # A large group has other reasons to fail than this end.
                    counts[key][0] += other in trial.nodes or len(trial.asked or trial.nodes) <= SMALL
        both, first, second = ((failed, passed) for failed, passed in (counts[one, two], counts[one,], counts[two,]))
        return posterior.pair(both, [first, second], self.outlier_rate(one))

    def try_unsteady(self, node: int, transport: str, apart: t.Collection[int] = ()) -> bool:
        """Accuse the node of failing now and then, if its failures are too many for chance and share nothing but it."""
        strength, failed = self.unsteadiness(node, transport, apart)
        if len(failed) < 2 or not posterior.convicts("intermittent", strength):
            return False
        if set.intersection(*(set(trial.nodes) for trial in failed)) != {node}:
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
