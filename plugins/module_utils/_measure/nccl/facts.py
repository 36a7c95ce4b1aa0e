# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Facts of a section: its ranks, its collective, which sizes it holds, whether the data was right."""

from __future__ import annotations

import bisect
import math
import sys
import typing as t

from . import collectives
from .context import Context
from .rows import TYPES, Row
from .sections import Section

_MAX_SIZES = 10_000
_MAX_RANKS = 4096
# Collectives whose ranks do not all send alike: size and time of a row do not give its bandwidth.
_UNEQUAL = ("hypercube", "alltoallv")

Key: t.TypeAlias = tuple[str, str | None, int | None]


def ranks_of(section: Section, said: int | None) -> int | None:
    """Ranks of the printed group; None when nothing tells. said: by NCCL itself.

    A list with a gap still ends with its highest rank. Without a list the ratio of the two bandwidths tells, where its
    digits leave one number only: nothing is guessed.
    """
    listed = ranks_for_factor(section) or said
    if listed:
        return listed
    low, high = _ranks_by_ratio(section)
    elided = section.elided_ranks
    if elided is not None and (low is None or high is None or low <= elided <= high):
        return elided
    return low if low == high else None


def ranks_for_factor(section: Section) -> int | None:
    """Ranks of the printed group by its list of devices; None when that is cut or tells of one process only."""
    if section.document and _is_one_process_of_many(section):
        low, high = _ranks_by_ratio(section)
        return low if low is not None and low == high else section.config.get("gpus")
    if section.devices and not section.devices_cut:
        return len(section.printed_group())
    return None


def _is_one_process_of_many(section: Section) -> bool:
    """Builds without MPI list the devices of one process only."""
    return len(section.devices) < int(section.config.get("gpus", 1) * section.config.get("threads", 1))


def _ranks_by_ratio(section: Section) -> tuple[int | None, int | None]:
    """(fewest, most) ranks that busbw / algbw of the largest row may stand for; (None, None) when it tells nothing."""
    row = max((row for row in section.rows if row.finite and row.size and row.ratios), key=lambda row: row.size, default=None)
    if row is None or section.collective is None or collectives.factor(section.collective, 2) == collectives.factor(section.collective, 3):
        return None, None
    low, high = row.ratios[0]
    fitting = [n for n in range(1, _MAX_RANKS) if low - 1e-9 <= collectives.factor(section.collective, n) <= high + 1e-9]
    return (fitting[0], fitting[-1]) if fitting else (None, None)


def mark_contradictions(section: Section, ranks: int | None) -> None:
    """Rows whose bus bandwidth is not their algorithm bandwidth times the one factor of the table no longer agree, nor do those of a
    text whose size is not that of their elements."""
    if section.collective not in _UNEQUAL and not section.document:
        _mark_sizes(section)
    reference = _reference_ratio(section, ranks)
    if reference is None or section.collective == "alltoallv":
        return
    section.rows = [
        row if all(_contains(bounds, reference) for bounds in row.ratios) else row._replace(agrees=False, ratio_agrees=False)
        for row in section.rows
    ]


def _mark_sizes(section: Section) -> None:
    """Rows whose size is not their elements times the width of the type and the one number of blocks of the table no longer agree: one
    block in most collectives, the ranks where each has a block for each."""
    blocks = [_blocks(row) for row in section.rows]
    told = [own for own in blocks if own != 0]
    usual = max(set(told), key=told.count, default=None)
    section.rows = [
        row if own == 0 or (own and own == usual) else row._replace(agrees=False, ratio_agrees=False)
        for row, own in zip(section.rows, blocks, strict=True)
    ]


def _blocks(row: Row) -> int | None:
    """Blocks of a row's elements in its size: 0 where nothing was sent, None where that is no whole number."""
    block = row.elements * TYPES[row.type]
    if not block:
        return None if row.size else 0
    return row.size // block if row.size % block == 0 else None


def _reference_ratio(section: Section, ranks: int | None) -> float | None:
    """The factor of the collective where some row confirms it; else the one that most rows show."""
    telling = [bounds for row in section.rows if row.finite for bounds in row.ratios if bounds[1] - bounds[0] < 0.2]
    expected = ratio_of(section, ranks)
    if not telling or (expected is not None and any(_contains(bounds, expected) for bounds in telling)):
        return expected
    middles = sorted((low + high) / 2 for low, high in telling)
    return middles[len(middles) // 2]


def _contains(bounds: tuple[float, float], ratio: float) -> bool:
    return bounds[0] * 0.98 - 1e-9 <= ratio <= bounds[1] * 1.02 + 1e-9


def wrong_ranks(section: Section) -> str | None:
    """How the listed ranks contradict the bandwidths of the largest row, or None."""
    ranks, ratio = ranks_for_factor(section), bandwidth_ratio(section)
    expected = ratio_of(section, ranks)
    largest = max((row for row in usable(section) if row.size), key=lambda row: row.size, default=None)
    if expected is None or ratio is None or largest is None or not largest.out_of_place or (largest.out_of_place.algbw or 0.0) < 1.0:
        return None
    if abs(expected - ratio) < 0.02 or not largest.ratios or _contains(largest.ratios[0], expected):
        return None
    return f"busbw / algbw is {ratio:.3f}, but {ranks} ranks give {expected:.3f}: the number of ranks is wrong"


def bandwidth_ratio(section: Section) -> float | None:
    """busbw / algbw of the largest usable row."""
    row = max((row for row in usable(section) if row.size), key=lambda row: row.size, default=None)
    if row is None or row.out_of_place is None or not row.out_of_place.algbw or row.out_of_place.busbw is None:
        return None
    return row.out_of_place.busbw / row.out_of_place.algbw


def fill_collective(section: Section, given: Context) -> None:
    """Programs before 2.16.9 do not print their name: take the caller's word, else the columns'."""
    if section.collective is not None or not section.rows:
        section.collective = section.collective or given.collective
        return
    row = section.rows[-1]
    ranks = len(section.printed_group()) or 1
    checked = row.in_place.wrong is not None
    ratio = bandwidth_ratio(section) if ranks > 1 else None
    titles = section.reader.titles
    blank = row.redop is None and titles is not None and titles.redop and not titles.root  # alltoall before 2.13
    section.collective = given.collective or collectives.infer_collective("none" if blank else row.redop, row.root, ratio, ranks, checked)


def usable(section: Section) -> list[Row]:
    return [row for row in section.rows if row.finite and row.out_of_place is not None and whole_row(section, row)]


def whole_row(section: Section, row: Row) -> bool:
    """Whether the numbers of a row belong together, where size / time is meant to be the algorithm bandwidth."""
    if section.reader.titles is not None and section.reader.titles.cpu_time:
        return row.ratio_agrees
    blank = row.redop is None and row.root is not None and row.root < 0
    if not row.ratio_agrees:
        return False
    return row.agrees or blank or section.collective in _UNEQUAL


def head_lost(section: Section) -> bool:
    """Whether the log does not show what was asked for: its first lines are gone."""
    return not section.table_seen or "max_bytes" not in section.config


def uneven_cycles(section: Section, ranks: int) -> bool:
    """Whether sizes differ in their number of samples. Sizes that trimming makes equal to their neighbours do not count."""
    if section.config.get("step_mode") == "bytes" or section.config.get("step", 2) < 2:
        return False
    counts: dict[Key, dict[int, int]] = {}
    for row in section.rows:
        if row.size > 64 * ranks:
            sizes = counts.setdefault((row.type, row.redop, row.root), {})
            sizes[row.size] = sizes.get(row.size, 0) + 1
    return any(len(set(sizes.values())) > 1 for sizes in counts.values())


def layout(section: Section) -> str | None:
    titles = section.reader.titles
    if titles is None:
        unified = section.rows and section.rows[0].root is not None and section.reader.wide is not None
        return ("unified_5col_wide" if section.reader.wide else "unified_5col") if unified else None
    if titles.max_delta:
        return "legacy_per_collective"
    return "unified_5col_wide" if titles.wide or titles.per_iteration else "unified_5col"


def missing_sizes(section: Section, given: Context, ranks: int) -> list[int]:
    """Requested sizes without a row. A row may be up to 16 x ranks bytes smaller: counts are trimmed.

    What is smaller than all rows of a log that says itself that rows were left out is not demanded.
    """
    seen = sorted({row.size for row in usable(section)})
    if given.expected_sizes:
        return [size for size in given.expected_sizes if not has_size(seen, size, ranks)]
    if not seen:
        return []
    asked = configured_sizes(section.config)
    if _holds_all_rows(section, len(asked), len(seen)):
        return [size for size in asked if size - 16 * ranks > seen[-1]]
    least = seen[0] if section.shortened else 0
    return [size for size in asked if size >= least and not has_size(seen, size, ranks)]


def _holds_all_rows(section: Section, asked: int, seen: int) -> bool:
    """Whether the table itself shows that no row is lost, whatever sizes were asked for.

    The program's own average is the mean of all bus bandwidths of both placements: with a row less it would be another one.
    """
    if seen >= asked:
        return True
    speeds = [group.busbw for row in section.rows for group in row.groups if group.busbw is not None]
    if not section.average or not speeds or not all(row.finite for row in section.rows):
        return False
    return abs(math.fsum(speeds) / len(speeds) - section.average) <= 0.005 + 1e-5 * section.average


def has_size(seen: t.Sequence[int], size: int, ranks: int) -> bool:
    """Whether a size is among those seen, which are sorted."""
    at = bisect.bisect_left(seen, size - 16 * ranks)
    return at < len(seen) and seen[at] <= size


def configured_sizes(config: dict[str, t.Any]) -> list[int]:
    """The sizes that the configuration line asks for; where a part of it is lost, those that can be told."""
    size, most, step = config.get("min_bytes"), config.get("max_bytes"), config.get("step", 0)
    if most is None or size is None or size > most:
        return [] if most is None else [most]
    factor = config.get("step_mode") != "bytes"
    sizes: list[int] = []
    while size <= most and len(sizes) < _MAX_SIZES:
        sizes.append(size)
        following = size * step if factor else size + step
        if following <= size:
            break
        size = following
    return sizes


def damaged_request(section: Section) -> str | None:
    """What is wrong with the line that says what was asked for, or None."""
    config = section.config
    least, most, step = config.get("min_bytes"), config.get("max_bytes"), config.get("step")
    if most is None:
        return None  # told as the lost beginning of the log
    if least is None or least > most or (least < most and (step is None or step < 1 or (config.get("step_mode") != "bytes" and step < 2))):
        return "the line that says which sizes were asked for is damaged"
    beyond = [row.size for row in section.rows if row.size > most]
    return f"the table holds {beyond[0]} bytes, beyond the largest size that was asked for" if beyond else None


def data_correct(section: Section) -> bool | None:
    """Whether the elements were right; None when that was not checked."""
    if section.out_of_bounds_word == "FAILED":
        return False
    counted = [row for row in section.rows if not row.max_delta]
    if any(map(row_is_wrong, counted)):
        return False
    groups = [row.out_of_place or row.in_place for row in section.rows]
    if not groups or any(group.wrong is None for group in groups):
        return None
    if len(counted) < len(section.rows) and section.out_of_bounds_word is None:
        return None  # a deviation is right or wrong only by the program's own limit
    return True


def wrong_elements(section: Section) -> float:
    """Wrong elements of all rows and both placements."""
    counts = [abs(group.wrong or 0.0) for row in section.rows if not row.max_delta for group in row.groups]
    total = sum(count for count in counts if math.isfinite(count))
    return min(total, sys.float_info.max)


def row_is_wrong(row: Row) -> bool:
    return not row.max_delta and any(group.wrong for group in row.groups)


def reduced(section: Section) -> bool:
    return "effective_max_bytes" in section.config


def ratio_of(section: Section, ranks: int | None) -> float | None:
    return collectives.factor(section.collective, ranks) if section.collective and ranks else None


def before(section: Section, version: tuple[int, int]) -> bool:
    parts = str(section.versions.get("nccl_tests", "")).split(".")
    if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit():
        return (int(parts[0]), int(parts[1])) < version
    return layout(section) == "legacy_per_collective"


def library_version(section: Section) -> str | None:
    code = section.versions.get("nccl_library")
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code else None


def counts(section: Section) -> bool:
    return bool(section.rows) and section.footer_complete
