# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""From bytes to lines: nothing a program printed is lost, nothing a launcher added is left."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure import prefixes as cleaning
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.labels import Labels


def texts(path: Path) -> list[str]:
    return [Labels().clean(line).text for block in cleaning.read_blocks(str(path)) for line in block.lines]


def test_progress_bar_pieces_keep_the_stamp_of_their_line(tmp_path: Path) -> None:
    """The speed of a step is read from the time of its piece."""
    path = tmp_path / "log"
    path.write_bytes(b"2026-03-02T08:11:04Z a\rb\rc\r\nplain\n")
    lines = [Labels().clean(line) for block in cleaning.read_blocks(str(path)) for line in block.lines]
    assert [(line.text, line.timestamp) for line in lines] == [
        ("a", "2026-03-02T08:11:04Z"),
        ("b", "2026-03-02T08:11:04Z"),
        ("c", "2026-03-02T08:11:04Z"),
        ("plain", None),
    ]


def test_streams_of_a_cri_file_are_joined_apart(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text(
        "2026-03-02T08:11:04Z stdout P one \n2026-03-02T08:11:04Z stderr P bad \n2026-03-02T08:11:04Z stdout F two\n"
        "2026-03-02T08:11:04Z stderr F luck\n2026-03-02T08:11:04Z stdout P never ended\n"
    )
    assert texts(path) == ["one two", "bad luck", "never ended"]
    assert list(cleaning.read_blocks(str(path)))[-1].open_end


def test_end_of_file_without_newline_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\nb")
    (block,) = (block for block in cleaning.read_blocks(str(path)) if block.torn)
    assert (block.torn, block.open_end) == ("b", True)
    assert texts(path) == ["a", "b"]


def test_lines_without_end_do_not_fill_the_memory(tmp_path: Path) -> None:
    """A log may be one gigabyte, and one line of it too."""
    path = tmp_path / "log"
    with path.open("wb") as out:
        for _number in range(24):
            out.write(b"x" * (1 << 20))
        out.write(b"\nlast\n")
    tracemalloc.start()
    lines = sum(len(block.lines) for block in cleaning.read_blocks(str(path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == 2
    assert peak < 12 << 20


def test_progress_bar_without_newlines_is_cut_at_its_returns(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"step %d of many\r" % number for number in range(200_000)))
    lines = texts(path)
    assert len(lines) == 200_000
    assert lines[-1] == "step 199999 of many"


def test_escapes_at_the_seams_of_blocks(tmp_path: Path) -> None:
    """A byte representation of a long log is one line; blocks end anywhere in it."""
    lines = [f"{'x' * (number % 97)}\\n \xe9 'quoted' \t{number}" for number in range(6000)]
    path = tmp_path / "log"
    path.write_text(repr("\n".join(lines).encode()))
    found = texts(path)
    assert found[:-1] == lines[:-1]
    assert found[-1].rstrip("'\"") == lines[-1]
