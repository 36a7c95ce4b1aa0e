# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A result table must survive what kubelets do to logs: rotation, overlapping reads, containers that are gone."""

from __future__ import annotations

import os

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.logs import PodLog


class Kubelet:
    """Serves a growing list of (stamp, text) lines and forgets its head when told."""

    def hurried(self):
        return self

    def __init__(self):
        self.lines, self.gone = [], None

    def read_log(self, namespace, pod, *, into, container, since_time=None, timestamps=False):
        assert container == "node", "with a second container in the pod, a server asks which one is meant"
        if self.gone:
            raise ClusterError("no such pod", status=404)
        # sinceTime has whole seconds on a real server: an overlap comes back
        data = "".join(f"{stamp} {text}\n" for stamp, text in self.lines if not since_time or stamp[:19] >= since_time[:19])
        into.write(data.encode())
        return len(data)


@pytest.fixture
def kubelet():
    return Kubelet()


def stamps(count, suffix="Z"):
    return [(f"2026-03-02T08:00:0{index // 3}.{index % 3}{suffix}", f"line {index}") for index in range(count)]


def texts(path):
    with open(path, encoding="utf-8") as handle:
        return [line.rstrip("\n").split(" ", 1)[1] for line in handle]


@pytest.mark.parametrize("suffix", ["Z", "+02:00", "-07:00"])
def test_rotation_between_polls_loses_nothing(kubelet, tmp_path, suffix):
    everything = stamps(12, suffix)
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "logs" / "a.log"))
    for end in (4, 6, 9):
        kubelet.lines = everything[:end]
        log.poll()
    kubelet.lines = everything[7:]  # the head is rotated away before the final read
    assert log.finish() == (True, "")
    assert texts(log.path) == [text for _stamp, text in everything]
    assert os.listdir(tmp_path / "logs") == ["a.log"]


def test_a_whole_final_read_replaces_what_was_polled(kubelet, tmp_path):
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "a.log"))
    kubelet.lines = stamps(5)
    log.poll()
    kubelet.lines = stamps(9)
    assert log.finish() == (True, "")
    assert texts(log.path) == [text for _stamp, text in stamps(9)]


def test_a_pod_that_is_gone_leaves_what_was_polled_and_says_so(kubelet, tmp_path):
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "a.log"))
    kubelet.lines = stamps(5)
    log.poll()
    kubelet.gone = True
    whole, problem = log.finish()
    assert not whole and "no such pod" in problem
    assert texts(log.path) == [text for _stamp, text in stamps(5)]


def test_the_kubelets_placeholder_is_not_a_log(kubelet, tmp_path):
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "a.log"))
    kubelet.lines = [("unable", "to retrieve container logs for containerd://abc")]
    whole, problem = log.finish()
    assert not whole and "no longer has the log" in problem


def test_the_kubelet_of_a_dead_node_is_not_waited_for(kubelet, tmp_path):
    """The nodes of its group are held until its log was asked for; an API server may be away for minutes, a dead node is for good."""
    asked = []
    kubelet.hurried = lambda: asked.append("hurried") or kubelet
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "a.log"))
    kubelet.lines = stamps(5)
    log.finish()
    assert asked == []
    log.finish(answers=False)
    assert asked == ["hurried"]


def test_a_last_read_that_finds_nothing_keeps_what_was_read_before_and_says_so(kubelet, tmp_path):
    """The log was rotated in that moment: the parts with the result table were deleted, and the empty rest was called whole."""
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "a.log"))
    kubelet.lines = stamps(5)
    log.poll()
    kubelet.lines = []
    whole, problem = log.finish()
    assert not whole and "rotated away" in problem
    assert texts(log.path) == [text for _stamp, text in stamps(5)]


def test_a_container_that_printed_nothing_has_a_whole_log(kubelet, tmp_path):
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "a.log"))
    log.poll()
    assert log.finish() == (True, "")


def test_lines_that_may_be_missing_between_two_reads_make_a_log_that_is_not_whole(kubelet, tmp_path):
    everything = stamps(12)
    log = PodLog(kubelet, "ns", "pod", str(tmp_path / "a.log"))
    kubelet.lines = everything[:5]
    log.poll()
    kubelet.lines = everything[8:]
    assert log.finish() == (False, "")
    assert texts(log.path) == [text for _stamp, text in everything[:5] + everything[8:]]
