# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Small tools: no input makes them raise, or slower than linear, and no number in their values is impossible."""

from __future__ import annotations

import time
import tracemalloc
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.metrics import METRICS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.outcomes import RANGES, is_possible, number, text_of, whole
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.tools import fio, gpu_burn, key_value, nvbandwidth, perftest

MODULES: list[t.Any] = [fio, gpu_burn, key_value, nvbandwidth, perftest]
# What each line of a tool begins with: behind it stands what another process, or a hole of zero bytes, left.
HEADS = [
    "", " ", "\t", "{", '{"nvbandwidth": ', "10.0%  proc'd: 5 (", "10.0%  proc'd: 5 (4 Gflop/s)   errors: ", "5%  proc'd: 1 - ",
    "GPU 0: ",
    "Tested ", "\tGPU 1", "Initialized device ", "Couldn't init a GPU test: ", "Running ", "SUM x ", "Device 0: ", "Process 0 (",
    " #bytes #iterations ", " #bytes     #iterations    BW peak[", " 65536 ", " Mtu : ", "RDMA_Write", "RDMA_Write BW ", "IB device ",
    "Port number ", "a=", "RESULT ", 'a="', "RESULT {", "--", "test_info: ",
]  # fmt: skip
FILLS = [
    "x",
    "7",
    " ",
    "\0",
    "0 - ",
    "(",
    "- ",
    "a ",
    "a=1 ",
    "{",
    "}",
    '"',
    "-",
    "[",
    "GPU 0: ",
    "IB device ",
    "7.",
    "e",
    ":",
    "1 (1 Gflop/s) - ",
]


def seconds(module: t.Any, text: str) -> float:
    started = time.process_time()
    module.parse(text, {"exit_code": 0})
    return time.process_time() - started


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_no_line_takes_longer_than_its_length_allows(module: t.Any) -> None:
    """One line of a torn log must not stop the judging of a cluster for hours: a quadratic pattern takes seconds for 20 kB."""
    slow = []
    for head in HEADS:
        for fill in FILLS:
            text = head + fill * (20_000 // len(fill)) + "!\n"
            if seconds(module, text) > 0.2 and (took := seconds(module, text)) > 0.2:
                slow.append((head, fill, took))
    assert slow == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_numbers_of_thousands_of_digits_are_no_exception(module: t.Any) -> None:
    digits = "9" * 5000
    for head in HEADS:
        assert module.parse(f"{head}{digits}\n{head}-{digits}.{digits}\n", {"exit_code": 0})["kind"]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(MODULES),
    st.lists(st.tuples(st.sampled_from(HEADS), st.text(max_size=40) | st.sampled_from(FILLS)), max_size=12),
)
def test_no_mixture_of_lines_is_an_exception(module: t.Any, lines: list[tuple[str, str]]) -> None:
    made = module.parse("\n".join(head + tail for head, tail in lines), {"exit_code": 0})
    table = METRICS[made["kind"]]
    for name, value in made["values"].items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and name in table:
            assert is_possible(value, made["units"].get(name, ""))


def test_every_unit_of_a_tool_has_a_range() -> None:
    """A unit without one would let any number through."""
    tools = ("perftest", "fio", "nvbandwidth", "gpu_burn")
    assert {metric.unit for kind in tools for metric in METRICS[kind].values()} <= set(RANGES)
    assert not is_possible(-1.0, "GB/s") and not is_possible(float("nan"), "GB/s") and not is_possible(0.0, "us")


@pytest.mark.parametrize("kind", ["fio", "gpu_burn", "nvbandwidth", "perftest"])
def test_a_large_log_does_not_stay_in_memory(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as handle:
        for _block in range(10):
            handle.write("node-a:12:12 [0] some text that belongs to no tool at all, again and again\n" * 7000)
    tracemalloc.start()
    measure(kind, [str(log)], {"exit_code": 0})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20, f"{peak >> 20} MiB for a log of {log.stat().st_size >> 20} MiB"


def test_words_and_numbers_of_documents() -> None:
    assert (number("1e400"), number("nan"), number("1.2.3"), number(True)) == (None, None, None, None)
    assert (whole("12"), whole("9" * 5000), whole(2.0), whole(2.5), whole(None)) == (12, None, 2, None, None)
    assert (text_of(3), text_of("x"), text_of(False)) == ("3", "x", None)
