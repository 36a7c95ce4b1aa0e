# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""gpu-burn: throughput, wrong results and the state of every GPU from its progress lines and its summary.

A progress line has three lists with one cell for each process, in the order of the processes: batches done with their speed, wrong
results, temperatures. -1 batches: the process has ended. Its count of wrong results is then what happened to be in memory.
"""

from __future__ import annotations

import re
import statistics
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import MeasurementFinding
from ..blame import is_hardware, is_setup
from ..lines import LogLine
from ..measurement import finding
from ..outcomes import is_possible, number
from .tool import Context, Log, Said, Tool, is_short

# A dash between two cells: after a blank or a note, before a blank. Not the sign of a number, nor the "--" of an unread temperature.
_BETWEEN_CELLS = re.compile(r"(?:(?<=\s)|(?<=\)))-(?=\s|$)")
_WORK = re.compile(r"(-?\d{1,18}) \((\S{1,40}) Gflop/s\)")
_ERRORS = re.compile(r"(-?\d{1,18})(?:\s{1,8}\((WARNING|DIED)!\))?")
_TEMPERATURE = re.compile(r"(\d{1,4}) C")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%\s{0,8}$")
_TESTED = re.compile(r"Tested (\d{1,6}) GPUs?:")
_RESULT = re.compile(r"\s*GPU (\d{1,6}): (OK|FAULTY)\b")
_LISTED = re.compile(r"\s*GPU (\d{1,6}): ([^(]{1,200}) \(UUID: ")
_DEVICE = re.compile(r"Initialized device (\d{1,6}) with ")
_INIT_FAILED = re.compile(r"[Cc]ouldn't init (?:a GPU test|CUDA): ?(.{0,400})")
_COMPUTE_FAILED = re.compile(r"Failure during compute: ?(.{0,400})")
_NO_START = re.compile(
    r"[Nn]o CUDA devices|[Nn]ot enough devices for|[Cc]ouldn't find the compare file|CUDA driver version is insufficient"
)
# A GPU that has done nothing while another finished this many batches hangs.
_HANGS_AFTER = 10
# A GPU that is so much slower than the middle of its neighbours is named.
_SLOW = 0.05


class _Gpu:
    """One process of gpu-burn."""

    def __init__(self) -> None:
        self.batches = 0
        self.speed: float | None = None
        self.behind: dict[int, int] = {}  # process -> batches it reported since this one last did
        self.died = False
        self.result: str | None = None
        self.wrong = False
        self._before, self._recent = 0, 0

    def work(self, batches: int, speed: float | None) -> bool:
        """Takes a cell; returns whether it shows new work."""
        if batches < 0:
            self.died = True
        if batches <= self.batches:
            return False
        self.batches, self.behind = batches, {}
        self.speed = speed if speed and is_possible(speed, "GFLOP/s") else self.speed
        return True

    def count(self, errors: int, note: str | None) -> None:
        """Takes the count of wrong results, which grows until a summary sets it back to zero."""
        self.died = self.died or note == "DIED"
        if not self.died:
            self.wrong = self.wrong or errors != 0 or note == "WARNING"
            self._recent = max(self._recent, errors)

    def summary(self) -> None:
        self._before, self._recent = self.errors, 0

    @property
    def errors(self) -> int:
        return self._before + self._recent

    @property
    def corrupt(self) -> bool:
        return self.wrong or (self.result == "FAULTY" and not self.died)

    @property
    def hangs(self) -> bool:
        return max(self.behind.values(), default=0) >= _HANGS_AFTER


class _Run:
    """One start of gpu-burn."""

    def __init__(self) -> None:
        self.processes: dict[int, _Gpu] = {}
        self.cells = 0
        self.tested: int | None = None
        self.devices: set[int] = set()
        self.init_failures: list[str] = []
        self.compute_failures: list[str] = []

    @property
    def is_summed_up(self) -> bool:
        said = sum(gpu.result is not None for gpu in self.processes.values())
        return self.tested is not None and self.cells <= self.tested == said == len(self.processes)

    def gpus(self) -> dict[int, _Gpu]:
        """The processes by their GPU. A single one may have been given any GPU, and says which."""
        if len(self.devices) == len(self.processes) == 1:
            return dict(zip(self.devices, self.processes.values(), strict=True))
        return dict(sorted(self.processes.items()))

    def dead(self) -> list[int]:
        """GPUs whose process ended and that it is held against: they had worked, or an error of hardware was printed."""
        texts = [*self.init_failures, *self.compute_failures]
        died = {name: gpu for name, gpu in self.gpus().items() if gpu.died}
        broken = sum(map(is_hardware, texts))
        if broken and len(died) <= broken:
            return list(died)
        return [] if not broken and any(map(is_setup, texts)) else [name for name, gpu in died.items() if gpu.speed]


class _Burn:
    """What the logs said, line by line."""

    def __init__(self) -> None:
        self.listed: dict[str, str] = {}
        self.runs = [_Run()]
        self.progress: float | None = None
        self.hottest: int | None = None
        self.no_start = ""

    @property
    def run(self) -> _Run:
        return self.runs[-1]

    def feed(self, line: LogLine) -> None:
        text = line.text
        if "proc'd:" in text:
            self._progress(text, torn=line.torn)
        elif text.lstrip().startswith("Summary at:"):
            for gpu in self.run.processes.values():
                gpu.summary()
        elif match := _LISTED.match(text):
            if match.group(1) == "0" and self.run.processes:
                self.runs.append(_Run())  # nvidia-smi lists the GPUs at the start of each
            self.listed[match.group(1)] = match.group(2)
        elif "Tested " in text and (match := _TESTED.search(text)):
            self.run.tested = int(match.group(1))
        elif self.run.tested is not None and (match := _RESULT.match(text)):
            self.run.processes.setdefault(int(match.group(1)), _Gpu()).result = match.group(2)
        elif match := _DEVICE.search(text):
            self.run.devices.add(int(match.group(1)))
        elif match := _INIT_FAILED.search(text):
            self.run.init_failures.append(match.group(0).strip())
        elif match := _COMPUTE_FAILED.search(text):
            self.run.compute_failures.append(match.group(0).strip())
        elif not self.no_start and (match := _NO_START.search(text)):
            self.no_start = match.group(0)

    def _progress(self, text: str, *, torn: bool) -> None:
        head, _mark, rest = text.partition("proc'd:")
        work, _mark, rest = rest.partition("errors:")
        errors, ended, temperatures = rest.partition("temps:")
        done = [match for cell in _BETWEEN_CELLS.split(work) if (match := _WORK.search(cell))]
        wrong = [match for cell in _BETWEEN_CELLS.split(errors) if (match := _ERRORS.search(cell))]
        # One cell per GPU in each list: else the line is cut, or text of another process stands in it, and nobody knows whose is whose.
        cells = len(_BETWEEN_CELLS.split(work))
        if not ended or not cells == len(_BETWEEN_CELLS.split(errors)) == len(done) == len(wrong) or cells < self.run.cells:
            return
        self.run.cells = cells
        if match := _PERCENT.search(head[-40:]):
            self.progress = number(match.group(1))
        self._cells(done, wrong)
        if not torn:
            hot = [int(degrees) for degrees in _TEMPERATURE.findall(temperatures) if is_possible(int(degrees), "C")]
            self.hottest = max([*hot, *([self.hottest] if self.hottest is not None else [])], default=None)

    def _cells(self, done: list[re.Match[str]], wrong: list[re.Match[str]]) -> None:
        advanced = []
        for index, (work, errors) in enumerate(zip(done, wrong, strict=True)):
            gpu = self.run.processes.setdefault(index, _Gpu())
            if gpu.work(int(work.group(1)), number(work.group(2))):
                advanced.append(index)
            gpu.count(int(errors.group(1)), errors.group(2))
        for index, gpu in self.run.processes.items():
            for other in advanced:
                if other != index:
                    gpu.behind[other] = gpu.behind.get(other, 0) + 1

    def gpus(self) -> list[tuple[int, _Gpu]]:
        """(GPU, what it did) in every run."""
        return [item for run in self.runs for item in run.gpus().items()]

    def dead(self) -> set[int]:
        return {name for run in self.runs for name in run.dead()}

    def corrupt(self) -> set[int]:
        return {name for name, gpu in self.gpus() if gpu.corrupt}

    def failures(self) -> list[str]:
        return [text for run in self.runs for text in run.compute_failures]


def _names(gpus: t.Iterable[int]) -> str:
    return ", ".join(f"GPU{name}" for name in sorted(set(gpus)))


def _judge(logs: t.Sequence[Log], context: Context) -> Said:
    """One node. context: exit_code, expected_gpus, nodes."""
    burn = _Burn()
    for log in logs:
        for line in log:
            if is_short(line):
                burn.feed(line)
    verdict, reason = _verdict(burn, context)
    parsed = {
        "gpus": [
            {"gpu": name, "gflops": gpu.speed, "errors": gpu.errors, "died": gpu.died, "result": gpu.result} for name, gpu in burn.gpus()
        ],
        "listed": burn.listed,
        "tested": burn.run.tested,
    }
    return Said(verdict, reason, _values(burn), parsed, _findings(burn, context) or ([] if verdict else _slow(burn, context)))


def _findings(burn: _Burn, context: Context) -> list[MeasurementFinding]:
    nodes = list(context.get("nodes") or [])
    host = nodes[0] if len(nodes) == 1 else None
    found = []
    for name in sorted(burn.dead() | burn.corrupt()):
        errors = sum(gpu.errors for other, gpu in burn.gpus() if other == name)
        wrong = f"GPU {name} computed {errors or 'some'} wrong results"
        message = wrong if name in burn.corrupt() else f"GPU {name} died during gpu-burn"
        found.append(finding("HardwareFailureDetected", message, host=host, entity=f"GPU{name}", evidence=burn.failures()[:3]))
    return found


def _slow(burn: _Burn, context: Context) -> list[MeasurementFinding]:
    """The GPUs that are slower than their neighbours, slowest first. Whether that is too slow the criteria say."""
    nodes = list(context.get("nodes") or [])
    speeds = sorted((gpu.speed, name) for name, gpu in burn.gpus() if gpu.speed is not None)
    middle = statistics.median_high([speed for speed, _name in speeds]) if speeds else 0.0
    return [
        finding(
            "Warning",
            f"GPU {name} is slow: {speed:.0f} GFLOP/s, {1 - speed / middle:.0%} below the middle of its node's GPUs ({middle:.0f})",
            host=nodes[0] if len(nodes) == 1 else None,
            entity=f"GPU{name}",
        )
        for speed, name in speeds
        if speed < (1 - _SLOW) * middle
    ]


def _values(burn: _Burn) -> dict[str, t.Any]:
    speeds = {gpu.speed: name for name, gpu in burn.gpus() if gpu.speed is not None}
    low, high = min(speeds, default=None), max(speeds, default=None)
    return {
        "slowest_gpu": None if low is None else speeds[low],
        "gflops_min": low,
        "gflops_max": high,
        "gflops_spread": round((high - low) / high, 6) if high and low is not None else None,
        "errors": sum(gpu.errors for _name, gpu in burn.gpus()) if burn.gpus() else None,
        "temperature_max": burn.hottest,
        "gpus": len(dict(burn.gpus())),
        "faulty_gpus": len(burn.dead() | burn.corrupt()),
        "progress": burn.progress,
    }


def _verdict(burn: _Burn, context: Context) -> tuple[str | None, str]:
    dead, corrupt = burn.dead(), burn.corrupt()
    if dead or corrupt:
        return ("WorkloadFailed" if dead - corrupt else "DataCorruption"), f"faulty: {_names(dead | corrupt)}"
    inits = [text for run in burn.runs for text in run.init_failures]
    setup = burn.no_start or next(iter(inits), "") or next((text for text in burn.failures() if is_setup(text)), "")
    if setup:
        return "SetupError", setup
    failed = log_reason_of(context.get("exit_code"))
    if failed:
        return failed, f"exit {context.get('exit_code')} at {burn.progress or 0:g} %: no summary was printed"
    if not burn.gpus():
        return "NoMeasurement", "no progress line"
    return _completeness(burn, context)


def _completeness(burn: _Burn, context: Context) -> tuple[str | None, str]:
    """Whether every GPU that should have been tested was, to the end."""
    gpus = burn.gpus()
    if not all(run.is_summed_up for run in burn.runs):
        return "LogIncomplete", "the summary is missing"
    for what, names in (
        ("ended before the test did", [name for name, gpu in gpus if gpu.died]),
        ("finished not one batch", [name for name, gpu in gpus if gpu.speed is None]),
        ("stopped working while the others went on", [name for name, gpu in gpus if gpu.hangs]),
    ):
        if names:
            return "LogIncomplete", f"{_names(names)} {what}"
    expected, tested = context.get("expected_gpus"), len(dict(gpus))
    if isinstance(expected, int) and tested < expected:
        return "LogIncomplete", f"{tested} of {expected} GPUs were tested"
    return None, f"{tested} GPUs without an error"


_TOOL = Tool("gpu_burn", _judge)
measure_files, parse = _TOOL.measure_files, _TOOL.parse
