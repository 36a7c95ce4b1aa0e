# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for every log: no input crashes the reader, nothing added changes a number, nothing cut gains trust."""

from __future__ import annotations

import functools
import gzip
import os
import sys
import tempfile
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure

sys.path.insert(0, str(Path(__file__).parent))

import nccl_text as text

LOGS = Path(__file__).parents[4] / "vectors" / "cases"
COMPLETE = [
    "logs/n01-allreduce-2node-ib-gdr.log",
    "logs/n12-loopback-1rank-2cycles.log",
    "logs/n18-mpi-tag-output.log",
    "logs/n20-info-splits-row.log",
    "logs/n40-three-cycles-one-slow.log",
    "logs/n44-two-tests-one-log.log",
    "logs/n45-crlf-ansi.log.gz",
    "logs/n47-broadcast-root3-graph-mem.log",
    "real-h200x2/m09-tag-output.log",
]
# Numbers of a result; the transport may be known less well in a shorter log.
NUMBERS = ("bus_bandwidth", "alg_bandwidth", "bus_bandwidth_peak", "samples", "message_size", "avg_bus_bandwidth", "latency_us", "wrong")


def read(content: bytes, exit_code: int | None = 0, name: str = "run.log") -> dict[str, t.Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        Path(path).write_bytes(content)
        return measure("nccl", [path], {"exit_code": exit_code})


def numbers(said: dict[str, t.Any]) -> dict[str, t.Any]:
    return {name: said["values"].get(name) for name in NUMBERS}


@functools.cache
def whole(name: str) -> bytes:
    content = (LOGS / name).read_bytes()
    return gzip.decompress(content) if name.endswith(".gz") else content


@functools.cache
def whole_numbers(name: str) -> dict[str, t.Any]:
    said = read(whole(name))
    assert said["verdict"] is None
    return numbers(said)


PIECES = st.sampled_from(
    [
        *text.log(text.HEALTHY).splitlines(keepends=True),
        text.info("gpu-a1", "Using network IB"),
        "[1,0]<stdout>:",
        "2026-03-02T01:05:10Z stdout P ",
        "\x1b[0m",
        "\r",
        "b'",
        "{",
        "-nan ",
        "1e999 ",
        "gpu-a1: Test NCCL failure x.cu:1 'y / z'\n",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.lists(PIECES, max_size=40).map(lambda pieces: "".join(pieces).encode())))
def test_any_bytes_are_read_and_only_a_whole_table_is_measured(content: bytes) -> None:
    """A crash of the parser, or a pass without numbers, would both be worse than a failed node."""
    for exit_code in (0, None):
        said = read(content, exit_code)
        if said["verdict"] is None:
            assert said["parsed"]["rows"]
            assert said["parsed"]["footer"]["oob"] == "OK"
            assert said["parsed"]["missing_sizes"] == []
            assert said["parsed"]["lost_rows"] == []
            assert said["complete"] is True


@pytest.mark.parametrize("name", COMPLETE)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_cut_logs_are_not_measured_or_give_the_same_numbers(name: str, data: st.DataObject) -> None:
    """A log that a rotation or a kill shortened must not turn into another result."""
    content = whole(name)
    cut = data.draw(st.integers(0, len(content) - 1))
    said = read(content[:cut])
    # Before the head of a second test nobody can know that there was one.
    second = content.find(b"minBytes", content.find(b"Avg bus"))
    alone = cut < second and content.find(b"Avg bus") < cut
    assert said["verdict"] is not None or alone or numbers(said) == whole_numbers(name)
    if said["verdict"] == "LogIncomplete":
        assert said["complete"] is False


NOISE = st.sampled_from(
    [
        "Warning: Permanently added 'w-1' (ED25519) to the list of known hosts.\n",
        "gpu-a9:1:2 [3] NCCL INFO Trees [0] -1/-1/-1->0->-1\n",
        "[2026-03-02 10:31:07] gpu-a9:1:2 [0] misc/x.cc:1 NCCL WARN harmless\n",
        "\n",
        "some library: locale not set\n",
        "1048576 things were counted\n",
        "  42\n",
        "# a remark\n",
        '{"level": "info"}\n',
        "\xff\xfe\n",
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), NOISE), max_size=12), st.sampled_from(COMPLETE[:1] + COMPLETE[4:6]))
def test_noise_between_lines_changes_no_number(noise: list[tuple[int, str]], name: str) -> None:
    """Launchers, ssh and libraries print between the rows."""
    lines = whole(name).decode().splitlines(keepends=True)
    for place, line in noise:
        lines.insert(min(place, len(lines)), line)
    said = read("".join(lines).encode("latin-1"))
    assert (said["verdict"], numbers(said)) == (None, whole_numbers(name))


PREFIXES = ["2026-03-02T01:05:10.5-07:00 ", "[1,0]<stdout>:", "0: ", "[pod/x-0/node] ", "2026-03-02T01:05:10Z stdout F ", "[default0]:"]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PREFIXES), st.booleans(), st.booleans(), st.sampled_from([COMPLETE[0], COMPLETE[3], COMPLETE[5]]))
def test_prefixes_change_no_number(prefix: str, carriage_return: bool, colour: bool, name: str) -> None:
    ending = "\r\n" if carriage_return else "\n"
    lines = whole(name).decode().splitlines()
    if colour:
        lines = [f"\x1b[32m{line}\x1b[0m" for line in lines]
    said = read("".join(f"{prefix}{line}{ending}" for line in lines).encode())
    assert (said["verdict"], numbers(said)) == (None, whole_numbers(name))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.sampled_from([COMPLETE[0], COMPLETE[5]]))
def test_cri_halves_change_no_number(length: int, name: str) -> None:
    """Runtimes split lines at any length."""
    out = []
    for line in whole(name).decode().splitlines():
        starts = range(0, max(len(line), 1), length)
        out += [f"2026-03-02T01:05:10.1Z stdout {'F' if at == starts[-1] else 'P'} {line[at : at + length]}\n" for at in starts]
    said = read("".join(out).encode())
    assert (said["verdict"], numbers(said)) == (None, whole_numbers(name))


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from([text.IDENTITY, text.OUT_OF_PLACE]), min_size=1), st.sampled_from(["info", "warning"]), st.integers(0, 1))
def test_split_rows_change_no_number(cuts: set[int], kind: str, which: int) -> None:
    """NCCL writes to the same stream through its own buffer, between any two prints of a row."""
    rows = list(text.HEALTHY)
    between = text.info("gpu-a1", "x") if kind == "info" else "\n[2026-03-02 10:31:07] gpu-a1:1:2 [0] x.cc:1 NCCL WARN y\n"
    for cut in sorted(cuts, reverse=True):
        rows[which] = rows[which][:cut] + between + rows[which][cut:]
    said = read(text.log(rows).encode())
    assert (said["verdict"], numbers(said)) == (None, numbers(read(text.log(text.HEALTHY).encode())))
