# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The launcher's script run by a real shell with a launcher that plays a log: exit status, signals, order of output, recap."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import subprocess
import time
import typing as t
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.workloads import launcher_recap
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload import recap
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.mpi_script import mpi_script

CASES = Path(__file__).parents[5] / "tests" / "vectors" / "cases" / "logs"
# Plays a log: what is not NCCL's goes to stdout, what is goes where NCCL_DEBUG_FILE says, and if nothing does to stdout too.
LAUNCHER = r"""#!/bin/bash
for word; do case $word in NCCL_DEBUG_FILE=*) file=${word#*=};; esac; done
while IFS= read -r line; do
  if [[ $line == *"NCCL INFO"* && -n ${file:-} ]]; then
    IFS=: read -r host pid _ <<<"$line"; printf '%s\n' "$line" >>"${file//%h.%p/$host.$pid}"
  else printf '%s\n' "$line"; fi
done <"$LOG"
"""


@dataclasses.dataclass
class Ran:
    """What a run of the script left."""

    status: int
    lines: list[str]
    message: str

    def recap(self) -> list[str]:
        return [line.removeprefix("gcr|") for line in self.lines if line.startswith("gcr|")]


class Machine:
    """A folder in which the script finds its launcher, its debug folder and its termination message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "all_reduce_perf").write_text("#!/bin/sh\n")
        (folder / "all_reduce_perf").chmod(0o755)

    def script(self, end: str = "exit 0", env: t.Sequence[dict[str, str]] = ()) -> str:
        (self.folder / "mpirun").write_text(LAUNCHER + end + "\n")
        (self.folder / "mpirun").chmod(0o755)
        text = mpi_script(
            mpirun=str(self.folder / "mpirun"), mpirun_args=[], binary=str(self.folder / "all_reduce_perf"), args=[],
            env=list(env), slots=8, nodes=1, ssh_port=22,
        )  # fmt: skip
        return text.replace(recap.TERMINATION_LOG, str(self.folder / "message")).replace(recap.DEBUG_DIR, str(self.folder / "debug"))

    def run(self, log: str, end: str = "exit 0", env: t.Sequence[dict[str, str]] = (), **options: t.Any) -> Ran:
        (self.folder / "log").write_text(log)
        done = subprocess.run(
            ["bash", "-c", self.script(end, env)], env={**os.environ, "LOG": str(self.folder / "log"), **options},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout.splitlines(), self.message())

    def message(self) -> str:
        path = self.folder / "message"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def vector(name: str) -> str:
    return (CASES / f"{name}.log").read_text(encoding="utf-8")


GOOD = "n01-allreduce-2node-ib-gdr"


def test_debug_output_comes_behind_the_table_and_the_recap_last(machine: Machine) -> None:
    """In front of the table, or in it, it pushes the table out of a rotated log, and tears its rows."""
    ran = machine.run(vector(GOOD))
    table = next(number for number, line in enumerate(ran.lines) if "Avg bus bandwidth" in line)
    debug = [number for number, line in enumerate(ran.lines) if "NCCL INFO" in line]
    assert debug and min(debug) > table
    first = ran.lines.index("gcr|gcr1")
    assert first > max(debug) and all(line.startswith("gcr|") for line in ran.lines[first:])
    assert any("via NET/IB" in line for line in ran.lines[table:first])


def test_the_termination_message_is_the_recap_and_fits(machine: Machine) -> None:
    ran = machine.run(vector(GOOD))
    assert ran.message.splitlines() == ran.recap()
    assert len(ran.message.encode()) <= 4096
    rows = [line for line in ran.recap() if line.startswith("R")]
    assert rows[0].startswith("R8589934592~") and rows[-1].startswith("R268435456~")


def test_of_a_long_table_the_largest_sizes_are_carried(machine: Machine) -> None:
    rows = "".join(
        f" {1 << power} {1 << power} float sum -1 100.00 {power}.00 {power}.00 0 100.00 {power}.00 {power}.00 0\n" * 6
        for power in range(3, 35)
    )
    head, _table, tail = vector(GOOD).partition("   268435456")
    ran = machine.run(head + rows + tail[tail.index("# Out of bounds") :])
    carried = [line for line in ran.recap() if line.startswith("R")]
    assert len(ran.message.encode()) <= 4096
    assert carried[0].startswith("R17179869184~") and len(carried) > 20
    assert ran.recap()[-1] == f"X0~{32 * 6 - len(carried)}"


@pytest.mark.parametrize("status", [0, 1, 3, 7, 124, 127, 137, 143, 255])
def test_the_launchers_exit_status_is_the_containers(machine: Machine, status: int) -> None:
    assert machine.run(vector(GOOD), f"exit {status}").status == status
    assert machine.run("", f"exit {status}").status == status


def test_a_launcher_killed_by_a_signal_leaves_its_status(machine: Machine) -> None:
    assert machine.run(vector(GOOD), "kill -KILL $$").status == 137
    assert machine.run(vector(GOOD), "kill -SEGV $$").status == 139


@pytest.mark.parametrize(
    ("end", "status"), [("trap 'exit 42' TERM; touch $READY; while :; do sleep 0.1; done", 42), ("touch $READY; exec sleep 60", 143)]
)
def test_term_reaches_the_launcher_and_its_answer_is_the_exit_status(machine: Machine, tmp_path: Path, end: str, status: int) -> None:
    """A launcher that is not told leaves its ranks on the GPUs until the kubelet kills the container."""
    (tmp_path / "log").write_text(vector(GOOD))
    ready = tmp_path / "ready"
    started = subprocess.Popen(
        ["bash", "-c", machine.script(end)], env={**os.environ, "LOG": str(tmp_path / "log"), "READY": str(ready)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started.send_signal(signal.SIGTERM)
        output, _nothing = started.communicate(timeout=20)
    finally:
        started.kill()
    assert started.returncode == status
    assert "NCCL INFO" in output, "what NCCL said until then is shown"


def test_a_run_that_broke_off_leaves_its_log_as_the_message(machine: Machine) -> None:
    """The kubelet puts the end of the log there when the file is empty."""
    cut = vector(GOOD).partition("# Out of bounds")[0]
    ran = machine.run(cut, "exit 3")
    assert (ran.status, ran.message, ran.recap()) == (3, "", [])
    assert any("NCCL INFO" in line for line in ran.lines)


def test_a_users_own_debug_file_is_theirs(machine: Machine, tmp_path: Path) -> None:
    ran = machine.run(vector(GOOD), env=[{"name": "NCCL_DEBUG_FILE", "value": str(tmp_path / "mine.%h.%p")}])
    assert [path.name for path in tmp_path.glob("mine.*")]
    assert not any("NCCL INFO" in line for line in ran.lines)
    assert any(line.startswith("R8589934592~") for line in ran.recap())


@pytest.mark.parametrize("name", [GOOD, "n27-roce-gdr-partial", "n28-efa-libfabric", "n38-h20-3e-single-node", "n26-socket-sci-notation"])
def test_the_simulated_launcher_does_what_the_script_does(machine: Machine, name: str) -> None:
    """Else a rehearsal shows another log than the cluster will."""
    log = vector(name)
    ran = machine.run(log)
    debug = launcher_recap.digest_of_node(line for line in log.splitlines() if "NCCL INFO" in line)
    first = ran.lines.index("gcr|gcr1")
    shown = ran.lines[first - len(debug) : first]
    assert sorted(shown) == sorted(debug)
    printed = [line for line in log.splitlines() if "NCCL INFO" not in line]
    assert launcher_recap.recap("gcr1", printed, shown, 0) == ran.recap()


def test_an_image_without_the_tools_runs_the_launcher_as_it_is(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(vector(GOOD))
    for name in ("bash", "mkdir"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip())
    ran = machine.run(vector(GOOD), "exit 7", PATH=str(tmp_path / "bin"))
    assert (ran.status, ran.recap()) == (7, [])
    assert any("Avg bus bandwidth" in line for line in ran.lines)


def test_the_script_starts_nothing_that_is_not_in_every_image() -> None:
    """Nothing is installed at pod start."""
    words = {
        shlex.split(line)[0] for line in recap.recap_lines("mpirun x", "") if line and line[0].isalpha() and "=" not in line.split()[0]
    }
    assert words <= {"launch()", "exec", "type", "launch", "told=1", "trap", "while", "for", "if", "else", "head", "awk", "rm", "exit"}
