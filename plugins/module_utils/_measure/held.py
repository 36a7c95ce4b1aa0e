# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A log in memory that goes wherever the path of a log goes."""

from __future__ import annotations


class HeldLog(str):
    """The path that stands for it, and its text as bytes in `data`."""

    __slots__ = ("data",)

    data: bytes

    def __new__(cls, path: str, text: str) -> HeldLog:
        made = super().__new__(cls, path)
        made.data = text.encode("utf-8")
        return made
