# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of nccl-tests tables: every layout since 2.0, and rows that other output tore apart.

A row is accepted by its grammar, `size count TYPE [op] [root] cells [date time]`, never by column positions:
8 cells (time algbw busbw #wrong, twice), 16 with per-iteration columns, 4 in trace replays.
"""

from __future__ import annotations

import math
import re
import typing as t

from ..labels import without_inner_labels

# Bytes of one element.
TYPES = {"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "float": 4, "double": 8, "bfloat16": 2} | {
    "f8e4m3": 1,
    "f8e5m2": 1,
}
OPS = frozenset(["sum", "prod", "min", "max", "avg", "mulsum", "none"])

Cell: t.TypeAlias = float | None

_NUMBER = re.compile(r"-?(?:\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,3})?|nan|inf)\Z")
_WORDS = "|".join(sorted({*TYPES, *OPS}, key=len, reverse=True))
# A cell or identity word with foreign text glued to its end.
_GLUED = re.compile(rf"(-1|N/A|{_WORDS}|\d{1, 20}(?:\.\d{1, 20})?(?:e[+-]\d{1, 3})?)(?=\D)")
# Where foreign text begins: a token that ends in host:pid:tid, or a message of the program itself.
_FOREIGN = re.compile(r"\[\d{4}-\d\d-\d\d |(?<!\S)\S+:(?:\d{1,10}:\d{1,10} \[| Test )")
_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")
_TIME = re.compile(r"\d\d:\d\d:\d\d\Z")
# Size and time were measured by different clocks in some builds: so much may be between them.
_SLACK = 1.02
# -K prints in-place only: the out-of-place group is blank.
_BLANK_GROUP = re.compile(r"(?<!\d)\d{1,9} {32,}\S")

# No time in us and no bandwidth in GB/s is beyond this: 30 years, a thousand times what a memory moves.
_MOST = 1e15
_MAX_LOST = 10_000


class Titles(t.NamedTuple):
    """What the title lines of a table announced."""

    redop: bool
    root: bool
    max_delta: bool  # the last cell of a group is the largest deviation, not a count of wrong elements
    cpu_time: bool
    wide: bool
    per_iteration: bool


class Cells(t.NamedTuple):
    """One group of cells of a row; None is N/A.

    time_us: microseconds (of the CPU with -C 1). algbw, busbw: 10^9 bytes/s. wrong: wrong elements, or the largest
    deviation in old layouts. per_iteration: (min, max, p99 in us, variation in percent) of builds that print them.
    """

    time_us: Cell
    algbw: Cell
    busbw: Cell
    wrong: Cell
    per_iteration: tuple[Cell, ...] = ()

    @classmethod
    def of(cls, cells: t.Sequence[Cell]) -> Cells:
        """From 4 or 8 cells in the order in which they are printed."""
        return cls(cells[0], cells[1], cells[2], cells[3], tuple(cells[4:]))

    @property
    def printed(self) -> tuple[Cell, ...]:
        """The cells in the order in which they are printed, 4 or 8 of them."""
        return (self.time_us, self.algbw, self.busbw, self.wrong, *self.per_iteration)


class Row(t.NamedTuple):
    """One row: size in bytes, elements per rank, type, operation and root (None when not printed), its groups of cells.

    out_of_place: None in rows of a trace replay, which print in-place only.
    """

    size: int
    elements: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Cells | None
    in_place: Cells
    timestamp: str | None = None
    max_delta: bool = False
    agrees: bool = True  # whether size / time is the algorithm bandwidth, as far as the printed digits tell
    # (lowest, highest) busbw / algbw that the printed digits of each group allow; groups without a bandwidth are left out.
    ratios: tuple[tuple[float, float], ...] = ()
    ratio_agrees: bool = True  # whether they hold the factor of the whole table

    @property
    def groups(self) -> tuple[Cells, ...]:
        """Both groups of cells, out of place first, as far as printed."""
        return (self.in_place,) if self.out_of_place is None else (self.out_of_place, self.in_place)

    @property
    def finite(self) -> bool:
        """Whether every number of the row can be used: it is one, it is not negative, and some machine could have printed it."""
        return all(
            cell is None or 0 <= cell <= _MOST for group in self.groups for cell in group.printed if cell is not group.wrong
        ) and all(group.wrong is None or math.isfinite(group.wrong) for group in self.groups)


def read_titles(text: str) -> Titles:
    """From the line of column names, `size count type ...`."""
    words = text.replace("#wrong", "wrong").replace("#", " ").split()
    return Titles(
        redop="redop" in words,
        root="root" in words,
        max_delta="error" in words,
        cpu_time="cputime" in words,
        wide="busbw  #wrong" in text,
        per_iteration="i_min" in words,
    )


def is_titles(text: str) -> bool:
    """Whether the line names the columns of a table."""
    words = text.replace("#", " ", 1).split()
    return words[:3] == ["size", "count", "type"] and "algbw" in words


def parse_cell(token: str) -> Cell:
    """A number, or None for N/A. The token must have been checked with is_cell."""
    return None if token == "N/A" else float(token)


def is_cell(token: str) -> bool:
    return token == "N/A" or _NUMBER.match(token) is not None


def _belongs_to_row(token: str) -> bool:
    return is_cell(token) or token in OPS or _DATE.match(token) is not None or _TIME.match(token) is not None


def starts_row(tokens: t.Sequence[str]) -> bool:
    """Whether the tokens begin like a row: two whole numbers and a type word, perhaps with text glued to it."""
    return len(tokens) > 2 and _is_whole(tokens[0]) and _is_whole(tokens[1]) and (tokens[2] in TYPES or _glued_type(tokens[2]))


def _is_whole(token: str) -> bool:
    """Whether a token is a size or a number of elements: no message has more than 2^63 bytes."""
    return len(token) < 20 and token.isascii() and token.isdecimal()


def _glued_type(token: str) -> bool:
    match = _GLUED.match(token)
    return match is not None and match.group(1) in TYPES


def parse_row(text: str, titles: Titles | None = None) -> Row | None:
    """A whole row, or None. With titles the identity columns must be the announced ones."""
    tokens = text.split()
    if not (len(tokens) > 8 and _is_whole(tokens[0]) and _is_whole(tokens[1]) and tokens[2] in TYPES):
        return None
    return _assemble(tokens, titles, _BLANK_GROUP.search(text) is not None)


def _assemble(tokens: list[str], titles: Titles | None, blank_group: bool) -> Row | None:
    timestamp = None
    if len(tokens) > 10 and _TIME.match(tokens[-1]) and _DATE.match(tokens[-2]):
        timestamp = f"{tokens[-2]} {tokens[-1]}"
        tokens = tokens[:-2]
    redop, rest = (tokens[3], tokens[4:]) if tokens[3] in OPS else (None, tokens[3:])
    root: int | None = None
    if len(rest) in (9, 17, 5):
        if not re.fullmatch(r"-1|\d{1,9}", rest[0]):
            return None
        root, rest = int(rest[0]), rest[1:]
    if not all(map(is_cell, rest)) or not _fits(titles, redop, root, len(rest), blank_group):
        return None
    cells = [parse_cell(token) for token in rest]
    half = len(cells) // 2
    out_of_place = None if len(cells) == 4 else Cells.of(cells[:half])
    in_place = Cells.of(cells if out_of_place is None else cells[half:])
    # A time or bandwidth is never negative or N/A: a row whose first cell was torn off would be.
    measured = [cell for group in (out_of_place, in_place) if group for cell in (group.time_us, group.algbw, group.busbw)]
    if any(cell is None or cell < 0 for cell in measured):
        return None
    max_delta = titles.max_delta if titles else _shows_delta(rest, half)
    size = int(tokens[0])
    groups = (rest[:3],) if out_of_place is None else (rest[:3], rest[half : half + 3])
    agrees = all(_agree(size, time, bandwidth) for time, bandwidth, _bus in groups)
    ratios = tuple(ratio for _time, bandwidth, bus in groups for ratio in [ratio_bounds(_bounds(bandwidth), _bounds(bus))] if ratio)
    return Row(size, int(tokens[1]), tokens[2], redop, root, out_of_place, in_place, timestamp, max_delta, agrees, ratios)


def ratio_bounds(algbw: tuple[float, float], busbw: tuple[float, float]) -> tuple[float, float] | None:
    """(lowest, highest) ratio of a bus bandwidth and an algorithm bandwidth that lie within bounds; None where it says nothing."""
    if algbw[0] <= 0 or not all(map(math.isfinite, (*algbw, *busbw))):
        return None
    return busbw[0] / algbw[1], busbw[1] / algbw[0]


def _agree(size: int, time: str, bandwidth: str) -> bool:
    """Whether the time in us and the bandwidth in GB/s of one group can belong together.

    Both were printed with few digits: the true values lie within half a unit of the last one. Characters lost in the
    middle of a row, or halves of two rows, show here.
    """
    low, high = _bounds(time)
    least, most = _bounds(bandwidth)
    return not (least * low * 1000.0 > size * _SLACK or most * high * 1000.0 * _SLACK < size)


def _bounds(cell: str) -> tuple[float, float]:
    """The values that a cell may stand for."""
    mantissa, _e, exponent = cell.lower().partition("e")
    value = float(cell)
    half = 0.5 * 10.0 ** (min(int(exponent or 0), 300) - len(mantissa.partition(".")[2])) if math.isfinite(value) else 0.0
    return max(0.0, value - half), value + half


def _fits(titles: Titles | None, redop: str | None, root: int | None, cells: int, blank_group: bool) -> bool:
    if cells == 4:
        return blank_group and root is not None
    if cells not in (8, 16):
        return False
    if titles is None:
        return True
    if (cells == 16) != titles.per_iteration:
        return False
    if titles.redop and titles.root and not titles.max_delta:
        return root is not None  # the unified layout; hypercube leaves the operation blank
    # Before 2.13 the alltoall program announced an operation and left it blank.
    blank = redop is None and titles.redop and not titles.root
    return (blank or (redop is not None) == titles.redop) and (root is not None) == titles.root


def _shows_delta(rest: list[str], half: int) -> bool:
    """Without titles: 0e+00 and 1e-06 are how the largest deviation was printed, a count is not."""
    return any(re.fullmatch(r"0e\+00|\d(?:\.\d+)?e-\d+", rest[index]) for index in (half - 1, len(rest) - 1))


def describe_row(text: str, titles: Titles | None = None) -> dict[str, t.Any]:
    """One line as data: its identity, its two groups and layout, or `reject: true`."""
    tokens = text.split()
    row = parse_row(text, titles)
    if row is None:
        return {"reject": True, "tokens": len(tokens) if starts_row(tokens) else None}
    groups = [list(group.printed[:4]) if group else None for group in (row.out_of_place, row.in_place)]
    said: dict[str, t.Any] = {
        "reject": False,
        "tokens": len(tokens),
        "size": row.size,
        "count": row.elements,
        "type": row.type,
        "redop": row.redop,
        "root": row.root,
        "oop": groups[0],
        "ip": groups[1],
        "timestamp": row.timestamp,
        "layout": _layout_words(row),
        "error_is": "max_delta" if row.max_delta else "wrong_elements",
        "not_finite": not row.finite,
    }
    if not row.finite:
        said["verdict"] = "row unusable"
    return said


def _layout_words(row: Row) -> str:
    if row.out_of_place is None:
        return "in place only"
    if row.root is None:
        return "legacy redop, no root" if row.redop else "legacy type only"
    if row.redop is None:
        return "unified, blank redop" if row.root < 0 else "legacy root, no redop"
    return "per iteration" if row.in_place.per_iteration else "unified"


class RowReader:
    """Puts rows together that were printed in pieces with other output between or glued to them.

    Feed it every cleaned line that is not a comment. feed() returns (row or None, foreign text or None): the
    foreign text was glued to a piece of a row and is a line of its own.
    """

    def __init__(self) -> None:
        self.titles: Titles | None = None
        self.rejoined = 0
        self.lost: list[int] = []  # sizes of rows that never became whole
        self.wide: bool | None = None  # without titles: whether the last cell is as wide as from 2.17.3 on
        self._tokens: list[str] = []

    @property
    def pending_size(self) -> int | None:
        """Size of the row whose rest has not been seen yet."""
        return int(self._tokens[0]) if self._tokens else None

    def feed(self, text: str, hosts: t.Collection[str]) -> tuple[Row | None, str | None]:
        if "[" in text and "NCCL" not in text:
            text = without_inner_labels(text)
        tokens = text.split()
        if starts_row(tokens):
            row = parse_row(text, self.titles)
            self.drop_pending()
            if row is not None:
                if self.titles is None and self.wide is None and row.timestamp is None:
                    self.wide = _last_cell_is_wide(text)
                return row, None
        elif not self._tokens or not tokens or not self._continues(tokens[0]):
            return None, None
        begun = int(tokens[0]) if starts_row(tokens) else None
        piece, foreign = _cut_foreign(text, hosts)
        tokens = piece.split()
        if not tokens or (not self._tokens and not starts_row(tokens)):
            self._lose(begun)
            return None, None
        if not all(map(_belongs_to_row, tokens[0 if self._tokens else 3 :])):
            self._lose(begun)
            return None, foreign
        # The program prints a group of cells at once: other numbers are somebody else's.
        if self._tokens and sum(map(is_cell, tokens)) not in (4, 8, 16):
            return None, foreign
        self._tokens += tokens
        row = _assemble(self._tokens, self.titles, False) if len(self._tokens) > 10 else None
        if row is not None:
            self._tokens = []
            self.rejoined += 1
        return row, foreign

    def drop_pending(self) -> None:
        """The row begun last will not be finished: a new row or the end of the table came."""
        if self._tokens:
            self._lose(int(self._tokens[0]))
            self._tokens = []

    def _lose(self, size: int | None) -> None:
        """A row of this size was begun and is not to be had: other text stands in it."""
        if size is not None and len(self.lost) < _MAX_LOST:
            self.lost.append(size)

    @staticmethod
    def _continues(token: str) -> bool:
        return is_cell(token) or _GLUED.match(token) is not None


def _last_cell_is_wide(text: str) -> bool:
    """From 2.17.3 on the last cell takes 8 columns with its blanks, before that 7."""
    text = text.rstrip()
    return len(text) - len(text[: text.rindex(" ")].rstrip()) >= 8


def _cut_foreign(text: str, hosts: t.Collection[str]) -> tuple[str, str | None]:
    """(the piece of a row, the foreign text glued to its end or None)."""
    match = _FOREIGN.search(text)
    if match is None:
        return text, None
    start, token = match.start(), match.group()
    if not token.startswith("["):
        cut = _end_of_own_text(token, hosts)
        start += cut
    return text[:start], text[start:]


def _end_of_own_text(token: str, hosts: t.Collection[str]) -> int:
    """How many characters of `-1gpu-a1:4100:4201` belong to the row."""
    for host in sorted(hosts, key=len, reverse=True):
        at = token.find(host + ":")
        if at == 0 or (at > 0 and (is_cell(token[:at]) or token[:at] in OPS or token[:at] in TYPES)):
            return at
    match = _GLUED.match(token)
    return match.end() if match else 0
