# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Training logs of any size and content: one bad line must not hold up, crash or fill the machine that reads a whole archive."""

from __future__ import annotations

import ast
import re
import sys
import time
import tracemalloc
import typing as t
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.lines import LogLine
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import failures, history, lightning, megatron
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training import results as training
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training.history import MAX_STEPS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.training.lines import read_line

sys.path.insert(0, str(Path(__file__).parent))

import training_text as text

WING = Path(training.__file__).parent

# Beginnings that a pattern of the wing may take far; each is repeated, or followed by long words, digits, blanks, bars and zeros.
HEADS = (
    *("", "iteration ", " [2026-03-02 10:00:00] iteration 10/100 | ", "iteration 10/", "saving checkpoint at iteration 1 to "),
    *("successfully loaded checkpoint from ", "loading checkpoint from ", "successfully saved local checkpoint from iteration "),
    *("[before ", "Step Time : 1.", "seq_length ..", "using world size: ", "2026-03-02 10:00:00\tJob ID: ", "Epoch 0: 10%|", "Epoch 1/1 "),
    *(
        "Epoch 1/1 ━",
        "Epoch 0: 10%|x| 1/2 [00:01<00:02, 1it/s, a",
        "Training epoch 0, iteration 1/2 | ",
        "  forward-backward ..",
        "MnX/Rnk: ",
    ),
    *(
        "Async checkpoint save for step 1 (",
        "Restoring model weights from step=",
        "[NeMo I 2026-03-02 10:00:00 checkpoint",
        "Trainer.fit stopped: ",
    ),
    *("  host      : ", "  exitcode  : ", "a.b.c.", "torch.Error: ", "CUDA error: ", "rank ", "x.py: error: ", "OpType=", " what(): "),
)
FILLS = ("x", "1", " ", "\0", "|", "━", ".", "a.", "=", ": ", ", ", "/", "iteration 1", "Epoch 0: 1%|", "rank 1", "checkpoint ", "Error")


def patterns() -> list[tuple[str, re.Pattern[str]]]:
    found = [
        (name, item) for module in (failures, lightning, megatron) for name, item in vars(module).items() if isinstance(item, re.Pattern)
    ]
    return found + [(f"wording {number}", row[2]) for number, row in enumerate(failures.WORDINGS)]


@pytest.mark.parametrize(("name", "pattern"), patterns(), ids=[name for name, _pattern in patterns()])
def test_no_pattern_takes_longer_than_its_line(name: str, pattern: re.Pattern[str]) -> None:
    """Forty thousand characters took up to 19 s, which is 0.1 to 0.8 s for eight thousand; a line may have a million."""
    for head in HEADS:
        for fill in FILLS[:9]:
            for line in (head + fill * (8_000 // len(fill)), (head + fill * 5) * (8_000 // len(head + fill * 5))):
                begun = time.process_time()
                pattern.search(line)
                assert time.process_time() - begun < 0.1, f"{name}: {head!r} and {fill!r}"


@pytest.mark.parametrize("fill", FILLS)
def test_no_line_takes_longer_than_its_length(fill: str) -> None:
    for head in HEADS:
        begun = time.process_time()
        line = head + fill * (60_000 // len(fill))
        read_line(line)
        reader = failures.Reader()
        reader.see("Traceback (most recent call last):", None)
        reader.see(line + "Error", None)
        assert time.process_time() - begun < 0.5, f"{head!r} and {fill!r}"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(HEADS),
            st.sampled_from(FILLS),
            st.sampled_from(
                ["1" * 5000, "1e308", "-1e308", "nan", "9" * 400, "0001-01-01 00:00:00", "9999-12-31 23:59:59", "\n", "| ", " |"]
            ),
            st.sampled_from(text.step(10).split("|")),
            st.sampled_from(["elapsed time per iteration (ms): ", "Save duration: ", "s :", "] datetime: ", "2026-03-02T10:00:00+23:59 "]),
        ),
        max_size=25,
    ),
    st.sampled_from([None, 0, 1, 134]),
)
def test_nothing_that_a_log_contains_ends_a_reader(pieces: list[str], exit_code: int | None) -> None:
    said = training.parse_text("".join(pieces), {"exit_code": exit_code})
    assert said["verdict"] is not None or said["values"]["avg_step_time_s"] is not None


@pytest.mark.parametrize(
    "line",
    [
        "0001-01-01T00:00:00+02:00 using world size: 2, data-parallel size: 2\n" + text.step(10),
        "Global Checkpoint Save : Rank: 0 : Iteration: 39 : Start time: 1s : Save duration: " + "9" * 29 + "s\n" + text.step(10),
        f"Training epoch 0, iteration {10**20}/{10**20} | x: 1\n",
        text.step(10, ms=1e308) + text.step(10**14, total=10**14, ms=9e8),
        "using world size: " + "9" * 5000 + ", data-parallel size: 2\n",
    ],
)
def test_numbers_and_times_beyond_every_measure_are_passed_over(line: str) -> None:
    assert training.parse_text(line)["verdict"] in ("NoMeasurement", "LogIncomplete", None)


def long_run(count: int) -> t.Iterator[LogLine]:
    for number in range(1, count + 1):
        clock = f"{10 + number // 3600 % 14:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
        yield LogLine(
            text.step(number * 10, clock, 1000.0 + number % 3, total=count * 10, tflops=300.0 + number % 3, nan=number % 2).rstrip()
        )


def test_memory_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 MB of step lines took 800 MB."""
    monkeypatch.setattr(history, "MAX_STEPS", 400)
    monkeypatch.setattr(history, "ENDS", 100)
    peaks = []
    for count in (1000, 5000):
        tracemalloc.start()
        training.parse([long_run(count)], {"exit_code": 0})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_lines_that_are_folded_change_no_number() -> None:
    count = 3 * MAX_STEPS
    said = training.parse([long_run(count)], {"exit_code": 0})
    values = said["values"]
    times = [1000.0 + number % 3 for number in range(2, count + 1)]
    rates = [300.0 + number % 3 for number in range(2, count + 1)]
    work = sum(rate * ms for rate, ms in zip(rates, times, strict=True))
    assert said["verdict"] is None
    assert values["avg_step_time_s"] == pytest.approx(sum(times) / len(times) / 1000, abs=1e-6)
    assert values["tflops_per_gpu"] == pytest.approx(work / sum(times), abs=1e-4)
    assert (values["step_time_min_s"], values["step_time_max_s"]) == (1.0, 1.002)
    assert (values["steps"], values["iterations"], values["nan_iterations"]) == (count - 1, count * 10, count // 2)
    assert len(said["parsed"]["steps"]) <= MAX_STEPS
    assert sum(row.get("lines", 1) for row in said["parsed"]["steps"]) == count


def test_a_thousand_ranks_with_the_same_failure_are_not_all_kept() -> None:
    log = text.START + text.step(10) + "".join(text.watchdog(rank) for rank in range(3000)) + text.summary(5, "gpu-3", -6)
    said = training.parse_text(log, {"exit_code": 1})
    assert (said["verdict"], said["findings"][0]["host"]) == ("TimedOut", "gpu-3")


def test_checkpoints_that_are_not_kept_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    rows = [
        text.step(number, total=3000)
        + f"[2026-03-02 10:00:00] saving checkpoint at iteration {number:7d} to /c in torch_dist format\n"
        + f"  [2026-03-02 10:00:01] successfully saved checkpoint from iteration {number:7d} to /c [ t 1/1, p 1/1 ]\n"
        for number in range(1, 3001)
    ]
    path.write_text("".join(rows))
    said = measure("training", [str(path)], {"exit_code": 0, "warmup_steps": 0})
    assert (said["values"]["checkpoints"], said["parsed"]["restart_point"]) == (3000, 3000)
    assert said["values"]["checkpoint_save_s"] == 3000


def test_modules_of_the_wing_use_each_other_downhill_only() -> None:
    """A circle, or an import hidden in a function, means that two files are one."""
    uses: dict[str, set[str]] = {}
    for path in WING.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
        assert all(node in tree.body for node in imports), path.name
        uses[path.stem] = {name for node in imports for name in ([node.module] if node.module else [alias.name for alias in node.names])}
    while uses:
        free = {name for name, used in uses.items() if not used & uses.keys()}
        assert free, f"a circle among {sorted(uses)}"
        uses = {name: used for name, used in uses.items() if name not in free}
