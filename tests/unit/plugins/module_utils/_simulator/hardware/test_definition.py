# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A broken definition must be refused with the place and the remedy; a short one must mean what the documentation says."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware import definition
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.fault_kinds import KINDS
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.gpus import PRODUCTS

ROOT = Path(__file__).resolve().parents[6]


def test_nothing_given_means_the_documented_default() -> None:
    made = definition.load(None)
    assert len(made.node_names()) == 64
    assert (made.platform.name, made.fabric, made.noise, made.time_scale) == ("onprem", "ib", 0.02, 600)
    assert list(made.node_names())[:1] == ["gpu-r0-n00"]
    assert list(made.node_names().items())[-1] == ("gpu-r3-n15", "r3")


def test_pools_number_their_racks_through() -> None:
    made = definition.parse(
        {"gpu": [{"gpu": "h100", "racks": 2, "nodes_per_rack": 3}, {"gpu": "NVIDIA-H20-3e", "racks": 1, "nodes_per_rack": 2}]}
    )
    assert list(made.node_names()) == [
        "gpu-r0-n00",
        "gpu-r0-n01",
        "gpu-r0-n02",
        "gpu-r1-n00",
        "gpu-r1-n01",
        "gpu-r1-n02",
        "gpu-r2-n00",
        "gpu-r2-n01",
    ]
    assert [pool.gpu.product for pool in made.pools] == ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H20-3e"]


def test_a_rack_of_a_multi_node_nvlink_gpu_is_one_domain_by_default() -> None:
    assert len(definition.parse({"gpu": "gb200", "racks": 1}).node_names()) == 18


@pytest.mark.parametrize(
    ("value", "place", "words"),
    [
        ({"sed": 1}, "sed", "Did you mean 'seed'"),
        ({"gpu": "NVIDIA-H101"}, "gpu", "unknown GPU product"),
        ({"gpu": 8}, "gpu", "list of pools"),
        ({"gpu": []}, "gpu", "list of pools"),
        ({"gpu": [{"gpu": "h100", "rack": 1}]}, "gpu[0].rack", "Did you mean 'racks'"),
        ({"gpu": [{"racks": 1}]}, "gpu[0].gpu", "name of a GPU product"),
        ({"gpu": [{"gpu": "h100"}], "racks": 2}, "racks", "Move racks into the pools"),
        ({"racks": "4"}, "racks", "whole number"),
        ({"racks": True}, "racks", "whole number"),
        ({"racks": 8000, "nodes_per_rack": 8000}, "racks", "too many"),
        ({"platform": "onpremise"}, "platform", "Did you mean 'onprem'"),
        ({"fabric": "infiniband"}, "fabric", "Allowed: efa, ib, roce, tcp"),
        ({"noise": -1}, "noise", "from 0 to 0.5"),
        ({"time_scale": 0}, "time_scale", "above 0"),
        ({"time_scale": float("nan")}, "time_scale", "above 0"),
        ({"software": {"nccl_tests": "1.0.0"}}, "software.nccl_tests", "2.13.2 or later"),
        ({"software": {"mpi": "mpich"}}, "software.mpi", "openmpi"),
        ({"faults": {"kind": "oom"}}, "faults", "list of faults"),
        ({"faults": ["oom"]}, "faults[0]", "must be a mapping"),
        ({"faults": [{"node": "gpu-r0-n00"}]}, "faults[0]", "kind is missing"),
        ({"faults": [{"kind": "nic_slo", "node": "gpu-r0-n00"}]}, "faults[0].kind", "Did you mean 'nic_slow'"),
        ({"faults": [{"kind": "nic_slow"}]}, "faults[0]", "node is missing"),
        ({"faults": [{"kind": "nic_slow", "node": "gpu-r9-n00"}]}, "faults[0].node", "gpu-r0-n00 to gpu-r3-n15 (64 in all)"),
        ({"faults": [{"kind": "nic_slow", "node": "gpu-r0-n00", "factor": 1.5}]}, "faults[0].factor", "above 0 and below 1"),
        ({"faults": [{"kind": "nic_slow", "node": "gpu-r0-n00", "faktor": 0.5}]}, "faults[0].faktor", "Did you mean 'factor'"),
        ({"faults": [{"kind": "crash", "node": "gpu-r0-n00", "exit_code": 0}]}, "faults[0].exit_code", "1 to 255"),
        ({"faults": [{"kind": "gpus_missing", "node": "gpu-r0-n00", "count": 9}]}, "faults[0].count", "1 to 8"),
        ({"faults": [{"kind": "uplink_slow", "rack": "r4"}]}, "faults[0].rack", "r0 to r3"),
        ({"faults": [{"kind": "pair_slow", "nodes": ["gpu-r0-n00", "gpu-r0-n00"]}]}, "faults[0].nodes", "two different"),
        ({"faults": [{"kind": "pair_slow", "nodes": ["gpu-r0-n00", "gpu-r0-n99"]}]}, "faults[0].nodes", "unknown node"),
        ({"faults": [{"kind": "nvl_port", "node": "gpu-r0-n00"}]}, "faults[0]", "NVLink between nodes"),
        ({"faults": [{"kind": "intermittent", "node": "gpu-r0-n00", "p": 0}]}, "faults[0].p", "above 0"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_remedy(value: dict, place: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        definition.parse(value, place="cluster.yml")
    assert caught.value.place == f"cluster.yml: {place}"
    assert words in caught.value.render()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as missing:
        definition.load(tmp_path / "none.yml")
    assert missing.value.place.endswith("none.yml")
    broken = tmp_path / "broken.yml"
    broken.write_text("faults: [", encoding="utf-8")
    with pytest.raises(InputError, match="not valid YAML"):
        definition.load(broken)
    empty = tmp_path / "empty.yml"
    empty.write_text("", encoding="utf-8")
    assert len(definition.load(empty).node_names()) == 64


@pytest.mark.parametrize("name", ["healthy", "planted_faults"])
def test_the_built_in_definitions_are_valid_and_fit_the_schema(name: str) -> None:
    path = ROOT / "catalog" / "simulations" / f"{name}.yml"
    definition.load(path)
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), definition.json_schema())


def test_the_published_schema_is_the_one_the_checks_are_made_of() -> None:
    published = json.loads((ROOT / "docs" / "simulation.schema.json").read_text(encoding="utf-8"))
    assert published == json.loads(json.dumps(definition.json_schema()))
    jsonschema.Draft202012Validator.check_schema(published)


def test_a_node_may_have_other_cards_than_the_usual_one() -> None:
    made = definition.parse({"gpu": [{"gpu": "l20", "racks": 1, "nodes_per_rack": 1, "gpus_per_node": 4}, {"gpu": "h100", "racks": 1}]})
    assert [pool.gpu.gpus_per_node for pool in made.pools] == [4, 8]
    with pytest.raises(InputError, match="gpus_per_node"):
        definition.parse({"gpu": "l20", "gpus_per_node": 0})


def test_every_fault_kind_and_product_is_documented() -> None:
    text = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []
    assert [name for name in PRODUCTS if f"`{name}`" not in text] == []
