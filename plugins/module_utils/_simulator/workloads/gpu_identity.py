# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What tells one simulated GPU from another: the same in the output of every program."""

from __future__ import annotations

import typing as t
import uuid

from .context import Context


class GpuIdentity(t.NamedTuple):
    """serial: as on its board; uuid: as the driver says it; bus_id: domain:bus:device.function."""

    serial: str
    uuid: str
    bus_id: str


def gpu_identity(context: Context, gpu: int) -> GpuIdentity:
    """Of a GPU of the pod's node, by its number."""
    chance = context.hardware.chance("serial", context.pod.node, gpu)
    serial = f"165{chance.randrange(10**10):010d}"
    return GpuIdentity(serial, f"GPU-{uuid.UUID(int=chance.getrandbits(128))}", f"00000000:{0x18 + 0x12 * gpu:02X}:00.0")
