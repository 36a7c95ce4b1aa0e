# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Loads the catalog's facts: GPU products, platforms, topology labels, evidence for and against hardware.

A catalog directory holds any of `gpus.yml`, `topology.yml`, `platforms/<name>.yml`, `evidence/<name>.yml` and, as a short
form of evidence, `health_conditions.yml` (and `tests/`, see entries.py). Directories are given in order of precedence, the
user's own first, the shipped one last: rows of the same name are merged key by key (evidence: replaced whole), new ones are
added before the shipped ones.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import typing as t
from collections.abc import Sequence

from .._causes.evidence import Evidence
from .._common.errors import InputError, unknown_value
from .schemas import read_checked
from .yamlfile import YamlFile, existing

Catalog = dict[str, t.Any]

GPU_DEFAULTS: dict[str, t.Any] = {
    "title": "",
    "architecture": "",
    "products": [],
    "products_by_memory": [],
    "gpus_per_node": None,
    "other_shapes": [],
    "nics_per_node": None,
    "nvlink_domain": None,
    "mnnvl": False,
    "notes": "",
}
PLATFORM_DEFAULTS: dict[str, t.Any] = {
    "title": "",
    "priority": 50,
    "detect": [],
    "topology": {},
    "gpus": {},
    "network": [],
    "notes": [],
}


# What a row of evidence needs beside its kind.
_NEEDED = {
    **dict.fromkeys(("taint", "label", "annotation", "resource", "instance_type", "wording"), ("name", "pattern", "class")),
    "condition": ("name", "pattern", "bad", "class"),
    "xid": ("code", "class"),
    "dcgm": ("code", "severity"),
    "severity": ("severity", "code", "class"),
}


def shipped_catalog_dir() -> str:
    """The catalog that comes with the collection."""
    return os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "catalog"))


def check_directories(directories: Sequence[str]) -> None:
    """Raises InputError for a catalog directory that does not exist."""
    for directory in directories:
        if not os.path.isdir(directory):
            raise InputError("is not a directory", place=directory, hint="Each of catalog_dirs must exist")


@functools.cache
def shipped_evidence() -> Evidence:
    """The table of hardware evidence that comes with the collection."""
    return t.cast(Evidence, load_catalog([shipped_catalog_dir()])["evidence"])


def load_catalog(directories: Sequence[str]) -> Catalog:
    """Everything in these directories, the first one strongest.

    Returns {gpus: [row], platforms: {name: platform}, topology: {clique, rack, block: [label]}, evidence: Evidence}.
    Raises InputError with file and line for anything that is not as it should be.
    """
    catalog: Catalog = {"gpus": [], "platforms": {}, "topology": {"clique": [], "rack": [], "block": []}, "evidence": []}
    check_directories(directories)
    for directory in reversed(list(directories)):
        _add_directory(catalog, directory)
    for row in catalog["gpus"]:
        for key, value in GPU_DEFAULTS.items():
            row.setdefault(key, copy.deepcopy(value))
    for platform in catalog["platforms"].values():
        for key, value in PLATFORM_DEFAULTS.items():
            platform.setdefault(key, copy.deepcopy(value))
    catalog["evidence"] = Evidence(catalog["evidence"])
    return catalog


def _add_directory(catalog: Catalog, directory: str) -> None:
    for name, add in (("gpus", _add_gpus), ("topology", _add_topology), ("health_conditions", _add_conditions)):
        path = existing(os.path.join(directory, name))
        if path:
            file = read_checked(path, name)
            add(catalog, file)
    _add_evidence(catalog, [read_checked(path, "evidence") for path in _files(directory, "evidence")])
    seen: dict[str, str] = {}
    for path in _files(directory, "platforms"):
        file = read_checked(path, "platform")
        name = file.data["name"]
        if name in seen:
            raise InputError(f"the platform {name!r} is also described by {seen[name]}", place=file.place(("name",)))
        seen[name] = file.path
        _add_platform(catalog, file)


def _files(directory: str, folder: str) -> list[str]:
    """The YAML files of a folder of a catalog directory, sorted."""
    path = os.path.join(directory, folder)
    return (
        [os.path.join(path, entry) for entry in sorted(os.listdir(path)) if entry.endswith((".yml", ".yaml"))]
        if os.path.isdir(path)
        else []
    )


def _add_gpus(catalog: Catalog, file: YamlFile) -> None:
    rows = file.data["gpus"]
    _unique_names(file, rows, ("gpus",))
    known = {row["name"]: row for row in catalog["gpus"]}
    new = []
    for index, row in enumerate(rows):
        for number, pattern in enumerate(row.get("products", [])):
            _compiles(file, pattern, ("gpus", index, "products", number))
        for number, item in enumerate(row.get("products_by_memory", [])):
            _compiles(file, item["product"], ("gpus", index, "products_by_memory", number, "product"))
        if row["name"] in known:
            known[row["name"]].update(row)
        elif not row.get("products") and not row.get("products_by_memory"):
            raise InputError("a new GPU needs products, the patterns of its label", place=file.place(("gpus", index)))
        else:
            new.append(dict(row))
    catalog["gpus"] = new + catalog["gpus"]


def _add_topology(catalog: Catalog, file: YamlFile) -> None:
    for level, labels in file.data["topology"].items():
        catalog["topology"][level] = labels + [label for label in catalog["topology"][level] if label not in labels]


def _add_conditions(catalog: Catalog, file: YamlFile) -> None:
    """The short form: a rule is a row of kind condition that condemns hardware."""
    rules = file.data["health_conditions"]
    _unique_names(file, rules, ("health_conditions",))
    for index, rule in enumerate(rules):
        _compiles(file, rule["pattern"], ("health_conditions", index, "pattern"))
    _put_first(catalog, [{"kind": "condition", "class": "hardware", **rule} for rule in rules])


def _add_evidence(catalog: Catalog, files: Sequence[YamlFile]) -> None:
    """The rows of all evidence files of one directory, checked, before those of weaker directories."""
    rows: list[dict[str, t.Any]] = []
    seen: dict[tuple[str, t.Any], str] = {}
    for file in files:
        for index, row in enumerate(file.data["evidence"]):
            place = file.place(("evidence", index))
            missing = next((key for key in _NEEDED[row["kind"]] if key not in row), None)
            if missing:
                raise InputError(f"evidence of kind {row['kind']} needs {missing!r}", place=place)
            for key in ("pattern", "value"):
                if key in row:
                    _compiles(file, row[key], ("evidence", index, key))
            if _evidence_key(row) in seen:
                raise InputError(f"{' '.join(map(str, _evidence_key(row)))} also stands at {seen[_evidence_key(row)]}", place=place)
            seen[_evidence_key(row)] = place
            rows.append(row)
    _put_first(catalog, rows)


def _put_first(catalog: Catalog, rows: list[dict[str, t.Any]]) -> None:
    own = {_evidence_key(row) for row in rows}
    catalog["evidence"] = rows + [row for row in catalog["evidence"] if _evidence_key(row) not in own]


def _evidence_key(row: dict[str, t.Any]) -> tuple[str, t.Any]:
    return row["kind"], row["code"] if row["kind"] in ("xid", "dcgm", "severity") else row["name"]


def _add_platform(catalog: Catalog, file: YamlFile) -> None:
    data = file.data
    _unique_names(file, data.get("network", []), ("network",))
    models = [row["name"] for row in catalog["gpus"]]
    for name in data.get("gpus", {}):
        if name not in models:
            raise unknown_value("GPU", name, models, file.place(("gpus", name)))
    for index, rule in enumerate(data.get("network", [])):
        for key in ("gpus", "not_gpus"):
            for number, name in enumerate((rule.get("when") or {}).get(key, [])):
                if name not in models:
                    raise unknown_value("GPU", name, models, file.place(("network", index, "when", key, number)))
    catalog["platforms"][data["name"]] = _merged_platform(catalog["platforms"].get(data["name"], {}), data)


def _merged_platform(old: dict[str, t.Any], new: dict[str, t.Any]) -> dict[str, t.Any]:
    """New over old: network rules and GPU exceptions by name, everything else whole."""
    merged = {**old, **new}
    if "network" in old and "network" in new:
        replaced = {rule["name"]: rule for rule in new["network"]}
        kept = [replaced.pop(rule["name"], rule) for rule in old["network"]]
        merged["network"] = kept + list(replaced.values())
    if "gpus" in old and "gpus" in new:
        merged["gpus"] = {**old["gpus"], **{name: {**old["gpus"].get(name, {}), **row} for name, row in new["gpus"].items()}}
    return merged


def _unique_names(file: YamlFile, rows: list[dict[str, t.Any]], at: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for index, row in enumerate(rows):
        if row["name"] in seen:
            raise InputError(f"the name {row['name']!r} stands twice", place=file.place((*at, index, "name")))
        seen.add(row["name"])


def _compiles(file: YamlFile, pattern: str, at: tuple[str | int, ...]) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InputError(f"{pattern!r} is not a regular expression: {error}", place=file.place(at)) from None
