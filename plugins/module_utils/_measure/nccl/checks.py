# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The checks of one section.

The first thing that is wrong names the verdict, in this order: wrong data, the way the run ended, transport,
completeness, the program's own bandwidth check. All of them become findings.
"""

from __future__ import annotations

import typing as t

from ..._causes import exit_codes
from ..._common.shapes import MeasurementFinding
from ..blame import is_hardware
from ..measurement import finding
from . import facts, transport, values
from .context import Context
from .log import Log
from .sections import Section

Fault = tuple[str, str]  # a reason of the table, and a sentence


class Result:
    """One section with its verdict."""

    def __init__(self, section: Section, given: Context, log: Log, summary: dict[str, t.Any], last: bool) -> None:
        self.section = section
        self.given = given
        self.log = log
        self.summary = summary
        self.exit_code = given.exit_code if last else None
        self.ranks = facts.ranks_of(section, summary.get("n_ranks"))
        self.judged = values.judge(section)
        self.findings: list[MeasurementFinding] = []
        self.incomplete = self._incompleteness()
        self.unknown_path = self._unknown_path()
        self.values = values.values_of(section, given, self.judged, summary, self.ranks)
        checks = (self._wrong_data(), self._ending(), self._wrong_transport(), self.incomplete, self.unknown_path, self._own_check())
        failed = [check for check in checks if check is not None]
        self._notes()
        self.verdict: str | None = failed[0][0] if failed else None
        self.reason = failed[0][1] if failed else self._measured_reason()
        judgeable = self.verdict in (None, "DataCorruption", "TransportFallback", "ThresholdViolation")
        self.complete = judgeable and self.incomplete is None and self.unknown_path is None and bool(section.rows)

    # Each check returns (verdict, reason) or None.

    def _wrong_data(self) -> Fault | None:
        if facts.data_correct(self.section) is not False:
            return None
        wrong = facts.wrong_elements(self.section)
        sizes = sorted({row.size for row in self.section.rows if facts.row_is_wrong(row)})
        where = str(sizes[0]) if len(sizes) == 1 else f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}" if sizes else ""
        what = f"{wrong:.10g} wrong elements, at {where} bytes" if sizes else "the program's footer says that elements were wrong"
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
            text = (
                f"{error['status']} ({error['code']}) from {error['peer'] or 'a peer'} on {error['hca'] or 'an adapter'}: suspect both ends"
            )
            self.findings.append(finding("WorkloadFailed", text, host=error["host"], entity=error["hca"]))
            peer = self.log.transport.addresses.get(error["peer"])
            if peer:
                self.findings.append(finding("WorkloadFailed", f"the other end of {text}", host=peer))
        broken = [item for item in section.failures if is_hardware(item["text"])]
        for item in (*broken, *(other for other in section.failures if other not in broken))[:5]:
            reason = "HardwareFailureDetected" if item in broken else "WorkloadFailed"
            self.findings.append(finding(reason, f"{item['kind']}: {item['text']}", host=item["host"]))
        if broken:
            return "HardwareFailureDetected", f"{broken[0]['text']} on {broken[0]['host']}"
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
        own_limit = code == exit_codes.NCCL_TESTS_TIMEOUT and not facts.before(self.section, exit_codes.NCCL_TESTS_TIMEOUT_SINCE)
        if known == "TimedOut" or own_limit:
            return "TimedOut", f"the time limit ended the run (exit code {code}) before its last row"
        if known == "LogIncomplete":
            return known, f"the run ended before its footer: {exit_codes.EXITS[code].text}"
        if code in exit_codes.NCCL_TESTS_REFUSED:
            return "SetupError", f"the program refused what it was asked to do (exit code {code})"
        if not self.section.rows and (known == "SetupError" or code == exit_codes.LAUNCHERS_REFUSAL):
            return "SetupError", f"the program did not start to measure (exit code {code})"
        return "WorkloadFailed", f"the run ended with exit code {code} facts.before its footer"

    def _fault_after_footer(self) -> Fault | None:
        """All numbers are there, yet the exit code is not 0."""
        section, code = self.section, self.exit_code
        if code == 0 or facts.data_correct(section) is False or section.min_bandwidth == "FAILED":
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
        if section.mixed:
            yield f"the lines of several runs are mixed: {section.mixed}"
        yield from self._unproven()
        missing = facts.missing_sizes(section, given, self.ranks or 1)
        if missing and facts.reduced(section) and not given.allow_reduced_sizes:
            yield f"{len(missing)} sizes are above the memory limit: lower the request or allow the largest measured size"
        elif missing and not (facts.reduced(section) and given.allow_reduced_sizes):
            yield f"{len(missing)} of the requested sizes are missing, the largest is {max(missing)}"
        if facts.head_lost(section) and not given.expected_sizes:
            yield "the beginning of the log is missing"
        damaged = facts.damaged_request(section)
        if damaged and not given.expected_sizes:
            yield damaged
        if section.reader.lost:
            yield f"rows of {len(section.reader.lost)} sizes were torn and could not be rejoined"
        if any(not row.finite for row in section.rows):
            yield "rows hold numbers that are not finite"
        if any(row.finite and not facts.whole_row(section, row) for row in section.rows):
            yield "rows hold numbers that contradict each other: parts of them are lost"
        wrong_ranks = facts.wrong_ranks(section)
        if wrong_ranks:
            yield wrong_ranks
        if section.out_of_bounds_word == "OK" and section.out_of_bounds:
            yield f"the footer contradicts itself: {section.out_of_bounds} wrong checks, and OK"
        if facts.uneven_cycles(section, self.ranks or 1):
            yield "some sizes have fewer samples than others: rows of a cycle are lost"
        if any(row.out_of_place is None for row in section.rows):
            yield "rows without an out-of-place group cannot be judged"
        if section.sections_dropped:
            yield f"{section.sections_dropped} runs of the log were not kept"
        if section.rows_dropped:
            yield f"{section.rows_dropped} rows beyond the first {len(section.rows)} were not kept"
        if given.cycles and any(
            len(rows) < given.cycles for item in values.samples_of(section) if item.size for rows in item.by_key.values()
        ):
            yield f"fewer than {given.cycles} cycles were printed"
        if given.require_data_check and facts.data_correct(section) is None:
            yield "the data check is required but was off: the numbers are usable, correctness is unproven"
        if given.judged_size is not None and values.judged_samples(section, given, self.ranks) is None:
            yield f"the judged size {given.judged_size} was not measured"

    def _unproven(self) -> t.Iterator[str]:
        """What was asked for against what took part."""
        given, section = self.given, self.section
        hosts = max(len({device[2] for device in section.printed_group()}), self.summary["n_nodes"] or 0)
        whole = section.devices and not section.devices_cut
        if given.nodes and whole and hosts < len(given.nodes):
            yield f"{hosts} of {len(given.nodes)} nodes took part"
        if given.expected_ranks is not None and self.ranks is not None and self.ranks < given.expected_ranks:
            yield f"{self.ranks} of {given.expected_ranks} ranks took part"
        if given.collective and section.collective and section.collective != given.collective:
            yield f"{section.collective} ran, {given.collective} was asked for"

    def _unknown_path(self) -> Fault | None:
        """A path was expected, and not one line says which was taken. One rank sends nothing anywhere."""
        if not self.given.expect_transport or self.summary["class"] != "unknown" or self.ranks == 1 or not self.section.rows:
            return None
        reason = f"{self.given.expect_transport} was expected, and no line of the log says which path the data took: set NCCL_DEBUG=INFO"
        self.findings.append(finding("Warning", reason))
        return "LogIncomplete", reason

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
        earlier = self.log.sections[: self.log.sections.index(section)]
        if any(not facts.counts(one) and one.collective in (None, section.collective) for one in earlier):
            self.findings.append(finding("Warning", "an earlier run of this test in the same log did not come to its end"))
        for (host, adapter), lines in section.link_events.items():
            text = f"adapter {adapter} told of trouble with itself or its port while the test ran: look at its link"
            self.findings.append(finding("Warning", text, host=host, entity=adapter, evidence=lines))
        for line in section.warnings:
            self.findings.append(finding("Warning", "NCCL warned of a fault", evidence=[line]))
        for note in section.config_notes:
            self.findings.append(finding("Warning", "the program did not run what was asked", evidence=[note]))
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
