# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurement filters as plays call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.gpu_cluster.readiness.plugins.filter import dcgm, log_profiles, tools, training

PLUGINS = Path(__file__).parents[4] / "plugins" / "filter"
FILTERS = {name: call for module in (dcgm, log_profiles, tools, training) for name, call in module.FilterModule().filters().items()}


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_every_filter_is_documented(name: str) -> None:
    """Without its sidecar a filter is invisible to ansible-doc."""
    text = yaml.safe_load((PLUGINS / f"{name}.yml").read_text())
    assert text["DOCUMENTATION"]["name"] == name
    assert name in text["EXAMPLES"]


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_errors_name_the_filter_and_the_file(name: str) -> None:
    with pytest.raises(AnsibleFilterError, match=rf"gpu_cluster\.readiness\.{name}: .*nowhere\.log"):
        FILTERS[name](["/nonexistent/nowhere.log"], {"profile": "nccl"})
    with pytest.raises(AnsibleFilterError, match="path of a log"):
        FILTERS[name]([], {"profile": "nccl"})


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_an_empty_log_is_never_good_and_always_json(name: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    said = FILTERS[name](str(tmp_path / "log"), {"exit_code": 0, "profile": "gpu-burn"})
    assert said["verdict"] in ("NoMeasurement", "LogIncomplete")
    assert said["complete"] is False
    json.dumps(said, allow_nan=False)


def test_a_profile_must_be_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    with pytest.raises(AnsibleFilterError, match="must name a log profile"):
        FILTERS["log_profile_results"](str(tmp_path / "log"), {})
