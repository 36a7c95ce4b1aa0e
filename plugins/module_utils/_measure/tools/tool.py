# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What all small tools have in common: logs in, a measurement out, and no number in it that no run can have."""

from __future__ import annotations

import typing as t

from ..._common.shapes import Measurement, MeasurementFinding
from ..lines import MAX_TEXT_BYTES, LogLine, lines_of, log_lines
from ..measurement import measurement
from ..metrics import METRICS, units
from ..outcomes import is_possible

# A longer line is not one of a table or a progress display.
MAX_LINE = 1 << 16

Log = t.Iterable[LogLine]
Context = t.Mapping[str, t.Any]


class Said(t.NamedTuple):
    """What a tool's logs say. units: of values that are not in the tool's table of metrics."""

    verdict: str | None
    reason: str
    values: dict[str, t.Any]
    parsed: dict[str, t.Any]
    findings: t.Sequence[MeasurementFinding] = ()
    units: t.Mapping[str, str] = {}


class Tool:
    """A kind of measurement. judge: reads one log per pod, never raises for their content.

    own_numbers: the values are a user's own, with meanings and signs that are not known here.
    """

    def __init__(self, kind: str, judge: t.Callable[[t.Sequence[Log], Context], Said], *, own_numbers: bool = False) -> None:
        self._kind, self._judge, self._own_numbers = kind, judge, own_numbers

    def measure_files(self, paths: t.Sequence[str], context: Context) -> Measurement:
        """The measurement of these logs. Raises InputError when a file cannot be read, never for what it contains."""
        return self._measure([log_lines(path) for path in paths], context)

    def parse(self, text: str, context: Context | None = None) -> Measurement:
        """The same for one log in memory."""
        return self._measure([lines_of(text)], context or {})

    def _measure(self, logs: t.Sequence[Log], context: Context) -> Measurement:
        said = self._judge(logs, context)
        verdict, reason, values = said.verdict, said.reason, said.values
        named = {**units(self._kind, values), **said.units}
        impossible = [] if self._own_numbers else _impossible(self._kind, values, named)
        if impossible:
            if verdict is None:
                verdict, reason = (
                    "LogIncomplete",
                    f"no run can have this result: {', '.join(_shown(n, values[n], named) for n in impossible[:4])}",
                )
            values = {**values, **dict.fromkeys(impossible)}
        return measurement(
            self._kind,
            verdict,
            reason,
            complete=verdict is None or (verdict == "DataCorruption" and not impossible),
            values=values,
            units=named,
            parsed=said.parsed,
            findings=list(said.findings),
        )


def _impossible(kind: str, values: t.Mapping[str, t.Any], named: t.Mapping[str, str]) -> list[str]:
    """Names of the values that have a wrong sign or size."""
    table = METRICS[kind]
    known = {name: value for name, value in values.items() if name in named or name in table}
    numbers = {name: value for name, value in known.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    return [name for name, value in numbers.items() if not is_possible(value, named.get(name, ""))]


def _shown(name: str, value: float, named: t.Mapping[str, str]) -> str:
    return f"{name} {value:g} {named.get(name, '')}".rstrip()


class Document:
    """Keeps what of a log may be a JSON document: everything from the first brace on, up to a limit."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._size = 0

    def feed(self, line: LogLine) -> None:
        if (self._kept or "{" in line.text) and self._size <= MAX_TEXT_BYTES:
            self._kept.append(line.text)
            self._size += len(line.text) + 1

    @property
    def text(self) -> str:
        return "\n".join(self._kept)


def is_short(line: LogLine) -> bool:
    """Whether a line can be one of a table or a progress display."""
    return len(line.text) <= MAX_LINE
