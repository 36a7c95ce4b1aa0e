# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""gpu-burn: throughput, wrong results and the state of every GPU from its progress lines and its summary."""

from __future__ import annotations

import re
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement
from ..lines import LogLine, lines_of, log_lines
from ..measurement import finding, measurement
from ..metrics import units

_PROGRESS = re.compile(r"([\d.]+)%\s+proc'd: (.*?)\s+errors: (.*?)\s+temps: (.*)")
_GPU_SPEED = re.compile(r"(-?\d+) \(([\d.]+) Gflop/s\)")
_TEMPERATURE = re.compile(r"(\d+) C")
_TESTED = re.compile(r"Tested (\d+) GPUs?:")
_RESULT = re.compile(r"\s*GPU (\d+): (OK|FAULTY)\b")
_LISTED = re.compile(r"GPU (\d+): (.+?) \(UUID: (\S+)\)")
# Every alternative begins with letters of its own: a search that ignores the case of all of them is ten times slower.
_NO_START = re.compile(
    r"[Cc]ouldn't init a GPU test: (.*)|[Nn]o CUDA devices|[Cc]ouldn't find the compare file|CUDA driver version is insufficient.*"
)


class _Burn:
    """What one log said, line by line."""

    def __init__(self) -> None:
        self.listed: dict[str, str] = {}
        self.progress: float | None = None
        self.speeds: dict[int, float] = {}
        self._before: dict[int, int] = {}
        self._recent: dict[int, int] = {}
        self.died: set[int] = set()
        self.hottest: int | None = None
        self.tested: int | None = None
        self.results: dict[int, str] = {}
        self.no_start = ""

    def feed(self, line: LogLine) -> None:
        text = line.text
        if "proc'd" in text and (match := _PROGRESS.search(text)):
            self._progress(match, torn=line.torn)
        elif text.strip().startswith("Summary at:"):
            self._before, self._recent = self.errors, {}
        elif match := _LISTED.match(text):
            self.listed[match.group(1)] = match.group(2)
        elif "Tested " in text and (match := _TESTED.search(text)):
            self.tested = int(match.group(1))
        elif match := _RESULT.match(text):
            self.results[int(match.group(1))] = match.group(2)
        elif not self.no_start and (match := _NO_START.search(text)):
            self.no_start = match.group(0).strip()

    def _progress(self, match: re.Match[str], *, torn: bool) -> None:
        # The temperatures end the line: only they can be cut.
        self.progress = float(match.group(1)) if match.group(1).count(".") < 2 else self.progress
        for number, (done, speed) in enumerate(_GPU_SPEED.findall(match.group(2))):
            if int(done) < 0:
                self.died.add(number)
            elif int(done) > 0 and speed.count(".") < 2:
                self.speeds[number] = float(speed)
        for number, cell in enumerate(match.group(3).split(" - ")):
            count = re.match(r"\s*(\d+)", cell)
            # The count grows until a summary sets it back to zero.
            self._recent[number] = max(self._recent.get(number, 0), int(count.group(1)) if count else 0)
            if "DIED" in cell:
                self.died.add(number)
        if not torn:
            hot = [int(value) for value in _TEMPERATURE.findall(match.group(4))]
            self.hottest = max([*hot, *([self.hottest] if self.hottest is not None else [])], default=None)

    @property
    def errors(self) -> dict[int, int]:
        """Wrong results by GPU, over the whole run."""
        return {number: self._before.get(number, 0) + self._recent.get(number, 0) for number in {*self._before, *self._recent}}

    @property
    def faulty(self) -> list[int]:
        broken = {number for number, count in self.errors.items() if count} | {n for n, word in self.results.items() if word == "FAULTY"}
        return sorted(broken | (self.died if self.speeds else set()))

    @property
    def gpus(self) -> int:
        return max(len(self.results), len(self.speeds), len(self.errors))


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of one node. context: exit_code, expected_gpus, nodes."""
    return _measure((line for path in paths for line in log_lines(path)), context)


def parse(text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """Judge the output of gpu-burn. Never raises for its content."""
    return _measure(lines_of(text), context or {})


def _measure(lines: t.Iterable[LogLine], context: t.Mapping[str, t.Any]) -> Measurement:
    burn = _Burn()
    for line in lines:
        burn.feed(line)
    verdict, reason = _verdict(burn, context)
    values = _values(burn)
    nodes = list(context.get("nodes") or [])
    host = nodes[0] if len(nodes) == 1 else None
    findings = [finding("HardwareFailureDetected", _fault(burn, number), host=host, entity=f"GPU{number}") for number in burn.faulty]
    return measurement(
        "gpu_burn",
        verdict,
        reason,
        complete=verdict in (None, "DataCorruption"),
        values=values,
        units=units("gpu_burn", values),
        parsed={
            "gpus": [
                {
                    "gpu": number,
                    "gflops": burn.speeds.get(number),
                    "errors": burn.errors.get(number),
                    "died": number in burn.died,
                    "result": burn.results.get(number),
                }
                for number in sorted({*burn.speeds, *burn.errors, *burn.results})
            ],
            "listed": burn.listed,
            "tested": burn.tested,
        },
        findings=findings,
    )


def _fault(burn: _Burn, number: int) -> str:
    if number in burn.died:
        return f"GPU {number} died during gpu-burn"
    return f"GPU {number} computed {burn.errors.get(number, 0) or 'some'} wrong results"


def _values(burn: _Burn) -> dict[str, t.Any]:
    speeds = list(burn.speeds.values())
    low, high = min(speeds, default=None), max(speeds, default=None)
    return {
        "gflops_min": low,
        "gflops_max": high,
        "gflops_spread": round((high - low) / high, 6) if high and low is not None else None,
        "errors": sum(burn.errors.values()) if burn.errors else None,
        "temperature_max": burn.hottest,
        "gpus": burn.gpus,
        "faulty_gpus": len(burn.faulty),
        "progress": burn.progress,
    }


def _verdict(burn: _Burn, context: t.Mapping[str, t.Any]) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    if burn.faulty:
        names = ", ".join(f"GPU{number}" for number in burn.faulty)
        return ("WorkloadFailed" if burn.died & set(burn.faulty) else "DataCorruption"), f"faulty: {names}"
    if burn.no_start:
        return "SetupError", burn.no_start
    if burn.died and not burn.speeds:
        return "SetupError", "no GPU could be tested"
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code} at {burn.progress or 0:g} %: no summary was printed"
    if not burn.speeds and not burn.results:
        return "NoMeasurement", "no progress line"
    if burn.tested is None or len(burn.results) < burn.tested:
        return "LogIncomplete", "the summary is missing"
    expected = context.get("expected_gpus")
    if isinstance(expected, int) and burn.tested < expected:
        return "LogIncomplete", f"{burn.tested} of {expected} GPUs were tested"
    return None, f"{burn.tested} GPUs without an error"
