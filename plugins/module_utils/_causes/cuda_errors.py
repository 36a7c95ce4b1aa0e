# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What CUDA's own error texts say about the part at fault: the set-up of a machine, or a GPU.

Names are those of `CUresult` and `cudaError_t`, sentences those of cuGetErrorString and cudaGetErrorString. A text that is in neither
row (an illegal address, a launch failure) accuses nobody: a program does that to itself.
"""

from __future__ import annotations

import re

SETUP = re.compile(
    r"system not yet initialized|SYSTEM_NOT_READY"  # the fabric manager is not running
    r"|unsupported display driver|SYSTEM_DRIVER_MISMATCH|driver version is insufficient|INSUFFICIENT_DRIVER|version mismatch"
    r"|no CUDA-capable device|NO_DEVICE\b|\bno CUDA devices|invalid device ordinal|ERROR_INVALID_DEVICE|not enough devices"
    r"|no kernel image is available|NO_BINARY_FOR_GPU|kernel image is invalid|INVALID_IMAGE|INVALID_PTX|UNSUPPORTED_PTX"
    r"|PTX.{0,40}unsupported toolchain|PTX JIT compil|JIT_COMPILER_NOT_FOUND"
    r"|devices? (?:is|are) busy or unavailable|DEVICE_UNAVAILABLE|out of memory|OUT_OF_MEMORY"
    r"|operation not permitted|NOT_PERMITTED|operation not supported|NOT_SUPPORTED|MPS client|CUDA_ERROR_MPS_"
    r"|file not found|FILE_NOT_FOUND|SHARED_OBJECT_",
    re.IGNORECASE,
)
HARDWARE = re.compile(
    r"uncorrectable ECC|ECC_UNCORRECTABLE|uncorrectable NVLink|NVLINK_UNCORRECTABLE|fallen off the bus|GPU is lost|GPU_IS_LOST"
    r"|hardware stack error|HARDWARE_STACK_ERROR|uncontained|CONTAINED",
    re.IGNORECASE,
)


def is_setup(text: str) -> bool:
    """Whether an error text tells of the set-up of the machine and of nothing worse."""
    return bool(SETUP.search(text)) and not is_hardware(text)


def is_hardware(text: str) -> bool:
    """Whether an error text tells of a broken GPU or link."""
    return bool(HARDWARE.search(text))
