# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""nccl-tests logs in the shapes that launchers, versions and accidents give them."""

from __future__ import annotations

import gzip
import json
import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._criteria.category import with_thresholds
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS

sys.path.insert(0, str(Path(__file__).parent))

import nccl_text as text

GIB = 1 << 30


@pytest.fixture
def read(tmp_path: Path) -> t.Callable[..., dict[str, t.Any]]:
    """read(log text, **context) -> measurement"""

    def run(content: str | bytes, name: str = "launcher.log", **context: t.Any) -> dict[str, t.Any]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        context.setdefault("exit_code", 0)
        return measure("nccl", [str(path)], context)

    return run


Read = t.Callable[..., dict[str, t.Any]]


def test_healthy_log_gives_every_metric_of_the_table(read: Read) -> None:
    """A criterion over a declared metric must find it."""
    said = read(text.log(text.HEALTHY))
    assert (said["verdict"], said["complete"]) == (None, True)
    assert set(said["values"]) == set(METRICS["nccl"])
    assert said["values"]["bus_bandwidth"] == 379.37
    assert said["values"]["message_size"] == 2 * GIB
    assert said["units"]["bus_bandwidth"] == "GB/s"


def test_judged_size_of_the_caller(read: Read) -> None:
    """A limit is written for one message size; another size's number must not answer for it."""
    said = read(text.log(text.HEALTHY), judged_size=GIB)
    assert said["values"]["bus_bandwidth"] == 377.05
    missing = read(text.log(text.HEALTHY), judged_size=4 * GIB)
    assert missing["verdict"] == "LogIncomplete"
    assert "bus_bandwidth" not in missing["values"]


# --- layouts and prefixes ---


def test_legacy_error_column_is_a_deviation_not_a_count(read: Read) -> None:
    """1e-06 in a 2.11 table is rounding; reading it as wrong elements would fail every old image."""
    cells = "  1017.30  263.86  461.75  1e-06  1022.50  262.53  459.43  0e+00"
    log = "# nThread 1 nGpus 8 minBytes 268435456 maxBytes 268435456 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 \n#\n"
    log += "# Using devices\n" + "".join(f"#   Rank {n:2d} Pid {n + 9:6d} on     gpu-b1 device {n:2d} [0x0{n}] A100\n" for n in range(8))
    log += (
        text.DELTA_TITLES
        + f"   268435456      67108864     float     sum{cells}\n"
        + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 460 \n#\n"
    )
    said = read(log)
    assert said["verdict"] is None
    assert said["parsed"]["layout"] == "legacy_per_collective"
    assert said["parsed"]["columns"][8] == "oop_max_delta"
    assert said["parsed"]["rows"][0][3:9] == ["sum", None, 1017.3, 263.86, 461.75, 1e-06]
    assert said["parsed"]["collective"] == "all_reduce"
    assert said["judged"]["data_correct"] is True
    assert said["values"]["wrong"] == 0


def test_version_with_hash(read: Read) -> None:
    said = read(text.log(text.HEALTHY, version="2.20.0 (1a2b3c4)"))
    assert said["parsed"]["versions"]["nccl_tests"] == "2.20.0"
    assert said["parsed"]["versions"]["nccl_tests_hash"] == "1a2b3c4"


def test_fork_without_hash_signs(read: Read) -> None:
    """Some builds print no # at all."""
    said = read(text.log(text.HEALTHY).replace("# ", "").replace("#wrong", "wrong"))
    assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 379.37)


def test_hypercube_leaves_the_operation_blank(read: Read) -> None:
    rows = [text.row(GIB, 300.0, collective_factor=1.0, redop="", ranks=8)]
    said = read(text.log(rows, program="hypercube_perf", largest=GIB, gpus=4))
    assert said["verdict"] is None
    assert said["parsed"]["rows"][0][3:5] == [None, -1]


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-03-02T01:05:10.123456789-07:00 ",
        "2026-03-02T01:05:10Z ",
        "2026-03-02T01:05:10.5+05:30 stdout F ",
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[prterun-gpu-a1-22@1,0]<stdout>: ",
        "[pod/nccl-launcher-0/node] ",
        "[pod/nccl-launcher-0/node] 2026-03-02T01:05:10.5Z ",
        "0: ",
        "007: ",
        "[0] ",
        "[default0]:",
        "2026-03-02T01:05:10.5Z [1,0]<stdout>:",
        "\x1b[0;32m",
    ],
)
def test_prefixes_change_nothing(read: Read, prefix: str) -> None:
    """Other tools lose every row to a prefix they do not know and call the run healthy or empty."""
    plain = read(text.log(text.HEALTHY, debug=text.info("gpu-a1", "Using network IB")))
    said = read("".join(f"{prefix}{line}\n" for line in text.log(text.HEALTHY, debug=text.info("gpu-a1", "Using network IB")).splitlines()))
    assert said["parsed"] == plain["parsed"]
    assert said["values"] == plain["values"]
    assert (said["verdict"], said["transport"]["networks"]) == (None, ["IB"])


def test_labels_inside_a_row(read: Read) -> None:
    """A launcher that labels every flush puts [0] between the cells."""
    first, second = text.HEALTHY
    torn = second.replace("-1  ", "-1[0]  ", 1)
    cut = torn.rindex("0  ", 0, torn.rindex("379"))
    said = read(text.log([f"[0]{first}", f"[0]{torn[: cut + 1]}[0]{torn[cut + 1 :]}"]))
    assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 379.37)


def test_cri_halves_inside_a_row(read: Read) -> None:
    """Container runtimes cut long lines anywhere, also inside a number."""
    lines = []
    for line in text.log(text.HEALTHY).splitlines():
        cut = len(line) // 2
        lines.append(f"2026-03-02T01:05:10.1Z stdout P {line[:cut]}\n2026-03-02T01:05:10.2Z stderr F noise\n")
        lines.append(f"2026-03-02T01:05:10.3Z stdout F {line[cut:]}\n")
    said = read("".join(lines))
    assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 379.37)


def test_byte_representation_of_a_log(read: Read) -> None:
    """A Python client that prints the bytes object gives one line with escapes."""
    plain = text.log(text.HEALTHY)
    assert read(repr(plain.encode()))["values"]["bus_bandwidth"] == 379.37
    assert read("".join(f"{line.encode()!r}\n" for line in plain.splitlines()))["values"]["bus_bandwidth"] == 379.37
    assert read("".join(f"2026-03-02T01:05:10Z {line.encode()!r}\n" for line in plain.splitlines()))["values"]["bus_bandwidth"] == 379.37


def test_gzip_and_a_cut_gzip(read: Read) -> None:
    packed = gzip.compress(text.log(text.HEALTHY).encode())
    assert read(packed, "launcher.log.gz")["verdict"] is None
    assert read(packed[: len(packed) // 2], "launcher.log.gz")["verdict"] is not None


def test_undecodable_bytes(read: Read) -> None:
    content = text.log(text.HEALTHY).encode().replace(b"# Using devices", b"\xff\xfe\x00 noise\n# Using devices")
    assert read(content)["verdict"] is None


# --- torn rows ---


def test_warning_between_the_halves_of_a_row(read: Read) -> None:
    """A warning begins with a newline: identity, blank, warning and cells are four lines."""
    first, second = text.HEALTHY
    warning = "\n[2026-03-02 10:31:07] gpu-a1:4100:4180 [0] misc/x.cc:1 NCCL WARN something\n"
    said = read(text.log([first, second[: text.IDENTITY] + warning + second[text.IDENTITY :]]))
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["parsed"]["rejoined_rows"]) == (None, 379.37, 1)


def test_debug_line_glued_to_any_piece_of_a_row(read: Read) -> None:
    first, second = text.HEALTHY
    glued = text.info("gpu-a1", "Channel 03/1 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA")
    for cut in (text.IDENTITY, text.OUT_OF_PLACE):
        said = read(text.log([first, second[:cut].rstrip() + glued, text.info("gpu-a2", "noise"), second[cut:]]))
        assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 379.37), cut
        assert said["transport"]["class"] == "ib"


def test_debug_line_of_a_host_named_by_digits(read: Read) -> None:
    """-1 and 10-0-0-1 make -110-0-0-1: the device list tells where the number ends."""
    first, second = text.HEALTHY
    said = read(
        text.log([first, second[: text.IDENTITY] + text.info("10-0-0-1", "x") + second[text.IDENTITY :]], hosts=("10-0-0-1", "10-0-0-2"))
    )
    assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 379.37)


def test_row_that_is_never_finished_makes_the_log_incomplete(read: Read) -> None:
    first, second = text.HEALTHY
    said = read(text.log([first[: text.IDENTITY] + "\n", second]))
    assert (said["verdict"], said["complete"], said["parsed"]["lost_rows"]) == ("LogIncomplete", False, [GIB])


@pytest.mark.parametrize("tail", ["    12.3", "   nan  nan  nan  0  1  1  1  0", " 1 2 3 4 5 6 7"])
def test_rows_that_are_not_whole_are_no_rows(read: Read, tail: str) -> None:
    identity = text.HEALTHY[1][: text.IDENTITY]
    said = read(text.log([text.HEALTHY[0], f"{identity}{tail}\n"]))
    assert said["verdict"] == "LogIncomplete"
    assert said["values"]["message_size"] == GIB


def test_trace_replay_prints_in_place_only(read: Read) -> None:
    """The out-of-place group is blank; without the blanks four cells are a torn row."""
    identity, cells = text.HEALTHY[0][: text.IDENTITY], text.HEALTHY[0].rstrip("\n")[-33:]
    said = read(text.log([f"{identity}{'':33}{cells}\n"], largest=GIB))
    assert said["parsed"]["rows"][0][5:9] == [None] * 4
    assert said["verdict"] == "LogIncomplete"
    assert read(text.log([f"{identity}{cells}\n"], largest=GIB))["parsed"]["rows"] == []


# --- sizes and completeness ---


def test_trimmed_size_counts_as_the_requested_one(read: Read) -> None:
    """1 MiB on 6 ranks prints 1048512: not a missing size."""
    rows = [text.row(1048512, 60.0, ranks=6)]
    more = {"smallest": 1 << 20, "largest": 1 << 20, "gpus": 3}
    assert read(text.log(rows, **more), expected_sizes=[1 << 20])["verdict"] is None
    assert read(text.log([text.row(1048000, 60.0, ranks=6)], **more), expected_sizes=[1 << 20])["verdict"] == "LogIncomplete"


def test_lost_head_with_footer_is_incomplete(read: Read) -> None:
    """A rotated log ends with OK; the sizes that were cut away are not there."""
    whole = text.log(text.HEALTHY)
    said = read(whole[whole.index(text.HEALTHY[1]) :], expected_sizes=[GIB, 2 * GIB])
    assert (said["verdict"], said["parsed"]["missing_sizes"], said["parsed"]["collective"]) == ("LogIncomplete", [GIB], "all_reduce")
    assert said["parsed"]["layout"] == "unified_5col_wide"
    assert read(whole[whole.index(text.HEALTHY[1]) :])["verdict"] == "LogIncomplete"


def test_missing_largest_size_is_incomplete_without_the_callers_help(read: Read) -> None:
    said = read(text.log(text.HEALTHY[:1]))
    assert (said["verdict"], said["parsed"]["missing_sizes"]) == ("LogIncomplete", [2 * GIB])


def test_memory_limit_is_incomplete_unless_allowed(read: Read) -> None:
    log = text.log(text.HEALTHY, largest=8 * GIB, debug="# Reducing maxBytes to 2684354560 due to memory limitation\n")
    assert (read(log)["verdict"], read(log)["parsed"]["missing_because"]) == ("LogIncomplete", "memory_limit")
    assert read(log, allow_reduced_sizes=True)["verdict"] is None


def test_fewer_cycles_than_asked(read: Read) -> None:
    assert read(text.log(text.HEALTHY * 2), cycles=2)["values"]["samples"] == 2
    assert read(text.log(text.HEALTHY * 2), cycles=3)["verdict"] == "LogIncomplete"


def test_unfinished_last_line_is_not_believed(read: Read) -> None:
    """3 of 377.05 is a number too."""
    whole = text.log(text.HEALTHY)
    said = read(whole[: whole.index("380.5") + 2])
    assert (said["verdict"], said["parsed"]["partial_last_line"]) == ("LogIncomplete", True)


# --- wrong data ---


def test_wrong_elements_in_place_only(read: Read) -> None:
    said = read(text.log([text.HEALTHY[0], text.row(2 * GIB, 379.37, ip_wrong=128)]))
    assert (said["verdict"], said["values"]["data_correct"], said["values"]["wrong"]) == ("DataCorruption", False, 128)
    assert said["findings"][0]["reason"] == "DataCorruption"


def test_wrong_data_outweighs_how_the_run_ended(read: Read) -> None:
    whole = text.log([text.row(GIB, 377.05, wrong="1.67772e+07"), text.HEALTHY[1]])
    assert read(whole[: whole.index("# Out of bounds")], exit_code=124)["verdict"] == "DataCorruption"


def test_unchecked_data_is_unknown(read: Read) -> None:
    rows = [text.row(2 * GIB, 379.37, wrong="N/A", ip_wrong="N/A")]
    assert read(text.log(rows, validation=0))["values"]["data_correct"] is None
    assert read(text.log(rows, validation=0), require_data_check=True)["verdict"] == "LogIncomplete"


# --- how runs end ---


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (1, "WorkloadFailed"),
        (2, "WorkloadFailed"),
        (3, "WorkloadFailed"),
        (4, "TimedOut"),
        (124, "TimedOut"),
        (137, "LogIncomplete"),
        (143, "LogIncomplete"),
    ],
)
def test_exit_codes_without_a_footer(read: Read, code: int, verdict: str) -> None:
    whole = text.log(text.HEALTHY)
    assert read(whole[: whole.index("# Out of bounds")], exit_code=code)["verdict"] == verdict


@pytest.mark.parametrize("code", [5, 6, 126, 127, 255])
def test_exit_codes_of_runs_that_never_began(read: Read, code: int) -> None:
    assert read(text.head(), exit_code=code)["verdict"] == "SetupError"


@pytest.mark.parametrize(("code", "words"), [(124, "teardown hang"), (139, "crash at exit"), (134, "crash at exit")])
def test_trouble_after_a_complete_result_is_a_finding(read: Read, code: int, words: str) -> None:
    """The numbers are whole: the run is judged, the trouble is told."""
    said = read(text.log(text.HEALTHY), exit_code=code)
    assert said["verdict"] is None
    assert any(words in item["message"] for item in said["findings"])


def test_unexplained_exit_code_after_the_footer_does_not_pass(read: Read) -> None:
    assert read(text.log(text.HEALTHY), exit_code=3)["verdict"] == "WorkloadFailed"


@pytest.mark.parametrize("code", [1, 6, 7])
def test_average_check_and_data_check_share_exit_codes(read: Read, code: int) -> None:
    failed = text.log(text.HEALTHY).replace("380.5 ", "380.5 FAILED")
    assert read(failed, exit_code=code)["verdict"] == "ThresholdViolation"
    corrupt = text.log(text.HEALTHY).replace("values : 0 OK", "values : 2 FAILED")
    assert read(corrupt, exit_code=code)["verdict"] == "DataCorruption"


@pytest.mark.parametrize(
    "line",
    [
        "There are not enough slots available in the system to satisfy the 16",
        "PRTE was unable to start the specified application as it encountered an error",
        "gpu-a1:1:2 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 18000",
        "gpu-a1:1:2 [0] init.cc:1 NCCL WARN MNNVL (cliqueSize 8) is available but not working on some system",
        "gpu-a1:1:2 [0] init.cc:1 NCCL WARN Failed to initialize any NET plugin",
    ],
)
def test_wrong_set_ups_are_nobodys_fault(read: Read, line: str) -> None:
    said = read(text.head() + line + "\n", exit_code=1)
    assert said["verdict"] == "SetupError"
    assert said["findings"][0]["reason"] == "SetupError"


def test_missing_gpu_is_the_nodes_fault_only_when_it_promises_more(read: Read) -> None:
    """7 of 8: a broken node if it advertises 8, a wrong request if it has 7."""
    log = (
        text.head(device_text="")
        + "Invalid number of GPUs: 8 requested but only 7 were found.\n .. gpu-a1 pid 1: Test failure common.cu:1\n"
    )
    broken = read(log, exit_code=5, expected_gpus=8)
    assert (broken["verdict"], broken["findings"][0]["reason"], broken["findings"][0]["host"]) == (
        "SetupError",
        "HardwareFailureDetected",
        "gpu-a1",
    )
    assert [item["reason"] for item in read(log, exit_code=5)["findings"]] == ["SetupError"]


def test_both_ends_of_a_broken_path_are_named(read: Read) -> None:
    """The peer is printed as an address; the list lines tell whose it is."""
    log = (
        text.head() + text.info("gpu-a1", "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.20.0.11<0>") + text.WIDE_TITLES + text.HEALTHY[0]
    )
    log += (
        "\n[2026-03-02 10:31:07] gpu-a2:4110:4180 [2] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.20.0.11<41022> "
    )
    log += "with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_2\n"
    said = read(log, exit_code=3)
    assert said["verdict"] == "WorkloadFailed"
    assert [item["host"] for item in said["findings"] if item["reason"] == "WorkloadFailed"] == ["gpu-a2", "gpu-a1"]


def test_watchdog_names_the_size_that_hung(read: Read) -> None:
    log = (
        text.head()
        + text.WIDE_TITLES
        + text.HEALTHY[0]
        + text.HEALTHY[1][: text.IDENTITY]
        + "gpu-a1: Test timeout (60s) gpu-a1:common.cu:528\n"
    )
    said = read(log, exit_code=4)
    assert (said["verdict"], said["parsed"]["unfinished_size"], said["parsed"]["watchdog_host"]) == ("TimedOut", 2 * GIB, "gpu-a1")


def test_failure_in_an_unfinished_last_line_is_read(read: Read) -> None:
    log = (
        text.head()
        + text.WIDE_TITLES
        + text.HEALTHY[0][: text.IDENTITY]
        + "\ngpu-a2: Test CUDA failure common.cu:1 'unspecified launch failure'"
    )
    said = read(log, exit_code=2)
    assert (said["verdict"], said["findings"][0]["host"]) == ("WorkloadFailed", "gpu-a2")


def test_empty_log_and_no_log(read: Read) -> None:
    assert read("")["verdict"] == "NoMeasurement"
    assert measure("nccl", [], {"exit_code": 0})["verdict"] == "NoMeasurement"


def test_unreadable_log_is_an_error_of_the_user() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        measure("nccl", ["/nonexistent/launcher.log"], {})


# --- several runs in one log ---


def test_second_try_counts(read: Read) -> None:
    """A script that tries again leaves the failure of the first try in the log."""
    first = text.head() + "gpu-a2: Test NCCL failure common.cu:1 'unhandled system error / '\n"
    said = read(first + text.log(text.HEALTHY))
    assert (said["verdict"], said["parsed"]["section_count"], said["values"]["bus_bandwidth"]) == (None, 2, 379.37)


def test_slowest_of_two_whole_tables_counts(read: Read) -> None:
    """A test that gave 100 GB/s and then 379 has not proven 379, in whatever order."""
    slow = text.log((text.row(GIB, 100.0), text.row(2 * GIB, 100.0)))
    for content in (slow + text.log(text.HEALTHY), text.log(text.HEALTHY) + slow):
        said = read(content)
        assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 100.0)
        assert [item["reason"] for item in said["findings"]] == ["Unstable"]


FAILURE = "gpu-a2: Test NCCL failure common.cu:1 'unhandled system error / '\n"


@pytest.mark.parametrize(
    ("second", "context", "verdict"),
    [
        (text.head() + FAILURE, {"exit_code": 3}, "WorkloadFailed"),
        (text.head() + text.WIDE_TITLES + text.HEALTHY[0] + FAILURE, {"exit_code": None}, "WorkloadFailed"),
        (text.head() + text.WIDE_TITLES + text.HEALTHY[0], {"exit_code": 124}, "TimedOut"),
        (text.head(program="all_gather_perf"), {"exit_code": 3}, "WorkloadFailed"),
        (text.head(program="all_gather_perf") + FAILURE, {"exit_code": None}, "WorkloadFailed"),
        (text.head() + text.WIDE_TITLES + text.HEALTHY[0], {"exit_code": 0}, "LogIncomplete"),
        (text.head() + text.WIDE_TITLES + text.HEALTHY[0], {"exit_code": None}, "LogIncomplete"),
        (text.head(program="all_gather_perf") + text.WIDE_TITLES, {"exit_code": None}, "NoMeasurement"),
        (text.head(program="all_gather_perf"), {"exit_code": 3, "collective": "all_reduce"}, None),
    ],
)
def test_failure_after_a_complete_run_is_not_hidden_by_it(read: Read, second: str, context: dict[str, t.Any], verdict: str) -> None:
    """The good number of the first run must not cover the end of the second."""
    said = read(text.log(text.HEALTHY) + second, **context)
    assert (said["verdict"], said["complete"]) == (verdict, verdict is None)


def test_two_collectives_are_not_mixed(read: Read) -> None:
    gather = text.log([text.row(2 * GIB, 50.0, collective_factor=0.5, redop="none")], program="all_gather_perf")
    said = read(text.log(text.HEALTHY) + gather)
    assert said["judged"]["all_reduce"]["busBandwidthGBps_at_max_size"] == 379.37
    assert said["judged"]["all_gather"]["busBandwidthGBps_at_max_size"] == 50.0
    assert (said["values"]["collective"], said["values"]["bus_bandwidth"]) == ("all_gather", 50.0)
    chosen = read(text.log(text.HEALTHY) + gather, collective="all_gather")
    assert chosen["values"]["bus_bandwidth"] == 50.0


def test_several_types_are_never_averaged_for_criteria(read: Read) -> None:
    rows = [text.row(2 * GIB, 300.0, kind="half"), text.row(2 * GIB, 100.0)]
    said = read(text.log(rows, smallest=2 * GIB))
    assert (said["values"]["bus_bandwidth"], said["values"]["datatype"], said["parsed"]["distinct_keys"]) == (100.0, None, 2)
    assert said["judged"]["busBandwidthGBps_at_max_size"] == 200.0
    assert said["reason"].startswith("100.0 GB/s")


# --- numbers ---


def test_split_groups_judge_by_their_own_ranks(read: Read) -> None:
    """16 ranks are listed, groups of two ran: the factor is that of two."""
    listed = text.devices(("gpu-a1", "gpu-a2"), 8, lambda rank: rank // 2)
    said = read(text.head(device_text=listed) + text.WIDE_TITLES + "".join(text.HEALTHY) + text.foot())
    assert said["parsed"]["devices"] | {"ranks": 16, "n_for_factor": 2, "groups": 8} == said["parsed"]["devices"]
    assert (said["values"]["ranks"], said["findings"]) == (2, [])


def test_wrong_number_of_ranks_is_told(read: Read) -> None:
    said = read(text.log([text.row(2 * GIB, 300.0, ranks=16)]))
    assert any("number of ranks is wrong" in item["message"] for item in said["findings"])


def test_cut_device_list(read: Read) -> None:
    """An overflowing list ends in dots: the number of ranks comes from NCCL, or from busbw over algbw."""
    listed = text.devices(("gpu-a1",), 2).rstrip("\n") + "...\n"
    rows = [text.row(2 * GIB, 379.37, ranks=16)]
    said = read(text.head(device_text=listed) + text.info("gpu-a1", "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0")
                + text.WIDE_TITLES + "".join(rows) + text.foot())  # fmt: skip
    assert said["values"]["ranks"] == 16
    assert not any("number of ranks" in item["message"] for item in said["findings"])


def test_one_rank_has_no_bus_bandwidth(read: Read) -> None:
    """The printed 0 must not look like a broken link."""
    rows = [text.row(2 * GIB, 2100.0, ranks=1, collective_factor=0).replace("2100.00  2100.00", "2100.00     0.00")]
    said = read(text.log(rows, smallest=2 * GIB, hosts=("gpu-a1",)))
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["values"]["alg_bandwidth"]) == (None, None, 2100.0)


def test_collapse_at_large_sizes_is_not_hidden_by_the_peak(read: Read) -> None:
    """NVCRE's peak passes; the size that matters runs at a third of it."""
    log = text.log([text.row(GIB, 373.8), text.row(2 * GIB, 112.0)])
    said = with_thresholds(read(log), {"busBandwidthGBps": "value >= 350"})
    assert said["verdict"] == "ThresholdViolation"
    assert (said["judged"]["busBandwidthGBps_peak"], said["judged"]["collapse"]) == (373.8, True)
    assert read(log, thresholds={"busBandwidthGBps": "value >= 112"})["verdict"] is None


def test_unstable_samples_are_told(read: Read) -> None:
    rows = [text.row(2 * GIB, bus) for bus in (379.84, 376.86, 197.84)]
    said = read(text.log(rows, smallest=2 * GIB))
    assert (said["values"]["samples"], said["values"]["spread"]) == (3, 0.4791)
    assert [item["reason"] for item in said["findings"]] == ["Unstable"]


def test_not_finite_average_is_null(read: Read) -> None:
    assert read(text.log(text.HEALTHY).replace("380.5", "-nan"))["values"]["avg_bus_bandwidth"] is None


def test_requested_type_that_was_replaced_is_told(read: Read) -> None:
    said = read("invalid type quad, defaulting to float\n" + text.log(text.HEALTHY))
    assert any("did not run what was asked" in item["message"] for item in said["findings"])


# --- JSON ---


def document(**changes: t.Any) -> dict[str, t.Any]:
    group = {"time": 5700.0, "alg_bw": 376.7, "bus_bw": 376.7, "nwrong": 0.0}
    base: dict[str, t.Any] = {
        "version": 3,
        "args": ["/opt/all_reduce_perf_mpi", "-J", "x.json"],
        "env": ["API_TOKEN=example-secret"],
        "nccl_version": 22809,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": 2 * GIB,
            "maximum_bytes": 2 * GIB,
            "step_factor": 2,
            "devices": [{"rank": rank, "group": 0, "pid": 1, "hostname": f"gpu-a{rank}", "device": 0} for rank in range(2)],
        },
        "results": [
            {"size": 2 * GIB, "count": 5, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": group, "in_place": group}
        ],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 376.7, "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-03-02 13:00:09",
    }
    return base | changes


def test_document(read: Read) -> None:
    said = read(json.dumps(document()), "x.json")
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["values"]["nodes"]) == (None, 376.7, 2)
    assert "example-secret" not in json.dumps(said)


def test_document_words_for_numbers_and_truths(read: Read) -> None:
    odd = {"average_bus_bandwidth": {"bandwidth": "nan", "okay": "unchecked"}, "out_of_bounds": {"count": 3, "okay": "false"}}
    said = read(json.dumps(document(**odd)), "x.json")
    assert (said["verdict"], said["parsed"]["avg_busbw"]) == ("DataCorruption", None)


def test_document_that_lists_one_process(read: Read) -> None:
    """Without MPI one process lists its first device only; eight ran."""
    config = document()["config"] | {"ngpus": 8, "devices": document()["config"]["devices"][:1]}
    group = {"time": 10000.0, "alg_bw": 200.0, "bus_bw": 350.0, "nwrong": 0.0}
    results = [document()["results"][0] | {"out_of_place": group, "in_place": group}]
    assert read(json.dumps(document(config=config, results=results)), "x.json")["parsed"]["ranks"] == 8


def test_document_of_a_killed_run(read: Read, tmp_path: Path) -> None:
    """It is not closed: the text log of the same run answers, alone it proves nothing."""
    broken = json.dumps(document())[:-40]
    assert read(broken, "x.json", exit_code=137)["verdict"] == "LogIncomplete"
    assert read(broken, "x.json")["verdict"] == "LogIncomplete"
    (tmp_path / "run.log").write_text(text.log(text.HEALTHY))
    said = measure("nccl", [str(tmp_path / "x.json"), str(tmp_path / "run.log")], {"exit_code": 0})
    assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 379.37)


def test_document_is_preferred_to_the_text_of_the_run(read: Read, tmp_path: Path) -> None:
    debug = text.info("gpu-a1", "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA")
    (tmp_path / "run.log").write_text("# Writing JSON output to /tmp/x.json.0\n" + text.log(text.HEALTHY, debug=debug))
    (tmp_path / "x.json").write_text(json.dumps(document()))
    said = measure("nccl", [str(tmp_path / "run.log"), str(tmp_path / "x.json")], {"exit_code": 0})
    assert (said["values"]["bus_bandwidth"], said["values"]["transport"], said["parsed"]["json_path"]) == (376.7, "ib", "/tmp/x.json.0")


def test_document_without_out_of_place_group(read: Read) -> None:
    results = [document()["results"][0] | {"out_of_place": None}]
    assert read(json.dumps(document(results=results)), "x.json")["verdict"] == "LogIncomplete"


# --- lines lost, doubled or coloured ---


def test_colour_behind_a_debug_line_hides_no_path(read: Read) -> None:
    """A launcher that colours its lines must not make a run over TCP look unproven, and pass."""
    debug = text.info("gpu-a1", "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0")
    plain = text.log(text.HEALTHY, debug=debug)
    coloured = "".join(f"\x1b[32m{line}\x1b[0m\n" for line in plain.splitlines())
    said = read(coloured, expect_transport="rdma")
    assert (said["verdict"], said["transport"]) == ("TransportFallback", read(plain)["transport"])


def test_halves_of_a_file_with_foreign_line_ends(read: Read) -> None:
    """A node's log file that went through another system ends its halves with a carriage return."""
    first, second = text.HEALTHY
    stamp = "2026-03-02T01:05:10.5Z stdout"
    lines = text.log(text.HEALTHY).splitlines()
    cri = [f"{stamp} F {line}" if line + "\n" != second else f"{stamp} P {line[:63]}\r\n{stamp} F {line[63:]}" for line in lines]
    assert read("\r\n".join(cri) + "\r\n")["values"] == read(text.log(text.HEALTHY))["values"]


def test_halves_behind_other_text(read: Read) -> None:
    """A node's log file with a line of a tool before it is joined all the same."""
    stamp = "2026-03-02T01:05:10.5Z stdout"
    cri = [f"{stamp} P {line[:40]}\n{stamp} F {line[40:]}" for line in text.log(text.HEALTHY).splitlines()]
    assert read("fetched by a tool\n" + "\n".join(cri) + "\n")["values"] == read(text.log(text.HEALTHY))["values"]


def test_bare_library_version_behind_a_label(read: Read) -> None:
    log = text.head() + "NCCL version 2.28.9+cuda13.0\n" + text.WIDE_TITLES + "".join(text.HEALTHY) + text.foot()
    assert read("".join(f"[0] {line}\n" for line in log.splitlines()))["values"]["nccl_version"] == "2.28.9+cuda13.0"


@pytest.mark.parametrize("lost", ["# nccl", "# nThread", "#  Rank  1", "#  Rank  9"])
def test_log_that_begins_late_is_incomplete(read: Read, lost: str) -> None:
    """Without its first lines nobody knows what was asked for, or how many ranks there were."""
    rows = [text.row(1 << 30, 377.05, ranks=16), text.row(2 * GIB, 379.37, ranks=16)]
    whole = text.log(rows, gpus=8)
    begins_late = whole[whole.index(lost) + 5 :]
    said = read(begins_late)
    if lost == "# nccl":
        assert (said["verdict"], said["values"]["ranks"]) == (None, 16)
    else:
        assert (said["verdict"], said["values"]["bus_bandwidth"], said["parsed"]["head_lost"]) == ("LogIncomplete", 379.37, True)
        assert said["values"]["ranks"] == 16
        assert said["parsed"]["devices"]["n_for_factor"] in (None, 16)


def test_doubled_device_line_is_one_rank(read: Read) -> None:
    device = text.devices(("gpu-a1", "gpu-a2")).splitlines(keepends=True)
    assert read(text.log(text.HEALTHY, device_text=device[0] + device[0] + device[1]))["values"]["ranks"] == 2


def test_one_listed_rank_does_not_hide_a_bandwidth(read: Read) -> None:
    """The device line of one rank is left: the bandwidth that was printed is still there."""
    device = text.devices(("gpu-a1", "gpu-a2")).splitlines(keepends=True)
    assert read(text.log(text.HEALTHY, device_text=device[0]))["values"]["bus_bandwidth"] == 379.37


@pytest.mark.parametrize("kind", ["digits lost", "halves of two rows"])
def test_numbers_that_contradict_each_other_are_not_judged(read: Read, kind: str) -> None:
    """A row that lost characters looks whole; its time tells that its bandwidth is none."""
    first, second = text.HEALTHY
    torn = second.replace("379.37  379.37", "79.37  379.37", 1) if kind == "digits lost" else first[:38] + second[38:]
    said = read(text.log([first, torn] if kind == "digits lost" else [torn, second]))
    assert said["verdict"] == "LogIncomplete"
    assert "contradict" in said["reason"] or said["parsed"]["missing_sizes"]


def test_printed_precision_is_no_contradiction(read: Read) -> None:
    """One significant digit of a bandwidth, two of a time, and host times are all in order."""
    slow = text.CELLS.format(time="4.2e+07", alg="0.05", bus="0.05", wrong=0)
    fast = text.CELLS.format(time="1.03", alg="2e+06", bus="2e+06", wrong=0)
    rows = [f"{2 * GIB:12d}  {GIB // 2:12d}  {'float':>8}  {'sum':>6}  {-1:>6}  {slow}  {fast}\n"]
    assert read(text.log(rows, smallest=2 * GIB))["verdict"] is None
    cpu = text.log(text.HEALTHY).replace("    time ", " cputime ").replace("5660.6", "  12.6")
    assert read(cpu)["verdict"] is None


def test_cycle_with_a_lost_row_is_incomplete(read: Read) -> None:
    """Two samples of one size and one of the next: the mean of the next is of another run."""
    assert read(text.log([*text.HEALTHY, *text.HEALTHY]))["verdict"] is None
    assert read(text.log([*text.HEALTHY, text.HEALTHY[0]]))["verdict"] == "LogIncomplete"


# --- exit code, footer and rows ---

FOOTERS = {
    "none": "",
    "first line only": "# Out of bounds values : 0 OK\n",
    "ok": text.foot(),
    "wrong": text.foot(bounds="2 FAILED"),
    "slow": text.foot(extra="FAILED"),
}
CODES = (None, 0, 1, 2, 3, 4, 5, 6, 7, 124, 126, 127, 130, 134, 137, 139, 143, 255)


def expected_verdict(code: int | None, footer: str, rows: int) -> str:
    """What the meaning of texts and codes says: the footer first, the exit code second."""
    if footer == "wrong":
        return "DataCorruption"
    if footer == "slow":
        return ("NoMeasurement", "LogIncomplete", "ThresholdViolation")[rows]
    if footer == "ok":
        if code in (None, 0, 124) or code >= 128:
            return ("NoMeasurement", "LogIncomplete", None)[rows]
        return "WorkloadFailed"
    if code in (None, 0):
        return "LogIncomplete" if rows else "NoMeasurement"
    if code in (4, 124):
        return "TimedOut"
    if code in (130, 137, 143):
        return "LogIncomplete"
    if code in (5, 6) or (code in (126, 127, 255) and not rows):
        return "SetupError"
    return "WorkloadFailed"


@pytest.mark.parametrize("version", ["2.13.0", "2.17.2", "2.17.5", "2.19.6"])
@pytest.mark.parametrize("footer", FOOTERS)
def test_every_exit_code_with_every_end(read: Read, version: str, footer: str) -> None:
    """One number means different things in different builds: it must never outweigh what the log says."""
    head = "".join(line for line in text.head().splitlines(keepends=True) if version >= "2.17.4" or "nccl-tests version" not in line)
    for code in CODES:
        for rows in range(3):
            said = read(head.replace("2.19.6", version) + text.WIDE_TITLES + "".join(text.HEALTHY[:rows]) + FOOTERS[footer], exit_code=code)
            assert said["verdict"] == expected_verdict(code, footer, rows), (code, rows)
            assert said["complete"] == (rows == 2 and said["verdict"] in (None, "DataCorruption", "ThresholdViolation")), (code, rows)


# --- the caller's mistakes ---


@pytest.mark.parametrize(
    "context",
    [
        {"expect_transport": "warp"},
        {"expected_sizes": "8G"},
        {"expected_sizes": ["8G"]},
        {"judged_size": "8G"},
        {"collective": "allreduce"},
    ],
)
def test_wrong_context_names_the_key(read: Read, context: dict[str, t.Any]) -> None:
    with pytest.raises(InputError) as error:
        read(text.log(text.HEALTHY), **context)
    assert error.value.place.startswith("context.")


def test_unknown_kind() -> None:
    with pytest.raises(InputError, match="nccl2"):
        measure("nccl2", [], {})


@pytest.mark.parametrize("thresholds", [{"busBandwidthGbps": "value > 1"}, {"busBandwidthGBps": "value >"}, ["value > 1"]])
def test_wrong_limits_name_the_key(read: Read, thresholds: t.Any) -> None:
    with pytest.raises(InputError, match="thresholds"):
        with_thresholds(read(text.log(text.HEALTHY)), thresholds)


def test_limits_that_came_with_a_log_are_held_against_whole_measurements_only(read: Read) -> None:
    """A partial sweep is provisional, however slow it looks."""
    limit = {"busBandwidthGBps": "value >= 1000"}
    assert with_thresholds(read(text.log(text.HEALTHY)), limit)["verdict"] == "ThresholdViolation"
    cut = text.log(text.HEALTHY).partition("# Out of bounds")[0]
    assert with_thresholds(read(cut), limit)["verdict"] == "LogIncomplete"
