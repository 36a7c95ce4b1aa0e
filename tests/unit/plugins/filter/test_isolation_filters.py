# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The isolation filters take what a play has and give back plain data."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpu_cluster.readiness.plugins.filter.isolation import FilterModule

FILTERS = FilterModule().filters()
NODES = [{"name": f"n{at:02d}", "domain": f"r{at // 8}"} for at in range(16)]


def answer(test: dict[str, t.Any]) -> dict[str, t.Any]:
    slow = "n03" in test["nodes"] and len(test["nodes"]) > 1
    return {"id": test["id"], "outcome": "measured", "value": 200.0 if slow else 400.0, "expected": 400.0, "passed": not slow}


def test_a_play_of_four_filters() -> None:
    step = FILTERS["isolation_next"](FILTERS["isolation_start"](NODES, {"max_concurrent": 4}))
    while step["wave"]:
        assert step["conclusion"] is None and step["progress"]["purposes"]
        step = json.loads(json.dumps(step))
        step = FILTERS["isolation_next"](step["state"], [answer(test) for test in step["wave"]])
    assert [(item["class"], item["nodes"]) for item in step["conclusion"]["suspects"]] == [("nic", ["n03"])]
    whole = FILTERS["isolation_conclusion"](step["state"])
    assert whole["verdict"] == "failed" and whole["tests"]
    assert FILTERS["isolation_svg"](whole, "Nightly").startswith("<svg")


def test_a_search_that_has_not_ended_is_no_pass() -> None:
    assert FILTERS["isolation_conclusion"](FILTERS["isolation_start"](NODES))["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("isolation_start", ([],)),
        ("isolation_start", (NODES, {"soak": 3})),
        ("isolation_next", ({},)),
        ("isolation_next", ("state",)),
        ("isolation_conclusion", ({"results": []},)),
        ("isolation_svg", ({},)),
    ],
)
def test_wrong_input_names_the_filter(name: str, arguments: tuple[t.Any, ...]) -> None:
    with pytest.raises(AnsibleFilterError, match=f"gpu_cluster.readiness.{name}"):
        FILTERS[name](*arguments)
