# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What most nodes show at once is not their hardware, however hard the words; what one node shows is its own."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.illness import AT_ONCE_S, Health
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts

NAMES = [f"n{index}" for index in range(8)]
XID, NVLINK = "condition GpuXidError=True (Xid79)", "condition GpuNvlinkWatch=True (Down)"


def node(name, *kinds, ready="True"):
    return node_facts({"metadata": {"name": name, "labels": {"kinds": "|".join(kinds)}}, "status": {"conditions": [condition(ready)]}})


def condition(ready):
    return {"type": "Ready", "status": ready}


def unwell(facts):
    kinds = [kind for kind in facts["metadata"]["labels"]["kinds"].split("|") if kind]
    quotes = [f"{kind}: GPU 3 of {facts['metadata']['name']}" for kind in kinds]
    return {"message": "; ".join(quotes), "evidence": quotes, "kinds": kinds} if kinds else None


@pytest.fixture
def health():
    made = Health(unwell)
    for name in NAMES:
        made.see(node(name), 0)
    return made


def fall_ill(health, names, *kinds, every_s=1.0):
    return [health.see(node(name, *kinds), index * every_s) for index, name in enumerate(names)]


def test_half_of_the_nodes_are_ill_each_for_itself_and_one_more_makes_a_mass_event(health):
    assert not any(fall_ill(health, NAMES[:4], XID))
    assert list(health.under_event()) == [] and "GPU 3 of n0" in health.told("n0")["message"]
    assert fall_ill(health, NAMES[:5], XID) == [False] * 4 + [True]
    assert list(health.under_event()) == NAMES[:5]
    assert "5 of 8 nodes show the same at once (condition GpuXidError=True (Xid79))" in health.event("n0")


def test_nodes_that_break_one_after_another_over_hours_are_ill_each_for_itself(health):
    fall_ill(health, NAMES, XID, every_s=AT_ONCE_S)
    assert list(health.under_event()) == []


def test_a_node_that_shows_something_of_its_own_beside_the_mass_event_stays_ill(health):
    fall_ill(health, NAMES[:6], XID)
    health.see(node("n0", XID, NVLINK), 7)
    assert health.event("n0") == "" and list(health.under_event()) == NAMES[1:6]


def test_different_illnesses_are_no_mass_event(health):
    fall_ill(health, NAMES[:4], XID)
    fall_ill(health, NAMES[4:], NVLINK)
    assert list(health.under_event()) == []


def test_the_only_node_of_a_run_is_no_mass(health):
    alone = Health(unwell, ["n0"])
    for name in NAMES:
        alone.see(node(name, XID), 0)
    assert list(alone.under_event()) == [] and alone.told("n0") and alone.told("n1") is None, "others are none of the run's"


def test_a_silent_node_tells_old_news(health):
    health.see(node("n0", XID), 1)
    health.see(node("n0", XID, ready="Unknown"), 2)
    assert health.told("n0") is None


def test_when_the_agent_is_mended_nobody_is_ill_any_more(health):
    fall_ill(health, NAMES, XID)
    for name in NAMES[1:]:
        health.see(node(name), 20)
    assert health.event("n0") == "" and health.told("n0"), "what is left is its own"
