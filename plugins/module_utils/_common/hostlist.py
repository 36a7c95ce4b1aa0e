# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Long lists of node names, written short: `gpu-r0-n[00-03,07]`."""

from __future__ import annotations

import re
import typing as t

# The last number of the first label: the domain that may follow is not counted.
_LAST_NUMBER = re.compile(r"^([^.]*?)(\d+)([^\d.]*(?:\..*)?)$", re.DOTALL)


def fold(names: t.Iterable[str]) -> str:
    """Names that differ only in their last number share one bracket; the rest stand alone, sorted."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    alone: list[str] = []
    for name in sorted(set(names)):
        match = _LAST_NUMBER.match(name)
        # int() takes other scripts' digits too, but they would not be written back the same.
        if match and match.group(2).isascii():
            groups.setdefault((match.group(1), match.group(3), len(match.group(2))), []).append(int(match.group(2)))
        else:
            alone.append(name)
    written = [_bracket(prefix, suffix, width, sorted(numbers)) for (prefix, suffix, width), numbers in groups.items()]
    return ", ".join(sorted(written + alone))


def _bracket(prefix: str, suffix: str, width: int, numbers: list[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}{suffix}"
    parts = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in spans]
    return f"{prefix}[{','.join(parts)}]{suffix}"
