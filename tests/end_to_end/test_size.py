# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster of the size that people have: 64 nodes, or as many as READINESS_TEST_NODES says (a multiple of 16)."""

from __future__ import annotations

import os
import time

NODES = int(os.environ.get("READINESS_TEST_NODES", "64"))
ALL = (
    ("intra-node", ["measured.bus_bandwidth >= 400"]),
    ("intra-rack", ["measured.bus_bandwidth >= 300"]),
    ("full-scale", ["measured.bus_bandwidth >= 250"]),
)


def test_a_cluster_of_many_nodes_passes_at_every_scale(start_cluster, record_property, capsys):
    started = time.monotonic()
    cluster = start_cluster(racks=NODES // 16, nodes_per_rack=16)
    ready = time.monotonic()
    options = {"max_bytes": "1G", "min_bytes": "64M", "iterations": 20}
    result = cluster.certify(*ALL, options=options, bounds={"max_concurrent": 64})
    done = time.monotonic()
    assert result.status == 0, result.output
    assert len(result.verdicts()["passed"]) == NODES
    assert cluster.objects_of_ours() == []
    told = f"{NODES} nodes registered in {ready - started:.1f} s, certified at three scales in {done - ready:.1f} s"
    record_property("times", told)
    with capsys.disabled():
        print(f"\n{told}")
