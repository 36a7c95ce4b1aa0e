# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""One test per log vector and per table row: see runner.py. READINESS_CASES names other directories."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import runner


@pytest.mark.parametrize("path", runner.find_vectors(), ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.expected.yaml')}")
def test_vector(path: Path) -> None:
    """A log whose number is read wrong condemns a healthy node or passes a broken one."""
    assert runner.run_vector(path) == []


@pytest.mark.parametrize(
    ("path", "number"), runner.find_tables(), ids=[f"{path.name.partition('-')[0]}-{number:02d}" for path, number in runner.find_tables()]
)
def test_table_row(path: Path, number: int) -> None:
    """Each line or row of the case tables is read as the table says."""
    assert runner.run_row(path, number) == []


@pytest.mark.parametrize("path", runner.find_node_lists(), ids=lambda path: f"{path.parent.name}/{path.name.removesuffix('.expect.yaml')}")
def test_node_list(path: Path) -> None:
    """A node that discovery takes for what it is not is accused, passed over, or tested while it goes away."""
    assert runner.run_node_list(path) == []


def test_there_are_vectors() -> None:
    """A wrong READINESS_CASES must not pass by checking nothing."""
    missing = [str(path) for path in runner.case_directories() if not path.is_dir()]
    assert missing == []
    assert runner.find_vectors() or runner.find_tables() or runner.find_node_lists()


def test_a_node_list_that_names_an_unknown_node_fails(tmp_path: Path) -> None:
    """A node that is silently outside the snapshot is the very fault that node lists look for."""
    (tmp_path / "a.nodes.json").write_text('[{"metadata": {"name": "n0"}, "status": {}}]')
    case = tmp_path / "a.expect.yaml"
    case.write_text("input: {nodes: a.nodes.json}\nexpect:\n  n0: {target: false}\n")
    assert runner.run_node_list(case) == [".n0: expected {'target': False}, the library says nothing"]
    case.write_text("input: {nodes: a.nodes.json}\nexpect: {}\n")
    assert runner.run_node_list(case) != []


def test_unknown_keys_and_wrong_values_fail() -> None:
    """A runner that ignores what it does not know would call every vector passed."""
    assert list(runner.differences({"a": {"b": 1}}, {"a": {}})) == [".a.b: expected 1, the library says nothing"]
    assert list(runner.differences({"a": [1.25]}, {"a": [1.26]})) != []
    assert list(runner.differences({"a": True}, {"a": 1})) != []
    assert list(runner.differences({"a": None}, {"a": 0})) != []
    assert list(runner.differences({"a": [1]}, {"a": [1, 2]})) != []
    assert list(runner.differences({"a": 464.3, "reason": "prose"}, {"a": 464.299987})) == []
