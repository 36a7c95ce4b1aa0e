# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Words for people."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun in the right form."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number} {noun if number == 1 else plural}"
