# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pages for people: links lead somewhere, and the versions that the README promises are those that can be installed."""

from __future__ import annotations

import pathlib
import re
import typing as t

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLLECTION = "gpu_cluster.readiness."
BLOCK = re.compile(r"(?ms)^```yaml\n(.*?)^```")
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\[[^\]\n]+\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def pages() -> list[pathlib.Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "roles").rglob("*.md")]


def test_a_link_to_a_file_of_ours_leads_there() -> None:
    links = [(page, link) for page in pages() for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert len(links) > 20
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_each_scenario_of_the_engine_names_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "docs" / "engine_scenarios.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    scenarios = [row for row in rows if not row.startswith("| scenario")]
    named = [TEST.findall(row.rsplit(" | ", 1)[-1]) for row in scenarios]
    assert len(scenarios) > 50 and [row for row, tests in zip(scenarios, named, strict=True) if not tests] == []
    wanted = {pair for tests in named for pair in tests}
    assert sorted(f"{name}::{test}" for name, test in wanted if f"def {test}(" not in file_of(name).read_text(encoding="utf-8")) == []


def file_of(name: str) -> pathlib.Path:
    room = "unit/plugins/module_utils/" if name.startswith("_") else ""
    return ROOT / "tests" / f"{room}{name}"


def test_tasks_that_pages_show_have_options_that_their_modules_have() -> None:
    shown = [(page, task) for page in pages() for task in tasks_of(page)]
    assert any(f"{COLLECTION}certification_look" in task for _page, task in shown)
    connection = options_of(ROOT / "plugins" / "doc_fragments" / "_auth.py")
    for page, task in shown:
        for module, arguments in task.items():
            path = ROOT / "plugins" / "modules" / f"{module.removeprefix(COLLECTION)}.py"
            if module.startswith(COLLECTION):
                assert set(arguments) <= options_of(path) | connection, f"{page}: {module}"


def tasks_of(page: pathlib.Path) -> list[dict[str, t.Any]]:
    """The tasks with a module of ours in the blocks of a page."""
    blocks = [yaml.safe_load(block) for block in BLOCK.findall(page.read_text(encoding="utf-8")) if COLLECTION in block]
    rows = [row for block in blocks if isinstance(block, list) for row in block if isinstance(row, dict)]
    rows += [task for row in rows for task in row.get("tasks", [])]
    return [row for row in rows if any(str(key).startswith(COLLECTION) for key in row)]


def options_of(path: pathlib.Path) -> set[str]:
    text = re.search(r'(?s)DOCUMENTATION = r"""\n(.*?)"""', path.read_text(encoding="utf-8")).group(1)
    return set(yaml.safe_load(text)["options"])


def test_the_readme_promises_the_versions_of_ansible_core_that_the_requirements_allow() -> None:
    rows = re.findall(r"(?m)^\| ansible-core 2\.(\d+) \|", (ROOT / "README.md").read_text(encoding="utf-8"))
    low, beyond = re.search(r"(?m)^ansible-core>=2\.(\d+),<2\.(\d+) ", (ROOT / "requirements.txt").read_text(encoding="utf-8")).groups()
    assert [int(row) for row in rows] == list(range(int(low), int(beyond)))
    assert f'requires_ansible: ">=2.{low}.0"' in (ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8")


def test_the_readme_promises_the_kubernetes_package_that_the_requirements_allow() -> None:
    low, high = re.search(r"`kubernetes` package (\d+) to (\d+)", (ROOT / "README.md").read_text(encoding="utf-8")).groups()
    assert f"\nkubernetes>={low},<{int(high) + 1} " in (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert f"\nkubernetes>={low},<{int(high) + 1}\n" in (ROOT / "meta" / "ee-requirements.txt").read_text(encoding="utf-8")
