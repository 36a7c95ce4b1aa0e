# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The recap of a launcher: a rotated log still gives the number, and nothing of a recap is ever taken for a run of its own."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.detect import detect_kind
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.nccl import results
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.nccl.recap import read_recap
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.workloads import launcher_recap

LOGS = Path(__file__).parents[5] / "tests" / "vectors" / "cases" / "logs"
NAMES = [
    "n01-allreduce-2node-ib-gdr",
    "n27-roce-gdr-partial",
    "n28-efa-libfabric",
    "n38-h20-3e-single-node",
    "n26-socket-sci-notation",
    "n22-wrong-values",
]


class Made(t.NamedTuple):
    """A log as our launcher leaves it."""

    whole: str
    recap: list[str]

    def end(self, size: int) -> str:
        return self.whole.encode()[-size:].decode(errors="ignore")


def made(name: str) -> Made:
    lines = (LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines()
    debug = launcher_recap.digest(line for line in lines if "NCCL INFO" in line)
    printed = [line for line in lines if "NCCL INFO" not in line]
    recap = launcher_recap.recap("gcr1", printed, debug, 0)
    return Made("\n".join([*printed, *debug, *(f"gcr|{line}" for line in recap)]) + "\n", recap)


def judged(tmp_path: Path, text: str, message: list[str] | None = None, **context: t.Any) -> t.Any:
    (tmp_path / "log").write_text(text, encoding="utf-8")
    if message is not None:
        (tmp_path / "message").write_text("\n".join(message) + "\n", encoding="utf-8")
        context["termination_messages"] = [str(tmp_path / "message")]
    return measure("nccl", [str(tmp_path / "log")], {"exit_code": 0, **context})


@pytest.mark.parametrize("name", NAMES)
def test_a_log_that_was_rotated_to_its_end_gives_the_same_values(tmp_path: Path, name: str) -> None:
    log = made(name)
    whole = judged(tmp_path, log.whole)
    assert whole["verdict"] in (None, "DataCorruption")
    for said in (judged(tmp_path, log.end(len("\n".join(log.recap)) + 6 * len(log.recap))), judged(tmp_path, "", log.recap)):
        assert (said["verdict"], said["complete"]) == (whole["verdict"], whole["complete"])
        assert said["values"] == whole["values"]
        assert said["transport"]["class"] == whole["transport"]["class"]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9000))
def test_no_end_of_a_log_gives_another_number(tmp_path_factory: pytest.TempPathFactory, kept: int) -> None:
    tmp_path = tmp_path_factory.mktemp("log")
    log = made(NAMES[0])
    said = judged(tmp_path, log.end(kept))
    assert said["verdict"] is not None or said["values"]["bus_bandwidth"] == 484.47


def test_a_whole_log_is_read_as_if_it_had_no_recap(tmp_path: Path) -> None:
    """Its lines are no second run, and no torn rows."""
    for name in NAMES:
        log = made(name)
        without = "".join(line for line in log.whole.splitlines(keepends=True) if not line.startswith("gcr|"))
        (tmp_path / "plain").write_text(without)
        plain = results.measure_files([str(tmp_path / "plain")], {"exit_code": 0})
        said = judged(tmp_path, log.whole)
        assert (said["verdict"], said["values"], said["parsed"]) == (plain["verdict"], plain["values"], plain["parsed"])


def test_the_log_comes_first(tmp_path: Path) -> None:
    """A termination message cannot turn a run that failed into a good one."""
    log = made(NAMES[0])
    failed = log.whole.partition("# Out of bounds")[0] + "gpu-a1: Test CUDA failure common.cu:389 'unspecified launch failure'\n"
    said = judged(tmp_path, failed, log.recap, exit_code=2)
    assert said["verdict"] == "WorkloadFailed"


def test_sizes_that_were_left_out_are_not_missing_and_not_guessed(tmp_path: Path) -> None:
    log = made(NAMES[0])
    rows = [line for line in log.recap if line.startswith("R")]
    short = [line for line in log.recap if not line.startswith(("R", "X"))] + rows[:3] + ["X0~3"]
    sizes = [268435456 << shift for shift in range(6)]
    said = judged(tmp_path, "", short, expected_sizes=sizes)
    assert (said["verdict"], said["values"]["bus_bandwidth"], said["values"]["latency_us"]) == (None, 484.47, None)
    assert said["parsed"]["recap"] == {"rows_left_out": 3}
    lost = [*short[:-2], "X0~0"]  # a row is missing that was not left out
    assert judged(tmp_path, "", lost, expected_sizes=sizes)["verdict"] == "LogIncomplete"


def test_hosts_are_counted_as_they_were(tmp_path: Path) -> None:
    log = made(NAMES[0])
    assert [line for line in log.recap if line.startswith("H")] == ["H8~gpu-a1~2"]
    said = judged(tmp_path, "", log.recap)
    assert (said["values"]["ranks"], said["values"]["nodes"]) == (16, 2)


def test_the_launchers_status_counts_where_no_other_is_known(tmp_path: Path) -> None:
    log = made(NAMES[0])
    (tmp_path / "log").write_text("\n".join(f"gcr|{line}" for line in [*log.recap[:-1], "X3~0"]) + "\n")
    assert measure("nccl", [str(tmp_path / "log")], {})["verdict"] == measure("nccl", [str(tmp_path / "log")], {"exit_code": 3})["verdict"]


def test_a_log_of_a_recap_alone_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(made(NAMES[0]).end(1500))
    assert detect_kind([str(tmp_path / "log")]) == "nccl"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(["gcr1", "R8~2~float", "X0~0", "X9999~1", "H8~a1~4", "H999999~b0~999999999", "N", "T", "F#~x", "R" + "9" * 5000])
        | st.text(max_size=20)
    )
)
def test_any_message_is_read(lines: list[str]) -> None:
    found = read_recap(lines)
    assert found is None or len(found.log) < 40_000_000
