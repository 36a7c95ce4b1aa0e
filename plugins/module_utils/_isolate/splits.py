# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which two of several things do not work together? What is open, and which test halves it best.

The things are numbered. `Open` holds for each the set of those it may still fail with, as the bits of an integer. The
tests of one wave share no thing, so a wave is a partition: a bad couple fails in the block that holds both, or in none.
"""

from __future__ import annotations

import itertools
import math
import typing as t

MOST_BITS = 7  # of numbers, up to which all sums of bits are tried; above, single bits and sums of two


class Open:
    """The couples that may still be bad. number_of: a number for each thing, by which it is put in blocks."""

    def __init__(self, rows: list[int], number_of: t.Sequence[int]) -> None:
        self.rows = rows
        self.number_of = number_of

    @classmethod
    def among(cls, count: int) -> Open:
        """Every couple of `count` things."""
        everything = (1 << count) - 1
        return cls([everything & ~(1 << at) for at in range(count)], range(count))

    @classmethod
    def across(cls, left: int, right: int) -> Open:
        """Every couple of one of the first `left` things and one of the `right` others."""
        ones, others = (1 << left) - 1, ((1 << right) - 1) << left
        # One bit more tells the two sides apart, so that couples of equal numbers can be separated too.
        top = 1 << (max(left, right) - 1).bit_length()
        return cls([others] * left + [ones] * right, [*range(left), *(top | at for at in range(right))])

    @property
    def live(self) -> int:
        """The things that are in a couple."""
        return bits(at for at, row in enumerate(self.rows) if row)

    def couples(self) -> list[tuple[int, int]]:
        return [(at, other) for at, row in enumerate(self.rows) for other in members(row >> at << at)]

    def close(self, block: int) -> None:
        """These things work together."""
        for at in members(block):
            self.rows[at] &= ~block

    def inside(self, block: int) -> Open:
        """Only the couples of these things."""
        return Open([row & block if block >> at & 1 else 0 for at, row in enumerate(self.rows)], self.number_of)

    def count(self, block: int) -> int:
        """Couples inside a block."""
        return sum((self.rows[at] & block).bit_count() for at in members(block)) // 2

    def complete(self, cut: int) -> bool:
        """Whether every couple of the things below and from `cut` is open: no crossing of two sides passed yet."""
        first = (1 << cut) - 1
        live = self.live
        return self.count(live) == (live & first).bit_count() * (live & ~first).bit_count() > 0

    def wave(self, room: int) -> list[int]:
        """The blocks to test next: those that tell most. One for each couple where no two couples share a thing.

        Halves that differ in the sum of some bits of their numbers, or couples of one difference; of these at most `room`.
        """
        live = self.live
        total = self.count(live)
        if all(row.bit_count() < 2 for row in self.rows):
            return [1 << a | 1 << b for a, b in self.couples()]
        best: tuple[float, list[int]] = (0.0, [])
        planes = [
            bits(at for at in members(live) if self.number_of[at] >> bit & 1) for bit in range(max(self.number_of, default=0).bit_length())
        ]
        most = len(planes) if len(planes) <= MOST_BITS else 2
        for amount in range(1, most + 1):
            for chosen in itertools.combinations(planes, amount):
                one = 0
                for plane in chosen:
                    one ^= plane
                told = information([self.count(one), self.count(live & ~one)], total)
                if told > best[0] + 1e-9:
                    best = told, [one, live & ~one]
        same: dict[int, list[int]] = {}
        for a, b in self.couples() if total <= room * len(self.rows) else ():
            same.setdefault(self.number_of[a] ^ self.number_of[b], []).append(1 << a | 1 << b)
        for _difference, couples in sorted(same.items()):
            told = information([1] * len(couples), total)
            if told > best[0] + 1e-9 and len(couples) <= room:
                best = told, couples
        return [block & self._fits(block) for block in best[1] if self.count(block)]

    def _fits(self, block: int) -> int:
        """The things of a block that are in a couple inside it."""
        return bits(at for at in members(block) if self.rows[at] & block)


def information(inside: t.Sequence[int], total: int) -> float:
    """Bits that a wave tells on average: one of `total` couples is bad, and so many are inside each block."""
    shares = [count / total for count in [*inside, total - sum(inside)] if count]
    return -sum(share * math.log2(share) for share in shares)


def bits(things: t.Iterable[int]) -> int:
    """A set of things as the bits of an integer."""
    result = 0
    for at in things:
        result |= 1 << at
    return result


def members(block: int) -> t.Iterator[int]:
    """The things of a set, in order."""
    while block:
        yield (block & -block).bit_length() - 1
        block &= block - 1
