# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Facts of a section: its ranks, its collective, which sizes it holds, whether the data was right."""

from __future__ import annotations

import math
import sys
import typing as t

from . import collectives
from .context import Context
from .rows import Row
from .sections import Section

_MAX_SIZES = 10_000

Key: t.TypeAlias = tuple[str, str | None, int | None]


def ranks_for_factor(section: Section) -> int | None:
    """Ranks of the printed group; None when nothing tells."""
    if section.document and _is_one_process_of_many(section):
        return ranks_by_ratio(section) or section.config.get("gpus")
    if section.devices and not section.devices_cut:
        return len(section.printed_group())
    return None


def _is_one_process_of_many(section: Section) -> bool:
    """Builds without MPI list the devices of one process only."""
    return len(section.devices) < int(section.config.get("gpus", 1) * section.config.get("threads", 1))


def ranks_by_ratio(section: Section) -> int | None:
    """The number of ranks that busbw / algbw of the largest row stands for."""
    ratio = bandwidth_ratio(section)
    if ratio is None or section.collective is None:
        return None
    for ranks in range(1, 4097):
        if abs(collectives.factor(section.collective, ranks) - ratio) < 1e-4 * max(ratio, 1.0):
            return ranks if collectives.factor(section.collective, ranks + 1) != ratio else None
    return None


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
    section.collective = given.collective or collectives.infer_collective(row.redop, row.root, ratio, ranks, checked)


def usable(section: Section) -> list[Row]:
    return [row for row in section.rows if row.finite and row.out_of_place is not None and whole_row(section, row)]


def whole_row(section: Section, row: Row) -> bool:
    """Whether the numbers of a row belong together, where size / time is meant to be the algorithm bandwidth."""
    if section.reader.titles is not None and section.reader.titles.cpu_time:
        return True
    blank = row.redop is None and row.root is not None and row.root < 0
    return row.agrees or blank or section.collective in ("hypercube", "alltoallv")


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
    """Requested sizes without a row. A row may be up to 16 x ranks bytes smaller: counts are trimmed."""
    seen = sorted({row.size for row in usable(section)})
    if given.expected_sizes:
        return [size for size in given.expected_sizes if not has_size(seen, size, ranks)]
    if not seen:
        return []
    # From the configuration only the largest size is demanded, with all that lie above the largest seen.
    return [size for size in _configured_sizes(section.config) if size - 16 * ranks > seen[-1]]


def has_size(seen: t.Sequence[int], size: int, ranks: int) -> bool:
    return any(size - 16 * ranks <= one <= size for one in seen)


def _configured_sizes(config: dict[str, t.Any]) -> list[int]:
    """The sizes that the configuration line asks for."""
    size, most, step = config.get("min_bytes"), config.get("max_bytes"), config.get("step", 0)
    if size is None or most is None:
        return []
    factor = config.get("step_mode") != "bytes"
    sizes: list[int] = []
    while size <= most and len(sizes) < _MAX_SIZES:
        sizes.append(size)
        following = size * step if factor else size + step
        if following <= size:
            break
        size = following
    return sizes


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
