# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the nccl-tests programs print: options, headers, rows, footers and exit codes, for versions from 2.13.2.

Not simulated: `-I` columns, trace replay (`-K`), `-M`, `-z`, several groups at once.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import typing as t
from collections.abc import Iterator, Sequence

from ..hardware.definition import version_tuple
from ..hardware.model import COLLECTIVES, Speed

_PROGRAM = re.compile(rf"({'|'.join(sorted(COLLECTIVES, key=len, reverse=True))})_perf(_mpi)?$")
_TYPE_BYTES = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "float": 4, "double": 8,
    "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
_OPS = ("sum", "prod", "min", "max", "avg", "mulsum")
_NO_OP = ("all_gather", "broadcast", "alltoall", "alltoallv", "sendrecv", "gather", "scatter")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_PER_RANK = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter")
_NOT_CHECKED_IN_PLACE = ("alltoall", "alltoallv", "sendrecv")
_GIB = 1 << 30


def is_program(name: str) -> bool:
    """True for the base name of an nccl-tests binary, e.g. all_reduce_perf_mpi."""
    return _PROGRAM.fullmatch(name) is not None


def collective_of(name: str) -> str:
    """all_reduce of all_reduce_perf_mpi. Raises ValueError for other programs."""
    match = _PROGRAM.fullmatch(name)
    if match is None:
        raise ValueError(f"not an nccl-tests program: {name}")
    return match.group(1)


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _PER_RANK else 1.0


# --- options ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Options:
    """The options of one program call."""

    minimum: int = 32 << 20
    maximum: int = 32 << 20
    step_bytes: int = 1 << 20
    factor: int = 1
    iters: int = 20
    warmup: int = 1
    agg_iters: int = 1
    cycles: int = 1
    check: int = 1
    types: tuple[str, ...] = ("float",)
    ops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] = (0,)
    gpus: int = 1
    threads: int = 1
    graph: int = 0
    row_times: bool = False
    cpu_time: bool = False
    json_file: str = ""
    problem: str = ""

    def sizes(self) -> list[int]:
        """The sweep, in bytes."""
        sizes = []
        size = self.minimum
        while size <= self.maximum:
            sizes.append(size)
            size = size * self.factor if self.factor > 1 else size + max(1, self.step_bytes)
        return sizes


_LONG = {
    "minbytes": "b", "maxbytes": "e", "stepfactor": "f", "stepbytes": "i", "iters": "n", "warmup_iters": "w", "agg_iters": "m",
    "run_cycles": "N", "check": "c", "datatype": "d", "op": "o", "root": "r", "ngpus": "g", "nthreads": "t", "cudagraph": "G",
    "report_timestamps": "S", "report_cputime": "C", "output_file": "J", "parallel_init": "p", "timeout": "T", "average": "a",
    "blocking": "z", "local_register": "R", "unalign": "u", "memory_report": "M",
}  # fmt: skip


def parse_options(words: Sequence[str], version: tuple[int, ...]) -> Options:
    """The options after the program's name. `problem` is set for an option that the program would refuse."""
    options = Options(warmup=1 if version >= (2, 16, 9) else 5)
    queue = list(words)
    while queue and not options.problem:
        word = queue.pop(0)
        if word.startswith("--"):
            name, _mark, value = word[2:].partition("=")
            letter = _LONG.get(name, "")
        elif word.startswith("-") and len(word) > 1:
            letter, value = word[1], word[2:]
        else:
            continue
        if not letter or letter not in _LONG.values():
            options.problem = word
            break
        _set(options, letter, value or (queue.pop(0) if queue else ""), word)
    return options


def _set(options: Options, letter: str, value: str, word: str) -> None:
    names = {
        "f": "factor",
        "n": "iters",
        "w": "warmup",
        "m": "agg_iters",
        "N": "cycles",
        "c": "check",
        "g": "gpus",
        "t": "threads",
        "G": "graph",
    }
    try:
        if letter in ("b", "e", "i"):
            setattr(options, {"b": "minimum", "e": "maximum", "i": "step_bytes"}[letter], parse_size(value))
        elif letter in names:
            setattr(options, names[letter], int(value))
        elif letter == "d":
            options.types = _choice(value, tuple(_TYPE_BYTES), "float")
        elif letter == "o":
            options.ops = _choice(value, _OPS, "sum")
        elif letter == "r":
            options.roots = (0, 1, 2, 3) if value == "all" else (int(value),)
        elif letter == "S":
            options.row_times = int(value) != 0
        elif letter == "C":
            options.cpu_time = int(value) != 0
        elif letter == "J":
            options.json_file = value
    except ValueError:
        options.problem = f"{word} {value}".strip()


def _choice(value: str, allowed: tuple[str, ...], other: str) -> tuple[str, ...]:
    if value == "all":
        return allowed
    if value.isdigit() and int(value) < len(allowed):
        return (allowed[int(value)],)
    return (value,) if value in allowed else (other,)


def parse_size(text: str) -> int:
    """Bytes of 8, 64K, 1M, 16G, 1T (also with a trailing B). Raises ValueError for other texts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)[bB]?", text)
    if match is None:
        raise ValueError(text)
    return int(float(match.group(1)) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[match.group(2).upper()])


# --- what is printed -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank: its number, the host name it prints, its node, CUDA device, process and addresses."""

    number: int
    host: str
    node: str
    device: int
    local: int
    pid: int
    pci: str
    gpu_name: str
    ip: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One printed row. Times in µs; wrong is None where nothing is checked."""

    size: int
    count: int
    type: str
    op: str
    root: int
    times: tuple[float, float]
    wrong: tuple[int | None, int | None]
    base: float  # bytes that algorithm bandwidth counts
    factor: float
    seconds: float

    def bandwidths(self, placement: int) -> tuple[float, float]:
        """(algorithm, bus) bandwidth in GB/s."""
        algorithm = self.base / self.times[placement] / 1e3
        return algorithm, algorithm * self.factor


class Printer:
    """Writes what a program of one version prints. `program` is the base name of the binary."""

    def __init__(self, program: str, options: Options, version: str, nccl: str, ranks: Sequence[Rank]) -> None:
        self.program = program
        self.collective = collective_of(program)
        self.options = options
        self.version_text = version
        self.version = version_tuple(version)
        self.nccl = nccl
        self.ranks = ranks

    # -- before the table

    def opening(self) -> list[str]:
        """The lines before the device list."""
        options = self.options
        lines = []
        if self.version >= (2, 17, 4):
            major, minor, patch = version_tuple(self.nccl)
            code = major * 10000 + minor * 100 + patch
            lines.append(f"# nccl-tests version {self.version_text} nccl-headers={code} nccl-library={code}")
        if self.version >= (2, 16, 9):
            lines.append(f"# Collective test starting: {self.program}")
        step = f"{options.factor}(factor)" if options.factor > 1 else f"{options.step_bytes}(bytes)"
        unalign = " unalign: 0" if self.version >= (2, 18, 2) else ""
        lines.append(
            f"# nThread {options.threads} nGpus {options.gpus} minBytes {options.minimum} maxBytes {options.maximum} step: {step} "
            f"warmup iters: {options.warmup} iters: {options.iters} agg iters: {options.agg_iters} validation: {options.check} "
            f"graph: {options.graph}{unalign}"
        )
        return [*lines, "#", "# Using devices"]

    def devices(self) -> list[str]:
        """One line per rank."""
        lines = []
        for rank in self.ranks:
            pci = f"[{rank.pci}]" if self.version >= (2, 15, 0) else f"[0x{rank.pci.split(':')[1]}]"
            lines.append(
                f"#  Rank {rank.number:2d} Group  0 Pid {rank.pid:6d} on {rank.host:>10s} device {rank.device:2d} {pci} {rank.gpu_name}"
            )
        return lines

    def fit_to_memory(self, memory_mib: int) -> list[str]:
        """Lower the largest size to what fits, as the program does; the line that says so."""
        usable = memory_mib * (1 << 20) * 0.967 - _GIB
        largest = int(usable / (3 if self.options.check else 2))
        if self.options.maximum <= largest:
            return []
        self.options.maximum = largest
        self.options.minimum = min(self.options.minimum, largest)
        return [f"# Reducing maxBytes to {largest} due to memory limitation"]

    def header(self) -> list[str]:
        """The head of the table."""
        time = "cputime" if self.options.cpu_time else "   time"
        wide = self.version >= (2, 17, 3)
        columns = f"  {time}   algbw   busbw {' ' if wide else ''}#wrong"
        units = "     (us)  (GB/s)  (GB/s)" + " " * (8 if wide else 7)
        end = " " if wide else ""
        return [
            "#",
            f"#{'':62}out-of-place{'':23}in-place{'':10}",
            f"#       size         count      type   redop    root{columns}{columns}{end}",
            f"#        (B)    (elements){'':26}{units}{units}{end}",
        ]

    # -- rows

    def rows(self, speed: Speed, jitter: random.Random, sigma: float, wrong: bool, memory_gb_s: float) -> Iterator[Row]:
        """All rows of all cycles, lazily.

        sigma:  relative difference between rows of one run.
        wrong:  the data check finds wrong elements.
        memory_gb_s: memory bandwidth of one GPU, for the copy of a single rank.
        """
        cycle = 0
        while self.options.cycles == 0 or cycle < self.options.cycles:
            first = cycle == 0
            cycle += 1
            for size in self.options.sizes():
                for type_name, op, root in self._variants():
                    yield self._row(size, type_name, op, root, speed, jitter, sigma, wrong, memory_gb_s, first)
                    first = False

    def _variants(self) -> list[tuple[str, str, int]]:
        ops = ("none",) if self.collective in _NO_OP else self.options.ops
        roots = self.options.roots if self.collective in _ROOTED else (-1,)
        return [(type_name, op, root) for type_name in self.options.types for op in ops for root in roots]

    def _row(
        self, size: int, type_name: str, op: str, root: int, speed: Speed, jitter: random.Random, sigma: float, wrong: bool,
        memory_gb_s: float, cold: bool,
    ) -> Row:  # fmt: skip
        ranks = len(self.ranks)
        width = _TYPE_BYTES[type_name]
        if self.collective in _PER_RANK:  # the share of a rank is cut to 16 bytes
            count = size // ranks // 16 * 16 // width
            size = count * width * ranks
        else:
            count = size // width
            size = count * width
        factor = bus_factor(self.collective, ranks)
        base = float(count * width * (ranks - 1)) if self.collective == "hypercube" else float(size)
        if ranks == 1:
            copy = 4.5 + size / (memory_gb_s / 2 * 1e3)
            times = (copy * _about_one(jitter, sigma), jitter.uniform(0.3, 1.0))
        else:
            plain = speed.time_us(base, factor)
            # One warm-up is not enough: the first row still pays for set-up.
            times = (plain * _about_one(jitter, sigma) + (30 if cold and self.options.warmup < 5 else 0), plain * _about_one(jitter, sigma))
        checked = self.options.check > 0
        in_place_checked = checked and self.collective not in _NOT_CHECKED_IN_PLACE
        bad = wrong and checked and size >= min(1 << 20, self.options.maximum)
        seen = (
            (_wrong_elements(count, jitter) if bad else 0) if checked else None,
            (_wrong_elements(count, jitter) if bad else 0) if in_place_checked else None,
        )
        loops = self.options.warmup + self.options.iters * max(1, self.options.agg_iters) + self.options.check
        seconds = sum(times) * loops / 1e6 + 0.02 + size / 40e9
        return Row(size, count, type_name, op, root, times, seen, base, factor, seconds)

    def row_text(self, row: Row, stamp: str = "") -> str:
        """A row as printed; `stamp` is added with -S 1."""
        return f"{self.row_head(row)}{self._cells(row, 0)}{self._cells(row, 1)}{f'  {stamp}' if stamp else ''}"

    @staticmethod
    def row_head(row: Row) -> str:
        """The part printed before the row is measured."""
        return f"{row.size:12d}  {row.count:12d}  {row.type:>8s}  {row.op:>6s}  {row.root:6d}"

    def _cells(self, row: Row, placement: int) -> str:
        algorithm, bus = row.bandwidths(placement)
        time, count = row.times[placement], row.wrong[placement]
        wrong = "N/A" if count is None else f"{count:g}"
        if self.version >= (2, 17, 3):
            speeds = f"{_compact(algorithm, 6, '.0e'):>6s}  {_compact(bus, 6, '.0e'):>6s}"
            return f"  {_compact(time, 7, '.1e'):>7s}  {speeds}  {wrong:>6s}"
        decimals = 0 if time >= 10000 else 1 if time >= 100 else 2
        return f"  {time:7.{decimals}f}  {algorithm:6.2f}  {bus:6.2f}  {wrong:>5s}"

    # -- after the table

    def footer(self, rows: Sequence[Row], min_bandwidth: float | None) -> tuple[list[str], int]:
        """The footer and the exit code. `min_bandwidth` is the value of NCCL_TESTS_MIN_BW."""
        bad = sum(1 for row in rows for wrong in row.wrong if wrong) * max(1, len({rank.node for rank in self.ranks}))
        average = _average(rows)
        too_slow = min_bandwidth is not None and average < min_bandwidth
        word = "" if min_bandwidth is None else " FAILED" if too_slow else " OK"
        lines = [
            f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}",
            f"# Avg bus bandwidth    : {average:g}{word or ' '}",
            "#",
        ]
        if self.version >= (2, 16, 9):
            lines += [f"# Collective test concluded: {self.program}", "#"]
        return [*lines, ""], self._bad_result_code() if bad or too_slow else 0

    def _bad_result_code(self) -> int:
        if self.version >= (2, 17, 7):
            return 7
        return 6 if self.version >= (2, 17, 3) else 1

    def document(self, rows: Sequence[Row], arguments: Sequence[str]) -> str:
        """What -J writes."""
        options = self.options
        average = "average_bus_bandwidth" if self.version >= (2, 17, 9) else "average_bus_bandwidith"
        bandwidth = "bandwidth" if self.version >= (2, 17, 9) else "bandwidith"
        bad = sum(1 for row in rows for wrong in row.wrong if wrong)
        config = {
            "nthreads": options.threads, "ngpus": options.gpus, "minimum_bytes": options.minimum, "maximum_bytes": options.maximum,
            "step_factor": options.factor, "warmup_iters": options.warmup, "iterations": options.iters,
            "aggregated_iterations": options.agg_iters, "validation": options.check, "graph": options.graph,
            "blocking_collectives": "false", "parallel_init": "false",
            "devices": [
                {"rank": rank.number, "group": 0, "pid": rank.pid, "hostname": rank.host, "device": rank.device, "device_hex": rank.pci,
                 "device_info": rank.gpu_name}
                for rank in self.ranks
            ],
        }  # fmt: skip
        major, minor, patch = version_tuple(self.nccl)
        results = [
            {
                "size": row.size, "count": row.count, "type": row.type, "redop": row.op, "root": f"{row.root:6d}",
                "out_of_place": _placement(row, 0), "in_place": _placement(row, 1),
            }
            for row in rows
        ]  # fmt: skip
        document = {
            "version": 3 if self.version >= (2, 19, 6) else 2 if self.version >= (2, 19, 2) else 1,
            "args": list(arguments),
            "env": [],
            "nccl_version": major * 10000 + minor * 100 + patch,
            "config": config,
            "results": results,
            "out_of_bounds": {"count": bad, "okay": str(not bad).lower()},
            average: {bandwidth: round(_average(rows), 6), "okay": "unchecked"},
            "errors": [""],
        }
        return json.dumps(document, separators=(",", ":"))


def _placement(row: Row, placement: int) -> dict[str, t.Any]:
    algorithm, bus = row.bandwidths(placement)
    wrong = row.wrong[placement]
    return {
        "time": round(row.times[placement], 6),
        "alg_bw": round(algorithm, 6),
        "bus_bw": round(bus, 6),
        "nwrong": None if wrong is None else float(wrong),
    }


def _average(rows: Sequence[Row]) -> float:
    values = [row.bandwidths(placement)[1] for row in rows for placement in (0, 1)]
    return sum(values) / len(values) if values else float("nan")


def _about_one(jitter: random.Random, sigma: float) -> float:
    return max(0.5, 1 + jitter.gauss(0, sigma))


def _wrong_elements(count: int, jitter: random.Random) -> int:
    return max(1, int(count * jitter.uniform(1e-6, 1e-3)))


def _compact(value: float, width: int, scientific: str) -> str:
    """The value with two decimals, fewer if it would not fit, else in scientific notation."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return format(value, scientific)
