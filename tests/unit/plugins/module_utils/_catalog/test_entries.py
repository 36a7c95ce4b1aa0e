# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A test is one file: what is wrong with it is said with file and line before it costs a GPU minute."""

from __future__ import annotations

import json
import os
import pathlib
import re

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import RESERVED_ENV, list_entries, load_entry
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.floors import load_floors
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.options import resolve_options
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.schemas import published
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError

SHIPPED = shipped_catalog_dir()
MINE = """
name: mine/burn
description: A burn of ours.
framework: exec
image: {registry: ngc, repository: a/b, tag: "1"}
test_scales: [intra-node]
measure: {kind: key_value}
exec: {command: [/opt/burn, "--seconds", "{{ options.seconds }}"]}
options: {seconds: {type: int, default: 60, minimum: 1}}
"""


def directory(tmp_path: pathlib.Path, **files: str) -> list[str]:
    for name, text in files.items():
        path = tmp_path / "tests" / (name.replace("__", "/") + ".yml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [str(tmp_path), SHIPPED]


def test_the_catalog_has_the_tests_of_the_reference_and_those_it_lacks() -> None:
    collectives = ("all-reduce", "all-gather", "alltoall", "reduce-scatter", "broadcast", "sendrecv", "loopback", "loopback-nvswitch")
    wanted = [f"communication/nccl-{name}" for name in collectives]
    wanted += ["communication/ib-write-bw", "communication/nvbandwidth"]
    wanted += [f"diagnostics/dcgm-level{level}" for level in (1, 2, 3, 4)] + [
        f"training/{name}" for name in ("smoke", "nemotron5-8b", "nemotron5-56b")
    ]
    wanted += [f"diagnostics/{name}" for name in ("fio", "gemm-burn", "node-facts")]
    assert set(wanted) <= set(list_entries([SHIPPED]))


@pytest.mark.parametrize("name", list_entries([SHIPPED]))
def test_every_shipped_test_loads_and_its_file_fits_the_published_schema(name: str) -> None:
    entry = load_entry([SHIPPED], name)
    assert entry["name"] == name and entry[entry["framework"]]
    for option in entry["options"].values():
        assert option["description"].endswith(".")
    with open(os.path.join(SHIPPED, "tests", f"{name}.yml"), encoding="utf-8") as stream:
        jsonschema.validate(yaml.safe_load(stream), published("test"))


def test_the_shipped_floors_fit_their_schema_and_name_tests_that_exist() -> None:
    with open(os.path.join(SHIPPED, "floors.yml"), encoding="utf-8") as stream:
        jsonschema.validate(yaml.safe_load(stream), json.loads(json.dumps(published("floors"))))
    assert {row["test"] for row in load_floors([SHIPPED])} <= set(list_entries([SHIPPED]))


def test_an_entry_of_ones_own_runs_any_command(tmp_path: pathlib.Path) -> None:
    entry = load_entry(directory(tmp_path, mine__burn=MINE), "mine/burn")
    assert entry["framework"] == "exec" and entry["timeouts"]["attempt_s"] == 3600
    assert "mine/burn" in list_entries([str(tmp_path), SHIPPED])


def test_an_entry_that_extends_another_says_only_what_differs(tmp_path: pathlib.Path) -> None:
    base = load_entry([SHIPPED], "communication/nccl-all-reduce")
    text = """
name: mine/small
extends: communication/nccl-all-reduce
options: {max_bytes: {default: 1G}, datatype: null}
env: [{name: NCCL_DEBUG, value: null}, {name: NCCL_ALGO, value: Ring}]
"""
    entry = load_entry(directory(tmp_path, mine__small=text), "mine/small")
    assert entry["mpi"] == base["mpi"] and entry["measure"] == base["measure"]
    assert entry["options"]["max_bytes"] == {**base["options"]["max_bytes"], "default": "1G"}
    assert set(base["options"]) - set(entry["options"]) == {"datatype"}
    names = [item["name"] for item in entry["env"]]
    assert "NCCL_ALGO" in names and "NCCL_DEBUG" not in names


def test_a_file_of_the_same_name_may_extend_the_shipped_one(tmp_path: pathlib.Path) -> None:
    text = "name: communication/nccl-all-reduce\nextends: communication/nccl-all-reduce\ntimeouts: {attempt_s: 60}\n"
    found = load_entry(directory(tmp_path, **{"communication__nccl-all-reduce": text}), "communication/nccl-all-reduce")
    shipped = load_entry([SHIPPED], "communication/nccl-all-reduce")
    assert found == {**shipped, "timeouts": {"attempt_s": 60}}


def test_a_file_for_the_pods_may_stand_beside_the_entry(tmp_path: pathlib.Path) -> None:
    directories = directory(tmp_path, mine__burn=MINE + "files: {burn.sh: {file: burn.sh}, note: hello}\n")
    (tmp_path / "tests" / "mine" / "burn.sh").write_text("echo burning\n")
    assert load_entry(directories, "mine/burn")["files"] == {"burn.sh": "echo burning\n", "note": "hello"}


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("framework: exec", "framework: exce"), "mine/burn.yml:4", "exec"),
        (("framework: exec", "framework: torch"), "mine/burn.yml", "a section 'torch'"),
        (("exec: {command", "exec: {script: x, command"), "mine/burn.yml:8", "exactly one of script and command"),
        (("exec: {command", "exec: {comand"), "mine/burn.yml:8", "command"),
        (("description: A burn of ours.\n", ""), "mine/burn.yml", "'description' is missing"),
        (("test_scales: [intra-node]", "test_scales: [intra-nod]"), "mine/burn.yml:6", "intra-node"),
        (("type: int", "type: number"), "mine/burn.yml:9", "int"),
        (("measure:", "env: [{name: RANK, value: '3'}]\nmeasure:"), "mine/burn.yml:7", "RANK is set by the launcher"),
        (("measure:", "extends: mine/burnn\nmeasure:"), "mine/burn.yml:7", "mine/burn"),
        (("measure:", "extends: mine/burn\nmeasure:"), "mine/burn.yml:7", "mine/burn"),
        (("measure:", "files: {x: {file: nowhere.sh}}\nmeasure:"), "mine/burn.yml:7", "nowhere.sh"),
        (("measure:", "option_defaults_by_test_scale: {full-scale: {}}\nmeasure:"), "mine/burn.yml:7", "intra-node"),
        (("name: mine/burn\n", "name: mine/burn\nname: other\n"), "mine/burn.yml:3", "stands twice"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(tmp_path: pathlib.Path, change: tuple[str, str], place: str, words: str) -> None:
    assert change[0] in MINE
    directories = directory(tmp_path, mine__burn=MINE.replace(*change))
    with pytest.raises(InputError) as error:
        load_entry(directories, "mine/burn")
    assert place in (error.value.place or "") and words in error.value.render()


def test_files_that_extend_each_other_are_refused(tmp_path: pathlib.Path) -> None:
    directories = directory(tmp_path, mine__a="name: mine/a\nextends: mine/b\n", mine__b="name: mine/b\nextends: mine/a\n")
    with pytest.raises(InputError, match="extends itself"):
        load_entry(directories, "mine/a")


@pytest.mark.parametrize(
    ("test", "given_options", "place", "words"),
    [
        ("diagnostics/dcgm-level2", {"tests": ["memory", "pcei"]}, "options.tests[1]", "pcie"),
        ("diagnostics/dcgm-level2", {"tests": "memory,pcei"}, "options.tests[1]", "pcie"),
        ("diagnostics/dcgm-level1", {"host_engine": "x; rm -rf /"}, "options.host_engine", "not valid"),
        ("diagnostics/dcgm-level1", {"parameters": ['a="b"']}, "options.parameters[0]", "not valid"),
        ("training/smoke", {"steps": 1}, "options.steps", "at least 10"),
        ("communication/nccl-alltoall", {"datatype": ""}, "options.datatype", "empty"),
        ("communication/nccl-loopback", {"max_byte": "1G"}, "options", "max_bytes"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_what_is_allowed(test: str, given_options: dict, place: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_options(load_entry([SHIPPED], test), given_options, "intra-node", "options")
    assert error.value.place == place and words in error.value.render()


@given(st.text())
def test_no_text_of_an_option_can_end_its_word_in_a_shell(text: str) -> None:
    entry = load_entry([SHIPPED], "diagnostics/dcgm-level1")
    try:
        values, _explain = resolve_options(entry, {"host_engine": text, "parameters": [text]}, "intra-node", "options")
    except InputError:
        return
    for value in (values["host_engine"], *values["parameters"]):
        assert re.fullmatch(r"[A-Za-z0-9_.:,=+/@%-]*", value)


def test_variables_that_a_launcher_sets_are_reserved_and_others_are_not() -> None:
    for name in ("RANK", "WORLD_SIZE", "PET_NNODES", "OMPI_COMM_WORLD_RANK", "MASTER_ADDR", "JOB_COMPLETION_INDEX", "READINESS_NODES"):
        assert RESERVED_ENV.fullmatch(name)
    for name in ("NCCL_DEBUG", "OMPI_MCA_btl", "PATH", "NCCL_RANK", "UCX_TLS"):
        assert not RESERVED_ENV.fullmatch(name)
