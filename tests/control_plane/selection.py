# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Which tests a genuine control plane is asked: all but those marked "simulator". A conftest takes these hooks by importing them."""

from __future__ import annotations

import os

import pytest

GENUINE = os.environ.get("READINESS_BACKEND", "simulated") == "control_plane"


def pytest_configure(config: pytest.Config) -> None:
    """Here and not in pyproject.toml, which "ansible-test units" does not read."""
    text = "asks a genuine control plane nothing, or nothing new; left out with READINESS_BACKEND=control_plane"
    config.addinivalue_line("markers", f"simulator: {text}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what a genuine control plane is not asked."""
    if GENUINE:
        left_out = [item for item in items if item.get_closest_marker("simulator")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
