# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Who plans a maintenance window reads here what a test does, what it needs and how long it may take."""

from __future__ import annotations

import pathlib
import re

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import list_entries
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.listing import WIDTH, list_tests, render_tests

SHIPPED = [shipped_catalog_dir()]
PAGE = pathlib.Path(shipped_catalog_dir()).parent / "docs" / "catalog.md"


def test_every_test_is_told_with_its_options_and_limits_within_the_width_of_a_terminal() -> None:
    rows = list_tests(SHIPPED)
    assert [row["name"] for row in rows] == list_entries(SHIPPED)
    lines = render_tests(rows)
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    for row in rows:
        assert row["name"] in lines
        for name in row["options"]:
            assert f"option     {name} (" in text


def test_what_a_test_asks_of_the_cluster_is_said() -> None:
    (dcgm,) = list_tests(SHIPPED, ["diagnostics/dcgm-level4"])
    assert "capability SYS_ADMIN" in dcgm["needs"] and dcgm["attempt_s"] == 10800
    (collective,) = list_tests(SHIPPED, ["communication/nccl-alltoall"])
    assert any("ssh server" in item for item in collective["needs"]) and collective["floors"]


def test_an_unknown_test_is_told_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="dcgm-level2"):
        list_tests(SHIPPED, ["diagnostics/dcgm-leve2"])


def test_the_page_tells_of_every_test() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in list_entries(SHIPPED):
        short = name.rsplit("/", 1)[1]
        assert re.search(rf"`({re.escape(name)}|{re.escape(short)})`", page) or short.startswith("dcgm-level"), name
