# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters give plain data and name themselves in their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpu_cluster.readiness.plugins.filter.nccl import FilterModule

CASES = Path(__file__).parents[3] / "vectors" / "cases" / "logs"
FILTERS = FilterModule().filters()


def test_results_are_plain_data() -> None:
    """A template can print, store and compare them."""
    said = FILTERS["nccl_results"](str(CASES / "n27-roce-gdr-partial.log"), {"exit_code": 0, "expect_gdr": True})
    assert json.loads(json.dumps(said)) == said
    assert (said["verdict"], said["transport"]["class"]) == ("TransportFallback", "roce")


def test_transport_of_several_files() -> None:
    assert FILTERS["nccl_transport"]([str(CASES / "n28-efa-libfabric.log")])["class"] == "efa"


@pytest.mark.parametrize("paths", [[], "", None, 7, [""], [None]])
def test_input_that_is_no_path(paths: object) -> None:
    with pytest.raises(AnsibleFilterError, match="gpu_cluster.readiness.nccl_results"):
        FILTERS["nccl_results"](paths)


def test_unreadable_file_is_named() -> None:
    with pytest.raises(AnsibleFilterError, match="/nonexistent.log"):
        FILTERS["nccl_transport"]("/nonexistent.log")
