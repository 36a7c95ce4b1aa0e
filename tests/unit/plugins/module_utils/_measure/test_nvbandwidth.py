# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nvbandwidth: several matrices in one test case, units, damaged cells, waived tests, GPUs that are missing."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import nvbandwidth

END = "NOTE: The reported results may not reflect the full capabilities of the platform.\n"
HEAD = "nvbandwidth Version: v0.8\n"


def matrix(rows: t.Sequence[t.Sequence[float | None]], name: str, title: str, total: float | None = None) -> str:
    cells = [[f"{cell:.2f}" if cell is not None else "N/A" for cell in row] for row in rows]
    lines = ["  " + "".join(f"{column:>10}" for column in range(len(rows[0])))]
    lines += [f"{number:>2}" + "".join(f"{cell:>10}" for cell in row) for number, row in enumerate(cells)]
    total = sum(cell for row in rows for cell in row if cell is not None) if total is None else total
    return f"{title}\n" + "\n".join(lines) + f"\n\nSUM {name} {total:.2f}\n\n"


def case(name: str, rows: t.Sequence[t.Sequence[float | None]], title: str = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)") -> str:
    return f"Running {name}.\n" + matrix(rows, name, title)


H2D = case("host_to_device_memcpy_ce", [[55.59, 55.6]])


def judged(text: str, **context: t.Any) -> t.Any:
    return nvbandwidth.parse(text, {"exit_code": 0, **context})


def both_ways(*, parts: int = 3, total: float = 1521.21) -> str:
    name = "device_to_device_bidirectional_memcpy_read_ce"
    pieces = [("read1", 760.1), ("read2", 761.11), ("total", total)][:parts]
    tables = [matrix([[None, cell], [cell, None]], f"{name}_{part}", f"memcpy CE GPU(row) <-> GPU(column) {part} bandwidth (GB/s)")
              for part, cell in pieces]  # fmt: skip
    return f"Running {name}.\n" + "".join(tables)


def test_a_bidirectional_test_is_its_total_and_keeps_its_directions() -> None:
    said = judged(HEAD + H2D + both_ways() + END, required_tests=["device_to_device_bidirectional_memcpy_read_ce"])
    assert said["verdict"] is None
    values = said["values"]
    assert values["device_to_device_bidirectional_memcpy_read_ce_sum"] == 3042.42
    assert values["device_to_device_bidirectional_memcpy_read_ce_min"] == 1521.21
    assert values["device_to_device_bidirectional_memcpy_read_ce_read1_min"] == 760.1


def test_a_bidirectional_test_cut_before_its_total_is_no_result() -> None:
    said = judged(HEAD + H2D + both_ways(parts=2) + END)
    assert said["verdict"] == "LogIncomplete"
    assert "device_to_device_bidirectional_memcpy_read_ce_sum" not in said["values"]


def test_the_json_of_a_bidirectional_test_is_told_apart() -> None:
    """One list holds the rows of all three matrices; taken as one, the slowest cell is that of a direction."""
    rows = [["N/A", "760.1"], ["760.1", "N/A"], ["N/A", "761.1"], ["761.1", "N/A"], ["N/A", "1521.2"], ["1521.2", "N/A"]]
    entry = {
        "name": "device_to_device_bidirectional_memcpy_read_ce",
        "status": "Passed",
        "bandwidth_matrix": rows,
        "sum": 3042.4,
        "bandwidth_description": "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
    }
    said = judged(json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": [entry]}}))
    assert said["verdict"] is None
    assert said["values"]["device_to_device_bidirectional_memcpy_read_ce_min"] == 1521.2


def test_latencies_are_nanoseconds_and_no_spread() -> None:
    latency = case("host_device_latency_sm", [[772.58, 1801.2]], "memory latency SM CPU(row) <-> GPU(column) (ns)")
    said = judged(HEAD + H2D + latency + END)
    assert said["units"]["host_device_latency_sm_max"] == "ns"
    assert said["values"]["host_device_latency_sm_max"] == 1801.2
    assert said["values"]["spread"] == pytest.approx(0.00018, abs=1e-5)


@pytest.mark.parametrize("waived", ["Waived: \n", "Waived:\n", "WAIVED\n", "Waived: device_to_device_memcpy_read_ce\n"])
def test_waived_tests_are_counted_whether_they_are_named_or_not(waived: str) -> None:
    said = judged(HEAD + H2D + waived * 3 + END)
    assert (said["verdict"], said["values"]["skipped"], said["values"]["testcases"]) == (None, 3, 1)


def test_a_log_of_waived_tests_measures_nothing() -> None:
    assert judged(HEAD + "Waived: \nWaived: \n" + END)["verdict"] == "NoMeasurement"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("55.60", "955.60"),  # a digit glued to a cell
        lambda text: text.replace("55.60", "-55.60"),
        lambda text: text.replace("55.60", "nan"),
        lambda text: text.replace("     55.60", ""),
        lambda text: text.replace("SUM host_to_device_memcpy_ce 111.19", "SUM host_to_device_memcpy_ce 11.19"),
    ],
)
def test_cells_that_do_not_agree_with_their_sum_are_no_measurement(damage: t.Callable[[str], str]) -> None:
    text = HEAD + H2D + END
    assert damage(text) != text
    said = judged(damage(text))
    assert (said["verdict"], said["values"]["host_to_device"]) == ("LogIncomplete", None)


def test_gpus_are_counted_by_the_columns_where_no_list_is_printed() -> None:
    assert judged(HEAD + H2D + END, expected_gpus=8)["verdict"] == "LogIncomplete"
    assert judged(HEAD + H2D + END, expected_gpus=2)["verdict"] is None


def test_a_second_run_that_was_cut_does_not_pass_with_the_numbers_of_the_first() -> None:
    assert judged(HEAD + H2D + END + HEAD)["verdict"] == "LogIncomplete"
    assert judged(HEAD + H2D + HEAD + H2D + END)["verdict"] == "LogIncomplete"
    slow = case("host_to_device_memcpy_ce", [[55.59, 25.05]])
    for text in (H2D + END + HEAD + slow + END, slow + END + HEAD + H2D + END):
        said = judged(HEAD + text)
        assert (said["verdict"], said["values"]["host_to_device"]) == (None, 25.05)
        assert said["values"]["host_to_device_memcpy_ce_min"] == 25.05


def test_noise_between_the_lines_of_a_matrix_changes_nothing() -> None:
    lines = (HEAD + H2D + END).split("\n")
    noisy = "\n".join(f"{line}\nnode-a:12:12 [0] NCCL INFO Channel 00 (x)" for line in lines)
    assert judged(noisy)["values"] == judged(HEAD + H2D + END)["values"]


def test_indented_output_and_the_perf_format_are_read() -> None:
    indented = "\n".join(f" {line}" for line in (HEAD + H2D + END).split("\n"))
    assert judged(indented)["values"]["host_to_device"] == 55.59
    perf = (HEAD + H2D + END).replace("SUM host_to_device_memcpy_ce 111.19", "&&&& PERF host_to_device_memcpy_ce 111.19 +GB/s")
    assert judged(perf)["values"]["host_to_device"] == 55.59


@pytest.mark.parametrize(
    "line",
    [
        "[CUDA_ERROR_SYSTEM_NOT_READY] system not yet initialized in expression cuInit(0) in main() : nvbandwidth.cpp:205",
        "ERROR: Invalid Arguments",
        "Error: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    ],
)
def test_a_set_up_error_is_no_failed_node(line: str) -> None:
    assert judged(HEAD + line + "\n", exit_code=1)["verdict"] == "SetupError"


def test_a_status_that_is_not_known_does_not_pass() -> None:
    for status, verdict in (
        ("Passed", None),
        ("Error", "WorkloadFailed"),
        ("Not Found", "WorkloadFailed"),
        ("Running", "LogIncomplete"),
        ("", "WorkloadFailed"),
    ):
        good = {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["5.0"]], "sum": 5.0}
        other = {**good, "name": "device_to_host_memcpy_ce", "status": status}
        assert judged(json.dumps({"nvbandwidth": {"testcases": [good, other]}}))["verdict"] == verdict
