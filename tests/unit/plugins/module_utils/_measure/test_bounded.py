# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a log holds: no exception, no hours, no gigabytes. One bad log must not end the judging of a cluster."""

from __future__ import annotations

import gzip
import json
import sys
import time
import tracemalloc
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.find import find_logs, measure_logs
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import KINDS, measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.nccl import results

sys.path.insert(0, str(Path(__file__).parent))

import nccl_text as text

HEALTHY = text.log(text.HEALTHY)
LONG_NUMBER = "9" * 5000


def read(path: Path, content: str | bytes, kind: str = "nccl") -> t.Any:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return measure(kind, [str(path)], {"exit_code": 0})


def spoiled() -> list[str]:
    """A healthy log with one of its numbers, at any place, replaced by one that no machine prints."""
    found = []
    for number in (LONG_NUMBER, "1e999", "0e99999", "1.7e308", "-5", "99999999999999999999", "nan", "\u0663\u0663"):
        for line in HEALTHY.splitlines():
            words = line.split()
            for word in dict.fromkeys(word for word in words if any(char.isdigit() for char in word)):
                found.append(HEALTHY.replace(line, line.replace(word, number), 1))
    return found


def test_no_number_breaks_the_reader_and_none_passes_that_nobody_measured(tmp_path: Path) -> None:
    """Python refuses to read 4301 digits and to add 1.7e308 twice; an exception here ended the judging of a whole directory."""
    for content in spoiled():
        said = read(tmp_path / "x.log", content)
        assert "defect" not in said["reason"]
        value = said["values"].get("bus_bandwidth")
        assert said["verdict"] is not None or value in (377.05, 379.37)


@pytest.mark.parametrize("line", [
    f"Invalid number of GPUs: {LONG_NUMBER} requested but only 7 were found",
    f"gpu-a1: Test timeout ({LONG_NUMBER}s)",
    f"gpu-a1:1:2 [0] NCCL INFO comm 0x1 rank {LONG_NUMBER} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
    f"gpu-a1:1:2 [0] NCCL INFO Channel 00/0 : {LONG_NUMBER}[0] -> 1[0] via NET/IB/{LONG_NUMBER}",
    f"gpu-a1:1:2 [0] x.cc:1 NCCL WARN Mismatched NCCL version detected : rank {LONG_NUMBER} version 1 rank 1 version 2",
    f"Exit code: {LONG_NUMBER}", f"[1,{LONG_NUMBER}]<stdout>:x", f"{LONG_NUMBER}: # x", f"[{LONG_NUMBER}] x",
])  # fmt: skip
def test_numbers_of_any_length_in_any_line_are_read(tmp_path: Path, line: str) -> None:
    assert "defect" not in read(tmp_path / "x.log", HEALTHY + line + "\n")["reason"]


def test_a_reader_that_breaks_off_gives_an_incomplete_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours is not a pass, names the log, and shows nothing of what stands in it."""

    def broken(paths: list[str], context: dict[str, t.Any]) -> t.Any:
        raise ValueError("secret-token-in-the-log")

    monkeypatch.setattr(results, "measure_files", broken)
    said = read(tmp_path / "launcher.log", HEALTHY)
    assert (said["verdict"], said["complete"], said["kind"]) == ("LogIncomplete", False, "nccl")
    assert "launcher.log" in said["reason"] and "ValueError" in said["reason"]
    assert "secret" not in json.dumps(said)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"log_profile"}))
@settings(max_examples=25, deadline=None)
@given(content=st.one_of(st.binary(max_size=400), st.lists(st.sampled_from([*HEALTHY.splitlines(), "{", '"a": [', LONG_NUMBER]), max_size=9)
                         .map(lambda lines: "\n".join(lines).encode())))  # fmt: skip
def test_no_kind_raises_for_any_content(tmp_path_factory: pytest.TempPathFactory, kind: str, content: bytes) -> None:
    said = read(tmp_path_factory.mktemp("log") / "x.log", content, kind)
    assert said["kind"] == kind


def test_one_unreadable_log_does_not_end_a_directory(tmp_path: Path) -> None:
    (tmp_path / "good.log").write_text(HEALTHY)
    packed = bytearray(gzip.compress(HEALTHY.encode()))
    packed[-6] ^= 0xFF  # its checksum
    (tmp_path / "worn.log.gz").write_bytes(packed)
    (tmp_path / "cut.log.gz").write_bytes(gzip.compress(HEALTHY.encode() * 50)[:-30])
    (tmp_path / "none.log.gz").write_bytes(b"no gzip at all")
    for kind in ("auto", "nccl"):
        measured = {log["name"]: log["measurement"] for log in measure_logs(find_logs(str(tmp_path), kind)["logs"], {"exit_code": 0})}
        assert measured["good.log"]["verdict"] is None, kind
        assert {"cut.log.gz", "worn.log.gz"} <= set(measured)
        assert kind == "auto" or measured["none.log.gz"]["verdict"] == "LogIncomplete"


def test_a_wrong_context_is_still_the_callers_mistake(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(HEALTHY)
    with pytest.raises(InputError, match="judged_size"):
        measure_logs(find_logs(str(tmp_path))["logs"], {"judged_size": "8G"})


def test_a_hole_of_zeros_is_a_cut(tmp_path: Path) -> None:
    """A machine that crashes leaves zeros in a file; what follows them is read."""
    plain = HEALTHY.encode()
    at = plain.index(b"# Out of bounds")
    said = read(tmp_path / "x.log", plain[:at] + b"\0" * 60_000 + plain[at:])
    assert (said["verdict"], said["values"]["bus_bandwidth"]) == (None, 379.37)


WORDS = {
    "word": "x",
    "digits": "1",
    "zeros": "\0",
    "blanks": " ",
    "brackets": "[",
    "colons": "x:",
    "hashes": "#",
    "numbers": "1 ",
    "dates": "2026-03-02 ",
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("around", ["{}", "{} NCCL INFO Using network IB", "gpu-a1:1:2 [0] NCCL INFO {}", "# {}", "# Rank {}",
                                    "  1073741824 268435456 float sum -1 {}", "gpu-a1: Test {} failure x 'y'"])  # fmt: skip
def test_a_long_line_takes_no_time_worth_mentioning(tmp_path: Path, word: str, around: str) -> None:
    """20 kB took 3 s, 40 kB 13 s; a line may have a megabyte. Measured against the same log without it."""
    line = around.format(WORDS[word] * (400_000 // len(WORDS[word])))
    begun = time.process_time()
    read(tmp_path / "x.log", HEALTHY + line + "\n")
    assert time.process_time() - begun < 2


def test_endless_logs_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Runs without an end, devices without an end: kept as far as a judge needs them, and never a pass."""
    path = tmp_path / "x.log"
    with path.open("w") as out:
        for number in range(6000):
            out.write(text.head(device_text=f"#  Rank {number} Group 0 Pid 1 on gpu-{number} device 0 [0000:18:00] {'H' * 2000}\n"))
        out.write(text.WIDE_TITLES + "".join(text.HEALTHY) + text.foot())
    tracemalloc.start()
    said = measure("nccl", [str(path)], {"exit_code": 0})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said["verdict"] is not None
    assert peak < 40 << 20
