# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
# Private to the collection: may change at any time.
"""What each kind of measurement can put into its C(values): name, type, unit and meaning.

Criteria are type-checked against these tables before anything starts, and the documentation of C(measured.*)
is generated from them. A kind whose metrics are declared by the user (a log profile, key=value output) has
C(OPEN) in its entry: names beyond the table are allowed there.
"""

from __future__ import annotations

import typing as t


class Metric(t.NamedTuple):
    """One value a measurement may carry.

    type: number | int | bool | string. Every metric may also be null: unknown.
    unit: as shown to people; "" for plain numbers and words.
    """

    type: str
    unit: str
    description: str


NCCL: dict[str, Metric] = {
    "bus_bandwidth": Metric("number", "GB/s", "Mean out-of-place bus bandwidth at the judged message size"),
    "alg_bandwidth": Metric("number", "GB/s", "Mean out-of-place algorithm bandwidth at the judged message size"),
    "bus_bandwidth_peak": Metric("number", "GB/s", "Highest per-size mean bus bandwidth, as NVCRE judges it"),
    "alg_bandwidth_peak": Metric("number", "GB/s", "Highest per-size mean algorithm bandwidth, as NVCRE judges it"),
    "bus_bandwidth_min": Metric("number", "GB/s", "Lowest sample of the bus bandwidth at the judged size"),
    "bus_bandwidth_max": Metric("number", "GB/s", "Highest sample of the bus bandwidth at the judged size"),
    "spread": Metric("number", "", "(max - min) / max of the samples at the judged size"),
    "samples": Metric("int", "", "Samples at the judged size"),
    "message_size": Metric("int", "B", "The judged message size"),
    "time_us": Metric("number", "us", "Mean out-of-place time at the judged size"),
    "latency_us": Metric("number", "us", "Mean out-of-place time at the smallest non-zero size"),
    "avg_bus_bandwidth": Metric("number", "GB/s", "The program's own average over all sizes; never a link rate"),
    "collapse": Metric("number", "", "Bandwidth at the largest size over the peak; below 0.9 large messages collapse"),
    "collective": Metric("string", "", "all_reduce, all_gather, ..."),
    "datatype": Metric("string", "", "Type word of the judged rows; null when several were run"),
    "redop": Metric("string", "", "Reduction of the judged rows; null when several were run or none applies"),
    "ranks": Metric("int", "", "Ranks of the judged group"),
    "nodes": Metric("int", "", "Hosts of the judged group"),
    "transport": Metric("string", "", "ib, roce, efa, ofi, tcp, mnnvl, nvlink, pcie, shm, a vendor name, or unknown"),
    "gdr": Metric("string", "", "GPU Direct RDMA over the edges between hosts: all, partial, none, not_applicable"),
    "data_correct": Metric("bool", "", "Whether the elements were right; null when they were not checked"),
    "wrong": Metric("number", "", "Wrong elements summed over all rows and both placements; null when not checked"),
    "nvls": Metric("bool", "", "NVLink SHARP channels were set up; null when the log does not say"),
    "nccl_version": Metric("string", "", "NCCL library that ran"),
}

# kind -> its table. Each kind of measurement.KINDS has one.
METRICS: dict[str, dict[str, Metric]] = {
    "nccl": NCCL,
}

# Kinds whose users declare further metrics.
OPEN: frozenset[str] = frozenset({"log_profile", "key_value"})


def units(kind: str, values: t.Mapping[str, t.Any]) -> dict[str, str]:
    """Unit of every value present that has one."""
    table = METRICS.get(kind, {})
    return {name: table[name].unit for name in values if name in table and table[name].unit}
