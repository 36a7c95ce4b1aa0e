# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Names that one table gives and another takes: NVCRE's `avgStepTimeSec` was once refused, two tables spelt its metric differently."""

from __future__ import annotations

import pathlib
import re

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import list_entries, load_entry
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.floors import load_floors
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.category import criteria_of, metrics_of
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.criteria import THRESHOLD_KEYS, TYPES, evaluate_all
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import KINDS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS, OPEN

ROOT = pathlib.Path(__file__).resolve().parents[2]
CATALOG = [str(ROOT / "catalog")]


def test_every_kind_that_can_be_measured_declares_its_metrics() -> None:
    assert set(METRICS) == set(KINDS)
    assert set(KINDS) >= OPEN
    assert {metric.type for table in METRICS.values() for metric in table.values()} <= set(TYPES)


@pytest.mark.parametrize("key", sorted(THRESHOLD_KEYS))
def test_every_threshold_of_nvcre_names_a_metric_that_some_kind_measures(key: str) -> None:
    kinds = [kind for kind, table in METRICS.items() if set(THRESHOLD_KEYS[key]) & set(table)]
    assert kinds
    for kind in kinds:
        (compiled,) = criteria_of({"thresholds": {key: "value >= 1"}, "measure": {"kind": kind}})
        assert compiled.metrics[0] in METRICS[kind]
        assert evaluate_all([compiled], {compiled.metrics[0]: 2.0})[0]["passed"]


@pytest.mark.parametrize("name", list_entries(CATALOG))
def test_every_catalog_test_is_of_a_kind_whose_metrics_are_known(name: str) -> None:
    table, is_open = metrics_of(load_entry(CATALOG, name)["measure"])
    assert table or is_open


def test_every_floor_of_the_catalog_can_be_judged_by_what_its_test_measures() -> None:
    floors = load_floors(CATALOG)
    assert floors
    for floor in floors:
        entry = load_entry(CATALOG, floor["test"])
        assert criteria_of({"criteria": floor["criteria"], "measure": entry["measure"]})


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_metric_that_a_page_names_exists(page: pathlib.Path) -> None:
    known = {name for table in METRICS.values() for name in table}
    named = set(re.findall(r"measured\.([a-z][a-z0-9_]*)", page.read_text(encoding="utf-8")))
    assert named - known == set()


def test_a_log_profile_that_declares_its_metrics_has_its_criteria_checked_before_the_run() -> None:
    """A misspelt metric must not cost a night of GPU time."""
    profile = {
        "name": "mine",
        "patterns": {"step": {"regex": r"loss=(?P<loss>\S+)"}},
        "metrics": {"loss": {"from": "step.loss", "statistic": "last"}},
    }
    measure = {"kind": "log_profile", "profile": profile}
    assert criteria_of({"criteria": ["measured.loss < 3"], "measure": measure})
    with pytest.raises(InputError, match="lost"):
        criteria_of({"criteria": ["measured.lost < 3"], "measure": measure})
