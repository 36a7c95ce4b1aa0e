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
from ..training.events import MAX_SAVE_S, MAX_STEP_MS, MAX_TFLOPS, Event, Step, within
from . import files as profile_files
from .files import Pattern, Profile
from .go_syntax import MAX_LINE
from .samples import Matches
from .unit_table import UNITS

# The lines of every pod, read anew at each call: a log is not kept in memory.
Pods: t.TypeAlias = t.Callable[[], t.Iterable[t.Iterable[LogLine]]]


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
        return _nvcre(profile, lambda: (log_lines(path) for path in paths), given)
    base = measure(profile.reader, paths, given) if profile.reader else None
    if not profile.metrics:
        return t.cast(Measurement, base)
    own = _own(profile, (log_lines(path) for path in paths), given)
    return own if base is None else _together(base, own)


def apply_text(profile: Profile, text: str, context: t.Mapping[str, t.Any] | None = None) -> Measurement:
    """The same for one log in memory, for profiles with patterns of their own."""
    given = _with_defaults(profile, context or {})
    if profile.nvcre:
        return _nvcre(profile, lambda: [lines_of(text)], given)
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
    rules: dict[str, profile_files.Pattern | profile_files.JsonRule] = {**profile.patterns, **profile.json_rules}
    wanted = profile.metrics.values()
    matches = {name: Matches([metric for metric in wanted if metric.source == name], rule.skip, context) for name, rule in rules.items()}
    open_end = False
    for source in sources:
        for line in source:
            open_end = line.torn
            if not line.torn and len(line.text) <= MAX_LINE:
                _take(profile, line.text, matches)
    values = {metric.name: matches[metric.source].value(metric.name) for metric in wanted}
    verdict, reason = _verdict(profile, matches, values, open_end, context)
    return measurement(
        "log_profile",
        verdict,
        reason,
        complete=verdict is None,
        values=values,
        units={metric.name: metric.unit for metric in wanted if metric.unit},
        parsed={
            "profile": profile.name,
            "samples": {name: found.count for name, found in matches.items()},
            "samples_after_warmup": {name: found.kept for name, found in matches.items()},
            "last": {name: dict(found.last) for name, found in matches.items() if found.last is not None},
        },
    )


def _take(profile: Profile, text: str, matches: dict[str, Matches]) -> None:
    for name, pattern in profile.patterns.items():
        match = pattern.regex.search(text)
        if match is not None:
            matches[name].add({key: value for key, value in match.groupdict().items() if value is not None})
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
                matches[name].add({field: value for field, value in found.items() if isinstance(value, (str, int, float, bool))})


def _search(expression: t.Any, document: t.Any) -> t.Any:
    """JMESPath raises when a function meets a type it does not take: such a line says nothing."""
    import jmespath.exceptions

    try:
        return expression.search(document)
    except jmespath.exceptions.JMESPathError:
        return None


def _verdict(
    profile: Profile, matches: dict[str, Matches], values: dict[str, t.Any], open_end: bool, context: t.Mapping[str, t.Any]
) -> tuple[str | None, str]:
    exit_code = context.get("exit_code")
    failed = log_reason_of(exit_code)
    if failed:
        return failed, f"exit {exit_code}"
    if not any(found.count for found in matches.values()):
        return "NoMeasurement", f"no line matches the profile {profile.name}"
    missing = [name for name, rule in profile.metrics.items() if values[name] is None and not rule.optional]
    if missing:
        return "LogIncomplete", f"no value for {', '.join(missing)}"
    if profile.complete is not None and not matches[profile.complete].count:
        return "LogIncomplete", f"the log ends before its last line ({profile.complete})"
    if profile.complete is None and (exit_code is None or open_end):
        return "LogIncomplete", "the log may be cut: no exit status is known and the profile names no last line"
    return None, f"{sum(found.count for found in matches.values())} samples by the profile {profile.name}"


def _together(base: Measurement, own: Measurement) -> Measurement:
    """What a built-in reader says, with the metrics of the profile added; the reader's verdict leads."""
    base["values"] = {**base["values"], **own["values"]}
    base["units"] = {**base["units"], **own["units"]}
    base["parsed"] = {**base["parsed"], "profile_samples": own["parsed"]["samples"]}
    if base["verdict"] is None and own["verdict"] in ("LogIncomplete", "NoMeasurement"):
        return {**base, "verdict": "LogIncomplete", "complete": False, "reason": own["reason"]}
    return base


# --- NVCRE profiles ----------------------------------------------------------------------------------------------


def _nvcre(profile: Profile, read_pods: Pods, context: t.Mapping[str, t.Any]) -> Measurement:
    if "trainingStep" in profile.nvcre:
        said = training.parse(read_pods(), context, read=_NvcreReader(profile).read)
    else:
        said = measurement("log_profile", "NoMeasurement", "the profile reads no training steps", complete=False)
    said["kind"] = "log_profile"
    said["parsed"]["profile"] = profile.name
    if "bandwidthResult" in profile.nvcre:
        _add_bandwidth(profile, read_pods, said, context)
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
        timing = _milliseconds(pattern, groups, "stepTiming")
        timing = _milliseconds(pattern, groups, "elapsedTime") if timing is None else timing
        step.step_ms = timing if timing is not None and 0 < timing <= MAX_STEP_MS else None
        step.tflops = within(groups.get("tflops", ""), MAX_TFLOPS)
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
            event.number = milliseconds / 1000.0 if 0 <= milliseconds <= MAX_SAVE_S * 1000.0 else None
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
    return None if value is None or not 0 <= value < 1e15 else int(value)


def _milliseconds(pattern: Pattern, groups: dict[str, str], group: str) -> float | None:
    value = number(groups.get(group))
    return None if value is None else value * UNITS[pattern.units.get(group, "s")][1] * 1000.0


def _add_bandwidth(profile: Profile, read_pods: Pods, said: Measurement, context: t.Mapping[str, t.Any]) -> None:
    """NVCRE's bandwidth: the mean per size, the highest of them is judged. Only rows that match are known, so it is
    only as good as the pattern: prefer the kind nccl."""
    regex = profile.nvcre["bandwidthResult"].regex
    sizes: dict[int, list[tuple[float, float]]] = {}
    for line in (line for pod in read_pods() for line in pod if not line.torn and len(line.text) <= MAX_LINE):
        match = regex.search(line.text)
        row = None if match is None else [number(match.group(name)) for name in ("size", "algBW", "busBW")]
        if row and row[0] is not None and row[1] is not None and row[2] is not None and row[0] > 0 and min(row[1], row[2]) >= 0:
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
