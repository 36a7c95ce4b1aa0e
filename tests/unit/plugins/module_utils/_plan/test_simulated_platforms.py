# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Every platform and GPU that can be simulated can be certified there: what pods ask for is what the nodes have."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.load import load_catalog
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._catalog.resolve import resolve_network
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._cluster import nodes, snapshot
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware import definition, gpus, platforms
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._simulator.hardware.model import Hardware

CATALOG = load_catalog([str(pathlib.Path(__file__).resolve().parents[5] / "catalog")])
UNITS = {"": 1, "Mi": 1 << 20, "Gi": 1 << 30}
# Networks of GKE exist for servers with eight rails and for GB200; the cards of AWS GB300 are handed out by DRA, which is not simulated.
WITHOUT_NETWORK = {"gcp": ("GH200", "H100-NVL", "L20", "L4", "RTX", "V100"), "aws": ("GB300",)}


def amount(text: t.Any) -> int:
    digits = str(text).rstrip("GMi")
    return int(digits) * UNITS[str(text)[len(digits) :]]


@pytest.mark.parametrize("platform", sorted(platforms.PLATFORMS))
def test_pods_ask_for_what_the_nodes_of_a_platform_have(platform: str) -> None:
    for product in gpus.PRODUCTS:
        hardware = Hardware(definition.parse({"platform": platform, "gpu": product, "racks": 1, "nodes_per_rack": 2}))
        objects = hardware.node_objects()
        for item in objects:
            item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        rows = snapshot.build_snapshot([(nodes.project(item, CATALOG), (None, "")) for item in objects], CATALOG, platform=platform)[
            "nodes"
        ]
        settings, _explain = resolve_network(platform, rows[0]["gpu"]["model"], CATALOG, nodes=rows)
        offered = objects[0]["status"]["allocatable"]
        for name, wanted in settings["resources"].items():
            assert amount(offered.get(name, 0)) >= amount(wanted), (platform, product, name)
        if any(word in product for word in WITHOUT_NETWORK.get(platform, ())):
            continue
        assert settings["resource_claims"] == [], (platform, product)
        networks = [name for name in settings["resources"] if "networks" in name]
        assert networks or 0 < settings["nics_per_node"] <= int(offered[settings["nic_resource"]]), (platform, product)
        fabric = hardware.nodes[rows[0]["name"]].fabric
        assert settings["transport"] in (None, "mnnvl", fabric), (platform, product, settings["transport"], fabric)
