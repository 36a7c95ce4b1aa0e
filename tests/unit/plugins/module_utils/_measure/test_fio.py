# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""fio: clients and their sum, numbers no run can have, what was not measured."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import fio


def job(name: str, speed: float, **other: t.Any) -> dict[str, t.Any]:
    part = {"io_bytes": int(abs(speed) * 60), "total_ios": 1000, "bw_bytes": speed, "iops": speed / 4096}
    return {"jobname": name, "error": 0, "job_runtime": 60000, "read": {**part, "clat_ns": {"mean": 752000.0, "N": 1000}}, **other}


def judged(**root: t.Any) -> t.Any:
    return fio.parse(json.dumps({"fio version": "fio-3.36", **root}, indent=2), {"exit_code": 0})


def test_the_sum_of_all_clients_is_not_counted_twice() -> None:
    clients = [job("rnd", 5e8, hostname="a"), job("rnd", 4e8, hostname="b")]
    said = judged(client_stats=[*clients, job("All clients", 9e8, hostname="b")])
    assert (said["verdict"], said["values"]["read_bandwidth"], said["values"]["jobs"]) == (None, 0.9, 2)
    assert judged(client_stats=clients[:1])["values"]["read_bandwidth"] == 0.5
    assert judged(jobs=[job("All clients", 5e8)])["values"]["read_bandwidth"] == 0.5


def test_a_client_that_is_missing_from_the_list_leaves_it_incomplete() -> None:
    assert judged(client_stats=[job("rnd", 5e8), job("All clients", 9e8)])["verdict"] == "LogIncomplete"


def test_the_error_of_one_client_fails_the_run() -> None:
    assert judged(client_stats=[job("rnd", 5e8), job("rnd", 4e8, error=5), job("All clients", 9e8)])["verdict"] == "WorkloadFailed"


def test_a_negative_or_absurd_bandwidth_is_no_measurement() -> None:
    for speeds in ((-5e8,), (5e9, -5e8), (1e300, 1e300)):
        said = judged(jobs=[job("rnd", speed) for speed in speeds])
        assert (said["verdict"], said["values"]["read_bandwidth"]) == ("LogIncomplete", None)


def test_a_latency_that_was_not_measured_is_not_zero() -> None:
    made = job("rnd", 5e8)
    made["read"]["clat_ns"] = {"mean": 0.0, "N": 0}
    said = judged(jobs=[made])
    assert (said["verdict"], said["values"]["read_latency_us"]) == (None, None)
