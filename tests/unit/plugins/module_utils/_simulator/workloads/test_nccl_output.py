# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated logs must read as the real programs' logs do; whoever parses one must be able to parse the other."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.workloads.nccl_tests import Options, Printer, Row

from ..world import ALONE, World

NODES = ["gpu-r0-n00", "gpu-r0-n01"]


def printer(version: str, program: str = "all_reduce_perf", **options: object) -> Printer:
    return Printer(program, Options(**options), version, "2.28.9+cuda13.0", [])  # type: ignore[arg-type]


def row(times: tuple[float, float], size: int, wrong: tuple[int | None, int | None] = (0, 0), factor: float = 1.75) -> Row:
    return Row(size, size // 4, "float", "sum", -1, times, wrong, float(size), factor, 1.0)


def test_the_head_of_a_table_is_that_of_a_real_run() -> None:
    assert printer("2.19.6").header() == [
        "#",
        "#                                                              out-of-place                       in-place          ",
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
    ]
    assert printer("2.13.4").header()[2].endswith("busbw #wrong     time   algbw   busbw #wrong")


@pytest.mark.parametrize(
    ("times", "size", "text"),
    [
        (
            (15.10, 15.20),
            1048576,
            "     1048576        262144     float     sum      -1    15.10   69.44  121.52       0    15.20   68.99  120.72       0",
        ),
        (
            (31524.2, 31537.6),
            8589934592,
            "  8589934592    2147483648     float     sum      -1  31524.2  272.49  476.85       0  31537.6  272.37  476.65       0",
        ),
        (
            (2649049.0, 4.2e7),
            67108864,
            "    67108864      16777216     float     sum      -1  2649049    0.03    0.04       0  4.2e+07    0.00    0.00       0",
        ),
    ],
)
def test_numbers_shrink_to_their_column(times: tuple[float, float], size: int, text: str) -> None:
    assert printer("2.19.6").row_text(row(times, size)) == text


def test_older_versions_keep_their_column_widths() -> None:
    text = printer("2.13.4").row_text(row((38.51, 138.75), 1048576, wrong=(0, None)))
    assert text == "     1048576        262144     float     sum      -1    38.51   27.23   47.65      0    138.8    7.56   13.23    N/A"


@pytest.mark.parametrize(
    ("version", "first", "unalign", "address"),
    [
        ("2.13.4", "# nThread 1", False, "[0x18]"),
        ("2.16.9", "# Collective test starting: all_reduce_perf", False, "[0000:18:00]"),
        ("2.17.8", "# nccl-tests version 2.17.8 nccl-headers=22809 nccl-library=22809", False, "[0000:18:00]"),
        ("2.19.6", "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809", True, "[0000:18:00]"),
    ],
)
def test_the_opening_follows_the_version(version: str, first: str, unalign: bool, address: str) -> None:
    ran = World(software={"nccl_tests": version}).alone(NODES[0])
    assert ran.lines[0].startswith(first)
    assert bool(ran.said("unalign: 0")) == unalign
    assert ran.said("#  Rank  0 Group  0 Pid")[0].endswith(f"device  0 {address} NVIDIA H100 80GB HBM3")
    assert ran.said("warmup iters: ")[0].split("warmup iters: ")[1].split()[0] == ("5" if version == "2.13.4" else "1")


def test_bandwidths_in_a_row_agree_with_size_and_time() -> None:
    ran = World().launch(NODES)
    for cells in ran.rows():
        size, time, algorithm, bus = int(cells[0]), float(cells[5]), float(cells[6]), float(cells[7])
        assert algorithm == pytest.approx(size / time / 1e3, rel=0.001)
        assert bus == pytest.approx(algorithm * 1.875, rel=0.001)


@pytest.mark.parametrize(
    ("program", "factor"), [("all_gather", 0.875), ("alltoall", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1), ("sendrecv", 1)]
)
def test_every_collective_has_its_factor_and_words(program: str, factor: float) -> None:
    ran = World().run(NODES[:1], f"{program}_perf -b 1G -e 1G -g 8")
    cells = ran.rows()[0]
    assert float(cells[7]) / float(cells[6]) == pytest.approx(factor, abs=0.01)
    assert cells[3] == ("sum" if program == "reduce_scatter" else "none")
    assert (cells[12] == "N/A") == (program in ("alltoall", "sendrecv"))


def test_per_rank_shares_are_cut_to_sixteen_bytes() -> None:
    ran = World().run(NODES[:1], "alltoall_perf -b 8 -e 8 -g 8")
    assert ran.rows()[0][:2] == ["0", "0"]
    six = World().run(NODES[:1], "alltoall_perf -b 1M -e 1M -g 6")
    assert six.rows()[0][0] == "1048512"


def test_sweeps_repeat_per_cycle_type_and_operation() -> None:
    ran = World().run(NODES[:1], "all_reduce_perf -b 1M -e 4M -f 2 -N 2 -g 8")
    assert [cells[0] for cells in ran.rows()] == ["1048576", "2097152", "4194304"] * 2
    many = World().run(NODES[:1], "all_reduce_perf -b 1M -e 1M -d all -o all -g 8")
    assert len(many.rows()) == 12 * 6


def test_without_the_check_nothing_is_called_correct() -> None:
    ran = World([{"kind": "wrong_data", "node": NODES[0]}]).run(NODES[:1], f"{ALONE} -c 0")
    assert all(cells[8] == "N/A" for cells in ran.rows())
    assert ran.outcome.exit_code == 0


def test_sizes_beyond_the_memory_are_reduced() -> None:
    ran = World().run(NODES[:1], "all_reduce_perf -b 16G -e 64G -f 2 -g 8")
    assert ran.said("# Reducing maxBytes to ")
    assert [cells[0] for cells in ran.rows()] == [str(16 << 30)]


def test_too_few_gpus_end_before_any_row() -> None:
    ran = World().run(NODES[:1], "all_reduce_perf -g 8", gpus=7)
    assert ran.said("Invalid number of GPUs: 8 requested but only 7 were found.")
    assert ran.outcome.exit_code == 5 and not ran.rows()
    none = World().run(NODES[:1], "all_reduce_perf -g 8", gpus=0)
    assert none.outcome.exit_code == 2 and none.said("no CUDA-capable device")


def test_a_minimum_bandwidth_decides_the_exit_code() -> None:
    world = World()
    assert world.run(NODES[:1], ALONE, env={"NCCL_TESTS_MIN_BW": "300"}).outcome.exit_code == 0
    failed = world.run(NODES[:1], ALONE, env={"NCCL_TESTS_MIN_BW": "900"})
    assert failed.outcome.exit_code == 7 and failed.said("# Avg bus bandwidth")[0].endswith(" FAILED")


def test_nccl_says_nothing_unless_asked() -> None:
    assert not World().launch(NODES, debug="NONE").said("NCCL")
    quiet = World().launch(NODES, debug="WARN")
    assert quiet.said("NCCL version 2.28.9+cuda13.0") == ["NCCL version 2.28.9+cuda13.0"]
    assert not quiet.said("NCCL INFO")


def test_edges_prove_the_transport_of_a_healthy_run() -> None:
    ran = World().launch(NODES)
    assert {line.split(" NCCL INFO ")[1] for line in ran.said("Using network")} == {"Using network IB"}
    edges = [line for line in ran.lines if "Channel" in line and " via " in line]
    between = [line for line in edges if "NET/" in line]
    assert between and all("via NET/IB/" in line and line.endswith("/GDRDMA") for line in between)
    assert all("via P2P/CUMEM" in line for line in edges if "NET/" not in line)
    assert ran.said("comm 0x")[0].endswith("rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0")
    assert ran.said("Connected all rings, use ring PXN 0 GDR 1")
    assert ran.said("16 nvls channels")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"fabric": "roce"}, "mlx5_0:1/RoCE"),
        ({"platform": "aws"}, "Selected provider is efa, fabric is efa-direct (found 32 nics)"),
        ({"platform": "aws"}, "Using network Libfabric"),
        ({"fabric": "tcp"}, "Using network Socket"),
        ({"gpu": "gb200"}, "nNodes 1 localRanks 8 localRank 0 MNNVL 1"),
        ({"gpu": "gb200"}, "via P2P/MNNVL"),
    ],
)
def test_the_fabric_shows_in_the_lines(keys: dict[str, str], words: str) -> None:
    assert World(**keys).launch(NODES).said(words)


def test_settings_of_the_command_reach_the_run() -> None:
    world = World()
    assert world.launch(NODES, extra="-x NCCL_IB_DISABLE=1").said("Using network Socket")
    assert world.launch(NODES, extra="-x NCCL_NVLS_ENABLE=0").said(" 0 nvls channels")
    assert world.launch(NODES, extra="-x NCCL_IB_HCA=mlx5_1,mlx5_2").said("Using [0]mlx5_1:1/IB [1]mlx5_2:1/IB [RO]")
    assert not world.launch(NODES, extra="-x NCCL_DEBUG_SUBSYS=GRAPH").said("Using network")
    bad = world.launch(NODES, extra="-x NCCL_SOCKET_IFNAME=nope0")
    assert bad.outcome.exit_code == 3 and bad.said("Bootstrap : no socket interface found")
    loopback = world.run(NODES[:1], ALONE, env={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_DEBUG": "INFO"})
    assert loopback.said("via NET/IB/") and not loopback.said("P2P/CUMEM")


def test_a_pod_that_asks_for_no_nic_measures_tcp_on_every_host() -> None:
    ran = World().launch(NODES, nic=False)
    assert {line.split(":")[0] for line in ran.said("NET/IB : No device found.")} == {"job-0", "job-1"}
    assert ran.peak() < 6


def test_large_runs_stay_readable() -> None:
    world = World()
    ran = world.launch(world.names)
    assert len(ran.said("#  Rank")) == 512
    assert len(ran.lines) < 10_000
    assert ran.outcome.exit_code == 0


def test_the_same_seed_prints_the_same_log() -> None:
    first, second = (World(noise=0.05, seed=5).launch(NODES).lines for _index in range(2))
    assert first == second
    assert first != World(noise=0.05, seed=6).launch(NODES).lines


def test_tagged_output_tags_every_line_of_the_ranks() -> None:
    ran = World().launch(NODES, extra="--tag-output")
    assert ran.said("[1,0]<stdout>:    536870912") and ran.said("[1,8]<stdout>: job-1:")
    old = World(software={"mpi": "openmpi4"}).launch(NODES, extra="--tag-output")
    assert old.said("[1,0]<stdout>:   536870912")


def test_an_outer_timeout_cuts_the_run() -> None:
    ran = World(fabric="tcp").launch(NODES)
    assert ran.outcome.duration_s is not None and ran.outcome.duration_s > 300
    cut = World(fabric="tcp").run(NODES, "timeout -k 5 2m mpirun -N 8 --hostfile /etc/mpi/hostfile all_reduce_perf -b 1G -e 8G -f 2; sshd")
    assert (cut.outcome.exit_code, cut.outcome.duration_s) == (124, 120)
    assert not cut.said("Avg bus bandwidth")


def test_the_termination_message_holds_the_result() -> None:
    ran = World().launch(NODES)
    assert "# Avg bus bandwidth" in ran.outcome.termination_message
    assert len(ran.outcome.termination_message) <= 4096
    assert World().alone(NODES[0]).outcome.termination_message == ""


def test_json_can_be_had_from_the_log() -> None:
    import json

    ran = World(software={"nccl_tests": "2.19.6"}).run(NODES[:1], f"{ALONE} -J /tmp/r.json; cat /tmp/r.json")
    document = json.loads(ran.lines[-1])
    assert document["version"] == 3
    assert [item["size"] for item in document["results"]] == [int(cells[0]) for cells in ran.rows()]
    assert document["average_bus_bandwidth"]["bandwidth"] > 400


def test_launch_problems_speak_with_the_launchers_words() -> None:
    world = World()
    missing = world.launch(NODES, gone=["job-1"])
    assert missing.outcome.exit_code == 1
    assert missing.said("ssh: Could not resolve hostname job-1.job: Name or service not known")
    assert missing.said("PRTE was unable to reliably start one or more daemons.")
    slots = world.run(NODES, "mpirun -N 16 --hostfile /etc/mpi/hostfile all_reduce_perf; sshd")
    assert slots.outcome.exit_code == 1 and slots.said("There are not enough slots available")
    nofile = world.run(NODES, "mpirun --hostfile /no/such all_reduce_perf; sshd")
    assert nofile.outcome.exit_code == 1 and nofile.said("/no/such")
    no_server = world.run(NODES, "mpirun -N 8 --hostfile /etc/mpi/hostfile all_reduce_perf")
    assert no_server.said("Connection refused") and no_server.outcome.exit_code == 1


def test_workers_serve_ssh_until_they_are_deleted() -> None:
    worker = World().launch(NODES, index=1)
    assert worker.lines[0] == "Server listening on 0.0.0.0 port 2222."
    assert worker.outcome.duration_s is None


@pytest.mark.parametrize("version", ["2.13.4", "2.15.0", "2.17.2", "2.17.8", "2.19.6"])
@pytest.mark.parametrize(
    ("keys", "verdict", "transport"),
    [
        ({}, None, "ib"),
        ({"fabric": "roce"}, None, "roce"),
        ({"platform": "aws"}, None, "efa"),
        ({"gpu": "gb200"}, None, "mnnvl"),
        ({"faults": [{"kind": "socket_fallback", "node": NODES[1]}]}, None, "tcp"),
        ({"faults": [{"kind": "wrong_data", "node": NODES[1]}]}, "DataCorruption", "ib"),
        ({"faults": [{"kind": "crash", "node": NODES[1]}]}, "WorkloadFailed", "ib"),
    ],
)
def test_the_reader_of_real_logs_understands_simulated_ones(
    tmp_path: Path, version: str, keys: dict[str, t.Any], verdict: str, transport: str
) -> None:
    ran = World(**keys, software={"nccl_tests": version}).launch(NODES)
    log = tmp_path / "launcher.log"
    log.write_text("\n".join(ran.lines) + "\n", encoding="utf-8")
    found = measure("nccl", [str(log)], {"exit_code": ran.outcome.exit_code})
    assert found["verdict"] == verdict
    assert found["transport"]["class"] == transport
    if verdict is None:
        assert found["complete"] is True
        assert found["values"]["bus_bandwidth"] == pytest.approx(max(float(cells[7]) for cells in ran.rows()), rel=0.01)
