# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A node is lost when it stays silent while the others speak; everything less accuses nobody."""

from __future__ import annotations

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.contact import Contact
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.projections import node_facts

NAMES = [f"n{index}" for index in range(8)]


def node(name, ready="True"):
    return node_facts({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})


@pytest.fixture
def contact():
    made = Contact(40)
    for name in NAMES:
        made.see(node(name), 0)
    return made


def test_a_kubelet_that_restarts_does_not_condemn_its_node(contact):
    contact.see(node("n1", "False"), 10)
    assert (contact.news(NAMES, 11).lost, contact.news(NAMES, 11).unsettled) == ({}, {"n1"})
    contact.see(node("n1"), 12)
    contact.see(node("n1", "False"), 13)
    assert contact.news(NAMES, 52).lost == {}, "silence counts from when it began this time"
    assert list(contact.news(NAMES, 53).lost) == ["n1"]


def test_a_workload_that_still_prints_keeps_its_node_from_being_called_lost(contact):
    contact.see(node("n1", "Unknown"), 0)
    news = contact.news(NAMES, 60, heard_at=50)
    assert (news.lost, news.unsettled, list(news.silent)) == ({}, {"n1"}, ["n1"])
    assert list(contact.news(NAMES, 90, heard_at=50).lost) == ["n1"]


def test_a_node_object_that_somebody_deletes_is_not_a_dead_machine(contact):
    contact.lose("n1", 0)
    news = contact.news(NAMES, 50)
    assert (news.lost, list(news.deleted)) == ({}, ["n1"])


def test_a_list_that_comes_back_empty_condemns_nobody(contact):
    """A cache of the API server that lies."""
    for name in NAMES:
        contact.lose(name, 0)
    assert not contact.news(NAMES, 39).lost and not contact.outage(39)
    for name in NAMES:
        contact.see(node(name), 39)
    assert not contact.outage(100)


def test_silence_of_most_of_the_cluster_is_an_outage_once_it_lasts(contact):
    for index, name in enumerate(NAMES[:5]):
        contact.see(node(name, "Unknown"), index)
    assert contact.news(["n0"], 41).lost == {}, "although it has been silent for the whole grace time"
    assert not contact.outage(43.9)
    assert "5 of 8 nodes of the cluster" in contact.outage(44)


def test_the_only_node_of_a_cluster_can_be_lost():
    contact = Contact(40)
    contact.see(node("n0", "Unknown"), 0)
    assert list(contact.news(["n0"], 40).lost) == ["n0"] and not contact.outage(40)


def test_a_planned_node_that_is_not_in_the_list_is_missed(contact):
    contact.expect(["n0", "gone"], 5)
    assert contact.trouble("n0") is None
    assert list(contact.news(["gone"], 45).deleted) == ["gone"]


def test_a_node_that_goes_as_it_was_announced_is_taken_away_and_not_lost():
    contact = Contact(40, departure=lambda facts: facts["metadata"]["labels"].get("leaving"))
    marked = node_facts({"metadata": {"name": "n1", "labels": {"leaving": "taint x"}}, "status": node("n1", "Unknown")["status"]})
    for name in NAMES:
        contact.see(node(name), 0)
    contact.see(marked, 10)
    assert contact.news(NAMES, 49).unsettled == {"n1"}
    news = contact.news(NAMES, 50)
    assert (news.lost, news.silent, news.unsettled) == ({}, {}, set()) and "announced by taint x" in news.left["n1"]
    assert contact.state("n1")["leaving"] == "taint x"
