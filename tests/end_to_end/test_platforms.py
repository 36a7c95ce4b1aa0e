# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Each platform asks for other devices, volumes and settings: an API server takes all of their manifests, and their pods run."""

from __future__ import annotations

import pytest

# platform → a GPU that it offers
PLATFORMS = {
    "onprem": "NVIDIA-H100-80GB-HBM3",
    "aws": "NVIDIA-H200",
    "gcp": "NVIDIA-H100-80GB-HBM3",
    "azure": "NVIDIA-H100-80GB-HBM3",
    "oci": "NVIDIA-H100-80GB-HBM3",
    "nscale": "NVIDIA-B200",
    "togetherai": "NVIDIA-B200",
    "mistral": "NVIDIA-GB300",
    "forge": "NVIDIA-H100-80GB-HBM3",
}


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_the_server_takes_what_is_rendered_for_a_platform(start_cluster, platform):
    cluster = start_cluster(platform=platform, gpu=PLATFORMS[platform], racks=1, nodes_per_rack=2)
    scales = [(scale, ["measured.bus_bandwidth > 0"]) for scale in ("intra-node", "intra-rack")]
    result = cluster.certify(*scales, options={"max_bytes": "1G", "min_bytes": "64M", "iterations": 20})
    assert result.status == 0, result.output
    assert [category["verdict"] for category in result.report["categories"]] == ["passed", "passed"]
    assert cluster.objects_of_ours() == []
