# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""dcgmi, torchrun and plain scripts: what the simulator prints must be readable as the real thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._measure.measurement import measure

from ..world import World

NODES = ["gpu-r0-n00", "gpu-r0-n01"]
DIAG = "dcgmi diag --host nvidia-dcgm.gpu-operator.svc:5555 --run {level} --json --verbose"
TRAIN = (
    "torchrun --nnodes $PET_NNODES --nproc-per-node 8 --node-rank $PET_NODE_RANK --master-addr job-0.job pretrain_gpt.py "
    "--train-iters 50 --log-interval 10 --global-batch-size 16 --log-throughput --save /ckpt --save-interval 20"
)


@pytest.mark.parametrize(("level", "tests"), [(1, ["software"]), (2, ["software", "memory", "pcie"])])
def test_a_healthy_node_passes_every_test_of_the_level(tmp_path: Path, level: int, tests: list[str]) -> None:
    ran = World().run(NODES[:1], DIAG.format(level=level))
    document = json.loads("\n".join(ran.lines))
    shown = [test["name"] for category in document["DCGM Diagnostic"]["test_categories"] for test in category["tests"]]
    assert shown == tests
    assert len(document["entity_groups"][0]["entities"]) == 8
    log = tmp_path / "dcgm.json"
    log.write_text("\n".join(ran.lines), encoding="utf-8")
    found = measure("dcgm", [str(log)], {"exit_code": ran.outcome.exit_code, "expected_gpus": 8})
    assert (ran.outcome.exit_code, found["class"]) == (0, "pass")


def test_a_node_that_corrupts_data_fails_its_memory_test(tmp_path: Path) -> None:
    ran = World([{"kind": "wrong_data", "node": NODES[0]}]).run(NODES[:1], DIAG.format(level=3))
    log = tmp_path / "dcgm.json"
    log.write_text("\n".join(ran.lines), encoding="utf-8")
    found = measure("dcgm", [str(log)], {"exit_code": ran.outcome.exit_code, "expected_gpus": 8})
    assert (ran.outcome.exit_code, found["verdict"]) == (205, "HardwareFailureDetected")


def test_without_gpus_there_is_nothing_to_diagnose() -> None:
    ran = World().run(NODES[:1], DIAG.format(level=1), gpus=0)
    assert ran.outcome.exit_code == 242 and "runtime_error" in "\n".join(ran.lines)


def train(world: World, index: int, **options: object) -> list[str]:
    env = {"PET_NNODES": "2", "PET_NODE_RANK": str(index)}
    return world.run(NODES, TRAIN, index=index, env=env, **options).lines  # type: ignore[arg-type]


def test_the_last_node_prints_the_steps_and_the_first_the_checkpoints(tmp_path: Path) -> None:
    world = World()
    first, last = train(world, 0), train(world, 1)
    assert [line.split("/")[0].split()[-1] for line in last if "] iteration" in line] == ["1", "10", "20", "30", "40", "50"]
    assert not [line for line in first if "] iteration" in line]
    assert len([line for line in first if "successfully saved checkpoint from iteration" in line]) == 2
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    for path, lines in zip(logs, (first, last), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = measure("training", [str(path) for path in logs], {"exit_code": 0})
    assert found["complete"] is True and found["verdict"] is None


def test_faults_slow_a_training_down() -> None:
    def step_ms(fault: dict[str, object] | None) -> float:
        lines = train(World([fault] if fault else []), 1)
        return float(lines[-1].split("elapsed time per iteration (ms): ")[1].split()[0])

    healthy = step_ms(None)
    assert step_ms({"kind": "nic_slow", "node": NODES[0], "factor": 0.5}) == pytest.approx(2 * healthy, rel=0.01)
    assert step_ms({"kind": "socket_fallback", "node": NODES[0]}) > 5 * healthy


def test_a_training_ends_with_its_members() -> None:
    world = World([{"kind": "crash", "node": NODES[0]}])
    assert any("ECC" in line for line in train(world, 0))
    assert any("remote process exited" in line for line in train(world, 1))
    behind = World()
    train(behind, 0)
    assert behind.run(NODES, TRAIN, index=1, env={"PET_NNODES": "2", "PET_NODE_RANK": "1"}, gone=["job-0"]).outcome.exit_code == 0
    alone = World().run(NODES, TRAIN, index=1, env={"PET_NNODES": "2", "PET_NODE_RANK": "1"}, gone=["job-0"])
    assert alone.outcome.exit_code == 1 and "RendezvousTimeoutError" in alone.lines[-1]


@pytest.mark.parametrize(
    ("script", "code", "lines", "seconds"),
    [
        ("true", 0, [], 0),
        ("false", 1, [], 0),
        ("exit 7", 7, [], 0),
        ("sleep 90", 0, [], 90),
        ("sleep infinity", 0, [], None),
        ("echo hello; sleep 2m; echo bye", 0, ["hello", "bye"], 120),
        ("false || exit 3", 3, [], 0),
        ("true || exit 3", 0, [], 0),
        ("false && echo no; echo yes", 0, ["yes"], 0),
        ("if [ -f /x ]; then exit 9; fi\necho on", 0, ["on"], 0),
        ("NAME=world\necho hello ${NAME} ${OTHER:-friend}", 0, ["hello world friend"], 0),
        ("while true; do sleep 5; done", 0, [], None),
    ],
)
def test_plain_scripts(script: str, code: int, lines: list[str], seconds: float | None) -> None:
    ran = World().run(NODES[:1], script)
    assert (ran.outcome.exit_code, ran.lines, ran.outcome.duration_s) == (code, lines, seconds)


@pytest.mark.parametrize(
    "command",
    [
        ["all_reduce_perf", "-b", "1M", "-e", "1M", "-g", "8"],
        ["/bin/sh", "-c", "exec all_reduce_perf -b 1M -e 1M -g 8"],
        ["/bin/bash", "/scripts/run.sh", "-g", "8"],
        ["bash", "-c", 'all_reduce_perf "$@"', "bash", "-b", "1M", "-e", "1M", "-g", "8"],
        ["bash", "-c", "opts=(-b 1M\n -e 1M)\nopts+=(-g 8)\nall_reduce_perf \"${opts[@]}\" 2>&1 | tee /tmp/x"],
        ["bash", "-c", "NCCL_DEBUG=WARN timeout 60 /opt/nccl-tests/build/all_reduce_perf -b 1M -e 1M -g ${GPUS}"],
    ],
)  # fmt: skip
def test_a_program_is_found_however_it_is_called(command: list[str]) -> None:
    files = {"/scripts/run.sh": "#!/bin/bash\nset -e\n\nall_reduce_perf -b 1M \\\n  -e 1M $@\n"}
    ran = World().run(NODES[:1], "", command=command, files=files, env={"GPUS": "8"})
    assert [cells[0] for cells in ran.rows()] == ["1048576"]
    assert len(ran.said("#  Rank")) == 8
