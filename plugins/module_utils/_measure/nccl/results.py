# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements of nccl-tests runs: what the numbers are, whether they are complete, and what went wrong.

The first thing that is wrong names the verdict, in this order: wrong data, the way the run ended, transport,
completeness, the program's own bandwidth check. All of them become findings.
"""

from __future__ import annotations

import math
import typing as t

from ..._causes import exit_codes
from ..._common.errors import InputError, unknown_value
from ..._common.shapes import Measurement, MeasurementFinding
from ..measurement import finding, is_unstable, measurement
from ..metrics import units
from . import collectives, transport
from .log import Log, Section, read_log
from .rows import Row

COLUMNS = ["size", "count", "type", "redop", "root"]
_GROUP = ["time_us", "algbw", "busbw"]
_PER_ITERATION = ["i_min_us", "i_max_us", "i_p99_us", "i_cv_pct"]
# At the largest size less than this part of the peak: large messages collapse.
COLLAPSE = 0.9
_MAX_SIZES = 10_000
# Codes of the data check and of NCCL_TESTS_MIN_BW; which number it is depends on the version, so the footer decides.
_CHECK_CODES = frozenset({1, 6, 7})

Key: t.TypeAlias = tuple[str, str | None, int | None]
Fault: t.TypeAlias = tuple[str, str]  # a reason of the table, and a sentence


class Context(t.NamedTuple):
    """What the caller knows; all of it optional."""

    exit_code: int | None = None
    expected_sizes: tuple[int, ...] = ()
    judged_size: int | None = None
    expect_transport: str | None = None
    expect_gdr: bool = False
    require_data_check: bool = False
    require_transport_proof: bool = False
    allow_reduced_sizes: bool = False
    cycles: int | None = None
    collective: str | None = None
    expected_gpus: int | None = None


def measure_files(paths: list[str], context: dict[str, t.Any]) -> Measurement:
    """The measurement of one run: see docs/data_shapes.md. Keys of the context that are not ours are ignored."""
    given = read_context(context)
    log = read_log(paths)
    chosen = _choose_sections(log.sections, given)
    primary = chosen[0]
    for section in log.sections:
        _fill_collective(section, given)
    summary = log.transport.summary(primary.devices)
    results = [_Result(section, given, log, summary, last=section is log.sections[-1]) for section in chosen]
    worst = next((result for result in results if result.verdict is not None), results[0])
    first = results[0]
    return measurement(
        "nccl",
        worst.verdict,
        worst.reason,
        complete=all(result.complete for result in results),
        values=first.values,
        units=units("nccl", first.values),
        parsed=_parsed(log, primary, given),
        transport=summary,
        judged=first.judged if len(results) == 1 else {str(result.section.collective): result.judged for result in results},
        findings=[item for result in results for item in result.findings],
    )


def read_context(context: t.Mapping[str, t.Any]) -> Context:
    """Checks the keys we use. Raises InputError naming the key."""
    values: dict[str, t.Any] = {name: context[name] for name in Context._fields if context.get(name) is not None}
    for name in ("exit_code", "judged_size", "cycles", "expected_gpus"):
        if name in values:
            values[name] = _whole(values[name], name)
    if "expected_sizes" in values:
        if isinstance(values["expected_sizes"], (str, bytes)):
            raise InputError("expected_sizes must be a list of bytes", place="context.expected_sizes")
        values["expected_sizes"] = tuple(_whole(size, "expected_sizes") for size in values["expected_sizes"])
    expected = values.get("expect_transport")
    if expected is not None and expected not in transport.EXPECTATIONS:
        raise unknown_value("transport", expected, transport.EXPECTATIONS, "context.expect_transport")
    if "collective" in values and values["collective"] not in collectives.COLLECTIVES:
        raise unknown_value("collective", values["collective"], collectives.COLLECTIVES, "context.collective")
    return Context(**values)


def _whole(value: t.Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number, not {value!r}", place=f"context.{name}")
    return int(value)


def _choose_sections(sections: list[Section], given: Context) -> list[Section]:
    """The section that counts for each collective, in order of appearance: the last complete one, else the last.

    A later one that failed outweighs a complete one: nobody may read a good number over the end of a bad run.
    """
    ended_badly = {id(section) for section in sections if _shows_failure(section)}
    if given.exit_code and not sections[-1].footer_complete:
        ended_badly.add(id(sections[-1]))
    by_collective: dict[str | None, Section] = {}
    for section in sections:
        known = by_collective.get(section.collective)
        if known is None or _counts(section) or not _counts(known) or id(section) in ended_badly:
            by_collective[section.collective] = section
    chosen = list(by_collective.values())
    telling = [section for section in chosen if section.rows or section.footer_complete or id(section) in ended_badly]
    wanted = [section for section in chosen if given.collective and section.collective == given.collective]
    return wanted or telling or chosen[-1:]


def _shows_failure(section: Section) -> bool:
    """Whether the texts of a section say that it did not come to its end."""
    texts = section.failures or section.ib_errors or section.watchdog or section.setup or section.setup_faults
    return not section.footer_complete and bool(texts or section.exit_rank is not None)


def _counts(section: Section) -> bool:
    return bool(section.rows) and section.footer_complete


# --- facts of a section ----------------------------------------------------------------------------------------


def ranks_for_factor(section: Section) -> int | None:
    """Ranks of the printed group; None when nothing tells."""
    if section.document and _is_one_process_of_many(section):
        return _ranks_by_ratio(section) or section.config.get("gpus")
    if section.devices and not section.devices_cut:
        return len(section.printed_group())
    return None


def _is_one_process_of_many(section: Section) -> bool:
    """Builds without MPI list the devices of one process only."""
    return len(section.devices) < int(section.config.get("gpus", 1) * section.config.get("threads", 1))


def _ranks_by_ratio(section: Section) -> int | None:
    """The number of ranks that busbw / algbw of the largest row stands for."""
    ratio = _ratio(section)
    if ratio is None or section.collective is None:
        return None
    for ranks in range(1, 4097):
        if abs(collectives.factor(section.collective, ranks) - ratio) < 1e-4 * max(ratio, 1.0):
            return ranks if collectives.factor(section.collective, ranks + 1) != ratio else None
    return None


def _ratio(section: Section) -> float | None:
    """busbw / algbw of the largest usable row."""
    row = max((row for row in _usable(section) if row.size), key=lambda row: row.size, default=None)
    if row is None or row.out_of_place is None or not row.out_of_place[1] or row.out_of_place[2] is None:
        return None
    return row.out_of_place[2] / row.out_of_place[1]


def _fill_collective(section: Section, given: Context) -> None:
    """Programs before 2.16.9 do not print their name: take the caller's word, else the columns'."""
    if section.collective is not None or not section.rows:
        section.collective = section.collective or given.collective
        return
    row = section.rows[-1]
    ranks = len(section.printed_group()) or 1
    checked = row.in_place[3] is not None
    ratio = _ratio(section) if ranks > 1 else None
    section.collective = given.collective or collectives.infer_collective(row.redop, row.root, ratio, ranks, checked)


def _usable(section: Section) -> list[Row]:
    return [row for row in section.rows if row.finite and row.out_of_place is not None and _whole_row(section, row)]


def _whole_row(section: Section, row: Row) -> bool:
    """Whether the numbers of a row belong together, where size / time is meant to be the algorithm bandwidth."""
    if section.reader.titles is not None and section.reader.titles.cpu_time:
        return True
    blank = row.redop is None and row.root is not None and row.root < 0
    return row.agrees or blank or section.collective in ("hypercube", "alltoallv")


def _head_lost(section: Section) -> bool:
    """Whether the log does not show what was asked for: its first lines are gone."""
    return not section.table_seen or "max_bytes" not in section.config


def _uneven_cycles(section: Section, ranks: int) -> bool:
    """Whether sizes differ in their number of samples. Sizes that trimming makes equal to their neighbours do not count."""
    if section.config.get("step_mode") == "bytes" or section.config.get("step", 2) < 2:
        return False
    counts: dict[Key, dict[int, int]] = {}
    for row in section.rows:
        if row.size > 64 * ranks:
            sizes = counts.setdefault((row.type, row.redop, row.root), {})
            sizes[row.size] = sizes.get(row.size, 0) + 1
    return any(len(set(sizes.values())) > 1 for sizes in counts.values())


def _layout(section: Section) -> str | None:
    titles = section.reader.titles
    if titles is None:
        unified = section.rows and section.rows[0].root is not None and section.reader.wide is not None
        return ("unified_5col_wide" if section.reader.wide else "unified_5col") if unified else None
    if titles.max_delta:
        return "legacy_per_collective"
    return "unified_5col_wide" if titles.wide or titles.per_iteration else "unified_5col"


def _missing_sizes(section: Section, given: Context, ranks: int) -> list[int]:
    """Requested sizes without a row. A row may be up to 16 x ranks bytes smaller: counts are trimmed."""
    seen = sorted({row.size for row in _usable(section)})
    if given.expected_sizes:
        return [size for size in given.expected_sizes if not _has_size(seen, size, ranks)]
    if not seen:
        return []
    # From the configuration only the largest size is demanded, with all that lie above the largest seen.
    return [size for size in _configured_sizes(section.config) if size - 16 * ranks > seen[-1]]


def _has_size(seen: t.Sequence[int], size: int, ranks: int) -> bool:
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
    if any(group and group[3] for row in counted for group in (row.out_of_place, row.in_place)):
        return False
    groups = [row.out_of_place or row.in_place for row in section.rows]
    if not groups or any(group[3] is None for group in groups):
        return None
    if len(counted) < len(section.rows) and section.out_of_bounds_word is None:
        return None  # a deviation is right or wrong only by the program's own limit
    return True


# --- judged values ---------------------------------------------------------------------------------------------


class _Samples:
    """Out-of-place samples of one size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.by_key: dict[Key, list[Row]] = {}

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.by_key.values() for row in rows]

    def mean(self, cell: int) -> float:
        return _mean([_cell(row, cell) for row in self.rows])

    def worst_key(self) -> Key:
        """The (type, operation, root) with the lowest mean bus bandwidth; algorithm bandwidth for one rank."""
        return min(self.by_key, key=lambda key: (_mean_of(self.by_key[key], 2), _mean_of(self.by_key[key], 1)))


def _cell(row: Row, cell: int) -> float:
    value = row.out_of_place[cell] if row.out_of_place else None
    return value if value is not None else 0.0


def _mean_of(rows: list[Row], cell: int) -> float:
    return _mean([_cell(row, cell) for row in rows])


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _samples(section: Section) -> list[_Samples]:
    """Samples of every size, smallest first."""
    found: dict[int, _Samples] = {}
    for row in _usable(section):
        samples = found.setdefault(row.size, _Samples(row.size))
        samples.by_key.setdefault((row.type, row.redop, row.root), []).append(row)
    return [found[size] for size in sorted(found)]


def judge(section: Section) -> dict[str, t.Any] | None:
    """The numbers of the out-of-place group, NVCRE's peak among them; None without a usable row. Four decimals."""
    samples = _samples(section)
    sized = [item for item in samples if item.size] or samples
    if not sized:
        return None
    # Of equal peaks the first counts; with one rank all bus bandwidths are 0 and the algorithm bandwidth decides.
    peak = max(sized, key=lambda item: (item.mean(2), item.mean(1)))
    largest = sized[-1]
    rows = largest.by_key[largest.worst_key()]
    spread = _spread(rows)
    collapse = largest.mean(2) / peak.mean(2) if peak.mean(2) else None
    return {
        "placement": "out_of_place",
        "samples_per_size": sorted({len(item.rows) for item in samples}),
        "busBandwidthGBps_peak": round(peak.mean(2), 4),
        "busBandwidthGBps_peak_size": peak.size,
        "busBandwidthGBps_at_max_size": round(largest.mean(2), 4),
        "algBandwidthGBps_peak": round(max(item.mean(1) for item in sized), 4),
        "algBandwidthGBps_at_max_size": round(largest.mean(1), 4),
        "max_size": largest.size,
        "data_correct": data_correct(section),
        "at_max_size": {"samples": [_cell(row, 2) for row in rows], "mean": round(_mean_of(rows, 2), 4), **spread},
        "unstable": _is_unstable(rows),
        "at_max_over_peak": round(collapse, 4) if collapse is not None else None,
        "collapse": collapse is not None and collapse < COLLAPSE,
    }


def _spread(rows: list[Row]) -> dict[str, t.Any]:
    values = [_cell(row, 2) for row in rows]
    low, high = min(values), max(values)
    return {"min": low, "max": high, "spread": round((high - low) / high, 4) if high else 0.0}


def _is_unstable(rows: list[Row]) -> bool:
    return is_unstable(_spread(rows)["spread"], len(rows))


# --- verdict ---------------------------------------------------------------------------------------------------


class _Result:
    """One section with its verdict."""

    def __init__(self, section: Section, given: Context, log: Log, summary: dict[str, t.Any], last: bool) -> None:
        self.section = section
        self.given = given
        self.log = log
        self.summary = summary
        self.exit_code = given.exit_code if last else None
        self.ranks = ranks_for_factor(section) or summary.get("n_ranks") or _ranks_by_ratio(section)
        self.judged = judge(section)
        self.findings: list[MeasurementFinding] = []
        self.incomplete = self._incompleteness()
        self.values = self._values()
        checks = (self._wrong_data(), self._ending(), self._wrong_transport(), self.incomplete, self._own_check())
        failed = [check for check in checks if check is not None]
        self._notes()
        self.verdict: str | None = failed[0][0] if failed else None
        self.reason = failed[0][1] if failed else self._measured_reason()
        judgeable = self.verdict in (None, "DataCorruption", "TransportFallback", "ThresholdViolation")
        self.complete = judgeable and self.incomplete is None and bool(section.rows)

    # Each check returns (verdict, reason) or None.

    def _wrong_data(self) -> Fault | None:
        if data_correct(self.section) is not False:
            return None
        wrong = _wrong_elements(self.section)
        sizes = sorted({row.size for row in self.section.rows if _row_is_wrong(row)})
        where = str(sizes[0]) if len(sizes) == 1 else f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}" if sizes else ""
        what = f"{wrong:.0f} wrong elements, at {where} bytes" if sizes else "the program's footer says that elements were wrong"
        reason = f"{what}: the bandwidth does not matter"
        self.findings.append(finding("DataCorruption", reason))
        return "DataCorruption", reason

    def _ending(self) -> Fault | None:
        """How the run ended, from texts first and the exit code second: the same number means different things."""
        section = self.section
        if self.log.unavailable and not section.rows:
            return "NoMeasurement", "the log was gone: the node answered with a placeholder text"
        ended = self._named_fault() if not section.footer_complete else self._fault_after_footer()
        if ended is None and not section.rows:
            return self._no_rows()
        return ended

    def _named_fault(self) -> Fault | None:
        """The footer is missing: why."""
        section, code = self.section, self.exit_code
        if section.setup:
            found, wanted, host = section.setup["found_gpus"], section.setup["requested_gpus"], section.setup.get("host")
            reason = f"{found} of {wanted} GPUs are visible on {host or 'a node'}"
            if self.given.expected_gpus is not None and found < self.given.expected_gpus:
                text = f"{found} GPUs are visible, the node advertises {self.given.expected_gpus}"
                self.findings.append(finding("HardwareFailureDetected", text, host=host))
            else:
                self.findings.append(finding("SetupError", reason, host=host))
            return "SetupError", reason
        if section.setup_faults:
            meaning, line = next(iter(section.setup_faults.items()))
            host = section.failures[0]["host"] if section.failures else None
            self.findings.append(finding("SetupError", meaning, host=host, evidence=[line]))
            return "SetupError", meaning
        if section.watchdog:
            host, seconds = section.watchdog
            where = f" at {section.unfinished_size} bytes" if section.unfinished_size else ""
            reason = f"the program's own watchdog ended a hang of {seconds} s{where}"
            self.findings.append(finding("TimedOut", reason, evidence=[f"{host}: Test timeout ({seconds}s)"]))
            return "TimedOut", reason
        if section.failures or section.ib_errors:
            return self._run_failed()
        if section.exit_signal is not None or section.exit_rank is not None:
            return self._rank_died()
        return self._by_exit_code(code) if code else None

    def _run_failed(self) -> Fault:
        section = self.section
        if not section.rows and any(item["text"] == "invalid usage" for item in section.failures):
            return "SetupError", f"NCCL refused the set-up on {section.failures[0]['host']}: invalid usage"
        for error in section.ib_errors[:5]:
            text = f"{error['status']} ({error['code']}) from {error['peer']} on {error['hca'] or 'an adapter'}: suspect both ends"
            self.findings.append(finding("WorkloadFailed", text, host=error["host"], entity=error["hca"]))
            peer = self.log.transport.addresses.get(error["peer"])
            if peer:
                self.findings.append(finding("WorkloadFailed", f"the other end of {text}", host=peer))
        for item in section.failures[:5]:
            self.findings.append(finding("WorkloadFailed", f"{item['kind']}: {item['text']}", host=item["host"]))
        what = section.failures[0]["text"] if section.failures else section.ib_errors[0]["status"]
        where = section.failures[0]["host"] if section.failures else section.ib_errors[0]["host"]
        return "WorkloadFailed", f"{what} on {where}; rows printed before it are not a result"

    def _rank_died(self) -> Fault:
        section = self.section
        how = f"signal {section.exit_signal}" if section.exit_signal is not None else f"exit code {section.said_exit_code}"
        host = section.exit_host or self._host_of_rank(section.exit_rank)
        reason = f"rank {section.exit_rank} on {host or 'an unknown host'} ended with {how}"
        self.findings.append(finding("WorkloadFailed", reason, host=host))
        return "WorkloadFailed", reason

    def _host_of_rank(self, rank: int | None) -> str | None:
        return next((device[2] for device in self.section.devices if device[0] == rank), None)

    def _by_exit_code(self, code: int) -> Fault:
        known = exit_codes.log_reason_of(code)
        own_limit = code == exit_codes.NCCL_TESTS_TIMEOUT and not _before(self.section, exit_codes.NCCL_TESTS_TIMEOUT_SINCE)
        if known == "TimedOut" or own_limit:
            return "TimedOut", f"the time limit ended the run (exit code {code}) before its last row"
        if known == "LogIncomplete":
            return known, f"the run ended before its footer: {exit_codes.EXITS[code].text}"
        if code in exit_codes.NCCL_TESTS_REFUSED:
            return "SetupError", f"the program refused what it was asked to do (exit code {code})"
        if not self.section.rows and (known == "SetupError" or code == exit_codes.LAUNCHERS_REFUSAL):
            return "SetupError", f"the program did not start to measure (exit code {code})"
        return "WorkloadFailed", f"the run ended with exit code {code} before its footer"

    def _fault_after_footer(self) -> Fault | None:
        """All numbers are there, yet the exit code is not 0."""
        section, code = self.section, self.exit_code
        if code == 0 or data_correct(section) is False or section.min_bandwidth == "FAILED":
            return None
        if section.failures or section.watchdog:
            return self._named_fault()
        if code is None:
            return None
        if code == 124 or code >= 128:
            what = "teardown hang" if code in (124, *exit_codes.KILLED) else "crash at exit"
            self.findings.append(finding("Warning", f"{what}: exit code {code} after a complete result"))
            return None
        return "WorkloadFailed", f"exit code {code} although the footer shows no fault"

    def _no_rows(self) -> Fault:
        section = self.section
        if section.skipped:
            return "NoMeasurement", f"the program skipped the test: {section.skipped}"
        if self.log.unparsable_json and not section.table_seen:
            return "LogIncomplete", "the JSON document is not closed or not readable, and there is no text of the run"
        if section.footer_complete and not (section.started or section.config or section.table_seen):
            return "LogIncomplete", "the log holds only the end of the run: its head with the result table is lost"
        if section.footer_complete:
            return "NoMeasurement", "the footer says OK, but there is not a single row"
        return "NoMeasurement", "the log is empty" if self.log.empty else "there is no result table in the log"

    def _wrong_transport(self) -> Fault | None:
        given, summary = self.given, self.summary
        problems = []
        known = self.log.transport.link_layer_known
        if given.expect_transport and not transport.meets(summary, given.expect_transport, link_layer_known=known):
            problems.append(f"expected {given.expect_transport}, the data went over {summary['class']}")
        if given.expect_gdr and (
            summary["gdr"] in ("partial", "none") or summary["gdr_all_ranks"] is False and summary["gdr"] == "unknown"
        ):
            without = ", ".join(summary["hosts_without_gdr"]) or "unknown"
            problems.append(f"GPU Direct RDMA is {summary['gdr']}, hosts without it: {without}")
        if given.require_transport_proof and (summary["class"] == "unknown" or summary["inferred"]):
            problems.append("nothing in the log proves which path the data took")
        if not problems:
            return None
        reason = "; ".join(problems)
        if summary["blame"]:
            for item in summary["blame"]:
                evidence = [item["line"]] if item["line"] else []
                self.findings.append(finding("TransportFallback", f"{reason}: {item['why']}", host=item["host"], evidence=evidence))
        else:
            self.findings.append(finding("TransportFallback", f"{reason}; all hosts agree: image or setting, not a node"))
        return "TransportFallback", reason

    def _incompleteness(self) -> Fault | None:
        problems = list(self._gaps())
        if not problems or not self.section.rows:
            return None
        self.findings.append(finding("LogIncomplete", "; ".join(problems)))
        return "LogIncomplete", problems[0]

    def _gaps(self) -> t.Iterator[str]:
        section, given = self.section, self.given
        if not section.footer_complete:
            yield "the footer is missing"
        missing = _missing_sizes(section, given, self.ranks or 1)
        if missing and _reduced(section) and not given.allow_reduced_sizes:
            yield f"{len(missing)} sizes are above the memory limit: lower the request or allow the largest measured size"
        elif missing and not (_reduced(section) and given.allow_reduced_sizes):
            yield f"{len(missing)} of the requested sizes are missing, the largest is {max(missing)}"
        if _head_lost(section) and not given.expected_sizes:
            yield "the beginning of the log is missing"
        if section.reader.lost:
            yield f"rows of {len(section.reader.lost)} sizes were torn and could not be rejoined"
        if any(not row.finite for row in section.rows):
            yield "rows hold numbers that are not finite"
        if any(row.finite and not _whole_row(section, row) for row in section.rows):
            yield "rows hold numbers that contradict each other: parts of them are lost"
        if _uneven_cycles(section, self.ranks or 1):
            yield "some sizes have fewer samples than others: rows of a cycle are lost"
        if any(row.out_of_place is None for row in section.rows):
            yield "rows without an out-of-place group cannot be judged"
        if section.rows_dropped:
            yield f"{section.rows_dropped} rows beyond the first {len(section.rows)} were not kept"
        if given.cycles and any(len(rows) < given.cycles for item in _samples(section) if item.size for rows in item.by_key.values()):
            yield f"fewer than {given.cycles} cycles were printed"
        if given.require_data_check and data_correct(section) is None:
            yield "the data check is required but was off: the numbers are usable, correctness is unproven"
        if given.judged_size is not None and self._judged_samples() is None:
            yield f"the judged size {given.judged_size} was not measured"

    def _own_check(self) -> Fault | None:
        if self.section.min_bandwidth != "FAILED":
            return None
        reason = f"the average of {self.section.average} GB/s is below the run's own limit NCCL_TESTS_MIN_BW"
        self.findings.append(finding("ThresholdViolation", reason))
        return "ThresholdViolation", reason

    def _notes(self) -> None:
        """Facts that change no verdict."""
        section, judged = self.section, self.judged
        if judged and judged["unstable"]:
            at = judged["at_max_size"]
            text = f"samples at {judged['max_size']} bytes from {at['min']} to {at['max']} GB/s: repeat before blaming a node"
            self.findings.append(finding("Unstable", text))
        if judged and judged["collapse"]:
            text = f"bandwidth collapses at large sizes: {judged['at_max_over_peak']:.0%} of the peak at {judged['max_size']} bytes"
            self.findings.append(finding("Warning", text))
        later = self.log.sections[self.log.sections.index(section) + 1 :]
        if section.footer_complete and any(not _counts(one) and one.collective in (None, section.collective) for one in later):
            self.findings.append(finding("Warning", "a later run of this test in the same log did not come to its end"))
        for line in section.warnings:
            self.findings.append(finding("Warning", "NCCL warned of a fault", evidence=[line]))
        for note in section.config_notes:
            self.findings.append(finding("Warning", "the program did not run what was asked", evidence=[note]))
        expected = _ratio_of(section, self.ranks)
        ratio = _ratio(section)
        moves = (self.values.get("alg_bandwidth") or 0.0) >= 1.0
        if expected is not None and ratio is not None and moves and abs(expected - ratio) >= 0.02:
            text = f"busbw / algbw is {ratio:.3f}, but {self.ranks} ranks give {expected:.3f}: the number of ranks is wrong"
            self.findings.append(finding("Warning", text))
        if self.summary["nvls"] is False and self.summary["nvls_capable"] and "no NVLS" not in self.summary["forced"]:
            text = "NVLink SHARP is supported but was not set up: look at the fabric manager, the driver and NCCL_NVLS_ENABLE"
            self.findings.append(finding("Warning", text))

    def _measured_reason(self) -> str:
        judged = self.judged or {}
        if self.ranks == 1:
            return f"one rank: judge the algorithm bandwidth, {judged.get('algBandwidthGBps_at_max_size')} GB/s"
        bandwidth = self.values.get("bus_bandwidth")
        shown = judged.get("busBandwidthGBps_at_max_size") if bandwidth is None else round(bandwidth, 4)
        return f"{shown} GB/s at {self.values.get('message_size', judged.get('max_size'))} bytes"

    # --- values ---

    def _judged_samples(self) -> _Samples | None:
        """Samples at the judged size; without one, at the largest measured."""
        samples = [item for item in _samples(self.section) if item.size] or _samples(self.section)
        if self.given.judged_size is None:
            return samples[-1] if samples else None
        ranks = self.ranks or 1
        fitting = [item for item in samples if _has_size([item.size], self.given.judged_size, ranks)]
        return fitting[-1] if fitting else None

    def _values(self) -> dict[str, t.Any]:
        section, summary, judged = self.section, self.summary, self.judged
        hosts = {device[2] for device in section.printed_group()}
        wrong = _wrong_elements(section) if data_correct(section) is not None else None
        values: dict[str, t.Any] = {
            "collective": section.collective,
            "ranks": self.ranks,
            "nodes": max(len(hosts), summary["n_nodes"] or 0) or None,
            "transport": summary["class"],
            "gdr": summary["gdr"],
            "nvls": summary["nvls"],
            "data_correct": data_correct(section) if section.rows else None,
            "wrong": wrong if section.rows else None,
            "avg_bus_bandwidth": section.average,
            "nccl_version": section.versions.get("nccl_runtime") or _library_version(section),
        }
        samples = self._judged_samples()
        if judged is None or samples is None:
            return values
        rows = samples.by_key[samples.worst_key()]
        spread = _spread(rows)
        smallest = next((item for item in _samples(section) if item.size), samples)
        several = len(samples.by_key) > 1
        numbers: dict[str, t.Any] = {
            "bus_bandwidth": _mean_of(rows, 2),
            "alg_bandwidth": _mean_of(rows, 1),
            "time_us": _mean_of(rows, 0),
            "bus_bandwidth_min": spread["min"],
            "bus_bandwidth_max": spread["max"],
            "spread": spread["spread"],
            "samples": len(rows),
            "message_size": samples.size,
            "latency_us": smallest.mean(0),
            "bus_bandwidth_peak": judged["busBandwidthGBps_peak"],
            "alg_bandwidth_peak": judged["algBandwidthGBps_peak"],
            "collapse": judged["at_max_over_peak"],
            "datatype": None if several else rows[0].type,
            "redop": None if several else rows[0].redop,
        }
        if _ratio_of(section, self.ranks) == 0.0 and not spread["max"]:
            # One rank moves nothing over a link: the printed 0 is no bandwidth.
            numbers |= dict.fromkeys(("bus_bandwidth", "bus_bandwidth_min", "bus_bandwidth_max", "bus_bandwidth_peak", "spread"))
            numbers["collapse"] = None
        return values | numbers


def _wrong_elements(section: Section) -> float:
    return math.fsum(group[3] or 0 for row in section.rows if not row.max_delta for group in (row.out_of_place, row.in_place) if group)


def _row_is_wrong(row: Row) -> bool:
    return not row.max_delta and any(group and group[3] for group in (row.out_of_place, row.in_place))


def _reduced(section: Section) -> bool:
    return "effective_max_bytes" in section.config


def _ratio_of(section: Section, ranks: int | None) -> float | None:
    return collectives.factor(section.collective, ranks) if section.collective and ranks else None


def _before(section: Section, version: tuple[int, int]) -> bool:
    parts = str(section.versions.get("nccl_tests", "")).split(".")
    if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit():
        return (int(parts[0]), int(parts[1])) < version
    return _layout(section) == "legacy_per_collective"


def _library_version(section: Section) -> str | None:
    code = section.versions.get("nccl_library")
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code else None


# --- parsed ----------------------------------------------------------------------------------------------------


def _parsed(log: Log, primary: Section, given: Context) -> dict[str, t.Any]:
    parsed = _parsed_section(primary, given)
    parsed["section_count"] = len(log.sections)
    if log.unavailable:
        parsed["log_unavailable"] = True
    if log.json_path:
        parsed["json_path"] = log.json_path
    if log.unparsable_json:
        parsed["json_unparsable"] = True
    if len(log.sections) > 1:
        parsed["sections"] = [_parsed_section(section, given) for section in log.sections]
    return parsed


def _parsed_section(section: Section, given: Context) -> dict[str, t.Any]:
    ranks = ranks_for_factor(section)
    parsed: dict[str, t.Any] = {
        "source": section.source,
        "collective": section.collective,
        "layout": _layout(section),
        "versions": section.versions,
        "config": section.config,
        "devices": _devices(section, ranks),
        "columns": _columns(section),
        "row_count": len(section.rows),
        "rows": [_row_values(row) for row in section.rows],
        "footer": _footer(section),
        "time_is": "cpu" if section.reader.titles and section.reader.titles.cpu_time else "wall",
        "missing_sizes": _missing_sizes(section, given, ranks or 1),
        "size_zero_rows": sum(not row.size for row in section.rows),
        "distinct_keys": len({(row.type, row.redop, row.root) for row in section.rows}),
        "rejoined_rows": section.reader.rejoined,
        "lost_rows": section.reader.lost,
        "partial_last_line": section.partial_last_line,
        "failures": section.failures,
        "ib_errors": section.ib_errors,
        "head_lost": (bool(section.rows) or section.footer_complete) and _head_lost(section),
    }
    if parsed["missing_sizes"]:
        parsed["missing_because"] = "memory_limit" if _reduced(section) else "cut"
    stamps = [row.timestamp for row in section.rows if row.timestamp]
    optional = {
        "row_timestamps": stamps or None,
        "setup": section.setup or None,
        "version_mismatch": section.version_mismatch or None,
        "watchdog_seconds": section.watchdog[1] if section.watchdog else None,
        "watchdog_host": section.watchdog[0] if section.watchdog else None,
        "unfinished_size": section.unfinished_size,
        "exit_rank": section.exit_rank,
        "exit_host": section.exit_host,
        "exit_signal": section.exit_signal,
        "skipped": section.skipped,
        "setup_faults": list(section.setup_faults) or None,
        "config_notes": section.config_notes or None,
    }
    parsed.update({key: value for key, value in optional.items() if value is not None})
    if section.document:
        parsed.update(section.document)
        parsed["distinct_keys"] = len({(row.type, row.redop, row.root) for row in section.rows})
        parsed["nccl_version"] = section.versions.get("nccl_runtime")
        parsed["ranks"] = ranks
        parsed["hosts"] = section.hosts
        parsed["out_of_bounds"] = section.out_of_bounds
        parsed["avg_busbw"] = section.average
    return parsed


def _devices(section: Section, ranks: int | None) -> dict[str, t.Any]:
    return {
        "ranks": len(section.devices) or None,
        "hosts": section.hosts,
        "groups": len({device[1] for device in section.devices}),
        "n_for_factor": ranks,
        "list_cut": section.devices_cut,
    }


def _columns(section: Section) -> list[str]:
    titles = section.reader.titles
    delta = titles.max_delta if titles else any(row.max_delta for row in section.rows)
    per_iteration = any(len(row.in_place) == 8 for row in section.rows) or bool(titles and titles.per_iteration)
    group = [*_GROUP, "max_delta" if delta else "wrong", *(_PER_ITERATION if per_iteration else [])]
    return [*COLUMNS, *(f"oop_{name}" for name in group), *(f"ip_{name}" for name in group)]


def _row_values(row: Row) -> list[t.Any]:
    blank: tuple[float | None, ...] = (None,) * len(row.in_place)
    cells = [*(row.out_of_place or blank), *row.in_place]
    return [row.size, row.elements, row.type, row.redop, row.root, *(_plain(cell) for cell in cells)]


def _plain(cell: float | None) -> float | None:
    return cell if cell is None or math.isfinite(cell) else None


def _footer(section: Section) -> dict[str, t.Any] | None:
    if section.out_of_bounds_word is None and not section.average_seen:
        return None
    return {
        "out_of_bounds": section.out_of_bounds,
        "oob": section.out_of_bounds_word,
        "avg_busbw": section.average,
        "min_bw_check": section.min_bandwidth,
        # Programs before 2.16.9 print neither line.
        "concluded": section.concluded if section.started or section.concluded else None,
        "error_text": section.error_text,
    }
