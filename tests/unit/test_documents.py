# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pages for people: links lead somewhere, and the versions that the README promises are those that can be installed."""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]\n]+\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def pages() -> list[pathlib.Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "roles").rglob("*.md")]


def test_a_link_to_a_file_of_ours_leads_there() -> None:
    links = [(page, link) for page in pages() for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert len(links) > 20
    assert [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_the_readme_promises_the_versions_of_ansible_core_that_the_requirements_allow() -> None:
    rows = re.findall(r"(?m)^\| ansible-core 2\.(\d+) \|", (ROOT / "README.md").read_text(encoding="utf-8"))
    low, beyond = re.search(r"(?m)^ansible-core>=2\.(\d+),<2\.(\d+) ", (ROOT / "requirements.txt").read_text(encoding="utf-8")).groups()
    assert [int(row) for row in rows] == list(range(int(low), int(beyond)))
    assert f'requires_ansible: ">=2.{low}.0"' in (ROOT / "meta" / "runtime.yml").read_text(encoding="utf-8")


def test_the_readme_promises_the_kubernetes_package_that_the_requirements_allow() -> None:
    low, high = re.search(r"`kubernetes` package (\d+) to (\d+)", (ROOT / "README.md").read_text(encoding="utf-8")).groups()
    assert f"\nkubernetes>={low},<{int(high) + 1} " in (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert f"\nkubernetes>={low},<{int(high) + 1}\n" in (ROOT / "meta" / "ee-requirements.txt").read_text(encoding="utf-8")
