# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What a user asks of the pods of a test reaches them, whatever starts its program; and each test is judged by what it says of itself."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.entries import list_entries, load_entry, load_registries
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.floors import load_floors
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog, shipped_catalog_dir
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster import nodes, snapshot
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.planning import check_request, make_plan
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.spec import parse_spec
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware import definition
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.model import Hardware
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._workload.objects import attempt_objects

SHIPPED = [shipped_catalog_dir()]
CATALOG = {**load_catalog(SHIPPED), "registries": load_registries(SHIPPED), "floors": load_floors(SHIPPED)}
IDENTITY = {"run_id": "run", "category": "c01", "group": "g001", "attempt": 1, "owner": []}


def plan(category: dict[str, t.Any], nodes_per_rack: int = 2, **request: t.Any) -> dict[str, t.Any]:
    """The one category of a certification of two nodes, or more, with eight H100 each."""
    (planned,) = whole_plan(category, nodes_per_rack, **request)["categories"]
    return t.cast("dict[str, t.Any]", planned)


def whole_plan(category: dict[str, t.Any], nodes_per_rack: int = 2, **request: t.Any) -> dict[str, t.Any]:
    hardware = Hardware(definition.parse({"racks": 1, "nodes_per_rack": nodes_per_rack}))
    objects = hardware.node_objects()
    for item in objects:
        item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    found = snapshot.build_snapshot([(nodes.project(item, CATALOG), (None, "")) for item in objects], CATALOG, platform="onprem")
    found["capabilities"] = {"success_policy": True}
    spec = parse_spec({"categories": [category], **request})
    return t.cast("dict[str, t.Any]", make_plan(spec, check_request(spec, SHIPPED), found, CATALOG))


def scale_of(test: str) -> str:
    return "full-scale" if "full-scale" in load_entry(SHIPPED, test)["test_scales"] else "intra-node"


@pytest.mark.parametrize("test", list_entries(SHIPPED))
def test_everything_that_a_user_adds_reaches_the_pods_of_every_test(test: str) -> None:
    workload = {
        "env": [{"name": "NCCL_DEBUG", "value": "TRACE"}, {"name": "MINE", "value": "yes"}],
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "volume_mounts": [{"name": "data", "mountPath": "/data"}],
        "init_containers": [{"name": "prepare", "image": "i"}],
        "sidecars": [{"name": "mesh", "image": "i"}],
        "files": {"note.txt": "hello"},
        "resources": {"limits": {"memory": "800Gi"}, "requests": {"cpu": "8"}},
        "labels": {"team": "infra"},
        "annotations": {"note": "x"},
        "priority_class": "high",
        "scheduler_name": "kai-scheduler",
    }
    category = plan({"test": test, "test_scale": scale_of(test), "workload": workload}, nodes_per_rack=4)
    made = attempt_objects(category["template"], IDENTITY, category["groups"][0]["nodes"])
    template = made["job"]["spec"]["template"]
    pod, container = template["spec"], template["spec"]["containers"][0]
    assert {"name": "data", "hostPath": {"path": "/data"}} in pod["volumes"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert "prepare" in {item["name"] for item in pod["initContainers"]} and "mesh" in {item["name"] for item in pod["containers"]}
    assert made["config_map"]["data"]["note.txt"] == "hello"
    assert container["resources"]["limits"]["memory"] == "800Gi" and container["resources"]["requests"]["cpu"] == "8"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert template["metadata"]["labels"]["team"] == "infra" and template["metadata"]["annotations"]["note"] == "x"
    assert (pod["priorityClassName"], pod["schedulerName"]) == ("high", "kai-scheduler")
    script = container["command"][2]
    assert "MINE=yes" in script
    assert "NCCL_DEBUG=TRACE" in script and "NCCL_DEBUG=INFO" not in script and "NCCL_DEBUG=WARN" not in script


def test_a_variable_that_the_launcher_sets_is_refused_with_its_place() -> None:
    with pytest.raises(InputError) as error:
        plan({"test": "training/smoke", "workload": {"env": [{"name": "A", "value": "1"}, {"name": "WORLD_SIZE", "value": "3"}]}})
    assert error.value.place == "certification.categories[0].workload.env[1].name"


@pytest.mark.parametrize(
    ("test", "scale", "expected"),
    [
        ("communication/nccl-loopback", "intra-node", "ib"),
        ("communication/nccl-loopback-nvswitch", "intra-node", "nvlink"),
        ("communication/nccl-all-reduce", "intra-node", None),
    ],
)
def test_a_test_of_one_way_expects_that_way(test: str, scale: str, expected: str | None) -> None:
    category = plan({"test": test, "test_scale": scale})
    shown = {group["expected_transport"] for group in category["groups"]}
    assert shown == {expected} or (expected == "ib" and shown <= {"ib", "rdma"})
    assert category["measure"].get("require_transport_proof", False) == (expected is not None)


def test_a_loopback_of_ones_own_expectation_is_held_to_that() -> None:
    category = plan({"test": "communication/nccl-loopback", "test_scale": "intra-node", "expect_transport": "tcp"})
    assert {group["expected_transport"] for group in category["groups"]} == {"tcp"}


def test_a_test_that_measures_the_same_as_another_has_its_floors() -> None:
    same = [plan({"test": f"communication/nccl-{name}", "test_scale": "intra-node"}) for name in ("all-reduce", "loopback-nvswitch")]
    assert same[0]["criteria"] == same[1]["criteria"] != []


def test_a_test_with_criteria_of_its_own_is_judged_by_them_unless_the_user_names_others() -> None:
    own = plan({"test": "training/smoke", "test_scale": "intra-node", "options": {"steps": 20}})
    assert "measured.iterations >= 20" in own["criteria"][0] and own["floors"] is None
    other = plan({"test": "training/smoke", "test_scale": "intra-node", "criteria": ["measured.tflops_per_gpu > 1"]})
    assert other["criteria"] == ["measured.tflops_per_gpu > 1"]


def test_a_model_is_divided_as_the_gpu_wants_it_unless_the_user_says_otherwise() -> None:
    category = plan({"test": "training/nemotron5-8b", "test_scale": "full-scale"})
    (row,) = [item for item in category["explain"] if item["path"] == "options.tensor_parallel"]
    assert (row["value"], row["rule"]) == (2, "GPU h100") and {"rule": "entry default", "value": 1} in row["overridden"]
    assert "--tensor-model-parallel-size=2" in category["template"]["torch"]["args"]
    own = plan({"test": "training/nemotron5-8b", "test_scale": "full-scale", "options": {"tensor_parallel": 4}})
    assert "--tensor-model-parallel-size=4" in own["template"]["torch"]["args"]


@pytest.mark.parametrize(
    ("test", "scale", "options", "words"),
    [
        ("training/nemotron5-56b", "intra-node", {}, "needs at least 32 GPUs, and 1 node of 8 have 8"),
        ("training/nemotron5-56b", "full-scale", {}, "needs at least 32 GPUs, and 2 nodes of 8 have 16"),
        (
            "training/nemotron5-8b",
            "intra-node",
            {"tensor_parallel": 8, "pipeline_parallel": 2},
            "a multiple of tensor_parallel 8 x pipeline_parallel 2 = 16",
        ),
    ],
)
def test_a_model_that_no_group_can_hold_is_refused_with_the_arithmetic(test: str, scale: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(InputError) as error:
        plan({"test": test, "test_scale": scale, "options": options})
    assert words in str(error.value) and error.value.place == "certification.categories[0].test_scale"


def test_a_group_that_is_too_small_for_a_model_is_untested_beside_those_that_are_not() -> None:
    request = {"test": "training/nemotron5-56b", "test_scale": "full-scale", "group_size": 4}
    category = plan(request, nodes_per_rack=6)
    assert [len(group["nodes"]) for group in category["groups"]] == [4]
    assert len(category["untested"]) == 2 and "needs at least 32 GPUs" in category["untested"][0]["message"]


def test_no_fault_is_searched_for_in_parts_that_cannot_hold_the_model() -> None:
    category = plan({"test": "training/nemotron5-56b", "test_scale": "full-scale"}, nodes_per_rack=4)
    (row,) = [item for item in category["explain"] if item["path"] == "isolate"]
    assert category["isolate"] == row["value"] == "never"
    assert plan({"test": "training/nemotron5-8b", "test_scale": "full-scale"})["isolate"] == "auto"


def test_dcgm_is_held_to_every_gpu_of_the_node_and_every_test_of_the_level() -> None:
    category = plan({"test": "diagnostics/dcgm-level3", "test_scale": "intra-node"})
    assert (category["measure"]["dcgm_level"], category["measure"]["expected_gpus"]) == (3, 8)
    category = plan({"test": "diagnostics/dcgm-level3", "test_scale": "intra-node", "options": {"tests": "pcie,memory"}})
    assert category["measure"]["required_tests"] == ["pcie", "memory"]


def test_a_burn_and_copies_are_held_to_every_gpu_and_copies_to_every_test_that_was_asked_for() -> None:
    burn = plan({"test": "diagnostics/gemm-burn", "test_scale": "intra-node", "options": {"max_spread_percent": 25}})
    assert burn["measure"]["expected_gpus"] == 8 and burn["criteria"] == ["measured.errors == 0 && measured.gflops_spread <= 0.25"]
    copies = {
        "test": "communication/nvbandwidth",
        "test_scale": "intra-node",
        "options": {"tests": "host_to_device_memcpy_ce,device_to_device_memcpy_read_ce"},
    }
    assert plan(copies)["measure"]["required_tests"] == ["host_to_device_memcpy_ce", "device_to_device_memcpy_read_ce"]
    single = plan({**copies, "workload": {"gpus_per_node": 1}})
    assert single["measure"] == {**plan(copies)["measure"], "expected_gpus": 1, "required_tests": ["host_to_device_memcpy_ce"]}


def test_a_test_case_that_nvbandwidth_does_not_have_is_refused_before_anything_starts() -> None:
    with pytest.raises(InputError, match="device_to_host_memcpy_ce"):
        plan({"test": "communication/nvbandwidth", "test_scale": "intra-node", "options": {"tests": ["device_to_hosts"]}})


@pytest.mark.parametrize(
    ("test", "pods"),
    [
        ("diagnostics/dcgm-level1", "each"),
        ("communication/ib-write-bw", "each"),
        ("training/smoke", "ends"),
        ("communication/nccl-broadcast", None),
    ],
)
def test_the_logs_to_be_read_follow_from_whose_end_counts(test: str, pods: str | None) -> None:
    assert plan({"test": test, "test_scale": scale_of(test)})["measure"].get("pods") == pods


def test_a_group_larger_than_the_pool_is_refused_before_anything_is_created() -> None:
    with pytest.raises(InputError) as error:
        plan({"test": "communication/nccl-alltoall", "test_scale": "full-scale", "group_size": 3})
    assert error.value.place == "certification.categories[0].group_size" and "2 nodes" in error.value.render()
    pairs = plan({"test": "communication/nccl-alltoall", "test_scale": "full-scale", "group_size": 2})
    assert [len(group["nodes"]) for group in pairs["groups"]] == [2]


def test_a_scale_that_a_test_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="test scale"):
        plan({"test": "diagnostics/dcgm-level1", "test_scale": "full-scale"})


def test_repeats_are_counted_before_they_cost_anything() -> None:
    wanted = {"test": "communication/nccl-all-reduce", "test_scale": "intra-node"}
    once, thrice = whole_plan(wanted)["cost"], whole_plan({**wanted, "repeat": 3, "k_of_n": 2})["cost"]
    assert (once["groups"], once["runs"], thrice["groups"], thrice["runs"]) == (2, 2, 2, 6)
    assert thrice["gpu_hours_max"] == pytest.approx(3 * once["gpu_hours_max"], abs=0.2) and once["gpu_hours_max"] > 1
    category = plan({**wanted, "repeat": 3, "k_of_n": 2})
    assert (category["repeat"], category["k_of_n"]) == (3, 2)
