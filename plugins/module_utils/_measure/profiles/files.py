# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Log profiles as files: loading, checking, finding by name.

A profile is checked completely when it is loaded: every regular expression must match its own example, every metric
must come from a group that exists, every unit must be known. What is wrong is refused with file and line, before a
GPU minute is spent. NVCRE's `kind: LogProfile` is accepted as it is.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import typing as t
from pathlib import Path

from ..._common.errors import InputError, unknown_value
from .go_syntax import GoLayout, compile_re2
from .unit_table import UNITS, converter

BUILT_IN = Path(__file__).resolve().parents[4] / "catalog" / "log_profiles"

READERS = ("nccl", "dcgm", "training", "goodput", "perftest", "fio", "nvbandwidth", "gpu_burn", "node_facts", "key_value")
STATISTICS = ("mean", "min", "max", "first", "last", "sum", "count", "p50", "p90", "p95", "p99")
TYPES = ("number", "int", "string", "bool")

_KEYS = frozenset(
    {"name", "description", "reader", "read", "warmup_steps", "log_interval", "patterns", "json", "metrics", "complete", "aliases"}
)
_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")

# NVCRE: pattern -> groups of which at least one set must be there.
NVCRE_PATTERNS: dict[str, tuple[frozenset[str], ...]] = {
    "trainingStep": (frozenset({"globalStep"}), frozenset({"iteration"})),
    "checkpointSave": (frozenset(),),
    "checkpointDone": (frozenset(),),
    "checkpointRestore": (frozenset(),),
    "checkpointLoaded": (frozenset(),),
    "applicationStart": (frozenset(),),
    "warmupStep": (frozenset(),),
    "bandwidthResult": (frozenset({"size", "algBW", "busBW"}),),
    "networkTransport": (frozenset({"transport"}),),
}
_NVCRE_KEYS = frozenset({"timestamp", "patterns", "workerStrategy", "containerName", "warmupSteps", "logInterval"})
_NVCRE_UNITS = ("s", "ms", "us")


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A regular expression with named groups, the unit each group is printed in, and how many first matches to skip."""

    name: str
    regex: re.Pattern[str]
    units: dict[str, str]
    skip: int = 0


@dataclasses.dataclass(frozen=True)
class JsonRule:
    """JMESPath on the JSON lines of a log: which lines count, and what to take from them."""

    name: str
    where: t.Any
    fields: dict[str, t.Any]
    units: dict[str, str]
    skip: int = 0


@dataclasses.dataclass(frozen=True)
class MetricRule:
    """A metric: one field of one pattern, reduced by a statistic and converted to a unit."""

    name: str
    source: str
    field: str
    statistic: str
    type: str
    unit: str
    description: str
    optional: bool
    factor: float


@dataclasses.dataclass(frozen=True)
class Reading:
    """Which pods to read. role: launcher, worker or any. pods: first, last, all or first_and_last."""

    role: str = "any"
    pods: str = "all"
    container: str | None = None


@dataclasses.dataclass(frozen=True)
class Profile:
    """A checked log profile. nvcre: patterns of an NVCRE profile, else empty."""

    name: str
    description: str = ""
    reader: str | None = None
    reading: Reading = Reading()
    warmup_steps: int | None = None
    log_interval: int | None = None
    layout: GoLayout | None = None
    patterns: dict[str, Pattern] = dataclasses.field(default_factory=dict)
    json_rules: dict[str, JsonRule] = dataclasses.field(default_factory=dict)
    metrics: dict[str, MetricRule] = dataclasses.field(default_factory=dict)
    complete: str | None = None
    nvcre: dict[str, Pattern] = dataclasses.field(default_factory=dict)
    aliases: tuple[str, ...] = ()


class _Node:
    """A value of a YAML file that knows its place."""

    def __init__(self, value: t.Any, place: t.Callable[[tuple[t.Any, ...]], str], path: tuple[t.Any, ...] = ()) -> None:
        self.value = value
        self._place = place
        self.path = path

    @property
    def place(self) -> str:
        return self._place(self.path)

    def fail(self, message: str, hint: str = "") -> t.NoReturn:
        raise InputError(message, place=self.place, hint=hint)

    def at(self, key: t.Any) -> _Node:
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return _Node(value, self._place, (*self.path, key))

    def items(self) -> list[tuple[str, _Node]]:
        return [(str(key), self.at(key)) for key in self.mapping()]

    def mapping(self) -> dict[t.Any, t.Any]:
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            self.fail(f"must be a mapping, not {type(self.value).__name__}")
        return self.value

    def text(self, default: str = "") -> str:
        if self.value is None:
            return default
        if not isinstance(self.value, str):
            self.fail(f"must be a text, not {type(self.value).__name__}")
        return self.value

    def count(self) -> int | None:
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 0:
            self.fail(f"must be a whole number of at least 0, not {self.value!r}")
        return int(self.value)

    def one_of(self, what: str, allowed: t.Iterable[str], default: str) -> str:
        word = self.text(default)
        if word not in set(allowed):
            raise unknown_value(what, word, allowed, self.place)
        return word

    def only(self, what: str, allowed: t.Iterable[str]) -> None:
        for key, node in self.items():
            if key not in set(allowed):
                raise unknown_value(what, key, allowed, node.place)


# --- loading -----------------------------------------------------------------------------------------------------


def load_file(path: str | Path) -> list[Profile]:
    """The profiles of a YAML file (one per document). Raises InputError with file and line."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the log profile cannot be read: {error}", place=os.fspath(path)) from error
    return [_profile(node) for node in _documents(text, os.fspath(path))]


def load_directory(path: str | Path) -> dict[str, Profile]:
    """Profiles of all `.yml` and `.yaml` files of a directory by name, aliases included."""
    found: dict[str, Profile] = {}
    folder = Path(path)
    if not folder.is_dir():
        raise InputError("there is no such directory of log profiles", place=os.fspath(path))
    for file in sorted(folder.iterdir()):
        if file.suffix in (".yml", ".yaml"):
            for profile in load_file(file):
                for name in (profile.name, *profile.aliases):
                    if name in found:
                        raise InputError(f"log profile {name!r} is defined twice", place=os.fspath(file))
                    found[name] = profile
    return found


def find(wanted: str | t.Mapping[str, t.Any], directories: t.Sequence[str] = ()) -> Profile:
    """A profile by name, by path of its file, or given as data. Later directories win over earlier and built-in ones."""
    if not isinstance(wanted, str):
        return _profile(_Node(dict(wanted), lambda path: ".".join(["profile", *map(str, path)])))
    if wanted.endswith((".yml", ".yaml")):
        profiles = load_file(wanted)
        if len(profiles) != 1:
            raise InputError(f"the file holds {len(profiles)} log profiles", place=wanted, hint="Name a directory and a profile instead")
        return profiles[0]
    known: dict[str, Profile] = {}
    known.update(load_directory(BUILT_IN))
    for directory in directories:
        known.update(load_directory(directory))
    if wanted not in known:
        raise unknown_value("log profile", wanted, known)
    return known[wanted]


def _documents(text: str, source: str) -> list[_Node]:
    import yaml

    try:
        nodes = [node for node in yaml.compose_all(text, Loader=yaml.SafeLoader) if node is not None]
        values = [value for value in yaml.safe_load_all(text) if value is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{source}:{mark.line + 1}" if mark is not None else source
        raise InputError(f"not YAML: {getattr(error, 'problem', None) or error}", place=place) from error
    if not values:
        raise InputError("the file holds no log profile", place=source)
    return [_Node(value, _Places(source, node).of) for node, value in zip(nodes, values, strict=False)]


class _Places:
    """Lines of the keys of a YAML document."""

    def __init__(self, source: str, root: t.Any) -> None:
        self._source = source
        self._lines: dict[tuple[t.Any, ...], int] = {}
        self._walk(root, (), root.start_mark.line)

    def _walk(self, node: t.Any, path: tuple[t.Any, ...], line: int) -> None:
        self._lines[path] = line + 1
        if node.id == "mapping":
            for key, value in node.value:
                self._walk(value, (*path, key.value), key.start_mark.line)
        elif node.id == "sequence":
            for number, value in enumerate(node.value):
                self._walk(value, (*path, number), value.start_mark.line)

    def of(self, path: tuple[t.Any, ...]) -> str:
        known = next((path[:length] for length in range(len(path), -1, -1) if path[:length] in self._lines), ())
        key = ".".join(map(str, path))
        return f"{self._source}:{self._lines[known]}{f': {key}' if key else ''}"


# --- our form ----------------------------------------------------------------------------------------------------


def _profile(node: _Node) -> Profile:
    if (
        node.at("kind").value == "LogProfile"
        or "spec" in node.mapping()
        or _NVCRE_KEYS & {"workerStrategy", "timestamp"} & set(node.mapping())
    ):
        return _nvcre_profile(node)
    node.only("key of a log profile", _KEYS)
    name = _name(node.at("name"))
    reader = node.at("reader").value
    if reader is not None:
        reader = node.at("reader").one_of("reader", READERS, "")
    patterns = {key: _pattern(key, part) for key, part in node.at("patterns").items()}
    rules = {key: _json_rule(key, part) for key, part in node.at("json").items()}
    for key in patterns.keys() & rules.keys():
        node.at("json").at(key).fail(f"{key!r} is a pattern and a JSON rule")
    metrics = {key: _metric(key, part, patterns, rules) for key, part in node.at("metrics").items()}
    if reader is None and not metrics:
        node.fail("the profile declares neither a reader nor a metric", "Add metrics with patterns, or name a built-in reader")
    complete = node.at("complete").value
    if complete is not None and complete not in patterns and complete not in rules:
        raise unknown_value("pattern", complete, [*patterns, *rules], node.at("complete").place)
    aliases = node.at("aliases").value or []
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        node.at("aliases").fail("must be a list of names")
    return Profile(
        name,
        node.at("description").text(),
        reader,
        _reading(node.at("read")),
        node.at("warmup_steps").count(),
        node.at("log_interval").count() or None,
        patterns=patterns,
        json_rules=rules,
        metrics=metrics,
        complete=complete,
        aliases=tuple(aliases),
    )


def _name(node: _Node) -> str:
    name = node.text()
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,62}", name):
        node.fail(f"a log profile needs a name of small letters, digits and hyphens, not {name!r}")
    return name


def _reading(node: _Node) -> Reading:
    node.only("key of read", ("role", "pods", "container"))
    return Reading(
        node.at("role").one_of("role", ("launcher", "worker", "any"), "any"),
        node.at("pods").one_of("choice of pods", ("first", "last", "all", "first_and_last"), "all"),
        node.at("container").text() or None,
    )


def _pattern(name: str, node: _Node, allowed_units: t.Iterable[str] = UNITS) -> Pattern:
    node.only("key of a pattern", ("regex", "example", "units", "description", "skip"))
    source = node.at("regex").text()
    if not source:
        node.fail("a pattern needs a regex")
    regex = compile_re2(source, node.at("regex").place)
    example = node.at("example").value
    if example is not None and regex.search(node.at("example").text()) is None:
        node.at("example").fail(f"the regular expression of {name!r} does not match its own example", f"Regex: {source}")
    units = {}
    for group, unit in node.at("units").items():
        if group not in regex.groupindex:
            raise unknown_value(f"group of {name!r}", group, regex.groupindex, unit.place)
        units[group] = unit.one_of("unit", allowed_units, "")
    return Pattern(name, regex, units, node.at("skip").count() or 0)


def _json_rule(name: str, node: _Node) -> JsonRule:
    node.only("key of a JSON rule", ("where", "fields", "example", "units", "description", "skip"))
    fields = {field: _jmespath(part) for field, part in node.at("fields").items()}
    if not fields:
        node.fail("a JSON rule needs fields")
    where = _jmespath(node.at("where")) if node.at("where").value is not None else None
    units = {}
    for field, unit in node.at("units").items():
        if field not in fields:
            raise unknown_value(f"field of {name!r}", field, fields, unit.place)
        units[field] = unit.one_of("unit", UNITS, "")
    rule = JsonRule(name, where, fields, units, node.at("skip").count() or 0)
    _check_json_example(rule, node.at("example"))
    return rule


def _check_json_example(rule: JsonRule, node: _Node) -> None:
    if node.value is None:
        return
    try:
        document = json.loads(node.text())
    except ValueError as error:
        node.fail(f"the example of {rule.name!r} is no JSON: {error}")
    if rule.where is not None and not rule.where.search(document):
        node.fail(f"the condition of {rule.name!r} is not true for its own example")
    for field, expression in rule.fields.items():
        if expression.search(document) is None:
            node.fail(f"field {field!r} of {rule.name!r} is not in its own example")


def _jmespath(node: _Node) -> t.Any:
    try:
        import jmespath
        import jmespath.exceptions
    except ImportError as error:
        raise InputError("a log profile with JSON rules needs the Python package jmespath", place=node.place, hint="Install it") from error
    try:
        return jmespath.compile(node.text())  # type: ignore[no-untyped-call]
    except jmespath.exceptions.JMESPathError as error:
        message = str(error).partition("\n")[0]
        node.fail(f"the JMESPath expression is wrong: {message}")


def _metric(name: str, node: _Node, patterns: dict[str, Pattern], rules: dict[str, JsonRule]) -> MetricRule:
    node.only("key of a metric", ("from", "statistic", "type", "unit", "description", "optional"))
    if not _METRIC_NAME.fullmatch(name):
        node.fail(f"{name!r} cannot be the name of a metric", "Use small letters, digits and underscores")
    source, dot, field = node.at("from").text().partition(".")
    groups = patterns[source].regex.groupindex if source in patterns else rules[source].fields if source in rules else None
    if groups is None:
        raise unknown_value("pattern", source, [*patterns, *rules], node.at("from").place)
    statistic = node.at("statistic").one_of("statistic", STATISTICS, "mean")
    if not (statistic == "count" and not dot) and field not in groups:
        raise unknown_value(f"group of {source!r}", field, groups, node.at("from").place)
    kind = node.at("type").one_of("type", TYPES, "number")
    if kind in ("string", "bool") and statistic not in ("first", "last", "count"):
        node.at("type").fail(f"a {kind} has no {statistic}", "Use the statistic first, last or count")
    unit = node.at("unit").one_of("unit", UNITS, "")
    printed = (patterns[source].units if source in patterns else rules[source].units).get(field, unit)
    factor = 1.0 if statistic == "count" else converter(printed, unit)
    if factor is None:
        node.at("unit").fail(f"{printed or 'a plain number'} cannot be turned into {unit or 'a plain number'}")
    optional = node.at("optional").value or False
    if not isinstance(optional, bool):
        node.at("optional").fail("must be true or false")
    return MetricRule(name, source, field, statistic, kind, unit, node.at("description").text(), optional, factor)


# --- NVCRE's form ------------------------------------------------------------------------------------------------


def _nvcre_profile(node: _Node) -> Profile:
    spec = node.at("spec") if "spec" in node.mapping() else node
    name = node.at("metadata").at("name") if node.at("metadata").value is not None else node.at("name")
    allowed = _NVCRE_KEYS | ({"name", "kind", "apiVersion"} if spec is node else set())
    spec.only("key of a LogProfile", allowed)
    patterns: dict[str, Pattern] = {}
    for key, part in spec.at("patterns").items():
        if key not in NVCRE_PATTERNS:
            raise unknown_value("pattern of a LogProfile", key, NVCRE_PATTERNS, part.place)
        patterns[key] = _pattern(key, part, _NVCRE_UNITS)
        groups = set(patterns[key].regex.groupindex)
        if not any(needed <= groups for needed in NVCRE_PATTERNS[key]):
            wanted = " or ".join(", ".join(sorted(needed)) for needed in NVCRE_PATTERNS[key])
            part.at("regex").fail(f"the pattern {key} needs the named groups {wanted}", f"It has: {', '.join(sorted(groups)) or 'none'}")
    if not patterns:
        spec.fail("a LogProfile needs patterns")
    layout = spec.at("timestamp").at("layout") if spec.at("timestamp").value is not None else None
    return Profile(
        name.text("log-profile") or "log-profile",
        reading=_nvcre_reading(spec),
        warmup_steps=spec.at("warmupSteps").count(),
        log_interval=spec.at("logInterval").count() or None,
        layout=None if layout is None else GoLayout(layout.text(), layout.place),
        nvcre=patterns,
    )


def _nvcre_reading(spec: _Node) -> Reading:
    strategy = spec.at("workerStrategy")
    strategy.only("key of workerStrategy", ("type", "lifecyclePod", "trainingStepPod", "replicatedJobName"))
    kind = strategy.at("type").one_of("worker strategy", ("Single", "Multi", "single", "multi"), "Single").lower()
    role = "launcher" if strategy.at("replicatedJobName").text() == "launcher" else "any"
    ends = [strategy.at(key).one_of("pod", ("first", "last"), "first") for key in ("lifecyclePod", "trainingStepPod")]
    pods = ends[0] if kind == "single" or ends[0] == ends[1] else "first_and_last"
    return Reading(role, pods, spec.at("containerName").text() or None)
