# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What is known: who is cleared on which transport, which components are blamed, what explains a failure."""

from __future__ import annotations

import dataclasses
import random
import typing as t

from .evidence import CLEAR, CONVICT, FAIL, QUIET
from .node_sets import Nodes
from .state import State
from .trial import Trial
from .waves import Engine, Steps


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
    sure: float = 0.0  # probability that it is this rather than something else, where that was weighed
    witnesses: list[Trial] = dataclasses.field(default_factory=list)
    controls: list[Trial] = dataclasses.field(default_factory=list)
    note: str = ""

    @property
    def own_boundary(self) -> bool:
        """True for the boundary of one domain: its nodes are good inside, and no references across."""
        return self.kind == "rack-boundary" and not self.right


class Knowledge(Engine):
    """The engine plus what its tests have shown so far."""

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

    def explained(self, trial: Trial, without: t.Sequence[Finding] = (), end: int = -1) -> bool:
        """True when a named component, not one of `without`, explains a failure of this test.

        end: a node in question. A pair it is an end of explains nothing if both passed together: then it may be the node.
        """
        members = set(trial.nodes)
        for finding in self.findings:
            both = finding.left + finding.right
            if finding.kind == "pair" and end in both and self.passed_together(both, finding.transport):
                continue
            if finding in without or (finding.transport != trial.transport and finding.kind_of_node != "node"):
                continue
            sides = (finding.left, finding.right)
            if finding.kind == "rack-boundary" and finding.right:
                sides = (self.span(finding.left), self.span(finding.right))  # whoever of both domains was in the tests
            left, right = members & set(sides[0]), members & set(sides[1])
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
