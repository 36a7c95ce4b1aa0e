# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Log profiles at work: metrics that users declare, read by their own patterns.

A profile either names a built-in reader, or declares patterns (regular expressions, JMESPath on JSON lines) and
metrics, or both. NVCRE profiles run through the training reader, so that weighting, warm-up and goodput are the same.
"""

from __future__ import annotations

import json
import math
import typing as t

from ..._causes.exit_codes import log_reason_of
from ..._common.shapes import Measurement
from ..lines import LogLine, lines_of, log_lines
from ..measurement import measure, measurement
from ..metrics import Metric
from ..outcomes import number
from ..training import results as training
from ..training.events import Event, Step
from . import files as profile_files
from .files import MetricRule, Pattern, Profile
from .go_syntax import MAX_LINE
from .unit_table import UNITS

Sample = dict[str, t.Any]

# Groups that carry the number of a step: for warm-up and interval.
_STEP_GROUPS = ("step", "iteration", "global_step", "globalStep")


def measure_files(paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """Read logs by a profile.

    context: profile (name, path of a file, or the profile itself), profile_directories, exit_code, and whatever the
    reader of the profile knows. Raises InputError when the profile is wrong or unknown.
    """
    profile = profile_files.find(context["profile"], context.get("profile_directories") or ())
    return apply(profile, paths, context)


def apply(profile: Profile, paths: t.Sequence[str], context: t.Mapping[str, t.Any]) -> Measurement:
    """The measurement of files by a loaded profile. Never raises for what the files contain."""
    given = _with_defaults(profile, context)
    if profile.nvcre:
        return _nvcre(profile, [list(log_lines(path)) for path in paths], given)
    base = measure(profile.reader, paths, given) if profile.reader else None
    if not profile.metrics:
        return t.cast(Measurement, base)
    own = _own(profile, (log_lines(path) for path in paths), given)
    return own if base is None else _together(base, own)


def apply_text(profile: Profile, text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """The same for one log in memory, for profiles with patterns of their own."""
    given = _with_defaults(profile, context or {})
    if profile.nvcre:
        return _nvcre(profile, [list(lines_of(text))], given)
    return _own(profile, [lines_of(text)], given)


def declared_metrics(profile: Profile) -> dict[str, Metric]:
    """Metrics of the profile's own patterns, for the type check of criteria."""
    return {rule.name: Metric(rule.type, rule.unit, rule.description) for rule in profile.metrics.values()}


def select_logs(profile: Profile, pods: t.Sequence[t.Mapping[str, t.Any]]) -> list[str]:
    """Which logs of an attempt to read, in order. pods: as in an observation (role, index, log)."""
    reading = profile.reading
    chosen = [pod for pod in pods if pod.get("log") and reading.role in ("any", pod.get("role"))]
    chosen.sort(key=lambda pod: (pod.get("index") if isinstance(pod.get("index"), int) else math.inf, str(pod.get("name"))))
    if reading.pods == "first":
        chosen = chosen[:1]
    elif reading.pods == "last":
        chosen = chosen[-1:]
    elif reading.pods == "first_and_last" and len(chosen) > 1:
        chosen = [chosen[0], chosen[-1]]
    return [str(pod["log"]) for pod in chosen]


def _with_defaults(profile: Profile, context: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    given = dict(context)
    for key, value in (("warmup_steps", profile.warmup_steps), ("log_interval", profile.log_interval)):
        if given.get(key) is None and value is not None:
            given[key] = value
    return given


# --- patterns of the profile -------------------------------------------------------------------------------------


def _own(profile: Profile, sources: t.Iterable[t.Iterable[LogLine]], context: t.Mapping[str, t.Any]) -> Measurement:
    samples: dict[str, list[Sample]] = {name: [] for name in (*profile.patterns, *profile.json_rules)}
    open_end = False
    for source in sources:
        for line in source:
            open_end = line.torn
            if not line.torn and len(line.text) <= MAX_LINE:
                _take(profile, line.text, samples)
    rules: dict[str, profile_files.Pattern | profile_files.JsonRule] = {**profile.patterns, **profile.json_rules}
    kept = {name: _after_warmup(rows, rules[name].skip, context) for name, rows in samples.items()}
    values = {rule.name: _value(rule, kept[rule.source]) for rule in profile.metrics.values()}
    verdict, reason = _verdict(profile, samples, values, open_end, context)
    return measurement(
        "log_profile",
        verdict,
        reason,
        complete=verdict is None,
        values=values,
        units={rule.name: rule.unit for rule in profile.metrics.values() if rule.unit},
        parsed={
            "profile": profile.name,
            "samples": {name: len(rows) for name, rows in samples.items()},
            "samples_after_warmup": {name: len(rows) for name, rows in kept.items()},
            "last": {name: rows[-1] for name, rows in samples.items() if rows},
        },
    )


def _take(profile: Profile, text: str, samples: dict[str, list[Sample]]) -> None:
    for name, pattern in profile.patterns.items():
        match = pattern.regex.search(text)
        if match is not None:
            samples[name].append({key: value for key, value in match.groupdict().items() if value is not None})
    if not profile.json_rules or not text.lstrip().startswith("{"):
        return
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    for name, rule in profile.json_rules.items():
        if rule.where is None or _search(rule.where, document):
            found = {field: _search(expression, document) for field, expression in rule.fields.items()}
            if any(value is not None for value in found.values()):
                samples[name].append({field: value for field, value in found.items() if isinstance(value, (str, int, float, bool))})


def _search(expression: t.Any, document: t.Any) -> t.Any:
    """JMESPath raises when a function meets a type it does not take: such a line says nothing."""
    import jmespath.exceptions

    try:
        return expression.search(document)
    except jmespath.exceptions.JMESPathError:
        return None


def _after_warmup(rows: list[Sample], skip: int, context: t.Mapping[str, t.Any]) -> list[Sample]:
    """Samples that count. Warm-up and interval go by the number of the step, where a pattern captures one."""
    rows = rows[skip:]
    warmup, interval = context.get("warmup_steps") or 0, context.get("log_interval") or 1
    group = next((name for name in _STEP_GROUPS if rows and name in rows[0]), None)
    if group is None:
        return rows
    kept = []
    for row in rows:
        step = number(row.get(group))
        if step is not None and step > warmup and (interval <= 1 or step % interval == 0):
            kept.append(row)
    return kept


def _value(rule: MetricRule, rows: list[Sample]) -> int | float | str | bool | None:
    if rule.statistic == "count":
        return len(rows)
    found = [row[rule.field] for row in rows if rule.field in row]
    if rule.type == "string":
        return None if not found else str(found[0] if rule.statistic == "first" else found[-1])
    if rule.type == "bool":
        return None if not found else _truth(found[0] if rule.statistic == "first" else found[-1])
    numbers = [value * rule.factor for item in found if (value := number(item)) is not None]
    if not numbers:
        return None
    value = _statistic(rule.statistic, numbers)
    return round(value) if rule.type == "int" else round(value, 9)


def _truth(value: t.Any) -> bool | None:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    return True if word in ("true", "yes", "ok", "pass", "1") else False if word in ("false", "no", "fail", "failed", "0") else None


def _statistic(name: str, numbers: list[float]) -> float:
    if name == "mean":
        return sum(numbers) / len(numbers)
    if name == "sum":
        return sum(numbers)
    if name in ("min", "max"):
        return min(numbers) if name == "min" else max(numbers)
    if name in ("first", "last"):
        return numbers[0 if name == "first" else -1]
    # Nearest rank: a percentile is always a value that was printed.
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(int(name[1:]) / 100 * len(ordered)) - 1)]


def _verdict(
    profile: Profile, samples: dict[str, list[Sample]], values: dict[str, t.Any], open_end: bool, context: t.Mapping[str, t.Any]
) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}"
    if not any(samples.values()):
        return "NoMeasurement", f"no line matches the profile {profile.name}"
    missing = [name for name, rule in profile.metrics.items() if values[name] is None and not rule.optional]
    if missing:
        return "LogIncomplete", f"no value for {', '.join(missing)}"
    if profile.complete is not None and not samples[profile.complete]:
        return "LogIncomplete", f"the log ends before its last line ({profile.complete})"
    if profile.complete is None and (exit_code is None or open_end):
        return "LogIncomplete", "the log may be cut: no exit status is known and the profile names no last line"
    return None, f"{sum(map(len, samples.values()))} samples by the profile {profile.name}"


def _together(base: Measurement, own: Measurement) -> Measurement:
    """What a built-in reader says, with the metrics of the profile added; the reader's verdict leads."""
    base["values"] = {**base["values"], **own["values"]}
    base["units"] = {**base["units"], **own["units"]}
    base["parsed"] = {**base["parsed"], "profile_samples": own["parsed"]["samples"]}
    if base["verdict"] is None and own["verdict"] in ("LogIncomplete", "NoMeasurement"):
        return {**base, "verdict": "LogIncomplete", "complete": False, "reason": own["reason"]}
    return base


# --- NVCRE profiles ----------------------------------------------------------------------------------------------


def _nvcre(profile: Profile, pods: list[list[LogLine]], context: t.Mapping[str, t.Any]) -> Measurement:
    if "trainingStep" in profile.nvcre:
        said = training.parse(pods, context, read=_NvcreReader(profile).read)
    else:
        said = measurement("log_profile", "NoMeasurement", "the profile reads no training steps", complete=False)
    said["kind"] = "log_profile"
    said["parsed"]["profile"] = profile.name
    if "bandwidthResult" in profile.nvcre:
        _add_bandwidth(profile, pods, said, context)
    return said


class _NvcreReader:
    """Turns lines into steps and events in NVCRE's order of patterns."""

    def __init__(self, profile: Profile) -> None:
        self._patterns = profile.nvcre
        self._layout = profile.layout

    def read(self, text: str, torn: bool = False) -> Step | Event | None:
        if torn or len(text) > MAX_LINE:
            return None
        for name, build in (
            ("trainingStep", self._step),
            ("checkpointDone", self._done),
            ("checkpointSave", self._save),
            ("checkpointLoaded", self._loaded),
            ("checkpointRestore", self._restore),
            ("applicationStart", self._start),
        ):
            pattern = self._patterns.get(name)
            match = pattern.regex.search(text) if pattern else None
            if pattern is not None and match is not None:
                return build(pattern, {key: value for key, value in match.groupdict().items() if value is not None}, text)
        return None

    def _time(self, groups: dict[str, str]) -> t.Any:
        return self._layout.parse(groups["timestamp"]) if self._layout and "timestamp" in groups else None

    def _step(self, pattern: Pattern, groups: dict[str, str], text: str) -> Step | Event | None:
        count = _whole(groups.get("globalStep", groups.get("iteration")))
        if count is None:
            return None
        step = Step(count, count, framework="profile", time=self._time(groups))
        step.step_ms = _milliseconds(pattern, groups, "stepTiming")
        if step.step_ms is None:
            step.step_ms = _milliseconds(pattern, groups, "elapsedTime")
        step.tflops = number(groups.get("tflops"))
        step.has_loss, step.loss = "loss" in groups, number(groups.get("loss"))
        if "warmupStep" in self._patterns and self._patterns["warmupStep"].regex.search(text):
            step.fields["warmup"] = True
        return step

    def _done(self, _pattern: Pattern, groups: dict[str, str], _text: str) -> Event | None:
        return self._event("saved", groups)

    def _save(self, pattern: Pattern, groups: dict[str, str], _text: str) -> Event | None:
        milliseconds = _milliseconds(pattern, groups, "saveDuration")
        event = self._event("save" if milliseconds is None else "blocked", groups)
        if event is not None and milliseconds is not None:
            event.number = milliseconds / 1000.0
        return event

    def _loaded(self, _pattern: Pattern, groups: dict[str, str], _text: str) -> Event | None:
        return Event("loaded", _whole(groups.get("step")), self._time(groups), groups.get("path", ""))

    def _restore(self, _pattern: Pattern, groups: dict[str, str], _text: str) -> Event | None:
        return Event("load", _whole(groups.get("step")), self._time(groups), groups.get("path", ""))

    def _start(self, _pattern: Pattern, groups: dict[str, str], _text: str) -> Event | None:
        return Event("start", time=self._time(groups), word="profile")

    def _event(self, what: str, groups: dict[str, str]) -> Event | None:
        step = _whole(groups.get("step"))
        return None if step is None else Event(what, step, self._time(groups), groups.get("path", ""))


def _whole(text: str | None) -> int | None:
    value = number(text)
    return None if value is None or value < 0 else int(value)


def _milliseconds(pattern: Pattern, groups: dict[str, str], group: str) -> float | None:
    value = number(groups.get(group))
    return None if value is None else value * UNITS[pattern.units.get(group, "s")][1] * 1000.0


def _add_bandwidth(profile: Profile, pods: list[list[LogLine]], said: Measurement, context: t.Mapping[str, t.Any]) -> None:
    """NVCRE's bandwidth: the mean per size, the highest of them is judged. Only rows that match are known, so it is
    only as good as the pattern: prefer the kind nccl."""
    regex = profile.nvcre["bandwidthResult"].regex
    sizes: dict[int, list[tuple[float, float]]] = {}
    for line in (line for pod in pods for line in pod if not line.torn and len(line.text) <= MAX_LINE):
        match = regex.search(line.text)
        row = None if match is None else [number(match.group(name)) for name in ("size", "algBW", "busBW")]
        if row and row[0] is not None and row[1] is not None and row[2] is not None:
            sizes.setdefault(int(row[0]), []).append((row[1], row[2]))
    results = [
        {
            "size_bytes": size,
            "alg_bandwidth": sum(row[0] for row in rows) / len(rows),
            "bus_bandwidth": sum(row[1] for row in rows) / len(rows),
            "samples": len(rows),
        }
        for size, rows in sizes.items()
    ]
    said["parsed"]["results"] = results
    for name in ("alg_bandwidth", "bus_bandwidth"):
        said["values"][f"{name}_peak"] = max((row[name] for row in results), default=None)
        said["units"][f"{name}_peak"] = "GB/s"
    if "trainingStep" in profile.nvcre:
        return
    said["verdict"], said["reason"] = _bandwidth_verdict(results, context.get("exit_code"))
    said["complete"] = said["verdict"] is None


def _bandwidth_verdict(results: list[dict[str, t.Any]], exit_code: int | None) -> tuple[str | None, str]:
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}"
    if not results:
        return "NoMeasurement", "no line matches bandwidthResult"
    if exit_code is None:
        return "LogIncomplete", "the log may be cut: no exit status is known"
    return None, f"{len(results)} message sizes"
