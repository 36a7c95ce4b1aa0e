# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the search knows: who is cleared on which transport, who is accused, which components are blamed.

The procedures in `leaves`, `pairs`, `boundaries` and `closing` work on one `Search`.
"""

from __future__ import annotations

import dataclasses
import random
import typing as t

from .evidence import CLEAR, CONVICT, FAIL, QUIET
from .node_sets import Nodes
from .state import State
from .waves import Engine, Steps, Trial

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
    halves: list[tuple[Nodes, Nodes]] = dataclasses.field(default_factory=list)  # the two tests that blame a boundary

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
        self.leftover: list[tuple[list[tuple[Nodes, Trial]], str]] = []
        self.random = random.Random(self.options["seed"])  # noqa: S311 (reproducible shuffles, no secret)
        self.changes = 0
        self._tainted: dict[tuple[str, int, int, int], set[int]] = {}
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
            if finding.own_boundary and trial.shape == "cross" and members & set(self.home(finding.left[0])):
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
            return near
        behind = self.behind_boundary()
        return near + [node for node in usable if self.unit_of[node] not in homes and node not in behind]

    def home(self, node: int) -> Nodes:
        """The domain of a node."""
        return self.units[self.unit_of[node]].nodes

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
            if others <= self.cleared[transport] and not others & tainted:
                trials.append(trial)
        failing = [trial for trial in trials if self.evidence.weight(trial) > 0]
        smallest = min((len(trial.nodes) for trial in failing if len(trial.nodes) > 2), default=0)
        counted = [trial for trial in trials if trial not in failing or len(trial.nodes) in (2, smallest)]
        witnesses = [trial for trial in failing if trial in counted]
        common = set.intersection(*(set(trial.nodes) for trial in witnesses)) if witnesses else set()
        return self.total(counted), witnesses, common == {node}

    def try_to_convict(self, node: int, transport: str) -> bool:
        """Accuse the node if two witnesses that share nothing else carry it."""
        total, failing, alone = self.case(node, transport)
        strongest = max((self.evidence.weight(trial) for trial in failing), default=0.0)
        if total < CONVICT or total - strongest < FAIL or len(failing) < 2 or not alone:
            return False
        self.accuse(node, transport, total, failing)
        return True

    def accuse(self, node: int, transport: str, strength: float, witnesses: list[Trial], kind_of_node: str = "") -> None:
        """Hold one node responsible."""
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
