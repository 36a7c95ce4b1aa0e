# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""People adapt a machine by YAML alone: a mistake must be told with file and line, and never change a setting in silence."""

from __future__ import annotations

import json
import os
import pathlib

import jsonschema
import pytest
import yaml

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.gpus import expectation, find_gpu, plain_product
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.schemas import FILES, published
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError

SHIPPED = str(pathlib.Path(__file__).resolve().parents[5] / "catalog")
CATALOG = load_catalog([SHIPPED])


def write(directory: pathlib.Path, name: str, text: str) -> str:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_published_schemas_are_those_that_are_checked() -> None:
    for name in FILES:
        with open(os.path.join(SHIPPED, "schema", f"{name}.schema.json"), encoding="utf-8") as stream:
            assert json.load(stream) == published(name)


def test_shipped_files_fit_their_published_schemas() -> None:
    files = [("gpus", "gpus.yml"), ("topology", "topology.yml")]
    files += [("evidence", f"evidence/{entry}") for entry in os.listdir(os.path.join(SHIPPED, "evidence"))]
    files += [("platform", f"platforms/{entry}") for entry in os.listdir(os.path.join(SHIPPED, "platforms"))]
    for kind, path in files:
        with open(os.path.join(SHIPPED, path), encoding="utf-8") as stream:
            jsonschema.validate(yaml.safe_load(stream), published(kind))


def test_every_promised_gpu_and_platform_is_there() -> None:
    promised = [
        "gb200",
        "gb300",
        "b200",
        "b300",
        "h100",
        "h200",
        "a100",
        "l40s",
        "l40",
        "rtxpro6000",
        "h20",
        "h20-3e",
        "l20",
        "h800",
        "a800",
        "l4",
        "gh200",
        "v100",
    ]
    assert set(promised) <= {row["name"] for row in CATALOG["gpus"]}
    assert set(CATALOG["platforms"]) == {"aws", "azure", "forge", "gcp", "mistral", "nscale", "oci", "onprem", "togetherai"}


@pytest.mark.parametrize(
    ("label", "model"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("NVIDIA-H100-NVL", "h100-nvl"),
        ("NVIDIA-H100-PCIe", "h100-pcie"),
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-H20", "h20"),
        ("NVIDIA-H20-3e", "h20-3e"),
        ("NVIDIA-H800", "h800"),
        ("NVIDIA-GH200-480GB", "gh200"),
        ("NVIDIA-GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA-B300-SXM6-AC", "b300"),
        ("NVIDIA-A100-SXM4-80GB", "a100"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "a100"),
        ("NVIDIA-A100-80GB-PCIe", "a100-pcie"),
        ("NVIDIA-A800-SXM4-80GB", "a800"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-L40", "l40"),
        ("NVIDIA-L4", "l4"),
        ("NVIDIA-L20", "l20"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtxpro6000"),
        ("Tesla-V100-SXM2-32GB", "v100"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "h100"),
        ("NVIDIA-RTX-6000-Ada-Generation", None),
        ("NVIDIA-GeForce-RTX-4090", None),
        ("Tesla-T4", None),
    ],
)
def test_labels_find_their_product_and_others_find_none(label: str, model: str | None) -> None:
    row = find_gpu(CATALOG, label)
    assert (row["name"] if row else None) == model


def test_memory_tells_h20_and_h20_3e_apart() -> None:
    assert find_gpu(CATALOG, "NVIDIA-H20", 97871)["name"] == "h20"
    assert find_gpu(CATALOG, "NVIDIA-H20", 143771)["name"] == "h20-3e"


def test_plain_product_is_stable() -> None:
    assert plain_product("NVIDIA H100 80GB HBM3") == plain_product("NVIDIA-H100-80GB-HBM3-SHARED") == "H100-80GB-HBM3"


def test_platform_exceptions_beat_the_table() -> None:
    assert expectation(CATALOG, "oci", "l40s")["gpus_per_node"] == 4
    assert expectation(CATALOG, "onprem", "l40s")["gpus_per_node"] == 8
    assert expectation(CATALOG, None, "nonesuch")["gpus_per_node"] is None


def test_own_rows_are_added_and_change_shipped_ones(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "gpus.yml", "gpus:\n- {name: h100, gpus_per_node: 4}\n- {name: x1, products: ['X1.*'], gpus_per_node: 16}\n")
    write(tmp_path, "platforms/onprem.yml", "name: onprem\nnetwork:\n- {name: site, env: {A: b}}\n- {name: rdma, nic_resource: rdma/own}\n")
    catalog = load_catalog([str(tmp_path), SHIPPED])
    assert find_gpu(catalog, "NVIDIA-H100-80GB-HBM3")["gpus_per_node"] == 4
    assert find_gpu(catalog, "NVIDIA-X1-96GB")["mnnvl"] is False
    rules = {rule["name"]: rule for rule in catalog["platforms"]["onprem"]["network"]}
    assert rules["rdma"] == {"name": "rdma", "nic_resource": "rdma/own"} and {"site", "mnnvl"} <= set(rules)
    assert catalog["platforms"]["onprem"]["detect"] == [{"always": True}]


def test_own_evidence_replaces_a_shipped_row_and_is_asked_first(tmp_path: pathlib.Path) -> None:
    rows = "- {kind: xid, code: 79, class: application}\n- {kind: condition, name: mine, pattern: Gpu.*, bad: 'True', class: note}\n"
    write(tmp_path, "evidence/own.yml", f"evidence:\n{rows}")
    table = load_catalog([str(tmp_path), SHIPPED])["evidence"]
    assert not table.xid(79).convicts and table.xid(48).convicts
    assert not table.of_condition({"type": "GpuUnhealthy", "status": "True"}).convicts


def test_short_rules_for_conditions_still_condemn(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "health_conditions.yml", "health_conditions:\n- {name: mine, pattern: Lamp.*, bad: 'True'}\n")
    table = load_catalog([str(tmp_path), SHIPPED])["evidence"]
    assert table.of_condition({"type": "LampOut", "status": "True"}).convicts
    assert table.of_condition({"type": "GpuUnhealthy", "status": "True"}).convicts


def test_first_directory_is_the_strongest(tmp_path: pathlib.Path) -> None:
    for name, size in (("one", 3), ("two", 5)):
        write(tmp_path, f"{name}/gpus.yml", f"gpus:\n- {{name: h100, gpus_per_node: {size}}}\n")
    catalog = load_catalog([str(tmp_path / "one"), str(tmp_path / "two"), SHIPPED])
    assert find_gpu(catalog, "H100")["gpus_per_node"] == 3


@pytest.mark.parametrize(
    ("name", "text", "place", "message"),
    [
        ("gpus.yml", "gpus:\n- name: x\n  products: [x]\n  gpus_per_nodes: 8\n", ":4", "Did you mean 'gpus_per_node'"),
        ("gpus.yml", "gpus:\n- name: x\n  products: [x]\n  gpus_per_node: '8'\n", ":4", "must be a whole number or null"),
        ("gpus.yml", "gpus:\n- name: x\n  products: ['(']\n", ":3", "not a regular expression"),
        ("gpus.yml", "gpus:\n- products: [x]\n", ":2", "'name' is missing"),
        ("gpus.yml", "gpus:\n- {name: brandnew}\n", ":2", "needs products"),
        ("gpus.yml", "gpus:\n- name: x\n  name: y\n", ":3", "stands twice"),
        ("gpus.yml", "gpus: [\n", ":2", "not valid YAML"),
        ("gpus.yml", "", ":1", "must be a mapping"),
        ("platforms/p.yml", "name: p\ndetect:\n- provider_id_prefx: x\n", ":3", "Did you mean 'provider_id_prefix'"),
        ("platforms/p.yml", "name: p\nnetwork:\n- name: a\n  when: {gpus: [h1000]}\n", ":4", "Did you mean 'h100'"),
        ("platforms/p.yml", "name: p\nnetwork:\n- name: a\n  env: {NCCL_IB_TC: 41}\n", ":4", "must be a text or null"),
        ("platforms/p.yml", "name: p\nnetwork:\n- {name: a}\n- {name: a}\n", ":4", "stands twice"),
        ("health_conditions.yml", "health_conditions:\n- {name: a, pattern: b, bad: true}\n", ":2", "must be a text"),
        ("evidence/a.yml", "evidence:\n- {kind: wording, name: a, class: setup}\n", ":2", "needs 'pattern'"),
        ("evidence/a.yml", "evidence:\n- {kind: wording, name: a, class: harmless, pattern: x}\n", ":2", "harmless"),
        ("evidence/a.yml", "evidence:\n- {kind: taint, name: a, class: leaving, pattern: '('}\n", ":2", "not a regular expression"),
        ("evidence/a.yml", "evidence:\n- {kind: xid, code: 5, class: note}\n- {kind: xid, code: 5, class: note}\n", ":3", "also stands at"),
    ],
)
def test_mistakes_are_told_with_file_line_and_remedy(tmp_path: pathlib.Path, name: str, text: str, place: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(InputError) as caught:
        load_catalog([str(tmp_path), SHIPPED])
    assert caught.value.place.startswith(path + place) and message in caught.value.render()


def test_missing_directory_is_named() -> None:
    with pytest.raises(InputError, match="is not a directory"):
        load_catalog(["/nonexistent/catalog", SHIPPED])


def test_two_files_for_one_platform_are_an_error(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "platforms/a.yml", "name: p\n")
    write(tmp_path, "platforms/b.yml", "name: p\n")
    with pytest.raises(InputError, match="also described by"):
        load_catalog([str(tmp_path), SHIPPED])
