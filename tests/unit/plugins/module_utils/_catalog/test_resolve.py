# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Network settings decide whether a run measures the fabric or the pod network; each must say where it comes from."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.merge import merge
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.nics import detect_nic_resource, is_candidate
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.resolve import resolve_network
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError

CATALOG = load_catalog([str(pathlib.Path(__file__).resolve().parents[5] / "catalog")])
MODELS = sorted(row["name"] for row in CATALOG["gpus"])


def nodes(count: int, nics: dict[str, int], gpus: int = 8) -> list[dict[str, t.Any]]:
    return [{"name": f"n{index}", "target": True, "findings": [], "gpu": {"allocatable": gpus}, "nics": nics} for index in range(count)]


def resolve(platform: str | None, model: str | None, user: t.Any = None, **options: t.Any) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    settings, explain = resolve_network(platform, model, CATALOG, user, **options)
    return settings, {entry["path"]: entry for entry in explain}


def env(settings: dict[str, t.Any]) -> dict[str, str]:
    return {item["name"]: item["value"] for item in settings["env"]}


@pytest.mark.parametrize("model", ["h100", "h200", "h20", "h20-3e", "h800", "a100", "a800", "b200", "b300", "l40", None])
def test_every_onprem_gpu_finds_its_network_card(model: str | None) -> None:
    settings, explain = resolve("onprem", model, nodes=nodes(4, {"rdma/hca_shared_devices": 8}))
    assert settings["nic_resource"] == "rdma/hca_shared_devices" and settings["nics_per_node"] >= 4
    assert explain["nic_resource"]["rule"] == "detected" and "only RDMA resource" in explain["nic_resource"]["note"]


@pytest.mark.parametrize(
    "name",
    [
        "rdma/ib",
        "nvidia.com/mlnxnics",
        "nvidia.com/sriov_rdma_vf",
        "nvidia.com/hostdev",
        "openshift.io/mlxnics",
        "mellanox.com/cx7",
        "intel.com/sriov_roce",
    ],
)
def test_names_of_rdma_device_plugins(name: str) -> None:
    assert is_candidate(name)


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "cpu",
        "hugepages-2Mi",
        "intel.com/qat",
        "nvidia.com/GA102GL_A10",
        "vpc.amazonaws.com/efa",
    ],
)
def test_other_resources_are_no_network_cards(name: str) -> None:
    assert not is_candidate(name)


def test_several_none_and_too_few_request_nothing_and_say_why() -> None:
    for offered, words in (({"rdma/a": 8, "rdma/b": 8}, "several"), ({}, "no node offers"), ({"rdma/a": 0}, "no node offers")):
        settings, explain = resolve("onprem", "h100", nodes=nodes(3, offered))
        assert settings["nic_resource"] is None and settings["nics_per_node"] == 0 and words in explain["nic_resource"]["note"]
    uneven = nodes(3, {"rdma/a": 8}) + [{**nodes(1, {"rdma/a": 7})[0], "name": "short"}]
    settings, explain = resolve("onprem", "h100", nodes=uneven)
    assert settings["nic_resource"] is None and "fewest on short" in explain["nic_resource"]["note"]


def test_nodes_that_are_not_to_be_tested_have_no_say() -> None:
    bad = {**nodes(1, {"rdma/a": 7})[0], "findings": [{"reason": "x"}]}
    off = {**nodes(1, {})[0], "target": False}
    assert resolve("onprem", "h100", nodes=[*nodes(3, {"rdma/a": 8}), bad, off])[0]["nic_resource"] == "rdma/a"


def test_shared_places_are_asked_for_once() -> None:
    settings, _rest = resolve("onprem", "h100", nodes=nodes(3, {"rdma/ib": 63}))
    assert (settings["nic_resource"], settings["nics_per_node"]) == ("rdma/ib", 1)


def test_number_asked_for_by_the_user_is_not_bent() -> None:
    assert detect_nic_resource(nodes(3, {"rdma/a": 4}), 8)[:2] == ("rdma/a", 4)
    assert detect_nic_resource(nodes(3, {"rdma/a": 4}), 8, strict=True)[0] is None


def test_more_specific_rule_beats_less_specific_and_is_explained() -> None:
    settings, explain = resolve("oci", "gb300")
    assert env(settings)["NCCL_IB_SPLIT_DATA_ON_QPS"] == "1"
    entry = explain["env.NCCL_IB_SPLIT_DATA_ON_QPS"]
    assert entry["rule"] == "oci/roce-gb300" and entry["overridden"] == [{"rule": "oci/roce", "value": "0"}]


def test_user_beats_all_and_null_takes_away() -> None:
    settings, explain = resolve("oci", "gb300", {"env": [{"name": "NCCL_IB_TC", "value": "106"}, {"name": "NCCL_IB_SL", "value": None}]})
    assert env(settings)["NCCL_IB_TC"] == "106" and "NCCL_IB_SL" not in env(settings)
    assert explain["env.NCCL_IB_TC"]["rule"] == "user options" and explain["env.NCCL_IB_TC"]["overridden"] == [
        {"rule": "oci/roce", "value": "41"}
    ]


def test_short_options_for_interface_adapters_and_gid() -> None:
    settings, _rest = resolve("oci", "gb300", {"socket_interface": "bond0", "hca": "mlx5_0,mlx5_1", "gid_index": 5})
    values = env(settings)
    assert (values["NCCL_SOCKET_IFNAME"], values["NCCL_IB_HCA"], values["NCCL_IB_GID_INDEX"]) == ("bond0", "mlx5_0,mlx5_1", "5")
    args = " ".join(settings["mpirun_args"])
    assert "--mca btl_tcp_if_include bond0" in args and "--mca oob_tcp_if_include bond0" in args and "eth0" not in args
    settings, _rest = resolve("oci", "gb300", {"socket_interface": "bond0", "env": {"NCCL_SOCKET_IFNAME": "eth9"}})
    assert env(settings)["NCCL_SOCKET_IFNAME"] == "eth9"


def test_host_path_access_needs_privilege_and_the_devices() -> None:
    settings, _rest = resolve("onprem", "h100", {"rdma_device_access": "hostPath"})
    assert settings["security"]["privileged"] is True and settings["security"]["capabilities"] == ["IPC_LOCK"]
    assert settings["volumes"][0]["hostPath"]["path"] == settings["volume_mounts"][0]["mountPath"] == "/dev/infiniband"


def test_annotation_is_repeated_once_per_card_and_left_out_with_none() -> None:
    key = "k8s.v1.cni.cncf.io/networks"
    assert resolve("oci", "gb300")[0]["annotations"][key] == ",".join(["network-operator/sriov-net"] * 4)
    assert key not in resolve("oci", "gb200")[0]["annotations"]
    assert key not in resolve("oci", "h100", {"nics_per_node": 0})[0]["annotations"]


def test_claims_by_dra_carry_the_number_of_cards() -> None:
    settings, _rest = resolve("aws", "gb300")
    assert settings["nic_resource"] is None and settings["resource_claims"][0]["count"] == 8 and "FI_PROVIDER" not in env(settings)


def test_dma_buf_is_off_only_without_mnnvl() -> None:
    assert "NCCL_DMABUF_ENABLE" not in env(resolve("oci", "gb300")[0])
    assert env(resolve("oci", "gb300", {"mnnvl": False})[0])["NCCL_DMABUF_ENABLE"] == "0"


def test_peer_level_follows_the_number_of_gpus() -> None:
    assert env(resolve("gcp", "rtxpro6000", nodes=nodes(2, {}, 8))[0])["NCCL_P2P_LEVEL"] == "SYS"
    assert env(resolve("gcp", "rtxpro6000", nodes=nodes(2, {}, 4))[0])["NCCL_P2P_LEVEL"] == "PHB"


def test_cloud_instance_with_fewer_cards_asks_for_what_it_has() -> None:
    settings, explain = resolve("aws", "h100", nodes=nodes(2, {"vpc.amazonaws.com/efa": 1}, 1))
    assert settings["nics_per_node"] == 1 and "the table says 32" in explain["nics_per_node"]["note"]


def test_platform_whose_card_is_missing_looks_for_another() -> None:
    settings, explain = resolve("azure", "h200", nodes=nodes(2, {"rdma/ib_hca": 8}))
    assert settings["nic_resource"] == "rdma/ib_hca" and "no node offers nvidia.com/mlnxnics" in explain["nic_resource"]["note"]


def test_a_server_with_more_cards_than_its_usual_form_uses_them() -> None:
    settings, _rest = resolve("azure", "rtxpro6000", nodes=nodes(2, {"nvidia.com/mlnxnics": 4}))
    assert (settings["nic_resource"], settings["nics_per_node"], settings["transport"]) == ("nvidia.com/mlnxnics", 4, "ib")


def test_a_server_without_cards_is_not_asked_for_the_platforms_fabric() -> None:
    """It can only use TCP: to expect InfiniBand of it would fail every healthy group."""
    settings, explain = resolve("azure", "rtxpro6000", nodes=nodes(2, {}))
    assert settings["nic_resource"] is None and settings["transport"] is None
    assert "no network card" in explain["transport"]["note"]


@pytest.mark.parametrize("model", ["h100", "h200", "b200"])
def test_gke_networks_are_joined_on_every_gpu_that_has_them(model: str) -> None:
    offered = {f"networking.gke.io.networks/rdma-{rail}": 1 for rail in range(8)}
    settings, _rest = resolve("gcp", model, nodes=nodes(2, offered))
    assert settings["transport"] == "roce" and settings["resources"] == {name: "1" for name in offered}
    without, _rest = resolve("gcp", model, nodes=nodes(2, {}))
    assert without["transport"] == ("tcpxo" if model == "h100" else None) and not without["resources"]


def test_first_generation_of_nscale_makes_no_claims() -> None:
    settings, _rest = resolve("nscale", "b200", nodes=nodes(2, {"nscale.com/rdmashare": 8}))
    assert settings["resource_claims"] == [] and settings["gpu_claim"] is None and settings["transport"] == "roce"


def test_platform_with_other_cards_than_usual_does_not_ask_them_for_its_usual_transport() -> None:
    """An AWS site on RoCE: to expect EFA of it would fail every healthy group."""
    settings, explain = resolve("aws", "l40", nodes=nodes(2, {"rdma/hca_shared_devices": 8}))
    assert settings["nic_resource"] == "rdma/hca_shared_devices" and settings["transport"] is None
    assert explain["transport"]["overridden"][0]["value"] == "efa" and "instead of" in explain["transport"]["note"]
    without, _rest = resolve("aws", "l40", nodes=nodes(2, {}))
    assert without["transport"] == "efa", "nodes without any card do not meet the platform's promise"


@pytest.mark.parametrize(("platform", "model"), [("forge", "h100"), ("forge", "b200"), (None, "h100"), ("gcp", "a100")])
def test_platform_without_a_rule_for_a_gpu_looks_for_a_card(platform: str | None, model: str) -> None:
    """A pod that asks for no card measures TCP at a hundredth of the speed, and nothing would expect more of it."""
    settings, explain = resolve(platform, model, nodes=nodes(4, {"rdma/hca_shared_devices": 8}))
    assert settings["nic_resource"] == "rdma/hca_shared_devices" and settings["nics_per_node"] == 8
    assert explain["nic_resource"]["rule"] == "detected"


def test_unknown_platform_gives_the_base_and_the_users_options() -> None:
    settings, _rest = resolve(None, "h100", {"env": {"A": "b"}})
    assert settings["env"] == [{"name": "A", "value": "b"}] and settings["security"]["capabilities"] == ["IPC_LOCK"]


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"nic_resorce": "rdma/x"}, "Did you mean 'nic_resource'"),
        ({"nic_resource": "kubernetes.io/x"}, "not the name of an extended resource"),
        ({"nic_resource": "rdma/" + "x" * 64}, "not the name of an extended resource"),
        ({"rdma_device_access": "hostpath"}, "Did you mean 'hostPath'"),
    ],
)
def test_wrong_options_are_told(user: dict[str, t.Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve("onprem", "h100", user)
    assert words in caught.value.render()


def test_merge_names_every_loser_strongest_first() -> None:
    values, explain = merge([("a", {"x": 1}), ("b", {"x": 2}), ("c", {"x": 3})])
    assert values == {("x", ""): 3}
    assert explain == [{"path": "x", "value": 3, "rule": "c", "overridden": [{"rule": "b", "value": 2}, {"rule": "a", "value": 1}]}]


@given(
    platform=st.sampled_from(sorted(CATALOG["platforms"])),
    model=st.sampled_from([*MODELS, None]),
    nics=st.dictionaries(
        st.sampled_from(["rdma/a", "nvidia.com/mlnxnics", "vpc.amazonaws.com/efa", "rdma/ib"]), st.integers(0, 64), max_size=2
    ),
    mnnvl=st.sampled_from([None, True, False]),
)
def test_settings_always_hold_together(platform: str, model: str | None, nics: dict[str, int], mnnvl: bool | None) -> None:
    settings, explain = resolve(platform, model, {"mnnvl": mnnvl}, nodes=nodes(2, nics))
    names = [item["name"] for item in settings["env"]]
    assert len(names) == len(set(names)) and all(isinstance(item["value"], str) for item in settings["env"])
    assert settings["nic_resource"] is None or settings["nics_per_node"] >= 1
    for name, value in env(settings).items():
        assert explain[f"env.{name}"]["value"] == value
