# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A model of the adaptive isolation of NVIDIA's Cluster Readiness Engine, for comparison only.

Written from a description of how its controller behaves, not from its code; `documented=True` follows its design
text instead where the two differ. One pass threshold decides every test; a round is a barrier.
"""

from __future__ import annotations

import typing as t

from .isolation_worlds import World

Group = tuple[int, ...]


class Nvcre:
    """Runs the method on a world. Results: `succeeded`, `confirmed` nodes, `links` (pairs of groups), costs."""

    def __init__(self, world: World, documented: bool = False, max_concurrent: int = 0, smallest: int = 2) -> None:
        self.world, self.documented, self.limit, self.smallest = world, documented, max_concurrent, smallest
        self.tests = self.waves = 0
        self.node_minutes = 0.0
        self.healthy: list[int] = []
        self.suspects: list[int] = []
        self.network_suspects: set[int] = set()
        self.links: list[tuple[Group, Group]] = []
        self.confirmed: list[int] = []
        self.listed: set[int] = set()  # every member of a group below the threshold lands in its list of failed nodes
        self.succeeded = True

    def _round(self, groups: t.Sequence[Group], transport: str) -> list[bool]:
        if not groups:
            return []
        self.tests += len(groups)
        self.waves += -(-len(groups) // (self.limit or len(groups)))
        verdicts = []
        for group in groups:
            self.node_minutes += len(group) * (2.5 + 0.25 * (len(group)).bit_length())
            verdicts.append(self.world.passes(group, transport))
            if not verdicts[-1]:
                self.listed.update(group)
        return verdicts

    def run(self) -> Nvcre:
        """The whole method."""
        world = self.world
        groups = [tuple(members) for members in world.labelled()]  # nodes without the label share one domain
        first = "nvl" if world.mnnvl else "net"
        passed = self._round(groups, first)
        failed = []
        for group, good in zip(groups, passed, strict=True):
            if good:
                self.healthy += group
            else:
                self.suspects += group
                failed.append(group)
        failed_network: list[Group] = []
        if world.mnnvl:
            for group, good in zip(groups, self._round(groups, "net"), strict=True):
                if not good:
                    failed_network.append(group)
                    self.network_suspects.update(group)
                    self.healthy = [node for node in self.healthy if node not in group]
                    self.suspects += [node for node in group if node not in self.suspects]
                elif not self.documented:
                    # Passing without NVLink makes its members healthy, whatever failed with NVLink.
                    self.healthy += [node for node in group if node not in self.healthy]
        healthy = set(self.healthy)
        representatives = tuple(next(node for node in group if node in healthy) for group in groups if healthy & set(group))
        # Domains that fail only over the network are looked at only if no domain failed over NVLink.
        pending = (failed + [g for g in failed_network if g not in failed]) if self.documented else (failed or failed_network)
        if len(representatives) > 1 and not self._round([representatives], "net")[0]:
            pending = [*pending, representatives]
            if self.documented:
                self.healthy = [node for node in self.healthy if node not in representatives]
                self.suspects += [node for node in representatives if node not in self.suspects]
        if pending:
            self._bisect(pending, failed, first)
        return self

    def _bisect(self, pending: list[Group], failed: list[Group], first: str) -> None:
        """Both halves of every failed group, in name order, until groups are small."""
        final: list[Group] = []
        probes: list[tuple[Group, Group, str]] = []
        nvl = {group: first for group in failed} if self.world.mnnvl else {}
        work = [(group, nvl.get(group, "net")) for group in pending]
        start = True
        while work:
            small = [item for item in work if len(item[0]) <= max(1, self.smallest)]
            large = [item for item in work if len(item[0]) > max(1, self.smallest)]
            if not start:
                final += [group for group, _transport in small]
            elif small:
                final += [
                    group for (group, transport), good in zip(small, (self._round([g], tr)[0] for g, tr in small), strict=True) if not good
                ]
            start = False
            halves = [(group[: len(group) // 2], group[len(group) // 2 :], transport) for group, transport in large]
            verdicts = self._mixed_round([(half, tr) for a, b, tr in halves for half in (a, b)])
            work = []
            both_passed = []
            for number, (a, b, transport) in enumerate(halves):
                ok_a, ok_b = verdicts[2 * number : 2 * number + 2]
                for half, good in ((a, ok_a), (b, ok_b)):
                    if good:
                        self.healthy += [node for node in half if node not in self.healthy]
                    else:
                        work.append((half, transport))
                if ok_a and ok_b:
                    both_passed.append((a, b, transport))
            if both_passed:
                probes += both_passed
                if not self.documented:
                    work = []  # every other group still to be split is forgotten
                    break
        self.suspects += [node for group in final for node in group if node not in self.suspects]
        suspects = [node for group in final for node in group]
        if not self.documented:
            suspects = [node for node in suspects if node not in set(self.healthy)]
        if probes:
            self._probe(probes)
        self._confirm(sorted(set(suspects)), filtered=bool(final) and not suspects)

    def _mixed_round(self, items: list[tuple[Group, str]]) -> list[bool]:
        waves, result = self.waves, []
        for group, transport in items:
            result += self._round([group], transport)
        if items:
            self.waves = waves + -(-len(items) // (self.limit or len(items)))
        return result

    def _probe(self, probes: list[tuple[Group, Group, str]]) -> None:
        """Only the diagonal halves of both sides are ever mixed."""
        for a, b, transport in probes:
            transport = transport if self.documented else "net"
            self.healthy = [node for node in self.healthy if node not in a + b]
            left, right, turn = a, b, 1
            while True:
                cut_a, cut_b = max(1, len(left) // 2), max(1, len(right) // 2)
                mixes = [(left[:cut_a], right[:cut_b]), (left[cut_a:], right[cut_b:])]
                mixes = [(x, y) for x, y in mixes if len(x) + len(y) >= 2 and x and y]
                good = self._round([x + y for x, y in mixes], transport)
                if all(good):
                    self.healthy += a + b
                    break
                if len(good) > 1 and not any(good):
                    self.links.append((left, right))
                    break
                left, right = mixes[good.index(False)]
                turn += 1
                if turn > 4 or (len(left) <= 2 and len(right) <= 2):
                    self.links.append((left, right))
                    break

    def _confirm(self, suspects: list[int], filtered: bool) -> None:
        """Each suspect once with some healthy node."""
        healthy = [node for node in self.healthy if node not in suspects]
        if not suspects:
            # With nobody left to confirm it fails only for links, or when all suspects were filtered out ("0 suspects").
            self.succeeded = not self.links and not filtered
            return
        if not healthy:
            self.confirmed, self.succeeded = suspects, False
            return
        pairs = [(node, healthy[at % len(healthy)]) for at, node in enumerate(suspects)]
        transports = ["net" if not self.world.mnnvl or node in self.network_suspects else "nvl" for node, _mate in pairs]
        verdicts = self._mixed_round(list(zip(pairs, transports, strict=True)))
        self.confirmed = [node for (node, _mate), good in zip(pairs, verdicts, strict=True) if not good]
        # Links that were found no longer count when there were suspects and all of them clear.
        self.succeeded = not self.confirmed and (not self.links or not self.documented)
