# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""How nodes of the known platforms look: provider id, labels, NIC resources.

A platform is one `Platform` in `PLATFORMS`. Only what can be seen through the Kubernetes API differs between them; bandwidths
follow from the GPU product and the fabric.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

from .gpus import GpuProduct

FABRICS = ("ib", "roce", "efa", "tcp")


@dataclasses.dataclass(frozen=True)
class Seat:
    """Where a node sits: what platform labels are made from."""

    name: str
    rack: str
    rack_number: int
    number: int  # inside the rack
    gpu: GpuProduct

    def digest(self, length: int, salt: str = "") -> str:
        """Stable hexadecimal digits for ids of this node."""
        return hashlib.sha256(f"{salt}/{self.name}".encode()).hexdigest()[:length]

    def rack_digest(self, length: int, salt: str = "") -> str:
        """The same for its rack."""
        return hashlib.sha256(f"{salt}/{self.rack}".encode()).hexdigest()[:length]


@dataclasses.dataclass(frozen=True)
class Platform:
    """One platform.

    fabric:      the fabric when the definition names none.
    provider_id: spec.providerID of a node, "" where the platform sets none.
    labels:      labels beyond those every node has.
    nics:        extended resources of a node with an RDMA fabric, name -> count.
    """

    name: str
    fabric: str
    provider_id: Callable[[Seat], str]
    labels: Callable[[Seat], dict[str, str]]
    nics: Callable[[GpuProduct], dict[str, int]]


def _zone(region: str, zone: str, instance_type: str) -> dict[str, str]:
    return {
        "topology.kubernetes.io/region": region,
        "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": instance_type,
    }


def _instance(table: dict[str, str], gpu: GpuProduct, other: str) -> str:
    """The instance type of a GPU, by the model inside the product name."""
    return next((value for key, value in table.items() if key in gpu.product), other)


_AWS_TYPES = {
    "H100": "p5.48xlarge",
    "H200": "p5en.48xlarge",
    "A100": "p4d.24xlarge",
    "B200": "p6-b200.48xlarge",
    "B300": "p6-b300.48xlarge",
    "GB200": "p6e-gb200.36xlarge",
    "L40S": "g6e.48xlarge",
    "L4": "g6.48xlarge",
    "V100": "p3dn.24xlarge",
}
_GCP_TYPES = {
    "GB200": "a4x-highgpu-4g",
    "GB300": "a4x-maxgpu-4g-metal",
    "B200": "a4-highgpu-8g",
    "H200": "a3-ultragpu-8g",
    "H100": "a3-megagpu-8g",
    "A100": "a2-ultragpu-8g",
    "L4": "g2-standard-96",
}
_AZURE_TYPES = {
    "GB200": "Standard_ND128isr_NDR_GB200_v6",
    "GB300": "Standard_ND128isr_GB300_v6",
    "H100": "Standard_ND96isr_H100_v5",
    "H200": "Standard_ND96isr_H200_v5",
    "A100": "Standard_ND96asr_v4",
}
_OCI_TYPES = {
    "GB200": "BM.GPU.GB200.4",
    "GB300": "BM.GPU.GB300.4",
    "B200": "BM.GPU.B200.8",
    "H200": "BM.GPU.H200.8",
    "H100": "BM.GPU.H100.8",
    "A100": "BM.GPU.A100-v2.8",
    "L40S": "BM.GPU.L40S.4",
}


def _sorted_by_length(table: dict[str, str]) -> dict[str, str]:
    """Longer model names first, so that GB200 is not taken for B200, nor L40S for L4."""
    return {key: table[key] for key in sorted(table, key=len, reverse=True)}


_AWS_TYPES, _GCP_TYPES, _AZURE_TYPES, _OCI_TYPES = map(_sorted_by_length, (_AWS_TYPES, _GCP_TYPES, _AZURE_TYPES, _OCI_TYPES))


def _aws_labels(seat: Seat) -> dict[str, str]:
    return {
        **_zone("us-east-1", "us-east-1a", _instance(_AWS_TYPES, seat.gpu, "p5.48xlarge")),
        "eks.amazonaws.com/nodegroup": "gpu",
        "eks.amazonaws.com/capacityType": "CAPACITY_BLOCK",
        "topology.k8s.aws/network-node-layer-1": "nn-" + seat.rack_digest(17, "layer1"),
        "topology.k8s.aws/network-node-layer-2": "nn-" + seat.rack_digest(17, f"layer2-{seat.rack_number // 4}"),
        "topology.k8s.aws/zone-id": "use1-az1",
    }


def _gcp_labels(seat: Seat) -> dict[str, str]:
    return {
        **_zone("us-central1", "us-central1-a", _instance(_GCP_TYPES, seat.gpu, "a3-megagpu-8g")),
        "cloud.google.com/gke-nodepool": "gpu",
        "cloud.google.com/gke-gpu": "true",
        "cloud.google.com/gke-accelerator": seat.gpu.product.lower(),
        "cloud.google.com/gce-topology-block": seat.rack_digest(32, f"block-{seat.rack_number // 4}"),
        "cloud.google.com/gce-topology-subblock": seat.rack_digest(32, "subblock"),
        "cloud.google.com/gce-topology-host": seat.digest(32, "host"),
    }


def _azure_labels(seat: Seat) -> dict[str, str]:
    return {
        **_zone("eastus", "eastus-1", _instance(_AZURE_TYPES, seat.gpu, "Standard_ND96isr_H100_v5")),
        "agentpool": "gpu",
        "kubernetes.azure.com/agentpool": "gpu",
        "kubernetes.azure.com/accelerator": "nvidia",
        "kubernetes.azure.com/ppg": f"ppg-{seat.rack}",
    }


def _oci_labels(seat: Seat) -> dict[str, str]:
    return {
        **_zone("iad", "US-ASHBURN-AD-1", _instance(_OCI_TYPES, seat.gpu, "BM.GPU.H100.8")),
        "oci.oraclecloud.com/rdma.local_block_id": seat.rack_digest(11, "local"),
        "oci.oraclecloud.com/rdma.network_block_id": seat.rack_digest(11, f"network-{seat.rack_number // 4}"),
        "oci.oraclecloud.com/rdma.hpc_island_id": "island1",
    }


def _site_labels(seat: Seat) -> dict[str, str]:
    return _zone("dc1", "dc1-a", "gpu-server")


def _azure_id(seat: Seat) -> str:
    scale_set = f"aks-gpu-{seat.rack_digest(8)}-vmss"
    return (
        "azure:///subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/gpu/providers/Microsoft.Compute/"
        f"virtualMachineScaleSets/{scale_set}/virtualMachines/{seat.number}"
    )


def _gke_networks(gpu: GpuProduct) -> dict[str, int]:
    return {f"networking.gke.io.networks/rdma-{rail}": 1 for rail in range(gpu.nics)}


def _nothing(seat: Seat) -> str:
    return ""


def _shared_devices(gpu: GpuProduct) -> dict[str, int]:
    return {"rdma/hca_shared_devices_a": gpu.nics}


def _mlnx_nics(gpu: GpuProduct) -> dict[str, int]:
    return {"nvidia.com/mlnxnics": gpu.nics}


def _rdma_ib(gpu: GpuProduct) -> dict[str, int]:
    return {"rdma/ib": gpu.nics}


def _efa(gpu: GpuProduct) -> dict[str, int]:
    return {"vpc.amazonaws.com/efa": gpu.efa_nics}


def _oci_id(seat: Seat) -> str:
    return f"ocid1.instance.oc1.iad.{seat.digest(60)}"


def _nscale_labels(seat: Seat) -> dict[str, str]:
    return {**_site_labels(seat), "topology.nks.nscale.com/accelerator-domain": seat.rack_digest(12)}


def _together_labels(seat: Seat) -> dict[str, str]:
    return {**_site_labels(seat), "node-role.together.ai/worker": ""}


def _forge_labels(seat: Seat) -> dict[str, str]:
    return {**_site_labels(seat), "nke.nvidia.com/site-name": "site1"}


def _nscale_nics(gpu: GpuProduct) -> dict[str, int]:
    return {"nscale.com/rdmashare": gpu.nics}


_ALL = (
    Platform("onprem", "ib", _nothing, _site_labels, _shared_devices),
    Platform("aws", "efa", lambda seat: f"aws:///us-east-1a/i-{seat.digest(17)}", _aws_labels, _efa),
    Platform("gcp", "roce", lambda seat: f"gce://gpu-project/us-central1-a/{seat.name}", _gcp_labels, _gke_networks),
    Platform("azure", "ib", _azure_id, _azure_labels, _mlnx_nics),
    Platform("oci", "roce", _oci_id, _oci_labels, _mlnx_nics),
    Platform("nscale", "roce", lambda seat: f"nscale://{seat.digest(32)}", _nscale_labels, _nscale_nics),
    Platform("togetherai", "ib", lambda seat: f"kubevirt://{seat.name}", _together_labels, _rdma_ib),
    Platform("mistral", "ib", lambda seat: f"metal3://metal3/{seat.name}/{seat.digest(32)}", _site_labels, _rdma_ib),
    Platform("forge", "ib", _nothing, _forge_labels, _shared_devices),
)

PLATFORMS: dict[str, Platform] = {platform.name: platform for platform in _ALL}
