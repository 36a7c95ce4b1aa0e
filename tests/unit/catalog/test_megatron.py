# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM is found where it lies, gets the arguments that follow from the number of ranks, and is missed by its name."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import types
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import load_entry, render
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.options import resolve_options
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.plain_script import torch_script
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.shell_parts import FILES_DIR, SETUP_ERROR, SETUP_EXIT_CODE

TEST = "training/nemotron5-8b"
SCRIPT = pathlib.Path(shipped_catalog_dir()) / "tests" / "training" / "start_megatron.py"
# torchrun of two nodes with eight processes each, of which one is run: the script and its arguments follow the options.
TORCHRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift 2; done
WORLD_SIZE=16 exec PYTHON "$@"
"""
# The package has no __init__.py, so any module of its name would take its place.
PRETRAIN = """
import json, os, sys
from megatron.core import there
print(json.dumps({"argv": sys.argv[1:], "path": os.environ["PYTHONPATH"], "first": sys.path[0]}))
"""


@pytest.fixture(name="script")
def _script() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("megatron_launcher", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def values_of(words: t.Sequence[str]) -> dict[str, str]:
    """What Megatron would take of --name value and --name=value."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        name, glued, value = word.partition("=")
        if name.startswith("--"):
            following = words[index + 1] if index + 1 < len(words) else "--"
            found[name] = value if glued else "" if following.startswith("--") else following
    return found


LEAST = ["--source=/m", "--seq-length=8192", "--train-iters=50", "--num-layers=32"]


def test_the_global_batch_is_a_sample_for_each_rank_and_what_is_megatrons_alone_is_handed_on(script: types.ModuleType) -> None:
    made = values_of(script.megatron_arguments(LEAST, 16))
    assert (made["--global-batch-size"], made["--micro-batch-size"], made["--num-layers"]) == ("16", "1", "32")
    assert (made["--max-position-embeddings"], made["--eval-interval"], made["--train-iters"]) == ("8192", "50", "50")
    assert "--sequence-parallel" not in made and "--bf16" in made and "--save" not in made and "--source" not in made
    divided = values_of(script.megatron_arguments([*LEAST, "--tensor-model-parallel-size=8", "--precision=fp8"], 16))
    assert "--sequence-parallel" in divided and divided["--fp8-format"] == "hybrid" and divided["--global-batch-size"] == "16"


@pytest.mark.parametrize(
    ("words", "ranks", "said"),
    [
        (["--tensor-model-parallel-size=8", "--pipeline-model-parallel-size=2"], 24, "24 ranks are no multiple"),
        (["--global-batch-size=12"], 8, "a global batch of 12 is no multiple of 8"),
    ],
)
def test_what_does_not_come_out_even_ends_with_the_arithmetic(script: types.ModuleType, words: list[str], ranks: int, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        script.megatron_arguments([*LEAST, *words], ranks)


def test_a_training_goes_on_from_its_checkpoints_where_there_are_any(script: types.ModuleType, tmp_path: pathlib.Path) -> None:
    words = [*LEAST, f"--checkpoint-dir={tmp_path}", "--save-interval=25"]
    first = values_of(script.megatron_arguments(words, 8))
    assert (first["--save"], first["--save-interval"]) == (str(tmp_path), "25") and "--load" not in first
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("25")
    assert values_of(script.megatron_arguments(words, 8))["--load"] == str(tmp_path)


class Pod:
    """A pod of the test: its shell script with files, torchrun and Megatron-LM in a folder."""

    def __init__(self, folder: pathlib.Path, **options: t.Any) -> None:
        self.folder = folder
        entry = load_entry([shipped_catalog_dir()], TEST)
        values, _explain = resolve_options(entry, {"megatron_dir": "HERE/megatron-lm", **options}, "full-scale", "options", gpu="h100")
        launch = render(entry["torch"], {"options": values}, TEST)
        for name, content in entry["files"].items():
            (folder / name).write_text(content)
        torchrun = folder / "torchrun"
        torchrun.write_text(TORCHRUN.replace("PYTHON", sys.executable))
        torchrun.chmod(0o755)
        text = torch_script(launch, env=[], hosts=["localhost", "localhost"], gpus=8, port=29500, run="x")
        # What lies in the machine's own places is not what the test is about.
        for place in ("/tmp/", "/opt/", "/workspace/"):
            text = text.replace(f" {place}", f" {folder}{place}").replace(f"={place}", f"={folder}{place}")
        (folder / "tmp").mkdir(exist_ok=True)
        text = text.replace(">/tmp/", f">{folder}/tmp/").replace("HERE/", f"{folder}/")
        self.text = text.replace(f"{FILES_DIR}/", f"{folder}/")

    def megatron(self, *, built: bool, place: str = "megatron-lm") -> pathlib.Path:
        source = self.folder / place
        data = source / "megatron" / "core" / "datasets"
        data.mkdir(parents=True)
        (source / "megatron" / "core" / "there.py").write_text("")
        (source / "pretrain_gpt.py").write_text(PRETRAIN)
        (data / "Makefile").write_text("all:\n\techo made > helpers_cpp.so\n")
        if built:
            (data / "helpers_cpp.cpython-312-x86_64-linux-gnu.so").write_text("")
        return source

    def run(self) -> tuple[int, str]:
        path = f"{self.folder}:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-c", self.text], env={"PATH": path}, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr


def test_megatron_is_started_from_where_it_lies(tmp_path: pathlib.Path) -> None:
    pod = Pod(tmp_path)
    source = pod.megatron(built=True)
    status, said = pod.run()
    assert status == 0, said
    told = json.loads(said)
    made = values_of(told["argv"])
    assert (made["--tensor-model-parallel-size"], made["--global-batch-size"], made["--num-layers"]) == ("2", "16", "32")
    assert told["path"] == str(source) and pathlib.Path(told["first"]).resolve() == source


def test_an_image_that_has_it_elsewhere_will_do(tmp_path: pathlib.Path) -> None:
    pod = Pod(tmp_path)
    pod.megatron(built=True, place="opt/Megatron-LM")
    assert pod.run()[0] == 0


def test_a_library_that_the_image_leaves_to_be_built_is_built_in_a_copy(tmp_path: pathlib.Path) -> None:
    pod = Pod(tmp_path)
    source = pod.megatron(built=False)
    status, said = pod.run()
    assert status == 0, said
    assert (tmp_path / "tmp" / "megatron-lm" / "megatron" / "core" / "datasets" / "helpers_cpp.so").exists()
    assert not (source / "megatron" / "core" / "datasets" / "helpers_cpp.so").exists(), "an image may be read-only"


def test_an_image_without_megatron_is_a_fault_of_the_set_up(tmp_path: pathlib.Path) -> None:
    status, said = Pod(tmp_path).run()
    assert status == SETUP_EXIT_CODE and said.startswith(f"{SETUP_ERROR} Megatron-LM is not in ") and "megatron_dir" in said
