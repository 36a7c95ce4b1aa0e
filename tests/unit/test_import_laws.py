# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The law of the rooms, as CONTRIBUTING.md states it: an import against the flow makes every later change dearer.

Imports are read from the source, inside functions and under TYPE_CHECKING too: none is too small to count.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections import Counter

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "plugins" / "module_utils"
PACKAGE = "ansible_collections.gpu_cluster.readiness.plugins.module_utils"
# Names that once meant a different thing in each room.
TAKEN = ("engine", "planner", "grouping", "archive")


def modules(root: pathlib.Path = LIBRARY) -> dict[str, pathlib.Path]:
    """Every module of the library, dotted from module_utils on; a package is its __init__."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: pathlib.Path, known: dict[str, pathlib.Path]) -> set[str]:
    """The library's modules that a module of it imports."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            elif (node.module or "").startswith(PACKAGE):
                base = (node.module or "")[len(PACKAGE) + 1 :].split(".")
            else:
                continue
            origin = ".".join(part for part in base if part)
            found |= {f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in known else origin for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name[len(PACKAGE) + 1 :] for alias in node.names if alias.name.startswith(f"{PACKAGE}.")}
    return {item for item in found if item in known and item != name}


def graph(known: dict[str, pathlib.Path] | None = None) -> dict[str, set[str]]:
    known = known or modules()
    return {name: imports(name, path, known) for name, path in known.items()}


def room(name: str) -> str:
    return name.split(".")[0]


def law() -> dict[str, set[str]]:
    """Which rooms each room may use, from the table in CONTRIBUTING.md."""
    rows = re.findall(r"(?m)^\| `(_\w+)` \|[^|]*\| ([^|]*) \|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    return {name: set(re.findall(r"`(_\w+)`", allowed)) for name, allowed in rows}


def breaches(edges: dict[str, set[str]], allowed: dict[str, set[str]]) -> list[str]:
    return sorted(
        f"{name} -> {target}"
        for name, targets in edges.items()
        for target in targets
        if room(name) != room(target) and room(target) not in allowed.get(room(name), set())
    )


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected modules (Tarjan), each circle sorted. A package's __init__ that names its members makes none."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in edges.get(name, ()):
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            members = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(members) > 1:
                found.append(sorted(members))

    for name in edges:
        if name not in index:
            visit(name)
    return found


def test_every_room_is_in_the_table_and_the_table_names_only_rooms() -> None:
    rooms = {path.name for path in LIBRARY.iterdir() if path.is_dir() and path.name.startswith("_") and path.name != "__pycache__"}
    assert set(law()) == rooms
    assert {target for allowed in law().values() for target in allowed} <= rooms


def test_no_import_goes_against_the_table() -> None:
    assert breaches(graph(), law()) == []


def test_the_rooms_stand_in_an_order() -> None:
    assert circles(law()) == []


def test_no_two_modules_import_each_other_not_even_by_a_detour() -> None:
    assert circles(graph()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from .._judge.categories import judge_category",
        "from .._judge import categories",
        f"from {PACKAGE}._judge.categories import judge_category",
        f"import {PACKAGE}._judge.categories",
        "def late():\n    from .._judge import categories",
        "import typing as t\nif t.TYPE_CHECKING:\n    from .._judge.categories import judge_category",
    ],
)
def test_an_import_against_the_flow_is_found_however_it_is_written(line: str, tmp_path: pathlib.Path) -> None:
    """Measuring once judged: through an import inside a function."""
    upstream = tmp_path / "late.py"
    upstream.write_text(line, encoding="utf-8")
    known = {**modules(), "_measure.late": upstream}
    assert breaches({"_measure.late": imports("_measure.late", upstream, known)}, law()) == ["_measure.late -> _judge.categories"]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_the_library_imports_itself_relatively() -> None:
    """Tools that draw imports miss the others, and a copy of the library under another name would import the original."""
    assert [
        name
        for name, path in modules().items()
        if f"import {PACKAGE}" in (text := path.read_text(encoding="utf-8")) or f"from {PACKAGE}" in text
    ] == []


def test_the_library_never_imports_ansible() -> None:
    pattern = re.compile(r"(?m)^\s*(?:from|import) ansible(?:\.|\s)")
    assert [name for name, path in modules().items() if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_only_the_launcher_of_simulated_clusters_knows_the_simulator() -> None:
    """The product meets the simulator through a kubeconfig."""
    edges = [path for folder in ("action", "filter", "plugin_utils") for path in (ROOT / "plugins" / folder).glob("*.py")]
    knows = [
        path.name for path in edges if "._simulator" in path.read_text(encoding="utf-8").replace("plugin_utils._simulator_launcher", "")
    ]
    assert knows == ["_simulator_launcher.py"]


def test_steps_of_the_engine_cannot_name_an_attempt() -> None:
    """Only the loop's thread writes attempts; a step that held one could write it from another."""
    known = modules()
    reach = {"_run.steps"}
    edges = graph(known)
    while new := {target for name in reach for target in edges[name]} - reach:
        reach |= new
    assert not reach & {"_run.attempt", "_run.engine", "_run.records"}


def test_a_name_that_once_meant_several_things_is_given_once() -> None:
    counts = Counter(name.rpartition(".")[2] for name in modules())
    assert {name: counts[name] for name in TAKEN if counts[name] > 1} == {}


def test_files_stay_short_enough_to_read() -> None:
    """The shapes are a table, and are to stand in one place."""
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: lines for name, lines in lengths.items() if lines > 500 and name != "_common.shapes"} == {}
