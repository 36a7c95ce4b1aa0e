# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Catalog tests: one YAML file each under <catalog>/tests/<domain>/<variant>.yml.

A user's own directory is searched before the shipped one, so an entry can be replaced or added without code.
"""

from __future__ import annotations

import os
import typing as t

from .._common.checks import boolean, integer, known_keys, list_of, of_type, one_of, size_bytes, string
from .._common.errors import InputError, unknown_value
from .._common.shapes import Explained

ENTRY_KEYS = (
    "name",
    "description",
    "framework",
    "image",
    "test_scales",
    "measure",
    "options",
    "option_defaults_by_test_scale",
    "mpi",
    "env",
    "timeouts",
)
OPTION_KEYS = ("type", "default", "minimum", "gpu_memory_divisor", "description")
OPTION_TYPES = ("int", "size", "text", "bool")
FRAMEWORKS = ("mpi",)
FLOOR_KEYS = ("test", "gpus", "gpus_per_node", "path", "nodes_max", "criteria", "source")
FLOOR_PATHS = ("local", "mnnvl", "rdma")
Entry = dict[str, t.Any]


def list_entries(directories: t.Sequence[str]) -> list[str]:
    """Names of all tests in the given catalog directories, sorted."""
    found = set()
    for directory in directories:
        root = os.path.join(directory, "tests")
        for folder, _folders, files in os.walk(root):
            for name in files:
                if name.endswith((".yml", ".yaml")):
                    found.add(os.path.relpath(os.path.join(folder, os.path.splitext(name)[0]), root).replace(os.sep, "/"))
    return sorted(found)


def load_entry(directories: t.Sequence[str], name: str, place: str = "test") -> Entry:
    """The entry of that name, checked. Raises InputError naming the file or, for an unknown name, the nearest one."""
    for directory in directories:
        for suffix in (".yml", ".yaml"):
            path = os.path.join(directory, "tests", *name.split("/")) + suffix
            if not os.path.isfile(path):
                continue
            raw = _read(path)
            return check_entry(raw, path)
    raise unknown_value("catalog test", name, list_entries(directories), place)


def load_floors(directories: t.Sequence[str]) -> list[dict[str, t.Any]]:
    """Rows of floors.yml, a user's directory before the shipped one: {test, gpus, gpus_per_node, path, nodes_max?, criteria, source}."""
    rows: list[dict[str, t.Any]] = []
    for directory in directories:
        path = os.path.join(directory, "floors.yml")
        if not os.path.isfile(path):
            continue
        content = known_keys(_read(path), ("floors",), path)
        for index, row in enumerate(of_type(content.get("floors"), list, f"{path}: floors")):
            place = f"{path}: floors[{index}]"
            known_keys(row, FLOOR_KEYS, place)
            one_of(row.get("path"), FLOOR_PATHS, "path", f"{place}.path")
            list_of(row.get("gpus"), f"{place}.gpus", string)
            list_of(row.get("criteria"), f"{place}.criteria", string)
            rows.append({**row, "nodes_max": row.get("nodes_max")})
    return rows


def floors_for(floors: t.Sequence[t.Mapping[str, t.Any]], *, test: str, gpu: str | None, gpus_per_node: int) -> list[dict[str, t.Any]]:
    """The rows for a test on one GPU; which of them holds depends on the group."""
    return [dict(row) for row in floors if row["test"] == test and gpu in row["gpus"] and row["gpus_per_node"] == gpus_per_node]


def floor_of_group(floors: t.Sequence[t.Mapping[str, t.Any]], path: str | None, nodes: int) -> t.Mapping[str, t.Any] | None:
    """The first of these rows that holds for a group of this many nodes, or None: then there is no calibrated floor."""
    return next((row for row in floors if row["path"] == path and (row["nodes_max"] is None or nodes <= row["nodes_max"])), None)


def _read(path: str) -> t.Any:
    import yaml

    try:
        with open(path, encoding="utf-8") as handle:
            return yaml.safe_load(handle)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read: {' '.join(str(error).split())}", place=path) from error


def load_registries(directories: t.Sequence[str]) -> dict[str, str]:
    """Container registries by the name catalog images use for them; a user's directory wins over the shipped one."""
    registries: dict[str, str] = {}
    for directory in reversed(directories):
        path = os.path.join(directory, "registries.yml")
        if os.path.isfile(path):
            registries.update({str(name): string(host, f"{path}: {name}") for name, host in of_type(_read(path), dict, path).items()})
    return registries


def check_entry(raw: t.Any, place: str) -> Entry:
    """An entry with every key present."""
    entry = known_keys(raw, ENTRY_KEYS, place)
    options = {}
    for name, option in of_type(entry.get("options") or {}, dict, f"{place}: options").items():
        where = f"{place}: options.{name}"
        known_keys(option, OPTION_KEYS, where)
        one_of(option.get("type"), OPTION_TYPES, "option type", f"{where}.type")
        options[name] = dict(option)
    scales = list_of(entry.get("test_scales"), f"{place}: test_scales", string)
    measure = of_type(entry.get("measure"), dict, f"{place}: measure")
    string(measure.get("kind", ""), f"{place}: measure.kind")
    by_scale = of_type(entry.get("option_defaults_by_test_scale") or {}, dict, f"{place}: option_defaults_by_test_scale")
    for scale, defaults in by_scale.items():
        one_of(scale, scales, "test scale", f"{place}: option_defaults_by_test_scale")
        known_keys(defaults, options, f"{place}: option_defaults_by_test_scale.{scale}")
    timeouts = known_keys(entry.get("timeouts") or {}, ("attempt_s",), f"{place}: timeouts")
    return {
        "name": string(entry.get("name", ""), f"{place}: name"),
        "description": entry.get("description", ""),
        "framework": one_of(entry.get("framework"), FRAMEWORKS, "framework", f"{place}: framework"),
        "image": known_keys(entry.get("image"), ("registry", "repository", "tag", "digest"), f"{place}: image"),
        "test_scales": scales,
        "measure": dict(measure),
        "options": options,
        "option_defaults_by_test_scale": by_scale,
        "mpi": known_keys(entry.get("mpi"), ("mpirun", "binary", "args"), f"{place}: mpi"),
        "env": of_type(entry.get("env") or [], list, f"{place}: env"),
        "timeouts": {"attempt_s": integer(timeouts.get("attempt_s", 3600), f"{place}: timeouts.attempt_s", minimum=1)},
    }


def resolve_options(
    entry: Entry, given: t.Mapping[str, t.Any], test_scale: str, place: str, memory_mib: int | None = None
) -> tuple[dict[str, t.Any], list[Explained]]:
    """Option values for one category, and which rule set each: user, test scale, GPU memory, or the entry's default.

    Sizes stay as written (16G): that is how the program takes them. memory_mib: of one GPU, when it is known: an option with
    gpu_memory_divisor is lowered to what fits, since nccl-tests holds several buffers of the message size.
    """
    known_keys(dict(given), entry["options"], place)
    values: dict[str, t.Any] = {}
    explain: list[Explained] = []
    by_scale = entry["option_defaults_by_test_scale"].get(test_scale, {})
    for name, option in entry["options"].items():
        candidates = [
            ("user", given.get(name)),
            ("GPU memory", _fitting(option, memory_mib)),
            (f"test scale {test_scale}", by_scale.get(name)),
            ("entry default", option.get("default")),
        ]
        chosen = next(((rule, value) for rule, value in candidates if value is not None), ("entry default", None))
        values[name] = None if chosen[1] is None else _checked(chosen[1], option, f"{place}.{name}")
        overridden = [{"rule": rule, "value": value} for rule, value in candidates if value is not None and rule != chosen[0]]
        explain.append({"path": f"options.{name}", "value": values[name], "rule": chosen[0], "overridden": overridden})
    return values, explain


def _fitting(option: t.Mapping[str, t.Any], memory_mib: int | None) -> str | None:
    """The largest power of two that fits the GPU's memory, when the default does not; None when it does."""
    divisor = option.get("gpu_memory_divisor")
    if not divisor or not memory_mib:
        return None
    limit = memory_mib * (1 << 20) // int(divisor)
    if size_bytes(option["default"], "default") <= limit:
        return None
    return f"{(1 << (limit.bit_length() - 1)) >> 20}M"


def _checked(value: t.Any, option: t.Mapping[str, t.Any], place: str) -> t.Any:
    kind = option["type"]
    if kind == "int":
        return integer(value, place, minimum=option.get("minimum", 0))
    if kind == "size":
        size_bytes(value, place)
        return str(value).strip().upper()
    if kind == "bool":
        return boolean(value, place)
    return string(str(value), place, pattern=r"[A-Za-z0-9_.:,=+-]+", hint="Letters, digits and _.:,=+- only")


def expected_sizes(options: t.Mapping[str, t.Any]) -> list[int]:
    """Message sizes that nccl-tests is asked for, in bytes: min, min*factor, … up to max."""
    size, last = size_bytes(options["min_bytes"], "options.min_bytes"), size_bytes(options["max_bytes"], "options.max_bytes")
    factor = int(options["step_factor"])
    if not 0 < size <= last:
        raise InputError(f"{options['min_bytes']} is larger than max_bytes {options['max_bytes']} or zero", place="options.min_bytes")
    sizes = []
    while size <= last:
        sizes.append(size)
        size *= factor
    return sizes


def render(value: t.Any, variables: t.Mapping[str, t.Any], place: str) -> t.Any:
    """Every text inside value, with {{ … }} filled in. An unknown variable is an error, never an empty text."""
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined)

    def walk(item: t.Any, spot: str) -> t.Any:
        if isinstance(item, str):
            try:
                return environment.from_string(item).render(**variables) if "{" in item else item
            except jinja2.TemplateError as error:
                raise InputError(f"{item!r} cannot be rendered: {error}", place=spot) from error
        if isinstance(item, list):
            return [walk(part, f"{spot}[{index}]") for index, part in enumerate(item)]
        if isinstance(item, dict):
            return {key: walk(part, f"{spot}.{key}") for key, part in item.items()}
        return item

    return walk(value, place)
