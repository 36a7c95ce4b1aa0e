# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The log server. If it is wrong, a rehearsal judges logs that a real kubelet would have cut, repeated or refused."""

from __future__ import annotations

import asyncio

import aiohttp

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients import kubelet_logs
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.clients.kubelet_logs import (
    ContainerLog,
    LogProblem,
    LogServer,
)


def filled(count=5, max_bytes=1 << 20):
    log = ContainerLog(max_bytes)
    for number in range(count):
        log.append(number * 60.0, f"line {number}")
    return log


def fetch(log, query="", before_read=None):
    """(status, text) of one request to a server with one log."""

    async def main():
        server = LogServer(lambda _namespace, _pod, _container, _previous: log)
        await server.start()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{server.port}/containerLogs/n/p/c?{query}") as answer,
            ):
                if before_read:
                    await before_read()
                return answer.status, await asyncio.wait_for(answer.text(), 5)
        finally:
            await server.stop()

    return asyncio.run(main())


def closed(log):
    log.close()
    return log


def test_the_whole_log():
    assert fetch(closed(filled(3))) == (200, "line 0\nline 1\nline 2\n")


def test_tail_lines():
    assert fetch(closed(filled()), "tailLines=2")[1] == "line 3\nline 4\n"
    assert fetch(closed(filled()), "tailLines=0")[1] == ""
    assert fetch(closed(filled(2)), "tailLines=9")[1] == "line 0\nline 1\n"


def test_limit_bytes_cuts_in_the_middle_of_a_line():
    assert fetch(closed(filled()), "limitBytes=9")[1] == "line 0\nli"


def test_timestamps_advance_in_simulated_time():
    stamps = [line.split(" ")[0] for line in fetch(closed(filled(2)), "timestamps=true")[1].splitlines()]
    first, second = (kubelet_logs._time_ns(stamp) for stamp in stamps)
    assert second - first == 60 * 10**9
    assert all(len(stamp) == len("2026-03-02T08:00:00.000000000Z") for stamp in stamps)


def test_since_time_takes_up_where_a_reader_stopped():
    log = closed(filled())
    stamp = fetch(log, "timestamps=true")[1].splitlines()[3].split(" ")[0]
    assert fetch(log, f"sinceTime={stamp}")[1] == "line 3\nline 4\n"


def test_rotation_loses_the_head():
    log = closed(filled(10, max_bytes=200))
    text = fetch(log)[1]
    assert text.endswith("line 9\n")
    assert "line 0\n" not in text


def test_follow_sees_lines_come_and_ends_with_the_container():
    log = filled(1)

    async def go_on():
        for number in range(1, 4):
            await asyncio.sleep(0.01)
            log.append(number, f"line {number}")
        log.close()

    assert fetch(log, "follow=true", go_on)[1] == "line 0\nline 1\nline 2\nline 3\n"


def test_follow_misses_nothing_when_the_file_is_rotated_under_it():
    log = filled(1, max_bytes=200)

    async def go_on():
        for number in range(1, 30):
            log.append(number, f"line {number}")
            await asyncio.sleep(0.005)
        log.close()

    assert fetch(log, "follow=true", go_on)[1].split("\n")[:-1] == [f"line {number}" for number in range(30)]


def test_what_cannot_be_served_is_said():
    assert fetch(LogProblem(404, 'pod "p" not found')) == (404, 'pod "p" not found')
    assert fetch(filled(), "tailLines=x")[0] == 400


def test_a_dropped_container_gives_the_placeholder():
    log = ContainerLog(1000, "unable to retrieve container logs for containerd://1")
    assert fetch(log) == (200, "unable to retrieve container logs for containerd://1")


def test_the_termination_message_is_the_end_of_the_log():
    log = ContainerLog(1 << 20)
    for number in range(200):
        log.append(0, f"{number} {'x' * 40}")
    message = log.tail_message()
    assert len(message.encode()) == 2048
    assert message.endswith(f"199 {'x' * 40}\n")
    short = ContainerLog(1 << 20)
    for number in range(100):
        short.append(0, str(number))
    assert short.tail_message().partition("\n")[0] == "20"
