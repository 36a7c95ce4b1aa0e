# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""perftest: columns of every version, several tables, units that the output names or implies, numbers no run can have."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import perftest

RULE = "-" * 87 + "\n"


def run(
    average: float, *, size: int = 65536, device: str = "mlx5_0", unit: str = "Gb/sec", rate: float | None = None, extra: str = ""
) -> str:
    scale = 1e9 / 8 if unit == "Gb/sec" else 2.0**20
    shown = average * scale / size / 1e6 if rate is None else rate
    head = f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
    row = f" {size}      5000             0.00               {average:.2f}\t\t   {shown:.6f}"
    title = f"                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : {device}\n Link type       : IB\n"
    if extra:
        head, row = f"{head}    {extra}", f"{row}    5.07"
    return RULE + title + RULE + head + "\n" + row + "\n" + RULE


def judged(text: str, **context: t.Any) -> t.Any:
    return perftest.parse(text, {"exit_code": 0, **context})


@pytest.mark.parametrize("extra", ["", "CPU_Util[%]", "BW Port1[Gb/sec]", "anything new"])
def test_a_further_column_does_not_lose_the_result(extra: str) -> None:
    assert judged(run(392.1, extra=extra))["values"]["bandwidth_gbit"] == pytest.approx(392.1)


def test_of_several_tables_the_slowest_port_counts() -> None:
    """Ports tested one after the other: the last one is not all of them."""
    text = run(392.1) + run(96.5, device="mlx5_3") + run(391.8, device="mlx5_7")
    said = judged(text)
    assert (said["verdict"], said["values"]["bandwidth_gbit"], said["values"]["device"]) == (None, pytest.approx(96.5), "mlx5_3")


def test_a_run_that_was_cut_does_not_pass_with_the_numbers_of_another() -> None:
    whole, other = run(392.1), run(391.0, device="mlx5_1")
    for keep in (other.index("MsgRate") + 14, other.rindex("391.00") + 3, len(other) - 88):
        assert judged(whole + other[:keep])["verdict"] == "LogIncomplete"
        assert judged(other[:keep] + "\n" + whole)["verdict"] in ("LogIncomplete", None)
    cut = other[: len(other) - 88]
    assert judged(cut + whole)["verdict"] == "LogIncomplete"


def test_server_and_client_in_one_log_are_one_run() -> None:
    client = run(392.1)
    head = client[: client.index(" 65536")]
    assert judged(head + client)["verdict"] is None
    assert judged(client + head + RULE)["verdict"] is None


@pytest.mark.parametrize(("average", "rate"), [(-12.61, -0.024061), (0.0, 0.0), (1e12, None), (929.94, 0.747795), (39.2, 0.747795)])
def test_numbers_that_no_run_can_have_are_no_measurement(average: float, rate: float | None) -> None:
    """Overflowed counters, glued and lost digits."""
    said = judged(run(average, rate=rate))
    assert (said["verdict"], said["complete"], said["values"]["bandwidth"]) == ("LogIncomplete", False, None)


def test_a_table_in_which_one_run_is_damaged_is_not_judged_by_the_others() -> None:
    assert judged(run(392.1) + run(-12.61, rate=-0.024))["verdict"] == "LogIncomplete"


def test_json_without_a_message_rate_has_no_unit() -> None:
    """Guessed as MiB/s, a port at line rate looks a hundred times too slow."""
    root = {"test_info": {"Device": "mlx5_1"}, "results": {"MsgSize": 65536, "n_iterations": 5, "BW_average": 390.2}}
    said = judged(json.dumps(root))
    assert (said["verdict"], said["values"]["bandwidth"]) == ("LogIncomplete", None)


def test_the_unit_of_a_table_beats_what_a_json_copy_implies() -> None:
    root = {"test_info": {"Device": "mlx5_1"}, "results": {"MsgSize": 65536, "n_iterations": 5, "BW_average": 392.1, "MsgRate": 0.0}}
    assert judged(run(392.1) + json.dumps(root))["values"]["bandwidth_gbit"] == pytest.approx(392.1)


def old_json(**results: t.Any) -> str:
    info = "".join(f"{key}: {value},\n" for key, value in {"test": "RDMA_Write_BW_Test", "Device": "mlx5_0", "Mtu": "4096B"}.items())
    rows = "".join(f"{key}: {value},\n" for key, value in results.items())
    return f"{{\ntest_info: {{\n{info}}},\nresults: {{\n{rows}}},\n}}\n"


def test_the_unquoted_json_of_older_versions_is_read() -> None:
    text = old_json(MsgSize=65536, n_iterations=5000, BW_peak=0, BW_average=392.1, MsgRate=0.747871)
    said = judged(text)
    assert (said["verdict"], said["values"]["bandwidth_gbit"], said["values"]["mtu"]) == (None, pytest.approx(392.1), 4096)
    assert judged("banner {\n" + text + "bye\n")["values"] == said["values"]


def test_old_json_that_was_cut_is_incomplete() -> None:
    text = old_json(MsgSize=65536, n_iterations=5000, BW_peak=0, BW_average=392.1, MsgRate=0.747871)
    for cut in range(len(text) - 2):
        assert judged(text[:cut])["verdict"] is not None


def test_of_several_documents_the_slowest_counts() -> None:
    fast = old_json(MsgSize=65536, n_iterations=5000, BW_average=392.1, MsgRate=0.747871)
    slow = old_json(MsgSize=65536, n_iterations=5000, BW_average=39.2, MsgRate=0.074768)
    for text in (fast + slow, slow + fast):
        assert judged(text)["values"]["bandwidth_gbit"] == pytest.approx(39.2)


def test_bandwidth_and_latency_of_one_log_are_both_kept() -> None:
    latency = (
        "                    RDMA_Write Latency Test\n #bytes        #iterations       t_avg[usec]    tps average\n"
        " 2             1000              1.85        539000.00\n" + RULE
    )
    said = judged(run(392.1) + latency)
    assert (said["values"]["bandwidth_gbit"], said["values"]["latency_us"]) == (pytest.approx(392.1), 1.85)
    negative = latency.replace("1.85", "-1.85")
    assert judged(run(392.1) + negative)["verdict"] == "LogIncomplete"
