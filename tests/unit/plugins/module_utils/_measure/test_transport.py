# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which path the data took, and whose fault a wrong path is."""

from __future__ import annotations

import sys
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure

sys.path.insert(0, str(Path(__file__).parent))

import nccl_text as text

Run = t.Callable[..., dict[str, t.Any]]
IB_LINE = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
A, B = "gpu-a1", "gpu-a2"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run([(host, message), ..], hosts=.., **context) -> measurement of a healthy two-rank log with these lines"""

    def measure_lines(lines: list[tuple[str, str]], hosts: tuple[str, ...] = (A, B), gpus: int = 1, **context: t.Any) -> dict[str, t.Any]:
        path = tmp_path / "launcher.log"
        debug = "".join(text.info(host, message) for host, message in lines)
        path.write_text(text.log(text.HEALTHY, debug=debug, hosts=hosts, gpus=gpus))
        return measure("nccl", [str(path)], {"exit_code": 0, **context})

    return measure_lines


def edge(src: int, dst: int, via: str, way: str = " [receive]") -> str:
    return f"Channel 00/0 : {src}[0] -> {dst}[0]{way} via {via}"


def both(via: str) -> list[tuple[str, str]]:
    """An edge in each direction, printed by the receivers."""
    return [(A, edge(1, 0, via)), (B, edge(0, 1, via))]


@pytest.mark.parametrize(
    ("lines", "name", "gdr"),
    [
        ([(A, IB_LINE), (B, IB_LINE), *both("NET/IB/0/GDRDMA")], "ib", "all"),
        ([(A, IB_LINE.replace(":1/IB", ":1/RoCE")), *both("NET/IBext_v8/0/GDRDMA(PCI)")], "roce", "all"),
        (both("NET/gIB/0/GDRDMA/Shared"), "roce", "all"),
        (both("NET/FasTrak/0"), "gcp_tcpxo", "none"),
        (both("NET/Socket/0"), "tcp", "none"),
        (
            [(A, "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)"), *both("NET/AWS Libfabric/2/GDRDMA")],
            "efa",
            "all",
        ),
        ([(A, "NET/OFI Selected provider is tcp;ofi_rxm, fabric is 10.0.0.0/24 (found 1 nics)"), *both("NET/Libfabric/0")], "tcp", "none"),
        (both("NET/OFI/0"), "ofi", "none"),
        (both("P2P/MNNVL"), "mnnvl", "not_applicable"),
        ([(A, IB_LINE), (A, "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA")], "ib", "all"),
        ([(A, edge(1, 0, "NET/IB/0/GDRDMA")), (B, edge(0, 1, "NET/IB/0"))], "ib", "partial"),
    ],
)
def test_class_of_edges_between_hosts(run: Run, lines: list[tuple[str, str]], name: str, gdr: str) -> None:
    """The name of the module is not the path: Libfabric over tcp is TCP, IB over Ethernet is RoCE."""
    said = run(lines)["transport"]
    assert (said["class"], said["gdr"], said["inferred"]) == (name, gdr, False)


def test_worst_edge_wins_and_the_odd_host_is_blamed(run: Run) -> None:
    """One host without its adapter drags the pair to TCP; its healthy peer is not at fault."""
    lines = [
        (A, IB_LINE),
        (A, "Using network IB"),
        (B, "NET/IB : No device found."),
        (B, "Using network Socket"),
        (A, edge(1, 0, "NET/IB/0/GDRDMA")),
        (B, edge(0, 1, "NET/Socket/0")),
    ]
    said = run(lines, expect_transport="rdma")
    assert said["verdict"] == "TransportFallback"
    assert (said["transport"]["class"], said["transport"]["suspect_hosts"]) == ("tcp", [B])
    assert {item["host"] for item in said["findings"]} == {B}
    assert any("No device found" in line for item in said["findings"] for line in item["evidence"])


def test_nobody_is_blamed_when_all_hosts_agree(run: Run) -> None:
    lines = [(host, message) for host in (A, B) for message in ("NET/IB : No device found.", "Using network Socket")]
    said = run([*lines, *both("NET/Socket/0")], expect_transport="rdma")
    assert said["verdict"] == "TransportFallback"
    assert said["transport"]["blame"] == []
    assert [item["host"] for item in said["findings"]] == [None]


def test_host_with_fewer_adapters_is_blamed(run: Run) -> None:
    fewer = IB_LINE.replace(" [1]mlx5_1:1/IB", "")
    assert run([(A, IB_LINE), (B, fewer), *both("NET/IB/0/GDRDMA")])["transport"]["suspect_hosts"] == [B]


def test_list_line_without_adapters_is_no_adapter(run: Run) -> None:
    said = run([(A, "NET/IB : No device found."), (A, "NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>")])["transport"]
    assert said["hosts"][A]["ib_absent"] is True


def test_nvlink_domain_over_hosts_counts_its_hosts(run: Run) -> None:
    """NCCL calls an NVLink domain one node."""
    said = run([(A, "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 1"), *both("P2P/MNNVL")], expect_transport="mnnvl")
    assert (said["verdict"], said["values"]["nodes"], said["transport"]["mnnvl"]) == (None, 2, True)
    assert said["transport"]["inter_node_edges"]["mnnvl"] == 2


def test_one_host_with_socket_is_no_fallback(run: Run) -> None:
    said = run(
        [(A, "Using network Socket"), (A, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")], hosts=(A,), gpus=2, expect_transport="nvlink"
    )
    assert (said["verdict"], said["transport"]["class"], said["transport"]["gdr"]) == (None, "nvlink", "not_applicable")


def test_loopback_over_the_adapter_of_one_host_is_meant(run: Run) -> None:
    lines = [(A, IB_LINE), (A, edge(0, 1, "NET/IB/0/GDRDMA")), (A, edge(1, 0, "NET/IB/0/GDRDMA"))]
    said = run(lines, hosts=(A,), gpus=2, expect_transport="ib")
    assert (said["verdict"], said["transport"]["class"], said["transport"]["intra_node"]) == (None, "ib", ["NET/IB"])


def test_hosts_that_share_a_name_are_two(run: Run) -> None:
    said = run([(A, "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"), *both("NET/Socket/0")], hosts=(A, A))
    assert (said["transport"]["class"], said["values"]["nodes"]) == ("tcp", 2)


def test_host_memory_inside_a_node_is_degraded(run: Run) -> None:
    lines = [(A, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"), (A, "Channel 01/0 : 1[1] -> 0[0] via SHM/direct/direct")]
    said = run(lines, hosts=(A,), gpus=2, expect_transport="nvlink")
    assert (said["verdict"], said["transport"]["class"]) == ("TransportFallback", "shm")
    assert said["transport"]["degraded"][0]["path"] == "SHM"


def test_graph_without_nvlink_is_pcie(run: Run) -> None:
    lines = [(A, "Pattern 4, crossNic 0, nChannels 2, bw 12.0/12.0, type PHB/PIX, sameChannels 1"), (A, edge(0, 1, "P2P/IPC", ""))]
    assert run(lines, hosts=(A,), gpus=2)["transport"]["class"] == "pcie"


def test_without_edges_the_network_name_is_a_guess(run: Run) -> None:
    said = run([(A, "Using network AWS Libfabric"), (B, "Using network Socket")])["transport"]
    assert (said["class"], said["inferred"], said["ranks_reporting"]) == ("tcp", True, 2)


@pytest.mark.parametrize(("lines", "verdict"), [([], "LogIncomplete"), ([(A, "Using network IB")], None)])
def test_what_was_expected_must_show(run: Run, lines: list[tuple[str, str]], verdict: str | None) -> None:
    """With NCCL_DEBUG_FILE nothing reaches the log: that RDMA was used is not proven. Who asks for an edge must get one."""
    said = run(lines, expect_transport="rdma")
    assert (said["verdict"], said["complete"]) == (verdict, verdict is None)
    assert [item["reason"] for item in said["findings"]] == (["Warning"] if verdict else [])
    assert run(lines, expect_transport="rdma", require_transport_proof=True)["verdict"] == "TransportFallback"
    assert run(lines)["verdict"] is None


def test_lines_of_later_communicators_are_not_counted_again(run: Run) -> None:
    said = run(both("NET/IB/0/GDRDMA") * 3)["transport"]
    assert said["inter_node_edges"] == {"total": 2, "net": 2, "gdr": 2, "mnnvl": 0, "collnet": 0}


def test_forced_settings_and_nvls_are_told(run: Run) -> None:
    lines = [
        (A, "NCCL_IB_DISABLE set by environment to 1."),
        (A, "NCCL_NET set by environment to Socket."),
        (A, "24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer"),
    ]
    said = run(lines)
    assert said["transport"]["forced"] == ["no IB", "Socket"]
    assert said["values"]["nvls"] is False


def test_nvls_that_could_be_used_but_is_not(run: Run) -> None:
    """Worth a look at the fabric manager, no fault by itself."""
    lines = [
        (A, "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 24)"),
        (A, "24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer"),
    ]
    said = run(lines)
    assert (said["verdict"], [item["reason"] for item in said["findings"]]) == (None, ["Warning"])
    assert run([*lines, (A, "NCCL_NVLS_ENABLE set by environment to 0.")])["findings"] == []


@pytest.mark.parametrize(
    ("found", "expected", "verdict"),
    [
        ("NET/IB/0/GDRDMA", "rdma", None),
        ("NET/IB/0/GDRDMA", "roce", None),  # the link layer was not printed: no contradiction
        ("P2P/MNNVL", "rdma", None),
        ("NET/IB/0/GDRDMA", "mnnvl", "TransportFallback"),
        ("NET/IB/0/GDRDMA", "efa", "TransportFallback"),
        ("NET/Socket/0", "ib", "TransportFallback"),
        ("NET/SPCX/0/GDRDMA", "rdma", None),
        ("NET/SPCX/0/GDRDMA", "roce", None),
        ("NET/UCX/0/GDRDMA", "rdma", None),
        ("NET/FasTrak/0/GDRDMA", "rdma", "TransportFallback"),
        ("NET/FasTrak/0", "tcpxo", None),
        ("NET/Socket/0", "tcpxo", "TransportFallback"),
        ("NET/Socket/0", "tcp", None),
        ("NET/IB/0/GDRDMA", "tcp", None),
    ],
)
def test_expectations(run: Run, found: str, expected: str, verdict: str) -> None:
    assert run(both(found), expect_transport=expected)["verdict"] == verdict


def test_missing_gpu_direct_is_a_fault_when_expected(run: Run) -> None:
    lines = [(A, edge(1, 0, "NET/IB/0/GDRDMA")), (B, edge(0, 1, "NET/IB/0"))]
    said = run(lines, expect_gdr=True)
    assert (said["verdict"], said["transport"]["hosts_without_gdr"], said["transport"]["suspect_hosts"]) == ("TransportFallback", [B], [B])
    guessed = run([(A, "Using network IB"), (A, "Connected all rings, use ring PXN 0 GDR 0")], expect_gdr=True)
    assert guessed["verdict"] == "TransportFallback"
