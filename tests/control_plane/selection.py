# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which tests a genuine control plane is asked: not those marked "simulator", and those marked "long" only where there is time for them
(READINESS_LONG, as "make test-control-plane" has it). A conftest takes these hooks by importing them."""

from __future__ import annotations

import os

import pytest

GENUINE = os.environ.get("READINESS_BACKEND", "simulated") == "control_plane"


def pytest_configure(config: pytest.Config) -> None:
    """Here and not in pyproject.toml, which "ansible-test units" does not read."""
    text = "asks a genuine control plane nothing, or nothing new; left out with READINESS_BACKEND=control_plane"
    config.addinivalue_line("markers", f"simulator: {text}")
    config.addinivalue_line("markers", "long: the same, unless READINESS_LONG is set: minutes on a genuine control plane")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what a genuine control plane is not asked."""
    if GENUINE:
        unwanted = ["simulator"] if os.environ.get("READINESS_LONG") else ["simulator", "long"]
        left_out = [item for item in items if any(map(item.get_closest_marker, unwanted))]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
