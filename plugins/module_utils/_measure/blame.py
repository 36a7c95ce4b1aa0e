# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What an error text of a program speaks against, by the one table of evidence. A text that is not in it accuses nobody."""

from __future__ import annotations

from .._catalog.load import shipped_evidence

_NO_FAULT_OF_A_GPU = ("setup", "busy", "configuration", "inconclusive")


def is_hardware(text: str) -> bool:
    """Whether an error text tells of a broken GPU or link."""
    said = shipped_evidence().words(text)
    return said is not None and said.convicts


def is_setup(text: str) -> bool:
    """Whether an error text tells of the set-up of the machine and of nothing worse."""
    said = shipped_evidence().words(text)
    return said is not None and said.kind in _NO_FAULT_OF_A_GPU
