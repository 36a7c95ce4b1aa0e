# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Compares log vectors with what the library says.

A vector is a log (or several), plain or with `.gz` behind its name, and a `NAME.expected.yaml` beside it:

    input:  {file: NAME.log, files: [..], exit_code: 0, ...}   what the caller knows; all of it becomes the context
    kind:   a key of VECTOR_KINDS
    ...     every other key is compared, except the prose ones

A table is a file `v0N-*.yaml` with `cases`; each row holds the input of one function and what it must return.

A node list is a `NAME.nodes.json` (a list of Node objects as the API server sends them) and a `NAME.expect.yaml` beside it:

    input:  {nodes: NAME.nodes.json}
    expect: {NODE: {target: bool, exclusion: REASON|null, findings: [REASON, ..]}}    what discovery makes of each; any of the keys

Values are compared as subsets: the library may say more than the vector, never less or something else. Numbers
agree when they differ by less than half a unit of the last digit the vector prints (at least three decimals).
A key that the library does not know fails the vector.
"""

from __future__ import annotations

import functools
import json
import os
import typing as t
from pathlib import Path

import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog, shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.nodes import looks_like_gpu, project
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.platforms import detect_platform
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.snapshot import build_snapshot
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.category import with_thresholds
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import measurement

HERE = Path(__file__).parent
DEFAULT_CASES = sorted(path for path in (HERE / "cases").iterdir() if path.is_dir())

# kind of a vector -> kind of measurement
VECTOR_KINDS: dict[str, str] = {
    "nccl_tests_text": "nccl",
    "nccl_tests_json": "nccl",
    "dcgm_diag": "dcgm",
    "training_log": "training",
    "goodput": "goodput",
    "log_profile": "log_profile",
    "perftest": "perftest",
    "fio": "fio",
    "nvbandwidth": "nvbandwidth",
    "gpu_burn": "gpu_burn",
    "key_value": "key_value",
}
# A vector's word for the verdict of a measurement, by the reason that it is; a diagnostic's by its class.
VERDICT_WORDS: dict[str | None, str] = {
    None: "measured",
    "DataCorruption": "wrong_data",
    "TransportFallback": "wrong_transport",
    "ThresholdViolation": "threshold_violated",
    "LogIncomplete": "incomplete",
    "NoMeasurement": "no_data",
    "TimedOut": "timed_out",
    "SetupError": "setup_error",
}
OTHER_VERDICT = "run_failed"
CLASS_WORDS = {
    "hardware_reset": "hardware_fail",
    "busy": "retry",
    "inconclusive": "retry",
    "timed_out": "incomplete",
}
PROSE = {"reason", "note", "about"}
PROSE_OF_KIND: dict[str, set[str]] = {"training_log": {"profile"}}


def case_directories() -> list[Path]:
    """Directories named by READINESS_CASES, else the copies beside this file."""
    named = os.environ.get("READINESS_CASES", "")
    return [Path(item) for item in named.split(":") if item] or DEFAULT_CASES


def find_vectors() -> list[Path]:
    """Every `*.expected.yaml` of the case directories."""
    return [path for directory in case_directories() for path in sorted(directory.glob("*.expected.yaml"))]


def find_tables() -> list[tuple[Path, int]]:
    """(table, row number) for every row of every v0* table."""
    rows = []
    for directory in case_directories():
        for path in sorted(directory.glob("v[0-9]*.yaml")):
            if not path.name.endswith(".expected.yaml"):
                rows += [(path, number) for number in range(len(load(path)["cases"]))]
    return rows


def find_node_lists() -> list[Path]:
    """Every `*.expect.yaml` of the case directories: what discovery makes of a list of nodes."""
    return [path for directory in case_directories() for path in sorted(directory.glob("*.expect.yaml"))]


def load(path: Path) -> t.Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def log_file(path: Path) -> Path:
    """The log itself, or its compressed copy: logs whose line ends a tool might change are stored as NAME.gz."""
    compressed = path.with_name(f"{path.name}.gz")
    return path if path.exists() or not compressed.exists() else compressed


def run_vector(path: Path) -> list[str]:
    """Differences between the vector and the library; empty when they agree."""
    vector = load(path)
    kind = vector["kind"]
    if kind not in VECTOR_KINDS:
        return [f"kind: the runner does not know {kind!r}"]
    given = dict(vector["input"])
    names = given.pop("files", None) or [given["file"]]
    given.pop("file", None)
    thresholds = given.pop("thresholds", None)
    said = measurement.measure(VECTOR_KINDS[kind], [str(log_file(path.parent / name)) for name in names], given)
    said = in_words(with_thresholds(said, thresholds))
    prose = PROSE | PROSE_OF_KIND.get(kind, set())
    expected = {key: value for key, value in vector.items() if key not in prose | {"input", "kind"}}
    return list(differences(expected, said))


def run_node_list(path: Path) -> list[str]:
    """Differences between what discovery makes of a node list and what is expected; empty when they agree."""
    wanted = load(path)
    if wanted.get("kind", "node_list") != "node_list":
        return [f"kind: the runner does not know {wanted['kind']!r}"]
    raws = json.loads((path.parent / wanted["input"]["nodes"]).read_text(encoding="utf-8"))
    catalog = _catalog()
    seen = [(project(raw, catalog), detect_platform(raw, catalog)) for raw in raws if looks_like_gpu(raw)]
    rows = {row["name"]: node_in_words(row) for row in build_snapshot(seen, catalog)["nodes"]}
    return list(differences(wanted["expect"], rows)) if wanted["expect"] else ["the case expects nothing"]


@functools.cache
def _catalog() -> dict[str, t.Any]:
    return load_catalog([shipped_catalog_dir()])


def node_in_words(row: dict[str, t.Any]) -> dict[str, t.Any]:
    """A row of a snapshot as node lists spell it."""
    exclusion = row["exclusion"]
    return {
        "target": row["target"],
        "exclusion": exclusion["reason"] if exclusion else None,
        "findings": [finding["reason"] for finding in row["findings"]],
    }


def in_words(said: dict[str, t.Any]) -> dict[str, t.Any]:
    """The measurement with its verdict as vectors spell it."""
    if said["kind"] == "dcgm":
        return {**said, "verdict": CLASS_WORDS.get(said["class"], said["class"])}
    return {**said, "verdict": VERDICT_WORDS.get(said["verdict"], OTHER_VERDICT)}


def differences(expected: t.Any, actual: t.Any, where: str = "") -> t.Iterator[str]:
    """Every place where `actual` lacks or contradicts `expected`."""
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            yield f"{where}: expected a mapping, got {actual!r}"
            return
        for key, value in expected.items():
            if key in PROSE:
                continue
            if key not in actual:
                yield f"{where}.{key}: expected {value!r}, the library says nothing"
            else:
                yield from differences(value, actual[key], f"{where}.{key}")
    elif isinstance(expected, list):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            yield f"{where}: expected {expected!r}, got {actual!r}"
            return
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif not same(expected, actual):
        yield f"{where}: expected {expected!r}, got {actual!r}"


def same(expected: t.Any, actual: t.Any) -> bool:
    """Equality of two scalars, numbers within the printed precision."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    if isinstance(expected, float) and isinstance(actual, (int, float)):
        return abs(expected - actual) <= half_unit(expected)
    return bool(expected == actual)


def half_unit(number: float) -> float:
    """Half a unit of the last decimal of a printed number, at least three decimals deep."""
    digits = len(repr(number).partition(".")[2]) if "e" not in repr(number) else 3
    return 0.5 * 10.0 ** -max(3, digits) + 1e-12 * abs(number)


def run_row(path: Path, number: int) -> list[str]:
    """Differences between one row of a table and the library."""
    row = load(path)["cases"][number]
    answer = TABLES.get(path.name.partition("-")[0])
    if answer is None:
        return [f"the runner does not know the table {path.name}"]
    given, expected = answer(row)
    if not expected:
        return ["the row has nothing to compare"]
    return list(differences(expected, given))


def _without(row: dict[str, t.Any], *keys: str) -> dict[str, t.Any]:
    return {key: value for key, value in row.items() if key not in keys}


def _prefix_row(row: dict[str, t.Any]) -> tuple[t.Any, t.Any]:
    from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import labels

    return labels.strip_prefix(row["line"]), _without(row, "line")


def _table_row(row: dict[str, t.Any]) -> tuple[t.Any, t.Any]:
    from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.nccl import rows as nccl_rows

    return nccl_rows.describe_row(row["row"]), _without(row, "row")


def _transport_row(row: dict[str, t.Any]) -> tuple[t.Any, t.Any]:
    from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.nccl import debug_lines

    return debug_lines.classify_line(row["line"]), _without(row, "line")


def _factor_row(row: dict[str, t.Any]) -> tuple[t.Any, t.Any]:
    from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.nccl import collectives

    if "check" in row:
        words = row["check"].split()
        values = dict(word.split("=") for word in words[1:])
        algbw = collectives.algorithm_bandwidth(int(values["size"]), float(values["time_us"]))
        busbw = algbw * collectives.factor(words[0], int(values["n"]))
        return {"algbw": round(algbw, 2), "busbw": round(busbw, 2)}, _without(row, "check")
    said = {"collective": row["collective"], "n": row["n"], "factor": round(collectives.factor(row["collective"], row["n"]), 6)}
    return said, row


def _goodput_row(row: dict[str, t.Any]) -> tuple[t.Any, t.Any]:
    from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import goodput

    terms = ("t_w", "t_ch", "t_rm", "t_re", "t_save")
    said = goodput.from_terms(row)
    return {**said, "verdict": VERDICT_WORDS[said["verdict"]]}, _without(row, *terms)


def _exit_row(row: dict[str, t.Any]) -> tuple[t.Any, t.Any]:
    """An exit status of dcgmi, or an error code of its documents."""
    from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes import dcgm_exits
    from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.dcgm import codes

    if "error_id" in row:
        return {"severity": codes.severity_of(row["error_id"])}, _without(row, "error_id")
    status = dcgm_exits.exit_status(row["exit"])
    said = (
        {"ret": None, "name": None, "class": None} if status is None else {"ret": status.ret, "name": status.name, "class": status.outcome}
    )
    return said, _without(row, "exit")


# first part of a table's file name -> function(row) that returns (what the library says, what the row expects)
TABLES: dict[str, t.Callable[[dict[str, t.Any]], tuple[t.Any, t.Any]]] = {
    "v01": _prefix_row,
    "v02": _table_row,
    "v03": _transport_row,
    "v04": _factor_row,
    "v05": _exit_row,
    "v06": _goodput_row,
}
