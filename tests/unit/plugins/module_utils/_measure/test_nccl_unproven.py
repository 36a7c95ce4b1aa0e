# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What was asked is counted against what was measured; what is lost, torn or impossible is never a pass."""

from __future__ import annotations

import json
import random
import sys
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.nccl.values import worst_values

sys.path.insert(0, str(Path(__file__).parent))

import nccl_text as text

GIB = 1 << 30
SIZES = [GIB >> shift for shift in range(6, -1, -1)]
SWEEP = [text.row(size, 300.0 + place) for place, size in enumerate(SIZES)]
Read = t.Callable[..., dict[str, t.Any]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(content: str, **context: t.Any) -> dict[str, t.Any]:
        path = tmp_path / "launcher.log"
        path.write_text(content, encoding="utf-8")
        return measure("nccl", [str(path)], {"exit_code": 0, **context})

    return run


def sweep(rows: list[str], average: str = "250.1", **more: t.Any) -> str:
    head = text.head(**{"smallest": SIZES[0], "largest": SIZES[-1], **more})
    return head + text.WIDE_TITLES + "".join(rows) + text.foot(more.get("program", "all_reduce_perf"), average=average)


# --- sizes ---


def test_a_whole_sweep_is_measured(read: Read) -> None:
    assert (read(sweep(SWEEP))["verdict"], read(sweep(SWEEP))["values"]["bus_bandwidth"]) == (None, 306.0)


@pytest.mark.parametrize("lost", range(len(SIZES)))
def test_every_size_that_was_asked_for_must_be_there(read: Read, lost: int) -> None:
    """Latency, collapse and the peak of what is left are those of another sweep."""
    said = read(sweep(SWEEP[:lost] + SWEEP[lost + 1 :]))
    assert (said["verdict"], said["complete"], said["parsed"]["missing_sizes"]) == ("LogIncomplete", False, [SIZES[lost]])


def test_the_programs_own_average_shows_that_no_row_is_lost(read: Read) -> None:
    """Builds of others print other sizes than the line of the request says; the mean of the rows is what the program found."""
    rows = [SWEEP[0], SWEEP[-1]]
    assert read(sweep(rows, average="303"))["verdict"] is None
    assert read(sweep(rows, average="303.2"))["verdict"] == "LogIncomplete"


@pytest.mark.parametrize(
    ("old", "new"),
    [("step: 2(factor)", "st%p: 2(factor)"), ("minBytes 16777216", "min#ytes 16777216"), ("minBytes 16777216", "minBytes 1\x0077216"),
     ("maxBytes 1073741824", "maxBytes 107374182"), ("step: 2(factor)", "step: (factor)"), ("minBytes 16777216", "minBytes 9916777216")],
)  # fmt: skip
def test_a_damaged_request_proves_no_sweep(read: Read, old: str, new: str) -> None:
    """Without step or minBytes no size was demanded at all, not even the largest."""
    content = sweep(SWEEP[:-1])
    assert old in content
    assert read(content.replace(old, new))["verdict"] == "LogIncomplete"


def test_a_log_that_says_it_was_shortened(read: Read) -> None:
    """Who pastes the end of a table and says so has measured its sizes; latency and collapse stay unknown."""
    said = read(sweep(["# Truncated  smaller message sizes\n", *SWEEP[-2:]]))
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["values"]["latency_us"], said["values"]["collapse"]) == (
        None,
        306.0,
        None,
        None,
    )
    assert read(sweep(["...\n", *SWEEP[-3:-1]]))["verdict"] == "LogIncomplete"


# --- rows ---


@pytest.mark.parametrize(
    "torn",
    [
        lambda row: row[: text.IDENTITY] + "Warning: the clock is not synchronous " + row[text.IDENTITY :],
        lambda row: row[: text.OUT_OF_PLACE] + "some text\n",
        lambda row: row.replace("float", "float[W302] slow"),
        lambda row: row[: text.OUT_OF_PLACE - 5] + "lost\n" + row[text.OUT_OF_PLACE :],
    ],
)
def test_a_row_torn_by_foreign_text_is_lost(read: Read, torn: t.Callable[[str], str]) -> None:
    """With two cycles the other one still has its size: the lost row must be counted."""
    said = read(sweep([*SWEEP, *SWEEP[:3], torn(SWEEP[3]), *SWEEP[4:]]))
    assert (said["verdict"], said["complete"]) == ("LogIncomplete", False)


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("group", ["out of place", "in place"])
@pytest.mark.parametrize("digits", ["906.00", "36.00", "3306.00", "306.9e3", "30.600"])
def test_a_bus_bandwidth_that_its_algorithm_bandwidth_contradicts(read: Read, rows: int, group: str, digits: str) -> None:
    """One glued character in one cell passed any limit."""
    kept = SWEEP[-rows:]
    head, tail = kept[-1][: text.OUT_OF_PLACE], kept[-1][text.OUT_OF_PLACE :]
    right, wrong = "306.00  306.00", f"306.00  {digits}"
    kept = [*kept[:-1], head.replace(right, wrong, 1) + tail if group == "out of place" else head + tail.replace(right, wrong, 1)]
    content = text.head(smallest=SIZES[-rows], largest=SIZES[-1]) + text.WIDE_TITLES + "".join(kept) + text.foot()
    said = read(content)
    assert (said["verdict"], said["complete"]) == ("LogIncomplete", False)


def test_ranks_that_the_bandwidths_contradict_are_no_proof(read: Read) -> None:
    said = read(text.log([text.row(2 * GIB, 300.0, ranks=16)], smallest=2 * GIB))
    assert (said["verdict"], said["complete"]) == ("LogIncomplete", False)
    assert "number of ranks" in said["reason"]


def test_a_footer_that_contradicts_itself(read: Read) -> None:
    assert read(sweep(SWEEP).replace("values : 0 OK", "values : 3 OK"))["verdict"] == "LogIncomplete"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_one_damaged_character_never_raises_a_number(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """A bit that flipped in a log must not pass a node: the judged number is the true one, within the print, or there is none."""
    chance = random.Random(seed)
    content = sweep(SWEEP)
    at = chance.randrange(content.index("#  Rank"), len(content))
    damaged = (
        content[:at]
        + chance.choice(["", chance.choice("0123456789.-e# x\n"), content[at] + chance.choice("0123456789")])
        + content[at + 1 :]
    )
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_text(damaged)
    said = measure("nccl", [str(path)], {"exit_code": 0})
    if said["verdict"] is None:
        assert said["values"]["bus_bandwidth"] == pytest.approx(306.0, rel=0.02)
        assert said["values"]["message_size"] == GIB


@pytest.mark.parametrize(("size", "elements"), [(GIB - 20, GIB // 4), (GIB, GIB // 4 + 100), (GIB, GIB // 2), (GIB, 7)])
def test_a_size_that_its_elements_contradict_is_no_result(read: Read, size: int, elements: int) -> None:
    """So small a change of the size leaves size / time within the printed digits; the elements tell."""
    content = sweep(SWEEP)
    printed = f"{GIB:12d}  {GIB // 4:12d} "
    assert printed in content and read(content)["verdict"] is None
    assert read(content.replace(printed, f"{size:12d}  {elements:12d} "))["verdict"] == "LogIncomplete"


# --- ranks, nodes, collectives ---


def test_nodes_that_took_no_part(read: Read) -> None:
    """A launcher without its host file runs on one node twice as often as one thinks."""
    one = sweep(SWEEP, hosts=("gpu-a1",), gpus=2)
    assert read(one, nodes=["gpu-a1"])["verdict"] is None
    said = read(one, nodes=["gpu-a1", "gpu-a2"])
    assert (said["verdict"], said["complete"]) == ("LogIncomplete", False)
    assert "1 of 2 nodes" in said["reason"]
    assert read(sweep(SWEEP), nodes=["n1", "n2"])["verdict"] is None


def test_ranks_that_took_no_part(read: Read) -> None:
    assert read(sweep(SWEEP), expected_ranks=2)["verdict"] is None
    assert "2 of 16 ranks" in read(sweep(SWEEP), expected_ranks=16)["reason"]


def test_another_collective_than_asked(read: Read) -> None:
    assert read(sweep(SWEEP), collective="all_reduce")["verdict"] is None
    assert read(sweep(SWEEP), collective="all_gather")["complete"] is False


def test_two_runs_at_once_are_no_run(read: Read) -> None:
    """mpirun of a build without MPI: each node ran for itself, nothing crossed the network."""
    heads = [text.head(smallest=SIZES[0], largest=SIZES[-1], hosts=(host,), gpus=2) for host in ("gpu-a1", "gpu-a2")]
    rows = "".join(line for row in SWEEP for line in (row, row))
    said = read("".join(heads) + text.WIDE_TITLES * 2 + rows + text.foot() + text.foot(average="351"))
    assert (said["verdict"], said["complete"]) == ("LogIncomplete", False)


def test_a_line_that_was_logged_twice_is_no_second_run(read: Read) -> None:
    lines = sweep(SWEEP).splitlines(keepends=True)
    for number, line in enumerate(lines):
        if not line.strip().split(" ")[0].isdigit():
            said = read("".join([*lines[: number + 1], line, *lines[number + 1 :]]))
            assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 306.0), line


SECOND = text.head("all_gather_perf", smallest=SIZES[0], largest=SIZES[-1])


@pytest.mark.parametrize(
    "cut", [SECOND[: SECOND.index("#  Rank")], SECOND, SECOND + text.WIDE_TITLES, SECOND + text.WIDE_TITLES + SWEEP[0]]
)
@pytest.mark.parametrize("exit_code", [0, None])
def test_a_second_collective_that_was_cut_is_not_covered_by_the_first(read: Read, cut: str, exit_code: int | None) -> None:
    said = read(sweep(SWEEP) + cut, exit_code=exit_code)
    assert said["verdict"] is not None
    assert said["complete"] is False


def test_a_warm_up_with_small_messages_is_not_the_measurement(read: Read) -> None:
    warm = text.head(smallest=1 << 20, largest=1 << 20) + text.WIDE_TITLES + text.row(1 << 20, 20.0) + text.foot()
    said = read(warm + sweep(SWEEP))
    assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 306.0)


def test_of_several_runs_the_worst_of_each_number_answers() -> None:
    runs = [
        {"bus_bandwidth": 300.0, "latency_us": 90.0, "collective": "all_reduce", "data_correct": True, "datatype": "float", "wrong": 0.0},
        {"bus_bandwidth": 40.0, "latency_us": 12.0, "collective": "alltoall", "data_correct": None, "datatype": "half", "wrong": 0.0},
    ]
    said = worst_values(runs)
    assert (said["bus_bandwidth"], said["latency_us"], said["collective"], said["data_correct"]) == (40.0, 90.0, "alltoall", None)
    assert said["datatype"] is None
    assert worst_values([*runs, {"bus_bandwidth": None, "data_correct": False}])["bus_bandwidth"] is None
    assert worst_values([*runs, {"bus_bandwidth": 500.0, "data_correct": False}])["data_correct"] is False


# --- lists with gaps ---


@pytest.mark.parametrize(("ranks", "listed", "wanted"), [(128, (0, 1, 126, 127), 128), (128, (0, 1, 2, 3), None), (8, (0, 1), 8)])
def test_ranks_of_a_list_with_a_gap_are_known_or_unknown_never_guessed(
    read: Read, ranks: int, listed: tuple[int, ...], wanted: int | None
) -> None:
    """Close to one the ratio of the bandwidths fits dozens of numbers."""
    devices = "".join(
        f"#  Rank {rank:2d} Group  0 Pid {4100 + rank} on gpu-{rank // 8} device {rank % 8} [0000:18:00] H100\n" for rank in listed
    )
    devices = devices if listed[-1] == ranks - 1 else devices.rstrip("\n") + "...\n"
    rows = [text.row(size, 47.0, ranks=ranks, collective_factor=(ranks - 1) / ranks, redop="none") for size in SIZES]
    said = read(sweep(rows, program="alltoall_perf", device_text=devices))
    assert (said["values"]["ranks"], said["values"]["nodes"]) == (wanted, None)


def test_a_process_lists_all_its_devices(read: Read) -> None:
    """Two lines of a process with eight GPUs are a part of a list; the bandwidths tell of eight ranks."""
    rows = [text.row(size, 470.0, ranks=8) for size in SIZES]
    said = read(sweep(rows, hosts=("gpu-a1",), gpus=2).replace("nGpus 1", "nGpus 8"))
    assert (said["verdict"], said["values"]["ranks"], said["values"]["nodes"]) == (None, 8, None)


# --- words of older libraries, and of set-ups ---

COMPLETIONS = {
    "NET/IB: Got completion from peer 10.20.0.5<53908> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) hca mlx5_2": "10.20.0.5",
    "NET/IB: Got completion from peer 10.20.0.5<53908> with status=12 opcode=129 len=0 vendor err 129 (Recv) hca mlx5_2": "10.20.0.5",
    "NET/IB : Got completion from peer 10.20.0.5<53908> with error 12, opcode 1, len 0, vendor err 129 (Send) hca mlx5_2": "10.20.0.5",
    "NET/IB : Got completion with error 12, opcode 1, len 32630, vendor err 129": None,
}


@pytest.mark.parametrize("words", COMPLETIONS)
def test_a_broken_path_in_the_words_of_any_release(read: Read, words: str) -> None:
    """Without the peer and the adapter a path fault condemns whoever printed it first."""
    log = text.head() + text.WIDE_TITLES + f"gpu-a2:4110:4180 [2] transport/net_ib.cc:1 NCCL WARN {words}\n"
    said = read(log, exit_code=3)
    (error,) = said["parsed"]["ib_errors"]
    assert (error["host"], error["code"], error["status"], error["peer"]) == ("gpu-a2", 12, "IBV_WC_RETRY_EXC_ERR", COMPLETIONS[words])
    assert error["hca"] == ("mlx5_2" if "hca" in words else None)
    assert said["verdict"] == "WorkloadFailed"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("NET/IB : mlx5_1:1 Got non-fatal async event: port error(10)", True),
        ("NET/IB : mlx5_1:1 Got async event : port error", True),
        ("NET/IB : mlx5_1:1 async fatal event on QP (0x7f): local access violation work queue error", True),
        ("NET/IB : mlx5_1:1 async fatal event: local catastrophic error", True),
        ("NET/IB : mlx5_1:1 Got non-fatal async event: GID table change(18)", False),
        ("NET/IB : mlx5_1:1 Got async event : client reregistration", False),
    ],
)
def test_a_link_that_flapped_in_a_good_run_is_told(read: Read, words: str, told: bool) -> None:
    """The number is good; the cable is not. One finding for an adapter, however often it speaks."""
    lines = f"\ngpu-a2:4110:4180 [2] transport/net_ib/common.cc:71 NCCL WARN {words}\n" * 3
    said = read(sweep([*SWEEP[:2], lines, *SWEEP[2:]]))
    assert said["verdict"] is None
    found = [(item["reason"], item["host"], item["entity"]) for item in said["findings"]]
    assert found == ([("Warning", "gpu-a2", "mlx5_1")] if told else [])


@pytest.mark.parametrize(
    "words",
    ["system not yet initialized", "no kernel image is available for execution on the device", "invalid device ordinal",
     "failed to extend /dev/shm/nccl-a1B2c3 to 9637892 bytes", "Call to ibv_reg_mr failed with error Cannot allocate memory",
     "all CUDA-capable devices are busy or unavailable", "CUDA driver version is insufficient for CUDA runtime version"],
)  # fmt: skip
def test_set_up_faults_are_no_hardware(read: Read, words: str) -> None:
    """Eight healthy GPUs behind a fabric manager that does not run."""
    failed = f"gpu-a1: Test CUDA failure common.cu:941 '{words}'\n .. gpu-a1 pid 1: Test failure common.cu:891\n"
    said = read(text.head(device_text="") + failed,
                exit_code=3)  # fmt: skip
    assert said["verdict"] == "SetupError"
    assert {item["reason"] for item in said["findings"]} == {"SetupError"}


def test_negative_and_absurd_numbers_of_a_document_are_no_result(read: Read) -> None:
    group = {"time": 5700.0, "alg_bw": 376.7, "bus_bw": 376.7, "nwrong": 0.0}
    config = {"nthreads": 1, "ngpus": 1, "minimum_bytes": 2 * GIB, "maximum_bytes": 2 * GIB, "step_factor": 2,
              "devices": [{"rank": rank, "group": 0, "pid": 1, "hostname": f"gpu-a{rank}", "device": 0} for rank in range(2)]}  # fmt: skip
    base = {"version": 3, "args": ["all_reduce_perf"], "config": config, "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": 376.7, "okay": "unchecked"}}  # fmt: skip

    def verdict(**changes: t.Any) -> str | None:
        size = changes.pop("size", 2 * GIB)
        row = {"size": size, "count": 5, "type": "float", "redop": "sum", "root": "-1", "out_of_place": group | changes, "in_place": group}
        return t.cast("str | None", read(json.dumps(base | {"results": [row]}))["verdict"])

    assert verdict() is None
    for changes in ({"time": -5700.0}, {"bus_bw": -376.7}, {"bus_bw": 976.7}, {"alg_bw": 3767.0}, {"time": 1e300}, {"size": -5},
                    {"size": 10**400},
                    {"bus_bw": 1e308, "alg_bw": 1e308}):  # fmt: skip
        assert verdict(**changes) is not None, changes


def test_a_failure_that_names_broken_hardware_convicts_the_host_that_said_so(read: Read) -> None:
    """Two processes fail when one of them loses its GPU; the other's "unhandled system error" is a consequence."""
    failed = (
        "gpu-a2: Test NCCL failure common.cu:303 'unhandled system error'\n"
        "gpu-a1: Test CUDA failure common.cu:941 'uncorrectable ECC error encountered'\n .. gpu-a1 pid 1: Test failure common.cu:891\n"
    )
    said = read(text.head() + text.WIDE_TITLES + "".join(SWEEP[:2]) + failed)
    assert (said["verdict"], said["complete"]) == ("HardwareFailureDetected", False)
    accused = [(item["reason"], item["host"]) for item in said["findings"] if item["host"]]
    assert accused == [("HardwareFailureDetected", "gpu-a1"), ("WorkloadFailed", "gpu-a2")]
