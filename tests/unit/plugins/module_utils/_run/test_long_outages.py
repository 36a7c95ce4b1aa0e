# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The API server is away, silent, slow or refuses the login for minutes or for good, on a clock that nobody waits for."""

from __future__ import annotations

import json

import pytest
import urllib3

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.auth import Transport
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.client import Client
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster.retry import RetryPolicy
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.logs import PodLog
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.messages import API_OUTAGE_S
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._run.watcher import Watcher

LINES = [f"2026-03-02T08:00:{second:02}.5Z line {second}\n".encode() for second in range(60)]
AWAY_S, FOR_GOOD = 120.0, 1e9


class Answer:
    """What urllib3 hands over: read at once, or in chunks as they come."""

    reason = ""

    def __init__(self, status, data, chunks=()):
        self.status, self.data, self._chunks, self.headers = status, data, chunks, {}

    def stream(self, _bytes):
        yield from self._chunks or [self.data]

    def close(self):
        pass


class Server:
    """Logs, lists and watches of one pod. From `begins` on it is away for so long: it refuses, hangs, or denies the login.

    Time passes while somebody waits. slow_s: between two lines of a log.
    """

    def __init__(self, how="", lasts=0.0, begins=0.0, slow_s=0.0):
        self.now, self.how, self.begins, self.ends, self.slow_s = 0.0, how, begins, begins + lasts, slow_s
        retry = RetryPolicy(clock=lambda: self.now, sleep=self.sleep, random=lambda: 1.0)
        self.client = Client(Transport("http://api", self, []), retry=retry).patient(API_OUTAGE_S)

        self.until_s, self.stop = FOR_GOOD, None

    def sleep(self, seconds):
        self.now += seconds

    @property
    def is_away(self):
        return self.begins <= self.now < self.ends

    def request(self, _method, url, *, timeout, **_options):
        self.now += 0.01
        if self.now > self.until_s:
            self.stop()
        if self.is_away and self.how == "refuse":
            raise urllib3.exceptions.NewConnectionError(None, "connection refused")
        if self.is_away and self.how == "hang":
            self.now += timeout.read_timeout
            raise urllib3.exceptions.ReadTimeoutError(None, url, "read timed out")
        if self.is_away:
            return Answer(401, json.dumps({"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}).encode())
        if "/log" in url:
            return Answer(200, b"", self._log())
        if "watch=true" in url:
            return Answer(200, b"", self._watched())
        listed = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "p"}}]}
        return Answer(200, json.dumps(listed).encode())

    def _log(self):
        for line in LINES:
            self.now += self.slow_s
            yield line

    def _watched(self):
        self.now = self.begins if self.now < self.begins else self.now + 240
        if self.is_away:
            raise urllib3.exceptions.ProtocolError("Connection broken")
        seen = {"type": "MODIFIED", "object": {"metadata": {"name": f"p{self.now:.0f}", "resourceVersion": "2"}}}
        yield json.dumps(seen).encode() + b"\n"


def pod_log(server, tmp_path):
    return PodLog(server.client, "ns", "pod", str(tmp_path / "a.log"))


@pytest.mark.parametrize("how", ["refuse", "hang"])
def test_the_log_of_a_test_that_ended_in_an_outage_of_two_minutes_is_read_whole(tmp_path, how):
    """With the default of bounds.api_outage_s a restart of the control plane costs no result."""
    server = Server(how, AWAY_S)
    log = pod_log(server, tmp_path)
    log.poll()
    assert log.finish() == (True, "") and server.now >= AWAY_S
    with open(log.path, "rb") as handle:
        assert handle.readlines() == LINES


def follow(server, until_s):
    """What a watcher delivers until then, or until it ends."""
    seen = []

    def name_of(thing):
        return {"name": thing["metadata"]["name"]}

    def pause(seconds):
        server.sleep(seconds)

    times = {"outage_s": API_OUTAGE_S, "clock": lambda: server.now, "pause": pause}
    watcher = Watcher(server.client, "pod", "/pods", name_of, lambda *said: seen.append(said[1:]), **times)
    server.until_s, server.stop = until_s, watcher.stop
    watcher.run()
    return seen


@pytest.mark.parametrize("how", ["refuse", "hang"])
def test_an_outage_of_two_minutes_ends_no_watch(how):
    server = Server(how, AWAY_S, begins=30)
    events = [event for event, *_facts in follow(server, 600)]
    assert server.now > 600 and "ERROR" not in events and "MODIFIED" in events


@pytest.mark.parametrize(
    "how, words, within_s",
    [("refuse", "connection refused", 320), ("hang", "read timed out", 480), ("deny", "401: Unauthorized", 5)],
)
def test_a_log_that_can_be_read_no_more_names_the_cause_in_time(tmp_path, how, words, within_s):
    """It was "the log is empty: check that the image runs the expected program"."""
    server = Server(how, FOR_GOOD)
    whole, problem = pod_log(server, tmp_path).finish()
    assert not whole and words in problem and server.now < within_s


@pytest.mark.parametrize("how, words", [("refuse", "connection refused"), ("hang", "timed out"), ("deny", "401: Unauthorized")])
def test_a_watch_that_can_go_on_no_more_is_told_with_the_cause_once_the_outage_lasts_too_long(how, words):
    server = Server(how, FOR_GOOD, begins=30)
    event, text = follow(server, FOR_GOOD)[-1]
    assert event == "ERROR" and words in text and 30 + API_OUTAGE_S <= server.now < 30 + 3 * API_OUTAGE_S


def test_a_log_that_comes_slowly_is_read_whole(tmp_path):
    server = Server(slow_s=4)
    assert pod_log(server, tmp_path).finish() == (True, "") and server.now >= 4 * len(LINES)


def test_a_log_that_trickles_for_ever_holds_nobody_for_ever(tmp_path):
    """Each of its lines comes before any time-out; its nodes were held until the deadline of the run, and so was who had only polled it."""
    server = Server(slow_s=30)
    log = pod_log(server, tmp_path)
    assert log.poll() is False and server.now < 120
    began = server.now
    whole, problem = log.finish()
    assert not whole and "had not ended after 300 s" in problem and server.now - began < 2.5 * API_OUTAGE_S
