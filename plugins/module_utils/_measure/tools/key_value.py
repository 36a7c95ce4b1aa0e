# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Results of users' own tests: `key=value` lines and JSON lines, as docs/key_value_results.md promises.

A line counts when it is nothing but pairs of lower-case keys and values, or one JSON object; `RESULT` in front of
it is allowed. Everything else in the log is ignored.
"""

from __future__ import annotations

import json
import re
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..lines import LogLine
from ..measurement import finding
from ..outcomes import number, whole
from .tool import Context, Log, Said, Tool, is_short

_KEY = r"[a-z][a-z0-9_]{0,63}"
_TOKEN = re.compile(rf"\s*(?:({_KEY})=(\"[^\"]*\"|[^\s=\"]+)|([^\s=\"]+))(?=\s|$)")
_MARK = re.compile(r"\s*RESULT\s")
_OBJECT = re.compile(r"\s*(?:RESULT\s+)?(\{.*\})\s*")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")

# Keys with a meaning of their own; they are no metrics.
_RESERVED = frozenset({"verdict", "reason", "entity", "host", "end", "name", "value", "unit", "units"})
_VERDICTS = ("pass", "fail", "incomplete")
# More keys than this are not a result but a dump.
_MAX_KEYS = 1000

Value: t.TypeAlias = int | float | bool | str


class _Results:
    """The values of one file: the last of every key."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.units: dict[str, str] = {}
        self.said: dict[str, str] = {}
        self.ended = False

    def feed(self, line: LogLine) -> None:
        if line.torn or not is_short(line):
            return  # a torn line may end inside a number
        text = line.text
        match = _OBJECT.fullmatch(text) if "{" in text else None
        if match:
            self._object(match.group(1))
        elif "=" in text:
            for key, value, unit in _pairs(text):
                self._take(key, _scalar(value), unit)

    def _object(self, text: str) -> None:
        try:
            node = json.loads(text)
        except (ValueError, RecursionError):
            return
        if not isinstance(node, dict):
            return
        units = node.get("units")
        units = units if isinstance(units, dict) else {}
        if isinstance(node.get("name"), str) and "value" in node:
            self._take(str(node["name"]), node["value"], str(node.get("unit") or ""))
        for key, value in node.items():
            if key not in ("name", "value", "unit", "units"):
                self._take(str(key), value, str(units.get(key, "")))

    def _take(self, key: str, value: t.Any, unit: str) -> None:
        if not re.fullmatch(_KEY, key) or not isinstance(value, (bool, int, float, str)):
            return
        if not isinstance(value, (bool, str)) and (number(value) is None or abs(value) > 1e300):
            return
        if isinstance(value, str) and value.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            return  # no number, and no word that a criterion may compare
        if key == "end":
            self.ended = self.ended or value in (True, "true", "1", 1)
        elif key in _RESERVED:
            self.said[key] = str(value)
        elif key in self.values or len(self.values) < _MAX_KEYS:
            self.values[key] = value
            if unit:
                self.units[key] = unit


def _read(lines: Log) -> _Results:
    results = _Results()
    for line in lines:
        results.feed(line)
    return results


def _pairs(text: str) -> list[tuple[str, str, str]]:
    """(key, value, unit) of a line that holds nothing else; empty for any other line."""
    text = text.rstrip()
    at = match.end() if (match := _MARK.match(text)) else 0
    pairs: list[tuple[str, str, str]] = []
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return []
        key, value, unit = token.groups()
        if key is not None:
            pairs.append((key, value, ""))
        elif pairs and not pairs[-1][2]:
            pairs[-1] = (*pairs[-1][:2], unit)
        else:
            return []
        at = token.end()
    return pairs


def _scalar(word: str) -> Value:
    if word.startswith('"'):
        return word.strip('"')
    if word in ("true", "false"):
        return word == "true"
    if _NUMBER.fullmatch(word):
        integer = None if any(mark in word for mark in ".eE") else whole(word)
        return float(word) if integer is None else integer
    return word


def _judge(logs: t.Sequence[Log], context: Context) -> Said:
    """One test, one log per pod. context: exit_code, required_keys, nodes.

    A number that several pods report becomes its mean, and `KEY_min` and `KEY_max` are added.
    """
    pods = [_read(log) for log in logs]
    values, units = _together(pods)
    verdict, reason = _verdict(pods, values, context)
    nodes = list(context.get("nodes") or [])
    findings = []
    for pod in pods:
        if pod.said.get("verdict") == "fail":
            host = pod.said.get("host") or (nodes[0] if len(nodes) == 1 else None)
            message = pod.said.get("reason") or "the test reported a failure"
            findings.append(finding("WorkloadFailed", message, host=host, entity=pod.said.get("entity")))
    parsed = {"pods": [{"values": pod.values, "units": pod.units, "said": pod.said, "end": pod.ended} for pod in pods]}
    return Said(verdict, reason, values, parsed, findings, units)


def _together(pods: list[_Results]) -> tuple[dict[str, t.Any], dict[str, str]]:
    values: dict[str, t.Any] = {}
    units: dict[str, str] = {}
    for key in dict.fromkeys(key for pod in pods for key in pod.values):
        found = [pod.values[key] for pod in pods if key in pod.values]
        unit = next((pod.units[key] for pod in pods if key in pod.units), "")
        numbers = [float(item) for item in found if isinstance(item, (int, float)) and not isinstance(item, bool)]
        if len(found) == 1:
            values[key] = found[0]
        elif len(numbers) == len(found):
            values[key] = sum(numbers) / len(numbers)
            values.update({f"{key}_min": min(numbers), f"{key}_max": max(numbers)})
        elif all(isinstance(item, bool) for item in found):
            values[key] = all(found)  # one pod that says no is enough
        else:
            values[key] = found[0] if len(set(map(str, found))) == 1 else None
        if unit:
            units.update({name: unit for name in (key, f"{key}_min", f"{key}_max") if name in values})
    return values, units


def _verdict(pods: list[_Results], values: dict[str, t.Any], context: Context) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    said = [pod.said.get("verdict") for pod in pods]
    why = next((pod.said["reason"] for pod in pods if "reason" in pod.said), "")
    if "fail" in said:
        return "WorkloadFailed", why or "the test reported a failure"
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}"
    unknown = next((word for word in said if word is not None and word not in _VERDICTS), None)
    if unknown is not None:
        return "LogIncomplete", f"unknown verdict {unknown!r}"
    if "incomplete" in said:
        return "LogIncomplete", why or "the test reported that it is incomplete"
    if not values and "pass" not in said:
        return "NoMeasurement", "no result line"
    missing = [key for key in context.get("required_keys") or [] if key not in values]
    if missing:
        return "LogIncomplete", f"values missing: {', '.join(map(str, missing))}"
    if exit_code is None and not all(pod.ended for pod in pods):
        return "LogIncomplete", "neither an exit status nor a line end=true: the log may be cut"
    return None, f"{len(values)} values"


_TOOL = Tool("key_value", _judge, own_numbers=True)
measure_files, parse = _TOOL.measure_files, _TOOL.parse
