# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The GPU products that a simulated node can carry.

Bandwidths are GB/s (10^9 B/s) of bus bandwidth at 8 GiB on healthy hardware; they follow published figures. A new
product is one row of `_ROWS`.
"""

from __future__ import annotations

import dataclasses

from ..._common.errors import unknown_value


@dataclasses.dataclass(frozen=True)
class GpuProduct:
    """One GPU product as it is sold in one kind of server.

    product:       value of the label nvidia.com/gpu.product
    family:        value of the label nvidia.com/gpu.family
    compute:       compute capability, (major, minor)
    memory_mib:    value of the label nvidia.com/gpu.memory
    gpus_per_node: GPUs of one node
    ring_gb_s:     all-reduce inside one node without NVLink SHARP
    nvls_gb_s:     the same with NVLink SHARP (NVLS), None where the hardware has none
    nics:          RDMA devices (rails) of one node
    nic_gb_s:      line rate of one rail
    efa_nics:      EFA devices of the AWS instance with this GPU
    hbm_gb_s:      memory bandwidth
    tflops:        dense BF16 TFLOP/s that training sustains
    clique_nodes:  nodes of one NVLink domain when NVLink spans nodes (NVL72: 18), else 0
    mnnvl_gb_s:    all-reduce over NVLink between nodes of one domain
    nvlink:        False for PCIe cards: peers talk over PCIe or shared memory
    """

    product: str
    family: str
    compute: tuple[int, int]
    memory_mib: int
    gpus_per_node: int
    ring_gb_s: float
    nvls_gb_s: float | None
    nics: int
    nic_gb_s: float
    efa_nics: int
    hbm_gb_s: float
    tflops: float
    clique_nodes: int = 0
    mnnvl_gb_s: float = 0.0
    nvlink: bool = True

    @property
    def device_name(self) -> str:
        """The name the driver prints: blanks where the label has hyphens, except inside a model number."""
        return _DEVICE_NAMES.get(self.product, self.product.replace("-", " "))


_DEVICE_NAMES = {
    "NVIDIA-H20-3e": "NVIDIA H20-3e",
    "NVIDIA-A100-SXM4-80GB": "NVIDIA A100-SXM4-80GB",
    "NVIDIA-A100-SXM4-40GB": "NVIDIA A100-SXM4-40GB",
    "NVIDIA-A800-SXM4-80GB": "NVIDIA A800-SXM4-80GB",
    "Tesla-V100-SXM2-32GB": "Tesla V100-SXM2-32GB",
    "Tesla-V100-SXM3-32GB": "Tesla V100-SXM3-32GB",
}


_ROWS = (
    GpuProduct("NVIDIA-H100-80GB-HBM3", "hopper", (9, 0), 81559, 8, ring_gb_s=366, nvls_gb_s=481,
               nics=8, nic_gb_s=50, efa_nics=32, hbm_gb_s=3350, tflops=410),
    GpuProduct("NVIDIA-H100-NVL", "hopper", (9, 0), 95830, 8, ring_gb_s=240, nvls_gb_s=None,
               nics=4, nic_gb_s=50, efa_nics=4, hbm_gb_s=3900, tflops=330),
    GpuProduct("NVIDIA-H200", "hopper", (9, 0), 143771, 8, ring_gb_s=368, nvls_gb_s=483,
               nics=8, nic_gb_s=50, efa_nics=16, hbm_gb_s=4800, tflops=420),
    GpuProduct("NVIDIA-H800", "hopper", (9, 0), 81559, 8, ring_gb_s=165, nvls_gb_s=215,
               nics=8, nic_gb_s=50, efa_nics=8, hbm_gb_s=3350, tflops=400),
    GpuProduct("NVIDIA-H20", "hopper", (9, 0), 97871, 8, ring_gb_s=366, nvls_gb_s=474,
               nics=8, nic_gb_s=50, efa_nics=8, hbm_gb_s=4000, tflops=110),
    GpuProduct("NVIDIA-H20-3e", "hopper", (9, 0), 143771, 8, ring_gb_s=366, nvls_gb_s=476,
               nics=8, nic_gb_s=50, efa_nics=8, hbm_gb_s=4800, tflops=110),
    GpuProduct("NVIDIA-A100-SXM4-80GB", "ampere", (8, 0), 81920, 8, ring_gb_s=231, nvls_gb_s=None,
               nics=8, nic_gb_s=25, efa_nics=4, hbm_gb_s=2039, tflops=180),
    GpuProduct("NVIDIA-A100-SXM4-40GB", "ampere", (8, 0), 40960, 8, ring_gb_s=229, nvls_gb_s=None,
               nics=8, nic_gb_s=25, efa_nics=4, hbm_gb_s=1555, tflops=180),
    GpuProduct("NVIDIA-A800-SXM4-80GB", "ampere", (8, 0), 81920, 8, ring_gb_s=154, nvls_gb_s=None,
               nics=8, nic_gb_s=25, efa_nics=4, hbm_gb_s=2039, tflops=180),
    GpuProduct("NVIDIA-B200", "blackwell", (10, 0), 183359, 8, ring_gb_s=660, nvls_gb_s=838,
               nics=8, nic_gb_s=50, efa_nics=8, hbm_gb_s=8000, tflops=900),
    GpuProduct("NVIDIA-B300-SXM6-AC", "blackwell", (10, 3), 275040, 8, ring_gb_s=695, nvls_gb_s=845,
               nics=8, nic_gb_s=100, efa_nics=16, hbm_gb_s=8000, tflops=950),
    GpuProduct("NVIDIA-GB200", "blackwell", (10, 0), 189471, 4, ring_gb_s=640, nvls_gb_s=820,
               nics=4, nic_gb_s=50, efa_nics=4, hbm_gb_s=8000, tflops=950, clique_nodes=18, mnnvl_gb_s=842),
    GpuProduct("NVIDIA-GB300", "blackwell", (10, 3), 284208, 4, ring_gb_s=650, nvls_gb_s=826,
               nics=4, nic_gb_s=100, efa_nics=8, hbm_gb_s=8000, tflops=1000, clique_nodes=18, mnnvl_gb_s=845),
    GpuProduct("NVIDIA-GH200-480GB", "hopper", (9, 0), 97871, 1, ring_gb_s=0, nvls_gb_s=None,
               nics=1, nic_gb_s=50, efa_nics=1, hbm_gb_s=4000, tflops=410),
    GpuProduct("Tesla-V100-SXM2-32GB", "volta", (7, 0), 32768, 8, ring_gb_s=128, nvls_gb_s=None,
               nics=4, nic_gb_s=12.5, efa_nics=1, hbm_gb_s=900, tflops=60),
    GpuProduct("NVIDIA-L40S", "ada-lovelace", (8, 9), 46068, 8, ring_gb_s=22, nvls_gb_s=None,
               nics=4, nic_gb_s=25, efa_nics=1, hbm_gb_s=864, tflops=150, nvlink=False),
    GpuProduct("NVIDIA-L40", "ada-lovelace", (8, 9), 46068, 8, ring_gb_s=21, nvls_gb_s=None,
               nics=4, nic_gb_s=25, efa_nics=1, hbm_gb_s=864, tflops=90, nvlink=False),
    GpuProduct("NVIDIA-L20", "ada-lovelace", (8, 9), 46068, 8, ring_gb_s=21, nvls_gb_s=None,
               nics=4, nic_gb_s=25, efa_nics=1, hbm_gb_s=864, tflops=60, nvlink=False),
    GpuProduct("NVIDIA-L4", "ada-lovelace", (8, 9), 23034, 8, ring_gb_s=11, nvls_gb_s=None,
               nics=1, nic_gb_s=12.5, efa_nics=1, hbm_gb_s=300, tflops=50, nvlink=False),
    GpuProduct("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "blackwell", (12, 0), 97887, 8, ring_gb_s=42, nvls_gb_s=None,
               nics=4, nic_gb_s=50, efa_nics=4, hbm_gb_s=1597, tflops=250, nvlink=False),
)  # fmt: skip

PRODUCTS: dict[str, GpuProduct] = {row.product: row for row in _ROWS}

# Short names people use, e.g. in a definition written by hand.
_SHORT = {
    "h100": "NVIDIA-H100-80GB-HBM3",
    "a100": "NVIDIA-A100-SXM4-80GB",
    "a800": "NVIDIA-A800-SXM4-80GB",
    "b300": "NVIDIA-B300-SXM6-AC",
    "gh200": "NVIDIA-GH200-480GB",
    "v100": "Tesla-V100-SXM2-32GB",
    "rtxpro6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    **{row.product.removeprefix("NVIDIA-").lower(): row.product for row in _ROWS},
}


def product(name: str, place: str = "gpu") -> GpuProduct:
    """The product of a label value (NVIDIA-H100-80GB-HBM3) or of a short name (h100). Unknown names raise InputError."""
    found = PRODUCTS.get(name) or PRODUCTS.get(_SHORT.get(name.lower(), ""))
    if found is None:
        raise unknown_value("GPU product", name, PRODUCTS, place)
    return found
